"""Row-level security: a statement sees and writes the rows of the tenant that its transaction has set, and no others.

Where none is set, that is tenant 1, whose everything was before there were others: while there is no other tenant, no
transaction need say whose it is. FORCE holds for the owner of the tables too; superusers and roles with BYPASSRLS are
never held (docs/operations.md). A later migration that changes rows has to take FORCE away meanwhile.
"""

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

TABLES = (
    "responses",
    "response_bodies",
    "items",
    "conversations",
    "conversation_items",
    "usage",
    "idempotency_keys",
    "request_counts",
)


def upgrade() -> None:
    # An empty text is what a setting is that was set for a transaction before.
    tenant = "coalesce(nullif(current_setting('rejoinder.tenant_id', true), '')::bigint, 1)"
    for table in TABLES:
        op.execute(f"create policy of_the_tenant on {table} using (tenant_id = {tenant})")
        op.execute(f"alter table {table} enable row level security")
        op.execute(f"alter table {table} force row level security")


def downgrade() -> None:
    for table in TABLES:
        op.execute(f"alter table {table} no force row level security")
        op.execute(f"alter table {table} disable row level security")
        op.execute(f"drop policy of_the_tenant on {table}")
