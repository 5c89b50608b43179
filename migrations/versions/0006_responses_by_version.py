"""Responses by the version that they saw of their conversation: what was removed since can be named while one is there.

The index before, by the conversation alone, is the beginning of this one.
"""

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("""
        create index responses_conversation_version_idx
        on responses (tenant_id, conversation_id, conversation_version)
        where conversation_id is not null
    """)
    op.execute("drop index responses_conversation_id_idx")


def downgrade() -> None:
    op.execute("""
        create index responses_conversation_id_idx on responses (tenant_id, conversation_id)
        where conversation_id is not null
    """)
    op.execute("drop index responses_conversation_version_idx")
