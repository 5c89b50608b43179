"""The ids that a conversation lists, beside their places: clients use an id again in each of their conversations.

Found by the id alone, an item of one conversation was looked for among those of all.
"""

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute('alter table conversation_items add column public_id text collate "C"')
    op.execute("""
        update conversation_items as link
        set public_id = item.public_id
        from items as item
        where item.tenant_id = link.tenant_id and item.id = link.item_id
    """)
    op.execute("alter table conversation_items alter column public_id set not null")
    op.execute("""
        create index conversation_items_public_id_idx on conversation_items (tenant_id, conversation_id, public_id)
    """)


def downgrade() -> None:
    op.execute("alter table conversation_items drop column public_id")
