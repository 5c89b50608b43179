"""Indexes by which a sweep finds what has expired, what was deleted, and which keys are old, without reading the rest.

Nothing is stored of when a response expires: that follows from when it was made and from a setting that may change.
"""

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("""
        create index responses_expiry_idx on responses (tenant_id, created_at)
        where deleted_at is null and conversation_id is null
    """)
    op.execute("create index responses_deleted_idx on responses (tenant_id, id) where deleted_at is not null")
    op.execute("create index conversations_deleted_idx on conversations (tenant_id, id) where deleted_at is not null")
    op.execute("create index idempotency_keys_created_at_idx on idempotency_keys (tenant_id, created_at)")


def downgrade() -> None:
    op.execute("drop index idempotency_keys_created_at_idx")
    op.execute("drop index conversations_deleted_idx")
    op.execute("drop index responses_deleted_idx")
    op.execute("drop index responses_expiry_idx")
