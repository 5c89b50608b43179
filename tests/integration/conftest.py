"""The fixtures by which these tests get the running server."""

from tests.application import application, emptied_database_url, shared_application, shared_database_url

__all__ = ["application", "emptied_database_url", "shared_application", "shared_database_url"]
