"""How often a turn of this process begins with what the turn before it sent, and how often it does not, and why."""

from collections import Counter

from server.protocol.prefix import Sent


class Prefixes:
    """Counts of what `judge` said: `kept`, the reasons of `Sent.broken_by`, and where there is nothing to compare with
    `first`, for a turn without a history, or `unknown`.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def judge(self, sent: Sent, mark: bytes | None, *, has_history: bool) -> str:
        """What becomes of the prefix in this turn, several reasons with commas between. `mark` is the turn's before."""
        without = "unknown" if has_history else "first"
        said = [without] if mark is None else sent.broken_by(mark) or ["kept"]
        self.counts.update(said)
        return ",".join(said)
