// The official client (openai), by both ways of continuing.

import assert from "node:assert/strict";
import { test } from "node:test";

import OpenAI from "openai";

import { ANSWERS, MODEL, MODES, QUESTION, THANKS, WEATHER, inputs, replies } from "./dialogue.js";
import { TEST_MAX_MS, serve } from "./servers.js";

const TOOLS = [
  {
    type: "function",
    name: "get_weather",
    parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
    strict: false,
  },
];

const SAID = {
  user: (content) => ({ type: "message", role: "user", content }),
  output: (call_id) => ({ type: "function_call_output", call_id, output: WEATHER }),
};

const CONTINUED_BY = {
  previous_response_id: async () => (last) => (last ? { previous_response_id: last.id } : {}),
  conversation: async (client) => {
    const { id } = await client.conversations.create();
    return () => ({ conversation: id });
  },
};

for (const { mode, stream } of MODES) {
  for (const [way, begin] of Object.entries(CONTINUED_BY)) {
    test(`openai: ${way}, ${mode}`, { timeout: TEST_MAX_MS }, async (t) => {
      const { url, received } = await serve(t, replies(stream));
      const client = new OpenAI({ baseURL: url, apiKey: "unused", maxRetries: 0 });
      const continued = await begin(client);
      const respond = (input, last) => {
        const request = { model: MODEL, input, tools: TOOLS, ...continued(last) };
        return stream ? client.responses.stream(request).finalResponse() : client.responses.create(request);
      };

      const asked = await respond(QUESTION);
      const call = asked.output.find((item) => item.type === "function_call");
      assert.deepEqual(JSON.parse(call.arguments), { city: "Paris" });
      const first = await respond([SAID.output(call.call_id)], asked);
      const second = await respond(THANKS, first);
      assert.deepEqual([first.output_text, second.output_text], ANSWERS);

      assert.deepEqual(await received(), inputs(stream, SAID));
    });
  }
}
