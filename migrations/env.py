"""Runs migrations on the connection that `server.store.database` hands in, inside its transaction.

There is no offline mode and no logging set-up: the server itself migrates, and its logs are its own.
"""

from alembic import context

from server.store.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
