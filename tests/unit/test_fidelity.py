"""What is recorded of an item: written as little as there is, and read again."""

import pytest

from server.protocol import fidelity
from server.protocol.fidelity import Fidelity


@pytest.mark.parametrize(
    ("recorded", "text"),
    [
        (Fidelity(), None),
        (Fidelity(reasoning_field="reasoning_content"), b'{"reasoning_field":"reasoning_content"}'),
        (
            Fidelity(reasoning_field="reasoning", reasoning_details=b'[{"text":"\\ud800","n":1.0}]'),
            b'{"reasoning_field":"reasoning","reasoning_details":[{"text":"\\ud800","n":1.0}]}',
        ),
    ],
)
def test_what_is_recorded_is_read_again(recorded: Fidelity, text: bytes | None) -> None:
    assert fidelity.write(recorded) == text
    assert fidelity.read(text) == recorded


def test_what_a_later_release_recorded_besides_is_passed_over() -> None:
    assert fidelity.read(b'{"later":[1],"reasoning_field":null}') == Fidelity()
