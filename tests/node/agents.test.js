// The agents' client (@openai/agents), whose runner calls the tool by itself, by each of its ways of keeping state.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Agent, OpenAIConversationsSession, OpenAIResponsesModel, run, setTracingDisabled, tool } from "@openai/agents";
import OpenAI from "openai";
import { z } from "zod";

import { ANSWERS, MODEL, MODES, QUESTION, THANKS, WEATHER, inputs, replies } from "./dialogue.js";
import { TEST_MAX_MS, serve } from "./servers.js";

// Traces would go to the vendor.
setTracingDisabled(true);

const SAID = {
  user: (content) => ({ type: "message", role: "user", content }),
  output: (call_id) => ({ type: "function_call_output", call_id, output: WEATHER }),
};

const CONTINUED_BY = {
  previousResponseId: async () => (last) => ({ previousResponseId: last?.lastResponseId }),
  conversationId: async (client) => {
    const { id } = await client.conversations.create();
    return () => ({ conversationId: id });
  },
  OpenAIConversationsSession: async (client) => {
    const session = new OpenAIConversationsSession({ client });
    return () => ({ session });
  },
};

for (const { mode, stream } of MODES) {
  for (const [way, begin] of Object.entries(CONTINUED_BY)) {
    test(`@openai/agents: ${way}, ${mode}`, { timeout: TEST_MAX_MS }, async (t) => {
      const { url, received } = await serve(t, replies(stream));
      const client = new OpenAI({ baseURL: url, apiKey: "unused", maxRetries: 0 });
      const asked = [];
      const weather = tool({
        name: "get_weather",
        description: "Tells the weather.",
        parameters: z.object({ city: z.string() }),
        execute: ({ city }) => {
          asked.push(city);
          return WEATHER;
        },
      });
      const agent = new Agent({ name: "Reporter", tools: [weather], model: new OpenAIResponsesModel(client, MODEL) });
      const continued = await begin(client);
      const say = async (text, last) => {
        const result = await run(agent, text, { stream, ...continued(last) });
        if (stream) await result.completed;
        return result;
      };

      const first = await say(QUESTION);
      const second = await say(THANKS, first);
      assert.deepEqual([first.finalOutput, second.finalOutput], ANSWERS);
      assert.deepEqual(asked, ["Paris"]);
      const [sent, wanted] = [await received(), inputs(stream, SAID)];
      if (way === "OpenAIConversationsSession") {
        // What it added to its conversation has new ids there, and is listed with its text as a part.
        wanted[2][0] = { ...wanted[2][0], content: [{ type: "input_text", text: QUESTION }] };
        sent[2] = sent[2].map(withoutId);
        wanted[2] = wanted[2].map(withoutId);
      }
      assert.deepEqual(sent, wanted);
    });
  }
}

function withoutId({ id, ...item }) {
  return item;
}
