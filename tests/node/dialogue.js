// The dialogue that every client leads here, and what the model server must have been sent in it.
//
// "Weather in Paris?" makes the model think and call `get_weather`; of its "sunny" it thinks again and answers; "Thanks."
// is the second turn. The model server's three replies are a real vLLM's, as it was recorded.

import { readFileSync } from "node:fs";

export const MODEL = "tiny";
export const QUESTION = "Weather in Paris?";
export const WEATHER = "sunny";
export const THANKS = "Thanks.";
export const ANSWERS = ["\n\nIt is sunny in Paris.", "You are welcome."];

export const MODES = [
  { mode: "JSON", stream: false },
  { mode: "streamed", stream: true },
];

const JSON_IDS = {
  firstThought: "rs_b7b2babb2f374219",
  call: "fc_aeb1d769a1ab2b4e",
  callId: "chatcmpl-tool-946841eb61385c43",
  secondThought: "rs_89e16fa50417570e",
  answer: "msg_8f2f35c3881ce1d9",
};
const STREAMED_IDS = {
  firstThought: "rs_b3fa9dfea1a25fea",
  call: "fc_a923b1d05663e49e",
  callId: "chatcmpl-tool-9402fa4e2a7a2b48",
  secondThought: "rs_87e7a9c73b2117b2",
  answer: "msg_b15e2a03a08f9669",
};

const RECORDED = readFileSync(new URL("../data/captures-0.33.jsonl", import.meta.url), "utf8")
  .trimEnd()
  .split("\n")
  .map((line) => JSON.parse(line));

/** The script of the mock, a reply for each of the three requests. */
export function replies(stream) {
  const mode = stream ? "s" : "n";
  const names = [`60chain-weather-${mode}-t1`, `60chain-weather-${mode}-t2`, "51-tool-round-then-user"];
  return names.map((name) => {
    const { body } = RECORDED.find((record) => record.name === name && record.body.startsWith("event:") === stream);
    return stream ? { sse: body } : { text: body, headers: { "content-type": "application/json" } };
  });
}

/**
 * The `input` of each of the three requests, as the model server must have got them: the whole history in order, and each
 * recorded item in the form that it reads.
 *
 * @param said how the client spells its own items: `user(text)`, `output(callId)`, and where it sends the call in words
 *   of its own, `call(recorded)`.
 */
export function inputs(stream, { user, output, call = (recorded) => recorded }) {
  const ids = stream ? STREAMED_IDS : JSON_IDS;
  const asked = [user(QUESTION)];
  const called = [
    thought(ids.firstThought, "\nI need the weather tool.\n"),
    call({
      type: "function_call",
      id: ids.call,
      call_id: ids.callId,
      name: "get_weather",
      arguments: '{"city": "Paris"}',
    }),
    output(ids.callId),
  ];
  const answered = [
    thought(ids.secondThought, "\nThe tool said sunny.\n"),
    {
      type: "message",
      id: ids.answer,
      role: "assistant",
      content: [{ type: "output_text", text: ANSWERS[0], annotations: [] }],
    },
  ];
  return [asked, [...asked, ...called], [...asked, ...called, ...answered, user(THANKS)]];
}

function thought(id, text) {
  return { type: "reasoning", id, summary: [], content: [{ type: "reasoning_text", text }] };
}
