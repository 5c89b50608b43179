"""From what a request names to what it builds on: the parent and its history."""

from server import errors
from server.protocol.items import Input, Item
from server.protocol.request import Request
from server.store.responses import Parent, Responses


async def past_of(
    responses: Responses, tenant_id: int, request: Request, given: Input
) -> tuple[Parent | None, list[list[Item]]]:
    """The response that the request continues, and the turns up to it, oldest first; at most one read.

    Raises ApiError: 400 for an unknown previous response, 404 for an unknown conversation or reference.
    """
    if request.conversation_id is not None:
        raise errors.conversation_not_found(request.conversation_id)
    if request.previous_response_id is None:
        parent, turns = None, list[list[Item]]()
    else:
        history = await responses.history(tenant_id, request.previous_response_id)
        if history is None:
            raise errors.previous_response_not_found(request.previous_response_id)
        parent, turns = history.parent, history.turns
    if given.references:
        raise errors.item_not_found(given.references[0])
    return parent, turns
