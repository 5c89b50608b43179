"""Workers that tell each other what they have counted: one that is silent is left out, and holds nobody up for long."""

import contextlib
import time

from server.cli.figures import ANSWER_MAX_S, Figures, meeting_places
from server.metrics import Metrics


async def test_a_worker_that_hangs_is_left_out() -> None:
    places = meeting_places(3)
    with contextlib.ExitStack() as opened:
        for place in places:
            opened.enter_context(place)
        first, second = (Figures(places, number, Metrics()) for number in (1, 2))
        async with first.told_within(contextlib.nullcontext()), second.told_within(contextlib.nullcontext()):
            began_s = time.monotonic()
            # Nobody takes the connection to the third.
            text = (await first.text()).decode()
            assert ANSWER_MAX_S <= time.monotonic() - began_s < ANSWER_MAX_S + 5
    for name in ("rejoinder_history_items_count", "rejoinder_history_bytes_count"):
        assert [line for line in text.splitlines() if line.startswith(name)] == [
            f'{name}{{worker="1"}} 0.0',
            f'{name}{{worker="2"}} 0.0',
        ]
