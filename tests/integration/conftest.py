"""The fixture by which these tests get the running server."""

from tests.application import application

__all__ = ["application"]
