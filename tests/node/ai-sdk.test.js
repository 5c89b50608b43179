// The AI SDK (ai with @ai-sdk/openai), which calls the tool by itself, by each of its ways of keeping state.

import assert from "node:assert/strict";
import { test } from "node:test";

import { createOpenAI } from "@ai-sdk/openai";
import { generateText, isStepCount, streamText, tool } from "ai";
import { z } from "zod";

import { ANSWERS, MODEL, MODES, QUESTION, THANKS, WEATHER, inputs, replies } from "./dialogue.js";
import { TEST_MAX_MS, serve } from "./servers.js";

const SAID = {
  user: (text) => ({ type: "message", role: "user", content: [{ type: "input_text", text }] }),
  output: (call_id) => ({ type: "function_call_output", call_id, output: WEATHER }),
};

// What makes of all messages, the new ones among them and the last response's id what is sent.
const CONTINUED_BY = {
  // By default all is sent again, and what the server has stored only by its id; but calls in the client's own words.
  "item references": {
    said: { ...SAID, call: ({ id, ...call }) => ({ ...call, arguments: '{"city":"Paris"}' }) },
    begin: async () => (messages) => ({ messages }),
  },
  previousResponseId: {
    said: SAID,
    begin: async () => (_, messages, previousResponseId) => ({
      messages,
      providerOptions: { openai: { previousResponseId } },
    }),
  },
  conversation: {
    said: SAID,
    begin: async (url) => {
      const created = await fetch(`${url}/conversations`, { method: "POST" });
      const { id: conversation } = await created.json();
      return (_, messages) => ({ messages, providerOptions: { openai: { conversation } } });
    },
  },
};

for (const { mode, stream } of MODES) {
  for (const [way, { said, begin }] of Object.entries(CONTINUED_BY)) {
    test(`ai: ${way}, ${mode}`, { timeout: TEST_MAX_MS }, async (t) => {
      const { url, received } = await serve(t, replies(stream));
      const asked = [];
      const weather = tool({
        description: "Tells the weather.",
        inputSchema: z.object({ city: z.string() }),
        execute: ({ city }) => {
          asked.push(city);
          return WEATHER;
        },
      });
      const model = createOpenAI({ baseURL: url, apiKey: "unused" })(MODEL);
      const continued = await begin(url);
      const say = async (text, last) => {
        const messages = [...(last?.messages ?? []), { role: "user", content: text }];
        const result = await (stream ? streamText : generateText)({
          model,
          tools: { get_weather: weather },
          stopWhen: isStepCount(3),
          maxRetries: 0,
          ...continued(messages, messages.slice(-1), last?.id),
          // Left alone, a step after a tool call sends the turn's question again, whatever it continues.
          prepareStep: ({ messages, steps }) =>
            steps.length > 0 ? continued(messages, messages.slice(-1), steps.at(-1).response.id) : {},
        });
        const { id } = await result.response;
        return { text: await result.text, id, messages: [...messages, ...(await result.responseMessages)] };
      };

      const first = await say(QUESTION);
      const second = await say(THANKS, first);
      assert.deepEqual([first.text, second.text], ANSWERS);
      assert.deepEqual(asked, ["Paris"]);
      assert.deepEqual(await received(), inputs(stream, said));
    });
  }
}
