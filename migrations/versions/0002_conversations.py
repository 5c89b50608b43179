"""Conversations: lists of items that are edited, and that one turn at a time goes on from.

A link is never deleted: it is valid from the version that added it to the one that removed it, so that a response's
history stays what it was. Items that were added to a conversation belong to no response.
"""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("""
        create table conversations (
            tenant_id bigint not null,
            id bigint not null generated always as identity,
            public_id text collate "C" not null,
            metadata text not null,
            version bigint not null,
            next_position bigint not null,
            created_at timestamptz not null,
            deleted_at timestamptz,
            locked_by text collate "C",
            locked_until timestamptz,
            primary key (tenant_id, id),
            constraint conversations_public_id_key unique (tenant_id, public_id)
        )
    """)
    op.execute("""
        create table conversation_items (
            tenant_id bigint not null,
            conversation_id bigint not null,
            position bigint not null,
            item_id bigint not null,
            added_version bigint not null,
            removed_version bigint,
            primary key (tenant_id, conversation_id, position),
            constraint conversation_items_conversation_id_fkey
                foreign key (tenant_id, conversation_id) references conversations (tenant_id, id) on delete cascade,
            constraint conversation_items_item_id_fkey
                foreign key (tenant_id, item_id) references items (tenant_id, id)
        )
    """)
    op.execute("create index conversation_items_item_id_idx on conversation_items (tenant_id, item_id)")
    op.execute("alter table items alter column response_id drop not null")
    op.execute("""
        alter table responses
            add column conversation_id bigint,
            add column conversation_version bigint,
            add constraint responses_conversation_id_fkey
                foreign key (tenant_id, conversation_id) references conversations (tenant_id, id)
    """)
    op.execute("""
        create index responses_conversation_id_idx on responses (tenant_id, conversation_id)
        where conversation_id is not null
    """)


def downgrade() -> None:
    # What belongs to no response has no place in the schema before, so responses lose what they saw in a conversation.
    op.execute("alter table responses drop column conversation_id, drop column conversation_version")
    op.execute("drop table conversation_items, conversations")
    op.execute("delete from items where response_id is null")
    op.execute("alter table items alter column response_id set not null")
