"""What clients do with conversations: make, read, edit and delete them."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeVar

from server import errors
from server.engine.aside import aside
from server.engine.history import Histories
from server.protocol import ids
from server.protocol.conversation import parse_metadata, parse_new_conversation, parse_new_items
from server.protocol.items import Item
from server.protocol.pages import PageRequest
from server.store.conversations import Conversation, Conversations, ListedItems

Found = TypeVar("Found")


class ConversationEdits:
    """Each method raises ApiError: 400 for a bad request or a locked conversation, 404 for an unknown one."""

    def __init__(
        self,
        conversations: Conversations,
        histories: Histories,
        *,
        json_depth_max: int,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._conversations = conversations
        self._histories = histories
        self._json_depth_max = json_depth_max
        self._now = now

    async def create(self, tenant_id: int, body: bytes) -> Conversation:
        asked = await aside(len(body), parse_new_conversation, body, self._json_depth_max)
        given = await self._histories.resolved(tenant_id, asked.items, "items")
        made = Conversation(public_id=ids.new_conversation_id(), metadata=asked.metadata, created_at=self._now())
        await self._conversations.add(tenant_id, made, given.items)
        return made

    async def get(self, tenant_id: int, conversation_id: str) -> Conversation:
        return _found(await self._conversations.get(tenant_id, conversation_id), conversation_id)

    async def set_metadata(self, tenant_id: int, conversation_id: str, body: bytes) -> Conversation:
        metadata = await aside(len(body), parse_metadata, body, self._json_depth_max)
        changed = await self._conversations.set_metadata(tenant_id, conversation_id, metadata)
        return _found(changed, conversation_id)

    async def delete(self, tenant_id: int, conversation_id: str) -> None:
        _found(await self._conversations.delete(tenant_id, conversation_id) or None, conversation_id)

    async def add_items(self, tenant_id: int, conversation_id: str, body: bytes) -> list[Item]:
        """The items as they were added, in order."""
        asked = await aside(len(body), parse_new_items, body, self._json_depth_max)
        given = await self._histories.resolved(tenant_id, asked, "items")
        _found(await self._conversations.add_items(tenant_id, conversation_id, given.items) or None, conversation_id)
        return given.items

    async def list_items(self, tenant_id: int, conversation_id: str, page: PageRequest) -> ListedItems:
        listed = await self._conversations.items(
            tenant_id, conversation_id, limit=page.limit, order=page.order, after=page.after
        )
        return _found(listed, conversation_id)

    async def get_item(self, tenant_id: int, conversation_id: str, item_id: str) -> Item:
        return _found(await self._conversations.item(tenant_id, conversation_id, item_id), conversation_id)

    async def remove_item(self, tenant_id: int, conversation_id: str, item_id: str) -> Conversation:
        changed = await self._conversations.remove_item(tenant_id, conversation_id, item_id)
        return _found(changed, conversation_id)


def _found(thing: Found | None, conversation_id: str) -> Found:
    if thing is None:
        raise errors.conversation_not_found(conversation_id)
    return thing
