"""From what a request names to its context: the parent, its history, references, and the request's own items."""

from server import errors
from server.protocol.context import Context, whole
from server.protocol.items import Item, parse_input
from server.protocol.request import Request
from server.store.responses import Parent, Responses


async def rehydrate(responses: Responses, tenant_id: int, request: Request) -> tuple[Parent | None, Context]:
    """The response that the request continues, and its whole context; at most one read.

    Raises ApiError: 400 for bad items, an unknown previous response or a broken context, 404 for unknown references.
    """
    parsed = parse_input(request.input)
    parent, turns = await _history(responses, tenant_id, request)
    if parsed.references:
        raise errors.item_not_found(parsed.references[0])
    return parent, whole(turns, parsed)


async def _history(responses: Responses, tenant_id: int, request: Request) -> tuple[Parent | None, list[list[Item]]]:
    if request.conversation_id is not None:
        raise errors.conversation_not_found(request.conversation_id)
    if request.previous_response_id is None:
        return None, []
    history = await responses.history(tenant_id, request.previous_response_id)
    if history is None:
        raise errors.previous_response_not_found(request.previous_response_id)
    return history.parent, history.turns
