"""A statement: its text with parameters by name, and how the driver wants them, by number."""

from collections.abc import Mapping

from sqlalchemy import text
from sqlalchemy.dialects.postgresql import asyncpg

_DIALECT = asyncpg.dialect()  # type: ignore[no-untyped-call]


class Statement:
    """One statement of SQL, in which `:name` is a parameter. It is compiled once, when it is made."""

    def __init__(self, sql: str) -> None:
        compiled = text(sql).compile(dialect=_DIALECT)
        self.text = str(compiled)
        self._names: tuple[str, ...] = tuple(compiled.positiontup or ())

    def values(self, parameters: Mapping[str, object]) -> list[object]:
        """The parameters in the order of their numbers; those that the statement does not name are left out."""
        return [parameters[name] for name in self._names]
