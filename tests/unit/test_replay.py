"""Replay, the table of what goes upstream: every row, shapes that a real vLLM accepted, and what holds for any items.

Expected copies are literal texts. The cases are played with these pure modules alone: a stored turn holds what the
case's own upstream replies say.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.errors import ApiError
from server.protocol import raw
from server.protocol.context import Context, whole
from server.protocol.history import Past, Replayed
from server.protocol.items import Item, from_upstream, parse_input
from server.protocol.profile import VLLM, Profile
from server.protocol.replay import Decision, replay
from server.protocol.request import parse
from tests.harness import captures, cases
from tests.written import written

OMITTING = msgspec.structs.replace(VLLM, encrypted_only="omit")
GO = '{"role":"user","content":"go"}'
GO_COPY = '{"type":"message","role":"user","content":"go"}'
CALL = '{"type":"function_call","id":"fc_1","call_id":"c","name":"f","arguments":"{}"}'
OUTPUT = '{"type":"function_call_output","call_id":"c","output":"o"}'
BLANK = '{"type":"message","id":"msg_w","role":"assistant","content":[{"type":"output_text","text":"\\n\\n"}]}'


def brought(*items: str) -> list[Item]:
    return parse_input(f"[{','.join(items)}]".encode()).items


def made(*items: str) -> list[Item]:
    """What an upstream put out, under its own ids."""
    return [
        from_upstream(raw.Object(text.encode()), json.loads(text).get("id") or "made_up", "gpu-1") for text in items
    ]


def decisions(
    *items: str, history: Sequence[list[Item]] = (), profile: Profile = VLLM, param: str = "previous_response_id"
) -> list[Decision]:
    return replay(whole(Past(turns=history), parse_input(f"[{','.join(items)}]".encode())), profile, param, "up")


def sent(*items: str, history: Sequence[list[Item]] = (), profile: Profile = VLLM) -> list[str]:
    """The copies, in order."""
    decided = decisions(*items, history=history, profile=profile)
    return [decision.copy.decode() for decision in decided if decision.copy is not None]


def refused(*items: str, history: Sequence[list[Item]] = (), param: str = "previous_response_id") -> ApiError:
    with pytest.raises(ApiError) as caught:
        decisions(*items, history=history, param=param)
    return caught.value


def how(item: str, *follow: str) -> tuple[str, str]:
    """What became of the first item, by which rule."""
    first = decisions(item, *follow)[0]
    assert (first.action == "left_out") is (first.copy is None)
    return first.action, first.rule


# --- reasoning


def reasoning(content: str | None, **members: str) -> str:
    parts = {"id": '"rs_1"', "type": '"reasoning"', "summary": "[]", "content": content} | members
    return "{" + ",".join(f'"{name}":{value}' for name, value in parts.items() if value is not None) + "}"


def thought(*texts: str) -> str:
    return "[" + ",".join(f'{{"type":"reasoning_text","text":"{text}"}}' for text in texts) + "]"


PLAIN_COPY = '{"type":"reasoning","id":"rs_1","summary":[],"content":[{"type":"reasoning_text","text":"hm"}]}'


def test_plaintext_reasoning_is_sent_and_nothing_else_of_it() -> None:
    vllms_own = (
        '{"id":"rs_1","summary":[],"type":"reasoning","content":[{"text":"hm","type":"reasoning_text"}],'
        '"encrypted_content":null,"status":null}'
    )
    full = reasoning(
        thought("hm"), status='"completed"', summary='[{"type":"summary_text","text":"S"}]', x_vendor='{"a":1}'
    )
    for item in (vllms_own, full):
        assert sent(item, GO) == [PLAIN_COPY, GO_COPY]
        assert sent(GO, history=[made(item)]) == [PLAIN_COPY, GO_COPY]
        assert how(item) == ("kept", "plaintext")


def test_parts_are_joined_since_vllm_reads_only_the_first() -> None:
    item = reasoning(thought("alpha", "beta", "gamma"))
    assert sent(item) == [PLAIN_COPY.replace("hm", "alpha\\nbeta\\ngamma")]
    assert how(item) == ("changed", "plaintext")


def test_texts_are_sent_as_they_came_down_to_their_escapes() -> None:
    text = "\\nTwo \\u0000 \\ud83d \\/ \\\\u0000 \u00e9\U0001f993\\n"
    assert sent(reasoning(thought(text))) == [PLAIN_COPY.replace("hm", text)]
    halves = sent(reasoning(thought("\\ud83d", "\\ude42")))
    assert halves == [PLAIN_COPY.replace("hm", "\\ud83d\\n\\ude42")]


@pytest.mark.parametrize("content", [thought("", "hm", ""), '[{"type":"x"},{"type":"other","text":"hm"},{"type":"y"}]'])
def test_parts_without_a_text_add_nothing(content: str) -> None:
    assert sent(reasoning(content)) == [PLAIN_COPY]


def test_reasoning_of_white_space_is_reasoning() -> None:
    assert sent(reasoning(thought(" \\n"))) == [PLAIN_COPY.replace("hm", " \\n")]


def test_sealed_state_beside_plaintext_is_left_out_of_the_copy() -> None:
    item = reasoning(thought("hm"), encrypted_content='"gAAAA"')
    assert sent(item, GO) == [PLAIN_COPY, GO_COPY]
    assert sent(GO, history=[made(item)]) == [PLAIN_COPY, GO_COPY]
    assert how(item) == ("changed", "encrypted_state_left_out")


@pytest.mark.parametrize("encrypted", ["null", '""'])
def test_an_empty_seal_is_no_seal(encrypted: str) -> None:
    item = reasoning(thought("hm"), encrypted_content=encrypted)
    assert sent(item) == [PLAIN_COPY]
    assert how(item) == ("kept", "plaintext")
    assert how(reasoning(None, encrypted_content=encrypted)) == ("left_out", "empty")


NO_PLAINTEXT = [None, "null", "[]", thought(""), thought("", ""), '[{"type":"reasoning_text","text":"","x":1}]']


@pytest.mark.parametrize("content", NO_PLAINTEXT)
def test_an_item_that_holds_only_sealed_content_is_refused_by_its_id(content: str | None) -> None:
    item = reasoning(content, encrypted_content='"gAAAA-only"')
    in_input = refused(GO, item, GO)
    in_history = refused(GO, history=[brought(GO), [*brought(GO), *made(item)]])
    in_conversation = refused(GO, history=[made(item)], param="conversation")
    for error, param in [
        (in_input, "input[1]"),
        (in_history, "previous_response_id"),
        (in_conversation, "conversation"),
    ]:
        assert (error.status, error.type, error.param) == (400, "invalid_request_error", param)
        assert error.code == "encrypted_reasoning_not_supported"
        assert "'rs_1'" in error.message
        assert 'encrypted_only = "omit"' in error.message
        assert "gAAAA" not in error.message


def test_a_summary_does_not_make_sealed_content_readable() -> None:
    item = reasoning(None, summary='[{"type":"summary_text","text":"S"}]', encrypted_content='"g"')
    assert refused(item).code == "encrypted_reasoning_not_supported"


@pytest.mark.parametrize("no_id", [None, "null", '""'])
def test_a_sealed_item_without_an_id_is_named_by_its_place(no_id: str | None) -> None:
    item = reasoning(None, encrypted_content='"g"', **({} if no_id is None else {"id": no_id}))
    item = item if no_id else item.replace('"id":"rs_1",', "")
    error = refused(GO, GO, item)
    assert error.param == "input[2]"
    assert error.message.startswith("Item 'input[2]' holds only encrypted content")


def test_a_sealed_item_of_the_history_without_an_id_is_named_by_the_one_it_was_shown_under() -> None:
    history = [brought(reasoning(None, encrypted_content='"g"').replace('"id":"rs_1",', ""))]
    assert re.search(r"'rs_[0-9a-f]{48}'", refused(GO, history=history).message)


def test_the_first_sealed_item_is_named() -> None:
    sealed = [reasoning(None, id=f'"rs_{number}"', encrypted_content='"g"') for number in (1, 2)]
    assert "'rs_1'" in refused(sealed[1], history=[made(sealed[0])]).message
    assert refused(*reversed(sealed)).param == "input[0]"


def test_a_setting_leaves_sealed_items_out_instead() -> None:
    sealed = reasoning(None, encrypted_content='"gAAAA"')
    compaction = '{"type":"compaction","id":"cmp_1","encrypted_content":"OPAQUE"}'
    assert sent(GO, sealed, compaction, GO, profile=OMITTING) == [GO_COPY, GO_COPY]
    assert [decision.rule for decision in decisions(sealed, compaction, GO, profile=OMITTING)] == [
        "encrypted_only", "encrypted_only", "message",
    ]  # fmt: skip


@pytest.mark.parametrize("content", NO_PLAINTEXT)
def test_a_summary_is_never_reasoning(content: str | None) -> None:
    """vLLM would take it for thoughts (contract vllm.md 3)."""
    item = reasoning(content, summary='[{"type":"summary_text","text":"The secret word is MANGO."}]')
    assert how(item) == ("left_out", "summary_is_not_reasoning")
    assert sent(GO, item, GO) == [GO_COPY, GO_COPY]


@pytest.mark.parametrize("content", NO_PLAINTEXT)
@pytest.mark.parametrize("summary", ["[]", "null", '[{"type":"summary_text","text":""}]'])
def test_reasoning_that_holds_nothing_is_left_out(content: str | None, summary: str) -> None:
    assert how(reasoning(content, summary=summary)) == ("left_out", "empty")


def test_two_reasoning_items_in_a_row_stay_two() -> None:
    """B017."""
    first, second = reasoning(thought("step one"), id='"r1"'), reasoning(thought("step two"), id='"r2"')
    assert sent(GO, history=[made(first, second)])[:2] == [
        '{"type":"reasoning","id":"r1","summary":[],"content":[{"type":"reasoning_text","text":"step one"}]}',
        '{"type":"reasoning","id":"r2","summary":[],"content":[{"type":"reasoning_text","text":"step two"}]}',
    ]


# --- messages


@pytest.mark.parametrize(
    ("item", "copy"),
    [
        ('{"role":"user","content":"hi"}', '{"type":"message","role":"user","content":"hi"}'),
        ('{"content":" ","role":"user"}', '{"type":"message","role":"user","content":" "}'),
        ('{"role":"system","content":"s"}', '{"type":"message","role":"system","content":"s"}'),
        (
            '{"type":"message","role":"developer","id":"msg_d","status":"completed","content":[{"type":"input_text",'
            '"text":"a"}, {"text":"b","type":"input_text"}]}',
            '{"type":"message","id":"msg_d","role":"developer","content":[{"type":"input_text","text":"a"}, '
            '{"text":"b","type":"input_text"}]}',
        ),
        (
            '{"role":"user","content":[{"type":"input_image","image_url":"data:image/png;base64,AAAA","detail":null,'
            '"file_id":null},{"type":"input_file","filename":"a.pdf","file_data":"data:x","file_url":null}]}',
            '{"type":"message","role":"user","content":[{"type":"input_image","image_url":"data:image/png;base64,AAAA"},'
            '{"type":"input_file","filename":"a.pdf","file_data":"data:x"}]}',
        ),
        (
            '{"role":"user","content":[{"type":"input_text","text":"null \\u0000","cache":{"ttl":null,"a":[null]}}]}',
            '{"type":"message","role":"user","content":[{"type":"input_text","text":"null \\u0000",'
            '"cache":{"a":[null]}}]}',
        ),
        (
            '{"role":"user","content":"x","phase":null,"name":"bob","created_by":"y"}',
            '{"type":"message","role":"user","content":"x"}',
        ),
    ],
)
def test_a_message_of_a_client_is_sent_by_its_allow_listed_members(item: str, copy: str) -> None:
    assert sent(item) == [copy]
    assert how(item) == ("kept", "message")


def said(text: str, members: str = "") -> str:
    return (
        f'{{"type":"message",{members}"role":"assistant",'
        f'"content":[{{"type":"output_text","text":"{text}","annotations":[]}}]'
    )


@pytest.mark.parametrize(
    ("item", "copy"),
    [
        ('{"role":"assistant","content":"Hello"}', said("Hello") + "}"),
        ('{"role":"assistant","content":[{"type":"output_text","text":"prev"}]}', said("prev") + "}"),
        (
            '{"id":"msg_1","content":[{"annotations":[{"type":"url_citation","url":null}],"text":"\\n\\nI have one.",'
            '"type":"output_text","logprobs":null}],"role":"assistant","status":"completed","type":"message","phase":null}',
            said("\\n\\nI have one.", '"id":"msg_1",') + "}",
        ),
        (
            '{"role":"assistant","status":"incomplete","content":"one two","phase":"commentary"}',
            said("one two") + ',"phase":"commentary"}',
        ),
        ('{"role":"assistant","content":"<think>a</think>b"}', said("<think>a</think>b") + "}"),
        ('{"role":"assistant","content":" "}', said(" ") + "}"),
        (
            '{"role":"assistant","content":[{"type":"output_text","text":"I have one."},'
            '{"type":"output_text","text":" SECOND"},{"type":"refusal","refusal":" no"}]}',
            said("I have one. SECOND no") + "}",
        ),
        ('{"role":"assistant","content":[{"type":"refusal","refusal":"no"}]}', said("no") + "}"),
        ('{"role":"assistant","content":[{"type":"output_text","text":"\\ud83d"},{"type":"output_text","text":"\\ude42"}]}',
         said("\\ud83d\\ude42") + "}"),
    ],
)  # fmt: skip
def test_a_message_of_the_model_is_sent_as_one_output_text(item: str, copy: str) -> None:
    assert sent(item, GO) == [copy, GO_COPY]


def test_a_message_is_called_changed_where_it_is_not_one_text_any_more() -> None:
    assert how('{"role":"assistant","content":"a"}') == ("kept", "message")
    assert how('{"role":"assistant","content":[{"type":"output_text","text":"a"}]}') == ("kept", "message")
    assert how('{"role":"assistant","content":[{"type":"refusal","refusal":"a"}]}') == ("changed", "message")
    two = '{"role":"assistant","content":[{"type":"output_text","text":"a"},{"type":"output_text","text":"b"}]}'
    assert how(two) == ("changed", "message")


@pytest.mark.parametrize("phase", ["commentary", "final_answer", "other_phase"])
def test_phase_is_sent_where_it_is_not_null(phase: str) -> None:
    (copy,) = sent(f'{{"role":"assistant","content":"a","phase":"{phase}"}}')
    assert json.loads(copy)["phase"] == phase


@pytest.mark.parametrize("role", ["user", "assistant", "system", "developer"])
@pytest.mark.parametrize("content", ['""', "[]", "[ ]", '[{"type":"%s","text":""}]', '[{"type":"%s","text":""},'
                                     '{"type":"%s","text":""}]'])  # fmt: skip
def test_an_empty_message_is_left_out(role: str, content: str) -> None:
    text_type = "output_text" if role == "assistant" else "input_text"
    item = f'{{"role":"{role}","content":{content.replace("%s", text_type)}}}'
    assert how(item) == ("left_out", "empty")
    assert sent(item, GO) == [GO_COPY]


@pytest.mark.parametrize("item", ['{"role":"assistant","content":null}', '{"role":"assistant"}',
                                  '{"role":"assistant","content":[{"type":"refusal","refusal":""}]}'])  # fmt: skip
def test_an_assistant_that_said_nothing_beside_its_call_is_left_out(item: str) -> None:
    assert sent(GO, item, CALL, OUTPUT) == [GO_COPY, CALL, OUTPUT]


def test_an_empty_text_beside_an_image_stays() -> None:
    content = '[{"type":"input_text","text":""},{"type":"input_image","image_url":"data:x"}]'
    assert sent(f'{{"role":"user","content":{content}}}') == [f'{{"type":"message","role":"user","content":{content}}}']


# --- white space beside a call


def test_white_space_beside_a_call_of_its_turn_is_left_out() -> None:
    """Only vLLM's streamed parsing has it, so a streamed and a plain turn would differ (contract vllm.md 0.6)."""
    history = [[*brought(GO), *made(reasoning(thought("hm")), BLANK, CALL)]]
    assert sent(OUTPUT, history=history) == [GO_COPY, PLAIN_COPY, CALL, OUTPUT]
    assert sent(OUTPUT, history=[[*brought(GO), *made(CALL, BLANK)]]) == [GO_COPY, CALL, OUTPUT]
    assert [decision.rule for decision in decisions(OUTPUT, history=history)] == [
        "message", "plaintext", "blank_beside_call", "call", "output",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "blank", [BLANK, '{"role":"assistant","content":" \\t\\n\\u00a0"}', BLANK.replace('"id":"msg_w",', "")]
)
def test_white_space_in_the_run_of_a_call_that_came_inline_is_left_out(blank: str) -> None:
    assert sent(GO, reasoning(thought("hm")), blank, CALL, OUTPUT, GO) == [GO_COPY, PLAIN_COPY, CALL, OUTPUT, GO_COPY]


BLANK_COPY = said("\\n\\n", '"id":"msg_w",') + "}"


def test_white_space_beside_no_call_is_sent() -> None:
    assert sent(GO, history=[[*brought(GO), *made(BLANK)]]) == [GO_COPY, BLANK_COPY, GO_COPY]
    assert sent(GO, BLANK, GO) == [GO_COPY, BLANK_COPY, GO_COPY]


def test_white_space_is_judged_by_its_own_turn_and_run() -> None:
    called = [*brought(GO), *made(CALL)]
    answered = [*brought(OUTPUT), *made(BLANK)]
    assert sent(GO, history=[called, answered]) == [GO_COPY, CALL, OUTPUT, BLANK_COPY, GO_COPY]
    assert sent(GO, CALL, OUTPUT, BLANK, GO) == [GO_COPY, CALL, OUTPUT, BLANK_COPY, GO_COPY]
    assert sent(GO, BLANK, GO, CALL, OUTPUT) == [GO_COPY, BLANK_COPY, GO_COPY, CALL, OUTPUT]


def test_what_came_inline_is_no_run_with_what_was_put_out() -> None:
    history = [[*brought(GO, BLANK), *made(CALL)]]
    assert sent(OUTPUT, history=history) == [GO_COPY, BLANK_COPY, CALL, OUTPUT]


def test_white_space_of_anyone_else_is_sent() -> None:
    blank = '{"role":"user","content":"\\n"}'
    assert sent(blank, CALL, OUTPUT)[0] == '{"type":"message","role":"user","content":"\\n"}'


# --- calls and their outputs


def test_calls_and_outputs_are_sent_by_their_allow_listed_members() -> None:
    vllms_own = (
        '{"arguments":"{\\"city\\": \\"Paris\\"}","call_id":"chatcmpl-tool-9402","name":"get_weather",'
        '"type":"function_call","id":"fc_a9","async":null,"caller":null,"namespace":null,"status":"completed"}'
    )
    output = '{"type":"function_call_output","call_id":"chatcmpl-tool-9402","output":"sunny","id":null,"status":null}'
    assert sent(output, history=[[*brought(GO), *made(vllms_own)]]) == [
        GO_COPY,
        '{"type":"function_call","id":"fc_a9","call_id":"chatcmpl-tool-9402","name":"get_weather",'
        '"arguments":"{\\"city\\": \\"Paris\\"}"}',
        '{"type":"function_call_output","call_id":"chatcmpl-tool-9402","output":"sunny"}',
    ]


def test_a_namespace_is_sent_where_it_is_not_null() -> None:
    call = CALL.replace('"name"', '"namespace":"crm","name"')
    assert sent(GO, call, OUTPUT)[1] == (
        '{"type":"function_call","id":"fc_1","call_id":"c","namespace":"crm","name":"f","arguments":"{}"}'
    )


def test_a_custom_tools_call_and_output_are_sent() -> None:
    call = '{"type":"custom_tool_call","id":"ctc_1","call_id":"c","name":"patch","input":"*** Begin","namespace":null}'
    output = '{"type":"custom_tool_call_output","call_id":"c","output":[{"type":"input_text","text":"ok","x":null}]}'
    assert sent(GO, call, output) == [
        GO_COPY,
        '{"type":"custom_tool_call","id":"ctc_1","call_id":"c","name":"patch","input":"*** Begin"}',
        '{"type":"custom_tool_call_output","call_id":"c","output":[{"type":"input_text","text":"ok"}]}',
    ]


@pytest.mark.parametrize(
    "output",
    [
        '"W\\u0000s"',
        '""',
        "[]",
        '[{"type":"input_text","text":"line"},{"type":"input_image","image_url":"data:x","detail":"low"}]',
    ],
)
def test_an_output_is_sent_as_it_came(output: str) -> None:
    assert sent(GO, CALL, OUTPUT.replace('"o"', output))[2] == OUTPUT.replace('"o"', output)


@pytest.mark.parametrize("detail", ["", ',"detail":null'])
def test_an_image_in_an_output_says_its_detail(detail: str) -> None:
    """vLLM's `ResponseInputImageParam` requires it, and the AI SDK leaves it out."""
    image = '[{"type":"input_image","image_url":"data:x"%s}]'
    sent_output = OUTPUT.replace('"o"', image % ',"detail":"auto"')
    assert sent(GO, CALL, OUTPUT.replace('"o"', image % detail))[2] == sent_output


@pytest.mark.parametrize("call_id", ["", '"call_id":null,'])
def test_an_output_without_a_call_id_gets_its_calls(call_id: str) -> None:
    output = f'{{"type":"function_call_output",{call_id}"name":"f","output":"o"}}'
    assert sent(GO, CALL, output) == [GO_COPY, CALL, OUTPUT]
    assert sent(output, history=[[*brought(GO), *made(CALL)]]) == [GO_COPY, CALL, OUTPUT]


CUT_CALLS = [
    CALL.replace('"{}"', '"{\\"city\\": \\"Par"'),
    CALL.replace('"{}"', '""'),
    CALL.replace('"{}"', '"[1]"'),
    CALL[:-1] + ',"status":"incomplete"}',
]


@pytest.mark.parametrize("call", CUT_CALLS)
def test_a_cut_call_without_an_output_is_left_out(call: str) -> None:
    assert sent(GO, call, GO) == [GO_COPY, GO_COPY]
    assert sent(GO, history=[[*brought(GO), *made(reasoning(thought("hm")), call)]]) == [GO_COPY, PLAIN_COPY, GO_COPY]
    assert how(call, GO) == ("left_out", "cut_call")


@pytest.mark.parametrize("call", CUT_CALLS)
def test_a_cut_call_with_an_output_is_sent_with_empty_arguments(call: str) -> None:
    """So that the model sees the tool's error."""
    assert sent(GO, call, OUTPUT, GO) == [GO_COPY, CALL, OUTPUT, GO_COPY]
    assert sent(OUTPUT, history=[[*brought(GO), *made(call)]]) == [GO_COPY, CALL, OUTPUT]
    assert how(call, OUTPUT) == ("changed", "cut_call")


def test_a_cut_call_of_a_custom_tool_keeps_its_input() -> None:
    call = '{"type":"custom_tool_call","id":"x","call_id":"c","name":"p","input":"*** Beg"}'
    cut = call[:-1] + ',"status":"incomplete"}'
    output = '{"type":"custom_tool_call_output","call_id":"c","output":"o"}'
    assert sent(GO, cut, GO) == [GO_COPY, GO_COPY]
    assert sent(GO, cut, output) == [GO_COPY, call, output]


def test_arguments_are_sent_byte_for_byte() -> None:
    call = CALL.replace('"{}"', '" {\\"q\\" :\\"\\ud83d\\\\u0000\\"} "')
    assert sent(GO, call, OUTPUT)[1] == call


def test_an_open_call_at_the_very_end_is_sent() -> None:
    assert sent(GO, CALL) == [GO_COPY, CALL]


def test_an_upstream_that_uses_a_call_id_in_every_turn_gets_every_turn_back() -> None:
    call = CALL.replace("fc_1", "fc_2")
    history = [[*brought(GO), *made(CALL)], [*brought(OUTPUT), *made(call)]]
    assert sent(OUTPUT, history=history) == [GO_COPY, CALL, OUTPUT, call, OUTPUT]


# --- hosted tools and unknown types


@pytest.mark.parametrize(
    "item",
    [
        '{"type":"web_search_call","id":"ws_1","status":"completed","action":{"type":"search","query":"x"}}',
        '{"type":"file_search_call","id":"fs_1","queries":[],"status":"completed"}',
        '{"type":"code_interpreter_call","id":"ci_1","code":"1","container_id":"c","outputs":null,"status":"completed"}',
        '{"type":"image_generation_call","id":"ig_1","status":"completed","result":"AAAA"}',
        '{"type":"mcp_list_tools","id":"mcpl_1","server_label":"s","tools":[]}',
        '{"type":"mcp_call","id":"mcp_1","server_label":"s","name":"n","arguments":"{}","output":"o"}',
        '{"type":"mcp_approval_request","id":"mcpr_1","server_label":"s","name":"n","arguments":"{}"}',
        '{"type":"mcp_approval_response","approval_request_id":"mcpr_1","approve":true}',
        '{"type":"tool_search_call","arguments":{}}',
        '{"type":"additional_tools","role":"developer","tools":[]}',
        '{"type":"compaction_trigger"}',
        '{"type":"compaction","id":"cmp_1","encrypted_content":""}',
        '{"type":"program","id":"prog_1","call_id":"c","code":"x","fingerprint":"f"}',
        '{"type":"x_thing","content":"x","anything":[null]}',
    ],
)
def test_what_vllm_cannot_read_is_left_out_whole(item: str) -> None:
    assert how(item, GO) == ("left_out", "type_not_readable")
    assert sent(GO, item, GO) == [GO_COPY, GO_COPY]
    assert sent(GO, history=[made(item)]) == [GO_COPY]


@pytest.mark.parametrize("kind", ["shell", "local_shell", "apply_patch", "computer"])
def test_calls_that_vllm_cannot_read_are_left_out_with_their_outputs(kind: str) -> None:
    call = f'{{"type":"{kind}_call","id":"x_1","call_id":"c","status":"completed"}}'
    output = f'{{"type":"{kind}_call_output","id":"c","call_id":"c","output":"o"}}'
    assert sent(GO, call, output, GO) == [GO_COPY, GO_COPY]


def test_a_compaction_that_vllm_cannot_read_is_refused_by_its_id() -> None:
    error = refused(GO, '{"type":"compaction","id":"cmp_1","encrypted_content":"OPAQUE"}')
    assert (error.status, error.code, error.param) == (400, "encrypted_reasoning_not_supported", "input[1]")
    assert "'cmp_1'" in error.message
    assert "OPAQUE" not in error.message


# --- ids


def test_only_ids_that_somebody_gave_are_sent() -> None:
    """DESIGN 3: one minted for a client's item never goes up, and an upstream's goes up as clients saw it."""
    clients = [{"role": "user", "content": "a"}, {"role": "user", "content": "b", "id": None},
               {"role": "user", "content": "c", "id": ""}, {"role": "user", "content": "d", "id": "msg_d"}]  # fmt: skip
    assert [json.loads(copy).get("id") for copy in sent(*map(json.dumps, clients))] == [None, None, None, "msg_d"]
    bodies = ['{"type":"message","role":"assistant","content":"a"}', BLANK, BLANK.replace("msg_w", "a\\u0000b")]
    history = [
        [from_upstream(raw.Object(body.encode()), f"shown_{number}", "gpu-1") for number, body in enumerate(bodies)]
    ]
    assert [json.loads(copy).get("id") for copy in sent(history=history)] == ["shown_0", "shown_1", "shown_2"]


def test_nothing_of_an_item_but_its_body_is_sent() -> None:
    secret = Item(
        body=GO.encode(),
        public_id="msg_secret",
        type="message",
        fidelity=b'{"secret":1}',
        issuer="secret",
        is_output=False,
    )
    assert sent(history=[[secret]]) == [GO_COPY]


def test_a_reference_to_an_upstreams_item_is_sent_by_the_id_that_clients_know() -> None:
    """The id in its body is another one where the context of its own turn had that already."""
    [item] = made('{"type":"message","id":"msg_1","content":[{"type":"output_text","text":"a"}]}')
    meant = msgspec.structs.replace(item, public_id="msg_fresh", is_output=False)
    assert sent(history=[[meant]]) == [said("a", '"id":"msg_fresh",') + "}"]


def test_an_upstreams_message_without_a_role_is_the_models() -> None:
    history = [made('{"type":"message","id":"m","content":[{"type":"output_text","text":"a"}]}')]
    assert sent(GO, history=history) == [said("a", '"id":"m",') + "}", GO_COPY]


@pytest.mark.parametrize(
    "item",
    ['{"type":"message","content":5}', '{"type":"message","content":{"a":1}}', '{"type":"message","content":["x",1]}',
     '{"type":"reasoning","content":{"text":"x"},"summary":"s"}', '{"type":"reasoning","content":[null,[1]]}',
     '{"type":"message","role":"user","content":7}', '{"type":"message","role":"assistant","content":[{"text":{}}]}'],
)  # fmt: skip
def test_what_an_upstream_made_of_no_known_form_is_left_out(item: str) -> None:
    assert sent(GO, history=[made(item)]) == [GO_COPY]


def test_a_seal_of_any_form_is_a_seal() -> None:
    history = [made('{"type":"reasoning","id":"rs_1","encrypted_content":{"blob":"x"}}')]
    assert refused(GO, history=history).code == "encrypted_reasoning_not_supported"


# --- what real requests show

SEALED_OR_NOT_WHOLE = {
    # What we refuse before vLLM would, or though it would not, and the param that we name.
    "45-reasoning-content-string": "input[1].content",
    "45-reasoning-encrypted-only": "input[1]",
    "53-output-only": "input",
    "53-output-orphan": "input",
    "54-compaction": "input[0]",
}


def recorded_inputs() -> list[Any]:
    """The captures 40 to 54 that hold items, but for two: references are resolved before replay, and the recorded
    model could see no image.
    """
    chosen = [capture for capture in captures("0.33") if "40" <= capture.name[:2] <= "54" and capture.request]
    return [
        pytest.param(capture, id=f"{capture.name}{'.stream' if capture.is_stream else ''}")
        for capture in chosen
        if isinstance(json.loads(capture.request or "")["input"], list)
        and capture.name not in ("54-item-reference", "54-user-image")
    ]


def shape(item: dict[str, Any]) -> tuple[Any, ...]:
    """Type and role of an item, its members that are not null, and those of the parts of its content or output.

    The type of a message may be left out, which we never do.
    """
    content = item.get("content", item.get("output", []))
    parts = content if isinstance(content, list) else [{"type": "string"}]
    kinds = {(part["type"], frozenset(name for name, value in part.items() if value is not None)) for part in parts}
    members = frozenset(name for name, value in item.items() if value is not None) | {"type"}
    return item.get("type", "message"), item.get("role"), members, frozenset(kinds)


def accepted_shapes() -> list[tuple[Any, ...]]:
    accepted = [json.loads(capture.request or "{}") for capture in captures("0.33") if capture.status == 200]
    lists = [request["input"] for request in accepted if isinstance(request.get("input"), list)]
    return [shape(item) for items in lists for item in items]


def is_within(copy: tuple[Any, ...], known: tuple[Any, ...]) -> bool:
    """Whether a copy of this shape has no member that the known item has not."""
    parts_fit = all(any(kind == other and names <= others for other, others in known[3]) for kind, names in copy[3])
    return copy[:2] == known[:2] and copy[2] <= known[2] and parts_fit


@pytest.mark.parametrize("capture", recorded_inputs())
def test_copies_of_recorded_items_have_shapes_that_vllm_accepted(capture: Any) -> None:
    """Each lies between two items that vLLM 0.33 took: it has every member of the one, and none that the other has not.

    Some of these requests were refused by vLLM, two with a 500; their copies are of accepted shapes all the same.
    """
    items = [json.dumps(item) for item in json.loads(capture.request)["input"]]
    if capture.name in SEALED_OR_NOT_WHOLE:
        assert refused(*items).param == SEALED_OR_NOT_WHOLE[capture.name]
        return
    copies = [json.loads(copy) for copy in sent(*items)]
    assert copies
    known = accepted_shapes()
    for copy in copies:
        assert any(is_within(shape(copy), one) for one in known), f"more than was ever accepted: {copy}"
        assert any(is_within((*one[:3], frozenset()), shape(copy)) for one in known), f"less than was accepted: {copy}"


def test_a_recorded_tool_round_is_sent_as_one_would_write_it() -> None:
    (capture,) = [capture for capture in captures("0.33") if capture.name == "52-two-calls"]
    items = [json.dumps(item) for item in json.loads(capture.request or "")["input"]]
    assert sent(*items) == [
        '{"type":"message","role":"user","content":"Weather and time?"}',
        '{"type":"reasoning","id":"r","summary":[],"content":[{"type":"reasoning_text","text":"I need both tools."}]}',
        '{"type":"message","id":"m","role":"assistant","content":[{"type":"output_text","text":"Let me check.",'
        '"annotations":[]}]}',
        '{"type":"function_call","id":"fc_1","call_id":"call_1","name":"get_weather",'
        '"arguments":"{\\"city\\": \\"Paris\\"}"}',
        '{"type":"function_call","id":"fc_2","call_id":"call_2","name":"get_time",'
        '"arguments":"{\\"zone\\": \\"UTC\\"}"}',
        '{"type":"function_call_output","call_id":"call_1","output":"sunny"}',
        '{"type":"function_call_output","call_id":"call_2","output":"12:00"}',
    ]


def test_the_recorded_chain_goes_up_as_the_recorder_sent_it_but_for_nulls_and_status() -> None:
    (capture,) = [capture for capture in captures("0.33") if capture.name == "60chain-weather-s-t2"]
    recorded = json.loads(capture.request or "")["input"]
    assert [item["type"] for item in recorded] == [
        "message", "reasoning", "message", "function_call", "function_call_output",
    ]  # fmt: skip
    wanted = [
        {name: value for name, value in item.items() if value is not None and name != "status"} for item in recorded
    ]
    assert [json.loads(copy) for copy in sent(*map(json.dumps, recorded))] == [wanted[0], wanted[1], *wanted[3:]]


# --- the cases


def play(case_id: str) -> list[dict[str, Any] | ApiError]:
    """What each POST of a case sends upstream, or how it is refused; a turn that was refused leaves no trace."""
    case = cases()[case_id]
    replies = [reply["json"]["output"] for reply in case["upstream_behaviour"]["replies"]]
    turns: dict[str, tuple[list[list[Item]], list[Any]]] = {}
    outcomes: list[dict[str, Any] | ApiError] = []
    for number, step in enumerate(case["client_steps"], 1):
        if (step["method"], step["path"]) != ("POST", "/v1/responses"):
            continue
        text = re.sub(
            r'"\{\{s(\d+)\.output\.(\d+)\}\}"',
            lambda found: output_of(turns, *found.groups()),
            json.dumps(step["json"]),
        )
        request = parse(re.sub(r"\{\{s(\d+)\.id\}\}", r"s\1", text).encode(), 200)
        history = turns[request.previous_response_id][0] if request.previous_response_id else []
        try:
            context = whole(Past(turns=history), parse_input(request.input))
            decided = replay(context, VLLM, "previous_response_id", "up")
            upstream_body = json.loads(written(request, f"s{number}", decided, VLLM))
        except ApiError as error:
            outcomes.append(error)
            continue
        output = replies[min(len(turns), len(replies) - 1)]
        turn = [*context.turns[-1], *made(*map(json.dumps, output))]
        turns[f"s{number}"] = ([*history, turn], output)
        outcomes.append(upstream_body)
    return outcomes


def output_of(turns: dict[str, tuple[list[list[Item]], list[Any]]], number: str, index: str) -> str:
    return json.dumps(turns[f"s{number}"][1][int(index)])


def inputs(case_id: str) -> list[list[dict[str, Any]]]:
    """The input of each upstream request of a case that is never refused."""
    outcomes = play(case_id)
    assert not [outcome for outcome in outcomes if isinstance(outcome, ApiError)]
    return [outcome["input"] for outcome in outcomes if isinstance(outcome, dict)]


def texts(items: list[dict[str, Any]]) -> list[str]:
    contents = [item["content"] for item in items if "content" in item]
    parts = [[{"text": content}] if isinstance(content, str) else content for content in contents]
    return [part["text"] for content in parts for part in content if "text" in part]


def test_every_turn_sends_all_before_it_once() -> None:
    """B002."""
    sent_inputs = inputs("B002")
    assert [texts(items) for items in sent_inputs] == [
        ["q1"],
        ["q1", "a1", "q2"],
        ["q1", "a1", "q2", "a2", "q3"],
        ["q1", "a1", "q2", "a2", "q3", "a3", "q4"],
        ["q1", "a1", "q2", "a2", "q3", "a3", "q4", "a4", "q5"],
    ]


def test_an_equal_question_is_asked_again() -> None:
    """B004."""
    items = inputs("B004")[1]
    assert [(item["role"], *texts([item])) for item in items] == [
        ("user", "Name a colour."), ("assistant", "Red."), ("user", "Name a colour."),
    ]  # fmt: skip


def test_a_tool_round_keeps_reasoning_call_and_output_in_order() -> None:
    """B005."""
    items = inputs("B005")[1]
    assert [item["type"] for item in items] == ["message", "reasoning", "function_call", "function_call_output"]
    assert (items[2]["arguments"], items[2]["call_id"], items[3]["call_id"]) == (
        '{"city":"Oslo"}', "call_a", "call_a",
    )  # fmt: skip


def test_all_of_an_earlier_input_is_sent_again_images_too() -> None:
    """B007."""
    items = inputs("B007")[1]
    assert items[0] == {"type": "message", "role": "developer", "content": "terse"}
    assert items[1]["content"] == [
        {"type": "input_text", "text": "what is it"},
        {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="},
    ]
    assert texts(items[2:]) == ["a cat", "colour?"]


def test_a_history_that_is_sent_again_is_refused_by_the_id_it_repeats() -> None:
    """B008."""
    refusal = play("B008")[1]
    assert isinstance(refusal, ApiError)
    assert (refusal.status, refusal.param) == (400, "input")
    assert "'m1'" in refusal.message


def test_a_long_chain_is_whole() -> None:
    """B010."""
    last = inputs("B010")[-1]
    asked = [text for text in texts(last) if text.startswith("turn-")]
    assert asked == [f"turn-{number:04}" for number in range(1, 41)]
    assert texts(last)[-1] == "turn-0040"


def test_all_parts_of_reasoning_are_sent_and_no_summary() -> None:
    """B012."""
    items = inputs("B012")[1]
    assert items[1]["content"] == [{"type": "reasoning_text", "text": "alpha\nbeta\ngamma"}]
    assert "SUMMARY-ONLY" not in json.dumps(items)


def test_reasoning_without_a_summary_is_completed_in_the_copy() -> None:
    """B014 in a history, B015 inline."""
    assert inputs("B014")[1][1] == {
        "type": "reasoning", "id": "r1", "summary": [], "content": [{"type": "reasoning_text", "text": "hmm"}],
    }  # fmt: skip
    assert inputs("B015")[0][1] == {
        "type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "because"}],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("case_id", "blob", "text"),
    [("B026", "gAAAA-opaque-1", "visible"), ("B029", "SEALED-A", "plain a"), ("B033", "vllm-reasoning-v1", "text")],
)
def test_a_blob_beside_plaintext_stays_home(case_id: str, blob: str, text: str) -> None:
    sent_inputs = inputs(case_id)
    assert len(sent_inputs) == 2
    assert blob not in json.dumps(sent_inputs)
    assert "encrypted_content" not in json.dumps(sent_inputs)
    assert text in texts(sent_inputs[1])


def test_sealed_reasoning_is_refused_however_it_is_written() -> None:
    """B027."""
    refusals = play("B027")
    assert len(refusals) == 3
    for refusal in refusals:
        assert isinstance(refusal, ApiError)
        assert (refusal.status, refusal.type, refusal.param) == (400, "invalid_request_error", "input[1]")
        assert "gAAAA" not in refusal.message


def test_a_refused_compaction_does_not_poison_the_chain() -> None:
    """B032."""
    first, refusal, third = play("B032")
    assert isinstance(first, dict)
    assert isinstance(refusal, ApiError)
    assert isinstance(third, dict)
    assert "cmp_1" in refusal.message
    assert texts(third["input"]) == ["start", "ok", "go"]


def test_nul_is_sent_as_it_came() -> None:
    """B100."""
    items = inputs("B100")[1]
    assert items[2]["output"] == "W\0s\0l\0"
    assert texts(items)[1:] == ["got W\0s\0l", "b"]


def test_a_text_that_mentions_nul_is_not_damaged() -> None:
    """B101."""
    assert texts(inputs("B101")[0]) == ["literal \\u0000 then real \0 then \\\0 end"]


def test_phases_are_sent_on_the_messages_that_have_them() -> None:
    """B119."""
    items = inputs("B119")[1]
    assert [(item["type"], item.get("phase")) for item in items] == [
        ("message", None), ("message", "commentary"), ("function_call", None), ("message", "final_answer"),
        ("message", "other_phase"), ("function_call_output", None), ("message", None),
    ]  # fmt: skip
    assert not [item for item in items if item.get("role") != "assistant" and "phase" in item]


def test_instructions_are_of_their_request_and_developer_messages_of_the_chain() -> None:
    """B120."""
    first, second = play("B120")
    assert isinstance(first, dict)
    assert first["instructions"] == "DROP-ME"
    assert "DROP-ME" not in json.dumps(second)
    assert json.dumps(second).count("KEEP-ME") == 1


def test_explicit_nulls_are_not_sent() -> None:
    """B125."""
    (items,) = inputs("B125")
    assert [item["type"] for item in items] == [
        "message", "message", "function_call", "function_call_output", "message",
    ]  # fmt: skip
    assert not has_null_member(items)


def test_a_null_id_is_not_sent() -> None:
    """B126, its first step; the second is a fault of its request."""
    items = cases()["B126"]["client_steps"][0]["json"]["input"]
    copies = [json.loads(copy) for copy in sent(*map(json.dumps, items))]
    assert texts(copies) == ["hi", "yo", "again"]
    assert not has_null_member(copies)


def test_each_turn_goes_to_the_model_it_names() -> None:
    """B128."""
    outcomes = play("B128")
    assert [outcome["model"] for outcome in outcomes if isinstance(outcome, dict)] == ["thinker", "plain"]


def test_an_open_call_is_refused_alike_streamed_or_not() -> None:
    """B131."""
    _, plain, streamed = play("B131")
    assert isinstance(plain, ApiError)
    assert isinstance(streamed, ApiError)
    assert plain.message == streamed.message == "No tool output found for function call call_b."


def test_items_keep_their_types_and_fields() -> None:
    """B132."""
    (items,) = inputs("B132")
    assert [(item["type"], item.get("role")) for item in items] == [
        ("message", "developer"), ("message", "user"), ("function_call", None), ("function_call_output", None),
        ("message", "user"),
    ]  # fmt: skip
    assert items[2]["arguments"] == '{"q": "x"}'
    assert [part["type"] for part in items[3]["output"]] == ["input_text", "input_image"]


# --- what holds for any items

STRINGS = st.text(max_size=4) | st.sampled_from(["", "\n\n", "{}", '{"a":1}', "\ud83d", "incomplete", "assistant"])
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | STRINGS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "text", "a"]), inner),
    max_leaves=5,
)
PARTS = st.lists(
    st.fixed_dictionaries(
        {"type": st.sampled_from(["input_text", "output_text", "reasoning_text", "refusal", "input_image"])},
        optional={"text": STRINGS, "refusal": STRINGS, "detail": st.none(), "x": JSON_VALUES},
    ),
    max_size=3,
)
CONTENTS = STRINGS | PARTS | JSON_VALUES
BODIES = st.fixed_dictionaries(
    {"type": st.sampled_from([*VLLM.item_members, "web_search_call", "compaction", "x_thing"])},
    optional={
        "role": st.sampled_from(["user", "assistant", "developer"]) | JSON_VALUES,
        "content": CONTENTS,
        "output": CONTENTS,
        "summary": PARTS | JSON_VALUES,
        "encrypted_content": st.sampled_from([None, "", "BLOB"]),
        "call_id": st.none() | st.sampled_from(["c1", "c2"]),
        "name": STRINGS | JSON_VALUES,
        "namespace": st.none() | STRINGS,
        "arguments": STRINGS | JSON_VALUES,
        "input": STRINGS | JSON_VALUES,
        "id": st.none() | st.sampled_from(["", "brought"]),
        "status": st.sampled_from([None, "completed", "incomplete", "in_progress"]),
        "phase": st.none() | STRINGS,
        "caller": JSON_VALUES,
        "fidelity": JSON_VALUES,
    },
)


@st.composite
def contexts(draw: st.DrawFn) -> Context:
    """Any items in any turns, whether or not a client or an upstream could have brought them there."""
    turns: list[list[Item]] = []
    for turn in draw(st.lists(st.lists(st.tuples(st.booleans(), BODIES), max_size=4), min_size=1, max_size=3)):
        turns.append([])
        for is_output, body in turn:
            text = json.dumps(body, ensure_ascii=True).encode()
            item = from_upstream(raw.Object(text), f"public_{len(turns)}_{len(turns[-1])}", "gpu-1")
            turns[-1].append(msgspec.structs.replace(item, is_output=is_output))
    count = sum(map(len, turns))
    answered = draw(st.frozensets(st.integers(0, max(count - 1, 0))))
    return Context(Replayed(), turns, {}, answered, [])


def outcome(context: Context) -> list[Decision] | ApiError:
    try:
        return replay(context, VLLM, "previous_response_id", "up")
    except ApiError as error:
        return error


@settings(deadline=None)
@given(contexts())
def test_any_context_is_refused_by_an_item_or_sent_by_the_allow_list(context: Context) -> None:
    bodies = [item.body for item in context.items()]
    first, again = outcome(context), outcome(context)
    assert [item.body for item in context.items()] == bodies
    if isinstance(first, ApiError):
        assert isinstance(again, ApiError)
        assert (first.message, first.param) == (again.message, again.param)
        assert first.code == "encrypted_reasoning_not_supported"
        assert re.match(r"Item '(public_\d_\d|input\[\d\])' holds", first.message)
        assert "BLOB" not in first.message
        return
    assert first == again
    assert [decision.item for decision in first] == context.items()
    for decision in first:
        if decision.copy is not None:
            copy = json.loads(decision.copy)
            assert copy["type"] == decision.item.type
            assert copy.keys() <= {"type", *VLLM.item_members[decision.item.type]}
            assert not has_null_member(copy)
            assert "BLOB" not in decision.copy.decode()


@settings(deadline=None)
@given(contexts())
def test_where_sealed_items_are_left_out_nothing_is_refused(context: Context) -> None:
    assert [decision.item for decision in replay(context, OMITTING, "previous_response_id", "up")] == context.items()


OTHER_CALL = CUT_CALLS[0].replace('"c"', '"cut"')
PROGRESS = st.lists(
    st.tuples(
        st.sampled_from([GO, BLANK.replace("msg_w", ""), '{"role":"developer","content":[]}']),
        st.lists(
            st.sampled_from([reasoning(thought("hm")), reasoning(None), BLANK, said("a") + "}", CALL, OTHER_CALL]),
            max_size=4,
        ),
        st.booleans(),
    ),
    min_size=2,
    max_size=5,
)


@settings(deadline=None)
@given(PROGRESS)
def test_a_turn_begins_with_the_bytes_of_the_turn_before(progress: list[tuple[str, list[str], bool]]) -> None:
    """So that the upstream's prefix cache keeps hitting (DESIGN 6)."""
    history: list[list[Item]] = []
    before: list[bytes] = []
    open_calls: list[str] = []
    for spoken, put_out, is_cut_answered in progress:
        answered = [call for call in open_calls if call == CALL or is_cut_answered]
        outputs = [OUTPUT if call == CALL else OUTPUT.replace('"c"', '"cut"') for call in answered]
        turn = brought(*outputs, spoken)
        decided = replay(
            whole(Past(turns=history), parse_input(raw.array([item.body for item in turn]))), VLLM, "x", "up"
        )
        copies = [decision.copy for decision in decided if decision.copy is not None]
        assert copies[: len(before)] == before
        before = copies
        history.append([*turn, *made(*put_out)])
        open_calls = [item for item in put_out if item in (CALL, OTHER_CALL)]


NESTED = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["", '"', ',"a":null', "\\", '{,"b', "null", "\ud83d"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["a", '"', "null", ":", "{,"]), inner),
    max_leaves=30,
)


@settings(deadline=None)
@given(NESTED, st.sampled_from([None, 1]), st.booleans())
def test_null_members_go_and_all_else_stays(value: Any, indent: int | None, ascii_only: bool) -> None:
    part = {"type": "input_text", "text": "x", "x": value}
    try:
        content = json.dumps([part], indent=indent, ensure_ascii=ascii_only).encode()
    except UnicodeEncodeError:
        content = json.dumps([part], indent=indent).encode()
    (decision,) = replay(whole(Past(), parse_input(b'[{"role":"user","content":' + content + b"}]")), VLLM, "x", "up")
    assert json.loads(decision.copy or b"")["content"] == [without_null_members(part)]
    if not has_null_member(part):
        assert content in (decision.copy or b"")


def test_null_members_go_at_any_depth() -> None:
    opening, closing = (
        '{"type":"message","role":"user","content":[{"type":"x","x":' + '{"a":[' * 250,
        "]}" * 250 + "}]}",
    )
    assert sent(opening + '{"b":null}' + closing) == [opening + "{}" + closing]


def without_null_members(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_null_members(one) for name, one in value.items() if one is not None}
    return [without_null_members(one) for one in value] if isinstance(value, list) else value


def has_null_member(value: Any) -> bool:
    if isinstance(value, dict):
        return any(one is None or has_null_member(one) for one in value.values())
    return isinstance(value, list) and any(map(has_null_member, value))
