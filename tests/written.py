"""An upstream's request as it is written for its dialect, from what was decided of each item."""

from collections.abc import Sequence

from server.protocol.dialect import DIALECTS
from server.protocol.profile import Profile
from server.protocol.replay import Decision
from server.protocol.request import Request


def written(request: Request, response_id: str, decisions: Sequence[Decision], profile: Profile) -> bytes:
    dialect = DIALECTS[profile.dialect]
    before, behind = dialect.around(request, response_id, profile, None)
    return before + b",".join(dialect.elements(decisions, profile)) + behind
