"""Idempotency keys: which request a key was first sent with, and the response that it got.

Whether that request is done is told by its response, which is stored or not; `claimed_until` says how long its process
may still be at it.
"""

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("""
        create table idempotency_keys (
            tenant_id bigint not null,
            key text collate "C" not null,
            body_hash text collate "C" not null,
            response_public_id text collate "C" not null,
            created_at timestamptz not null,
            claimed_until timestamptz not null,
            primary key (tenant_id, key)
        )
    """)


def downgrade() -> None:
    op.execute("drop table idempotency_keys")
