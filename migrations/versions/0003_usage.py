"""What turns cost: one row a turn whose model server told it, kept when the response is deleted.

No key leads to the response, which may be gone: the row stands for itself.
"""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("""
        create table usage (
            tenant_id bigint not null,
            id bigint not null generated always as identity,
            response_public_id text collate "C" not null,
            upstream text collate "C" not null,
            model text collate "C" not null,
            status text collate "C" not null,
            input_tokens bigint not null,
            cached_tokens bigint not null,
            output_tokens bigint not null,
            reasoning_tokens bigint not null,
            created_at timestamptz not null,
            ended_at timestamptz not null,
            primary key (tenant_id, id)
        )
    """)
    op.execute("create index usage_ended_at_idx on usage (tenant_id, ended_at)")


def downgrade() -> None:
    op.execute("drop table usage")
