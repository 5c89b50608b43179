"""The schema as this release expects it, for Alembic to compare with what the migrations have built.

Nothing is queried through these tables: the statements are text, in `sql/`. The tenant leads every key, so that no
index and no foreign key can reach across tenants; those of tenants and keys alone are read before it is known. Ids
compare byte by byte (`collate "C"`), whatever the database's own collation is. A body is `text`, never `jsonb`, which
reorders, rewrites and refuses (DESIGN 4).
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    ForeignKeyConstraint,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    text,
)

metadata = MetaData()


def _name(name: str, *, nullable: bool = False) -> Column[str]:
    return Column(name, Text(collation="C"), nullable=nullable)


# Narrow, for a walk up the chain reads nothing else; the key carries all that a step needs.
responses = Table(
    "responses",
    metadata,
    Column("tenant_id", BigInteger, nullable=False),
    Column("id", BigInteger, Identity(), nullable=False),
    _name("public_id"),
    Column("parent_id", BigInteger),
    Column("root_id", BigInteger, nullable=False),
    Column("depth", Integer, nullable=False),
    _name("status"),
    _name("model"),
    _name("upstream"),
    Column("created_at", DateTime(timezone=True), nullable=False),
    Column("completed_at", DateTime(timezone=True)),
    Column("deleted_at", DateTime(timezone=True)),
    Column("conversation_id", BigInteger),
    Column("conversation_version", BigInteger),
    Column("prefix_mark", LargeBinary),
    PrimaryKeyConstraint("tenant_id", "id", postgresql_include=["parent_id", "depth", "status"]),
    UniqueConstraint("tenant_id", "public_id", name="responses_public_id_key"),
    ForeignKeyConstraint(
        ["tenant_id", "parent_id"], ["responses.tenant_id", "responses.id"], name="responses_parent_id_fkey"
    ),
    ForeignKeyConstraint(
        ["tenant_id", "conversation_id"],
        ["conversations.tenant_id", "conversations.id"],
        name="responses_conversation_id_fkey",
    ),
    Index("responses_parent_id_idx", "tenant_id", "parent_id"),
    Index(
        "responses_conversation_version_idx",
        "tenant_id",
        "conversation_id",
        "conversation_version",
        postgresql_where=text("conversation_id is not null"),
    ),
    # For the sweep: what may expire, by age, and what was deleted.
    Index(
        "responses_expiry_idx",
        "tenant_id",
        "created_at",
        postgresql_where=text("deleted_at is null and conversation_id is null"),
    ),
    Index("responses_deleted_idx", "tenant_id", "id", postgresql_where=text("deleted_at is not null")),
)

# The response object without its output, which is in the items.
response_bodies = Table(
    "response_bodies",
    metadata,
    Column("tenant_id", BigInteger, nullable=False),
    Column("response_id", BigInteger, nullable=False),
    Column("body", Text, nullable=False),
    PrimaryKeyConstraint("tenant_id", "response_id"),
    ForeignKeyConstraint(
        ["tenant_id", "response_id"],
        ["responses.tenant_id", "responses.id"],
        name="response_bodies_response_id_fkey",
        ondelete="CASCADE",
    ),
)

# One row an item of the turn that brought it, or of a conversation that it was added to, and then of no response. Its
# public id is no key: clients mint ids, and upstreams reuse them.
items = Table(
    "items",
    metadata,
    Column("tenant_id", BigInteger, nullable=False),
    Column("id", BigInteger, Identity(always=True), nullable=False),
    Column("response_id", BigInteger),
    Column("position", Integer, nullable=False),
    Column("is_output", Boolean, nullable=False),
    _name("public_id"),
    _name("type"),
    _name("call_id", nullable=True),
    Column("body", Text, nullable=False),
    Column("fidelity", Text),
    _name("issuer", nullable=True),
    PrimaryKeyConstraint("tenant_id", "id"),
    UniqueConstraint("tenant_id", "response_id", "position", name="items_position_key"),
    ForeignKeyConstraint(
        ["tenant_id", "response_id"],
        ["responses.tenant_id", "responses.id"],
        name="items_response_id_fkey",
        ondelete="CASCADE",
    ),
    Index("items_public_id_idx", "tenant_id", "public_id", text("id desc")),
)

# `version` counts the changes of the list. `locked_by` is the token of the turn with the lease, until `locked_until`.
conversations = Table(
    "conversations",
    metadata,
    Column("tenant_id", BigInteger, nullable=False),
    Column("id", BigInteger, Identity(always=True), nullable=False),
    _name("public_id"),
    Column("metadata", Text, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("next_position", BigInteger, nullable=False),
    Column("created_at", DateTime(timezone=True), nullable=False),
    Column("deleted_at", DateTime(timezone=True)),
    _name("locked_by", nullable=True),
    Column("locked_until", DateTime(timezone=True)),
    Column("prefix_mark", LargeBinary),
    PrimaryKeyConstraint("tenant_id", "id"),
    UniqueConstraint("tenant_id", "public_id", name="conversations_public_id_key"),
    Index("conversations_deleted_idx", "tenant_id", "id", postgresql_where=text("deleted_at is not null")),
)

# A key is done when its response is stored; until then its process has it until `claimed_until`.
idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    Column("tenant_id", BigInteger, nullable=False),
    _name("key"),
    _name("body_hash"),
    _name("response_public_id"),
    Column("created_at", DateTime(timezone=True), nullable=False),
    Column("claimed_until", DateTime(timezone=True), nullable=False),
    PrimaryKeyConstraint("tenant_id", "key"),
    Index("idempotency_keys_created_at_idx", "tenant_id", "created_at"),
)

# `limits` is JSON, of what holds for this tenant instead of the settings. `cache_salt` is a secret of the server's own.
tenants = Table(
    "tenants",
    metadata,
    Column("id", BigInteger, Identity(), nullable=False),
    _name("name"),
    Column("created_at", DateTime(timezone=True), nullable=False),
    Column("limits", Text, nullable=False),
    _name("cache_salt"),
    PrimaryKeyConstraint("id"),
    UniqueConstraint("name", name="tenants_name_key"),
)

# A key is named by its first characters, and known by its hash. The row stays when it is revoked.
api_keys = Table(
    "api_keys",
    metadata,
    _name("prefix"),
    Column("hash", LargeBinary, nullable=False),
    Column("tenant_id", BigInteger, nullable=False),
    Column("created_at", DateTime(timezone=True), nullable=False),
    Column("last_used_at", DateTime(timezone=True)),
    Column("revoked_at", DateTime(timezone=True)),
    PrimaryKeyConstraint("prefix"),
    ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="api_keys_tenant_id_fkey"),
    Index("api_keys_tenant_id_idx", "tenant_id"),
)

# How many requests of its last minute a key has sent to all processes; of an open tenant the prefix is empty.
request_counts = Table(
    "request_counts",
    metadata,
    Column("tenant_id", BigInteger, nullable=False),
    _name("key_prefix"),
    Column("minute", BigInteger, nullable=False),
    Column("requests", BigInteger, nullable=False),
    PrimaryKeyConstraint("tenant_id", "key_prefix"),
)

# What turns cost. No key leads to the response: the row stays when that is gone.
usage = Table(
    "usage",
    metadata,
    Column("tenant_id", BigInteger, nullable=False),
    Column("id", BigInteger, Identity(always=True), nullable=False),
    _name("response_public_id"),
    _name("upstream"),
    _name("model"),
    _name("status"),
    Column("input_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    Column("reasoning_tokens", BigInteger, nullable=False),
    Column("created_at", DateTime(timezone=True), nullable=False),
    Column("ended_at", DateTime(timezone=True), nullable=False),
    PrimaryKeyConstraint("tenant_id", "id"),
    Index("usage_ended_at_idx", "tenant_id", "ended_at"),
)

# A link is in the list from `added_version` on, up to the version before `removed_version`; it is never deleted, so
# that the history of every response stays what it was. It has the public id of its item, to be found by: the same id
# may be that of an item in every conversation there is.
conversation_items = Table(
    "conversation_items",
    metadata,
    Column("tenant_id", BigInteger, nullable=False),
    Column("conversation_id", BigInteger, nullable=False),
    Column("position", BigInteger, nullable=False),
    Column("item_id", BigInteger, nullable=False),
    _name("public_id"),
    Column("added_version", BigInteger, nullable=False),
    Column("removed_version", BigInteger),
    PrimaryKeyConstraint("tenant_id", "conversation_id", "position"),
    ForeignKeyConstraint(
        ["tenant_id", "conversation_id"],
        ["conversations.tenant_id", "conversations.id"],
        name="conversation_items_conversation_id_fkey",
        ondelete="CASCADE",
    ),
    ForeignKeyConstraint(
        ["tenant_id", "item_id"], ["items.tenant_id", "items.id"], name="conversation_items_item_id_fkey"
    ),
    Index("conversation_items_item_id_idx", "tenant_id", "item_id"),
    Index("conversation_items_public_id_idx", "tenant_id", "conversation_id", "public_id"),
)
