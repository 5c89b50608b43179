"""The Postgres that needs no set-up: its lifecycle, what must be there before it starts, and the process that owns it.

Servers on one data directory share one instance; nothing here knows SQLAlchemy or the schema.
"""

from server.embedded.installation import EmbeddedPostgresError
from server.embedded.lifecycle import EmbeddedPostgres

__all__ = ["EmbeddedPostgres", "EmbeddedPostgresError"]
