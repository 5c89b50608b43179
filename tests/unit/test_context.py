"""Contexts: which call each output answers, and what makes a context not whole."""

import json
from typing import Any

import msgspec
import pytest

from server.errors import ApiError
from server.protocol import raw
from server.protocol.context import Context, is_assistants, is_call, is_cut, whole
from server.protocol.history import Past
from server.protocol.items import Item, from_upstream, parse_input

USER = {"role": "user", "content": "go"}
ANSWER = {"role": "assistant", "content": "here"}
REASONING = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}


def call(call_id: str | None, kind: str = "function", **members: Any) -> dict[str, Any]:
    specific = {"function": {"name": "f", "arguments": "{}"}, "custom": {"name": "p", "input": "i"}}
    item_type = {"custom": "custom_tool_call"}.get(kind, f"{kind}_call")
    return {"type": item_type, "call_id": call_id, **specific.get(kind, {}), **members}


def output(call_id: str | None, kind: str = "function", **members: Any) -> dict[str, Any]:
    item_type = {"custom": "custom_tool_call_output"}.get(kind, f"{kind}_call_output")
    return {"type": item_type, "call_id": call_id, "output": "o", **members}


def made(*items: dict[str, Any]) -> list[Item]:
    """A stored turn that an upstream put out."""
    return [
        from_upstream(raw.Object(json.dumps(item).encode()), item.get("id") or f"made_{id(item)}", "gpu-1")
        for item in items
    ]


def brought(*items: dict[str, Any]) -> list[Item]:
    """A stored turn's input."""
    return parse_input(json.dumps(items).encode()).items


def context(*items: dict[str, Any], history: tuple[list[Item], ...] = ()) -> Context:
    return whole(Past(turns=history), parse_input(json.dumps(items).encode()))


def answers(made_context: Context) -> dict[int, int]:
    """By the position of an output that of the call which it answers."""
    positions = {id(item): position for position, item in enumerate(made_context.items())}
    return {position: positions[id(call)] for position, call in made_context.answers.items()}


def refused(*items: dict[str, Any], history: tuple[list[Item], ...] = ()) -> ApiError:
    with pytest.raises(ApiError) as caught:
        context(*items, history=history)
    assert (caught.value.status, caught.value.type, caught.value.param) == (400, "invalid_request_error", "input")
    return caught.value


# --- turns


def test_a_context_is_history_and_input_in_their_order() -> None:
    history = ([*brought(USER), *made(ANSWER)], [*brought(USER), *made(REASONING, ANSWER)])
    made_context = context(USER, history=history)
    assert [len(turn) for turn in made_context.turns] == [2, 3, 1]
    assert made_context.items()[:5] == [item for turn in history for item in turn]
    assert (answers(made_context), made_context.answered) == ({}, frozenset())


@pytest.mark.parametrize("nothing", ['""', "[]", "[ ]"])
@pytest.mark.parametrize("history", [(), ([],), ([], [])], ids=["no history", "an empty turn", "two empty turns"])
def test_a_context_without_an_item_leaves_nothing_to_answer(nothing: str, history: tuple[list[Item], ...]) -> None:
    """contract api.md 2: a failed turn adds nothing, so a history can be empty too."""
    with pytest.raises(ApiError) as caught:
        whole(Past(turns=history), parse_input(nothing.encode()))
    error = caught.value
    assert (error.status, error.param, error.code) == (400, "input", "missing_required_parameter")
    assert error.message == (
        "One of \"input\" or \"previous_response_id\" or 'prompt' or 'conversation' must be provided."
    )


@pytest.mark.parametrize("nothing", ['""', "[]"])
def test_an_empty_input_goes_on_from_a_history(nothing: str) -> None:
    history = [[*brought(USER), *made(ANSWER)]]
    assert whole(Past(turns=history), parse_input(nothing.encode())).turns == [*history, []]


# --- ids


def test_an_id_that_the_history_has_is_refused_by_name() -> None:
    """B008."""
    history = ([*brought(USER), *made({**ANSWER, "id": "m1"})],)
    error = refused({"type": "message", "id": "m1", **ANSWER}, {"role": "user", "content": "again"}, history=history)
    assert error.code == "invalid_value"
    assert "'m1'" in error.message


def test_an_id_that_the_client_brought_before_is_refused_by_name() -> None:
    assert "'u1'" in refused({**USER, "id": "u1"}, history=(brought({**USER, "id": "u1"}),)).message


def test_equal_items_without_ids_are_taken_literally() -> None:
    """B004, B008: equal text is never a reason to drop or refuse an item."""
    history = ([*brought(USER), *made(ANSWER)],)
    assert [item.body for item in context(ANSWER, USER, USER, history=history).items()[2:]] == [
        json.dumps(item).encode() for item in (ANSWER, USER, USER)
    ]


def test_ids_that_an_upstream_uses_again_are_no_fault() -> None:
    same = {**ANSWER, "id": "msg_0"}
    assert len(context(USER, history=(made(same), made(same), made(same, same))).items()) == 5


# --- which call an output answers


def test_an_output_answers_the_nearest_earlier_call_of_its_id() -> None:
    assert answers(context(USER, call("a"), output("a"))) == {2: 1}


def test_an_output_answers_a_call_of_the_history() -> None:
    made_context = context(output("a"), USER, history=([*brought(USER), *made(REASONING, call("a"))],))
    assert (answers(made_context), made_context.answered) == ({3: 2}, frozenset({2}))


def test_parallel_calls_are_answered_in_any_order() -> None:
    assert answers(context(USER, call("a"), call("b"), output("b"), output("a"))) == {3: 2, 4: 1}


def test_a_call_id_that_an_upstream_uses_in_every_turn_stays_clear() -> None:
    history = ([*brought(USER), *made(call("c"))], [*brought(output("c")), *made(ANSWER)],
               [*brought(USER), *made(call("c"))])  # fmt: skip
    assert answers(context(output("c"), history=history)) == {2: 1, 6: 5}


def test_the_same_call_id_twice_in_a_turn_is_answered_twice() -> None:
    assert answers(context(USER, call("c"), call("c"), output("c"), output("c"))) == {3: 2, 4: 1}


def test_an_open_call_that_was_cut_is_passed_by_a_later_one_of_its_id() -> None:
    history = ([*brought(USER), *made(call("c", status="incomplete"))], [*brought(USER), *made(call("c"))])
    assert answers(context(output("c"), history=history)) == {4: 3}


@pytest.mark.parametrize("kind", ["function", "custom", "shell", "local_shell", "apply_patch", "computer"])
def test_every_family_of_calls_is_answered(kind: str) -> None:
    answer = (
        {"type": "local_shell_call_output", "id": "c", "output": "o"} if kind == "local_shell" else output("c", kind)
    )
    assert answers(context(USER, call("c", kind), answer)) == {2: 1}


@pytest.mark.parametrize(("call_kind", "output_kind"), [("function", "custom"), ("custom", "function"),
                                                       ("shell", "function"), ("local_shell", "shell")])  # fmt: skip
def test_an_output_never_answers_a_call_of_another_family(call_kind: str, output_kind: str) -> None:
    assert refused(USER, call("c", call_kind), output("c", output_kind)).message == (
        "No tool call found for function call output with call_id c."
    )


def test_a_local_shell_output_may_name_its_call_by_either_id() -> None:
    calls = call("call_1", "local_shell", id="lsh_1"), call("call_2", "local_shell", id="lsh_2")
    by_id = {"type": "local_shell_call_output", "id": "lsh_1", "output": "o"}
    by_call_id = {"type": "local_shell_call_output", "id": "call_2", "output": "o"}
    assert answers(context(USER, *calls, by_id, by_call_id)) == {3: 1, 4: 2}
    assert refused(USER, *calls, by_id, by_call_id, by_id).message.endswith("with call_id lsh_1.")


def test_a_local_shell_output_that_names_a_call_of_the_history_is_no_id_twice() -> None:
    history = ([*brought(USER), *made(call("call_1", "local_shell", id="lsh_1"))],)
    answer = {"type": "local_shell_call_output", "id": "lsh_1", "output": "o"}
    assert answers(context(answer, history=history)) == {2: 1}


def test_only_a_local_shell_call_is_named_by_its_own_id() -> None:
    assert refused(USER, call("c", id="fc_1"), output("fc_1")).message.endswith("with call_id fc_1.")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("f", {4: 1}),  # the nearest open call of that name
        ("g", {4: 3}),
        ("h", {4: 3}),  # no call has that name: the nearest open one
        (None, {4: 3}),
    ],
)
def test_an_output_without_a_call_id_answers_by_name_or_nearness(name: str | None, expected: dict[int, int]) -> None:
    calls = call("a", name="f"), call("b", "custom"), call("c", status="incomplete", name="g")
    history = ([*brought(USER), *made(*calls)],)
    nameless = {"type": "function_call_output", "output": "o", "name": name}
    others = [output("b", "custom"), *([] if expected == {4: 1} else [output("a")])]
    answered = answers(context(nameless, *others, history=history))
    assert {position: call for position, call in answered.items() if position == 4} == expected


@pytest.mark.parametrize("kind", ["function", "custom"])
def test_a_call_that_was_made_without_a_call_id_is_answered_by_its_own_id(kind: str) -> None:
    """As clients are shown it; another call is none of its output's."""
    history = ([*brought(USER), *made({**call(None, kind), "id": "fc_1"}, {**call(None, kind), "id": "fc_2"})],)
    assert answers(context(output("fc_1", kind), output("fc_2", kind), history=history)) == {3: 1, 4: 2}
    assert "call_id fc_3" in refused(output("fc_3", kind), history=history).message


def test_outputs_without_a_call_id_answer_from_the_newest_backwards() -> None:
    nameless = {"type": "function_call_output", "output": "o"}
    assert answers(context(USER, call("a"), call("b"), nameless, nameless)) == {3: 2, 4: 1}
    made_up = refused(USER, call("a"), nameless, {**nameless, "id": "fco_9"})
    assert made_up.message == "No tool call found for function call output with call_id fco_9."


# --- outputs without a call, calls without an output


def test_an_output_without_a_call_is_named() -> None:
    error = refused(USER, output("call_nope"))
    assert error.message == "No tool call found for function call output with call_id call_nope."


def test_an_output_does_not_answer_a_later_call() -> None:
    assert "call_id a." in refused(USER, output("a"), call("a"), output("a")).message


def test_a_second_output_for_one_call_has_no_call() -> None:
    assert "call_id a." in refused(USER, call("a"), output("a"), output("a")).message
    nameless = {"type": "function_call_output", "id": "fco_9", "output": "o"}
    assert "call_id fco_9." in refused(USER, call("a"), output("a"), nameless).message


def test_a_call_without_an_output_is_named_when_more_follows() -> None:
    assert refused(USER, call("a"), USER).message == "No tool output found for function call a."
    assert refused(USER, history=([*brought(USER), *made(call("a"))],)).message.endswith("function call a.")


@pytest.mark.parametrize("kind", ["custom", "shell", "local_shell", "apply_patch", "computer"])
def test_a_call_of_every_family_needs_its_output(kind: str) -> None:
    assert refused(USER, call("a", kind), USER).message == "No tool output found for function call a."


def test_a_call_without_a_call_id_is_named_by_its_id() -> None:
    history = ([*brought(USER), *made({**call(None, "shell"), "id": "sh_1"})],)
    assert refused(USER, history=history).message == "No tool output found for function call sh_1."


def test_calls_answered_in_part_are_refused_by_the_open_one() -> None:
    """B131."""
    history = ([*brought(USER), *made(call("call_a"), call("call_b"))],)
    for follows in ([output("call_a"), USER], [output("call_a")]):
        assert refused(*follows, history=history).message == "No tool output found for function call call_b."


def test_the_earliest_fault_is_named_but_outputs_without_a_call_come_first() -> None:
    """DESIGN 7.5."""
    assert "function call a." in refused(USER, call("a"), call("b"), USER).message
    assert "call_id x." in refused(USER, call("a"), USER, output("x"), output("y")).message


@pytest.mark.parametrize("status", ["completed", "in_progress", None])
def test_an_open_call_at_the_very_end_is_whole(status: str | None) -> None:
    assert context(USER, call("a", status=status)).answered == frozenset()
    assert context(history=([*brought(USER), *made(call("a", status=status))],)).answered == frozenset()


def test_what_the_model_said_in_the_same_breath_is_no_more_input() -> None:
    """A turn may put out a message after its calls (B119); sent inline at the end, nothing has followed them yet."""
    assert len(context(USER, call("a"), REASONING, ANSWER).items()) == 4
    assert refused(USER, call("a"), ANSWER, USER).message.endswith("function call a.")


def test_a_history_is_judged_again() -> None:
    """What stands behind a call there may have been put there by an edit of the conversation, or left over by one."""
    history = ([*brought(USER), *made(call("a"))], brought(USER))
    for request_input in ([], [ANSWER], [ANSWER, USER]):
        assert refused(*request_input, history=history).message.endswith("function call a.")
    assert answers(context(output("a"), history=history)) == {3: 1}


def test_a_history_may_end_with_an_open_call() -> None:
    history = ([*brought(USER), *made(call("a"))],)
    for request_input in ([], [ANSWER]):
        assert context(*request_input, history=history).answered == frozenset()


def test_a_message_without_a_role_was_made_by_a_model() -> None:
    """A client's always has one, so that a reference to an upstream's message can be told from it."""
    text = {"type": "message", "id": "m", "content": [{"type": "output_text", "text": "a"}]}
    [item] = made(text)
    assert is_assistants(msgspec.structs.replace(item, is_output=False))


@pytest.mark.parametrize(
    "members",
    [{"status": "incomplete"}, {"arguments": ""}, {"arguments": '{"city": "Par'}, {"arguments": "[]"},
     {"arguments": "null"}, {"arguments": '"x"'}],
)  # fmt: skip
def test_a_call_that_was_cut_may_be_answered_but_need_not_be(members: dict[str, Any]) -> None:
    cut = {**call("a"), **members}
    assert context(USER, cut, USER).answered == frozenset()
    assert context(USER, cut, output("a"), USER).answered == frozenset({1})
    assert context(USER, history=([*brought(USER), *made(cut)],)).answered == frozenset()


def test_a_hosted_tools_call_needs_no_output() -> None:
    searches = {"type": "web_search_call", "id": "ws_1", "action": {}}, {"type": "mcp_call", "id": "mcp_1"}
    assert len(context(USER, *searches, USER).items()) == 4


def test_thousands_of_calls_find_their_outputs() -> None:
    count = 3000
    calls = [call(f"c{number}") for number in range(count)]
    named = [output(f"c{number}") for number in range(count)]
    nameless = [{"type": "function_call_output", "output": "o", "name": "other"}] * count
    assert answers(context(*calls, *named)) == {count + number: number for number in range(count)}
    assert answers(context(*calls, *nameless)) == {count + number: count - 1 - number for number in range(count)}


# --- what an item is


@pytest.mark.parametrize(
    ("members", "cut"),
    [
        ({}, False),
        ({"arguments": ' {"a": 1} '}, False),
        ({"arguments": '{"a": "\ud83d"}'}, False),
        ({"arguments": '{"a": ' + "9" * 5000 + "}"}, False),
        ({"status": "in_progress"}, False),
        ({"status": "completed", "arguments": '{"a": '}, True),
        ({"arguments": '{"a": 1} and more'}, True),
        ({"arguments": "\ud83d"}, True),
        ({"arguments": None}, True),
        ({"status": "incomplete", "arguments": '{"a": 1}'}, True),
    ],
)
def test_a_call_is_cut_when_incomplete_or_without_a_json_object(members: dict[str, Any], cut: bool) -> None:
    (item,) = made({**call("a"), **members})
    assert is_cut(item) is cut


@pytest.mark.parametrize("kind", ["custom", "shell", "apply_patch"])
def test_other_calls_are_cut_only_when_incomplete(kind: str) -> None:
    whole_call, cut_call = made(call("a", kind, status="completed"), call("a", kind, status="incomplete"))
    assert (is_cut(whole_call), is_cut(cut_call)) == (False, True)


@pytest.mark.parametrize(
    ("item", "assistants", "calls"),
    [
        (USER, False, False), (ANSWER, True, False), (REASONING, True, False), (call("a"), True, True),
        (call("a", "custom"), True, True), (call("a", "computer"), True, True),
        ({"type": "web_search_call", "id": "w"}, True, False), (output("a"), False, False),
        ({"role": "system", "content": "x"}, False, False),
        ({"type": "compaction", "encrypted_content": "x"}, False, False),
    ],
)  # fmt: skip
def test_who_made_an_item_that_came_inline(item: dict[str, Any], assistants: bool, calls: bool) -> None:
    (parsed,) = brought(item)
    assert (is_assistants(parsed), is_call(parsed)) == (assistants, calls)
    assert is_assistants(made(item)[0])
