"""A response with all that continues it, deleted as one.

Deletion is a mark, as that of a single response is; the rows go with a sweep. The tree is read once and marked from its
leaves up in bounded statements, the named response last: what was cut short can be asked for again.
"""

from typing import Final

from server import errors
from server.store.database import Database
from server.store.statement import Statement

MARKED_MAX: Final = 1000
"""How many responses one statement marks."""

# Through those that are deleted already, since what continued them is not. A step demands the next depth, so that a
# cycle ends. The newest come first: they are the leaves.
_TREE: Final = Statement("""
with recursive tree as (
    select id, depth, deleted_at
    from responses
    where tenant_id = :tenant_id and public_id = :public_id and deleted_at is null
    union all
    select later.id, later.depth, later.deleted_at
    from tree cross join lateral (
        select id, depth, deleted_at
        from responses
        where tenant_id = :tenant_id and parent_id = tree.id and depth = tree.depth + 1 and :with_descendants
        offset 0
    ) as later
)
select id from tree where deleted_at is null order by depth desc, id desc
""")

_MARK: Final = Statement("""
update responses
set deleted_at = clock_timestamp()
where tenant_id = :tenant_id and id = any(cast(:ids as bigint[])) and deleted_at is null
returning id
""")


class Trees:
    """The responses of all tenants, with what continues them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def delete(self, tenant_id: int, public_id: str, *, with_descendants: bool, is_dry_run: bool) -> int:
        """How many responses were made unreachable, or would be.

        A turn that is in flight meanwhile is none of them: it goes on with the history it began with, and is stored.
        Raises `errors.response_not_found` and `errors.store_unavailable`.
        """
        named = {"tenant_id": tenant_id, "public_id": public_id, "with_descendants": with_descendants}
        ids = [row["id"] for row in await self._database.run(_TREE, named)]
        if not ids:
            raise errors.response_not_found(public_id)
        if is_dry_run:
            return len(ids)
        count = 0
        for first in range(0, len(ids), MARKED_MAX):
            marked = {"tenant_id": tenant_id, "ids": ids[first : first + MARKED_MAX]}
            count += len(await self._database.run(_MARK, marked))
        return count
