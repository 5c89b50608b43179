"""The routes under /v1/conversations."""

import contextlib
from collections.abc import Iterator

from litestar import Response, delete, post

from server import errors
from server.api import auth, wire
from server.api.wire import AnyRequest
from server.engine.conversations import ConversationEdits
from server.errors import ApiError
from server.protocol import ids, pages
from server.protocol.conversation import conversation_object, deleted_conversation_object
from server.protocol.shown import shown
from server.store.conversations import Conversation
from server.telemetry import Telemetry


@post("/v1/conversations", status_code=200)
async def create_conversation(request: AnyRequest) -> Response[bytes]:
    with _logged(request, "conversation_created") as line:
        made = await _edits(request).create(auth.tenant_id(request), await _body(request))
        line["conversation_id"] = made.public_id
    return _shown(made)


@wire.get("/v1/conversations/{conversation_id:str}")
async def retrieve_conversation(request: AnyRequest) -> Response[bytes]:
    return _shown(await _edits(request).get(auth.tenant_id(request), _conversation_id(request)))


@post("/v1/conversations/{conversation_id:str}", status_code=200)
async def update_conversation(request: AnyRequest) -> Response[bytes]:
    """The metadata is replaced whole."""
    with _logged(request, "metadata_replaced"):
        tenant_id, conversation_id = auth.tenant_id(request), _conversation_id(request)
        return _shown(await _edits(request).set_metadata(tenant_id, conversation_id, await _body(request)))


@delete("/v1/conversations/{conversation_id:str}", status_code=200)
async def delete_conversation(request: AnyRequest) -> Response[bytes]:
    with _logged(request, "conversation_deleted"):
        conversation_id = _conversation_id(request)
        await _edits(request).delete(auth.tenant_id(request), conversation_id)
    return wire.json_response(deleted_conversation_object(conversation_id))


@post("/v1/conversations/{conversation_id:str}/items", status_code=200)
async def add_items(request: AnyRequest) -> Response[bytes]:
    with _logged(request, "items_added") as line:
        tenant_id, conversation_id = auth.tenant_id(request), _conversation_id(request)
        items = await _edits(request).add_items(tenant_id, conversation_id, await _body(request))
        line["items"] = len(items)
    return wire.json_response(pages.envelope(items, has_more=False))


@wire.get("/v1/conversations/{conversation_id:str}/items")
async def list_items(request: AnyRequest) -> Response[bytes]:
    query = request.query_params
    page = pages.parse_page_request(query.get("limit"), query.get("order"), query.get("after"))
    listed = await _edits(request).list_items(auth.tenant_id(request), _conversation_id(request), page)
    return wire.json_response(pages.envelope(listed.items, has_more=listed.has_more))


@wire.get("/v1/conversations/{conversation_id:str}/items/{item_id:str}")
async def retrieve_item(request: AnyRequest) -> Response[bytes]:
    item = await _edits(request).get_item(auth.tenant_id(request), _conversation_id(request), _item_id(request))
    return wire.json_response(shown(item))


@delete("/v1/conversations/{conversation_id:str}/items/{item_id:str}", status_code=200)
async def delete_item(request: AnyRequest) -> Response[bytes]:
    """The answer is the conversation, as the SDKs expect (contract api.md 1, row 15)."""
    with _logged(request, "item_removed"):
        tenant_id, conversation_id = auth.tenant_id(request), _conversation_id(request)
        return _shown(await _edits(request).remove_item(tenant_id, conversation_id, _item_id(request)))


ROUTES = [
    create_conversation,
    retrieve_conversation,
    update_conversation,
    delete_conversation,
    add_items,
    list_items,
    retrieve_item,
    delete_item,
]


@contextlib.contextmanager
def _logged(request: AnyRequest, event: str) -> Iterator[dict[str, str | int]]:
    """A line about an edit, carried out as `event` or refused; what it is given besides is in a line of the first kind.

    An id of an item is its client's own words, and so may be what stands in the place of a conversation's.
    """
    telemetry: Telemetry = request.app.state.telemetry
    named = request.path_params.get("conversation_id", "")
    line: dict[str, str | int] = {"conversation_id": named} if ids.is_conversation_id(named) else {}
    try:
        yield line
    except ApiError as error:
        log = telemetry.warning if error.status >= 500 else telemetry.info
        log("edit_refused", edit=event, **line, status=error.status, code=error.code)
        raise
    telemetry.info(event, **line)


def _shown(conversation: Conversation) -> Response[bytes]:
    return wire.json_response(
        conversation_object(conversation.public_id, conversation.metadata, conversation.created_at)
    )


async def _body(request: AnyRequest) -> bytes:
    return await wire.read_body(request.scope, request.receive, request.app.state.body_bytes_max)


def _conversation_id(request: AnyRequest) -> str:
    """The id in the path; one that can't be any conversation's is unknown like any other."""
    conversation_id = wire.path_text(request, "conversation_id")
    if not ids.is_usable(conversation_id):
        raise errors.conversation_not_found("(unprintable)")
    return conversation_id


def _item_id(request: AnyRequest) -> str:
    item_id = wire.path_text(request, "item_id")
    if not ids.is_usable(item_id):
        raise errors.listed_item_not_found("(unprintable)")
    return item_id


def _edits(request: AnyRequest) -> ConversationEdits:
    edits: ConversationEdits = request.app.state.conversations
    return edits
