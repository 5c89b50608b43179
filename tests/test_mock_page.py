"""The page on the mock names every member of a reply, and its example is a script."""

import re
from pathlib import Path

from server.mock import Reply, load_script

PAGE = (Path(__file__).parent.parent / "docs/mock.md").read_text(encoding="utf-8")


def test_every_member_of_a_reply_is_told() -> None:
    rows = [line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == set(Reply.__struct_fields__)


def test_the_example_is_a_script_of_two_replies() -> None:
    [example] = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    first, second = load_script(example.encode())
    assert first.json["output"][0]["name"] == "look"
    assert second.json["output"][0]["content"][0]["text"] == "Done."
