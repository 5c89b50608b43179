// The real server before a scripted model server, as processes of their own for one test.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { chmod, mkdtemp, open, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";

export const TEST_MAX_MS = 180_000;

const COMMAND = fileURLToPath(new URL("../../.venv/bin/rejoinder", import.meta.url));
const START_MAX_MS = 120_000;
const END_MAX_MS = 30_000;

// What a test that was itself cut short has not ended.
const everStarted = [];
process.once("exit", () => everStarted.forEach((child) => child.kill()));
process.once("SIGTERM", () => process.exit(1));

/**
 * Starts both until the end of `test`; the model server answers by `replies`.
 *
 * @returns `url`, the base URL that a client is given, and `received()`, the `input` of each request that the
 *   model server has got. Throws with its log when one of them does not start.
 */
export async function serve(test, replies) {
  const folder = await mkdtemp(join(tmpdir(), "rejoinder-test-"));
  const started = [];
  test.after(async () => {
    for (const child of started.reverse()) await end(child);
    // The server's Postgres may still be putting its files away.
    await rm(folder, { recursive: true, maxRetries: 10, retryDelay: 200 });
  });
  // A Postgres started by root runs as another user, who must be able to pass.
  await chmod(folder, 0o755);
  await writeFile(join(folder, "replies.jsonl"), replies.map((reply) => JSON.stringify(reply)).join("\n"));

  const run = async (name, ...options) => {
    const child = await start(folder, name, options);
    started.push(child);
    return child;
  };
  const mock = await run("mock", "--script", "replies.jsonl", "--record", "received.jsonl");
  const upstream = await told(mock, folder, "mock.out", (text) => text.trim());
  const server = await run("serve", "--data-dir", "data", "--upstream", upstream);
  const url = await told(server, folder, "serve.log", servingUrl);

  return {
    url: `${url}/v1`,
    received: async () => {
      const recorded = await readFile(join(folder, "received.jsonl"), "utf8");
      return recorded.trimEnd().split("\n").map((line) => JSON.parse(JSON.parse(line).body).input);
    },
  };
}

/** A command of ours on a free port in `folder`, its output in `NAME.out` and `NAME.log`, without this shell's settings. */
async function start(folder, name, options) {
  const settings = Object.entries(process.env).filter(([key]) => !/^(REJOINDER_|PYTHON)/.test(key));
  const [out, log] = await Promise.all(["out", "log"].map((kind) => open(join(folder, `${name}.${kind}`), "w")));
  const started = spawn(COMMAND, [name, "--port", "0", ...options], {
    cwd: folder,
    env: Object.fromEntries(settings),
    stdio: ["ignore", out.fd, log.fd],
  });
  everStarted.push(started);
  await once(started, "spawn");
  await Promise.all([out.close(), log.close()]);
  return started;
}

/** The first answer that is not empty, made of what the process has written to `file`. */
async function told(child, folder, file, answer) {
  const deadline = Date.now() + START_MAX_MS;
  for (;;) {
    const found = answer(await readFile(join(folder, file), "utf8"));
    if (found) return found;
    if (child.exitCode !== null || Date.now() > deadline) {
      const log = await readFile(join(folder, file.replace(/\.\w+$/, ".log")), "utf8");
      throw new Error(`it did not start and said:\n${log}`);
    }
    await sleep(50);
  }
}

/** The URL in the log's line about serving, once that is there as a whole. */
function servingUrl(log) {
  const line = log.split("\n").slice(0, -1).find((text) => text.includes('"event": "serving"'));
  return line && JSON.parse(line).url;
}

async function end(child) {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const gone = once(child, "exit");
  child.kill("SIGTERM");
  const impatience = setTimeout(() => child.kill("SIGKILL"), END_MAX_MS);
  await gone;
  clearTimeout(impatience);
}
