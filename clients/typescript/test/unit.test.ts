/** Decisions without a network: repetition, events of later versions, what a repeated step makes void. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { suite, test } from "node:test";
import {
  ApiError,
  BadRequestError,
  Engine,
  NetworkError,
  NotFoundError,
  type RoundhouseError,
  TaskNotFoundError,
  Transcript,
  type TurnEvent,
  UnavailableError,
} from "../src/index.js";
import { encodeSegment } from "../src/api.js";
import { apiError } from "../src/error-codes.js";
import { parseEvent } from "../src/events.js";
import { queryString } from "../src/http.js";
import { isPassing, parseRetryAfter, pauseMs } from "../src/retry.js";

const STAMP = { task_id: "t", turn_id: "turn_1", ts: 1 };

function event(type: string, data: object): TurnEvent {
  const parsed = parseEvent({ event: type, data: JSON.stringify({ ...STAMP, ...data }) });
  assert.ok(parsed !== undefined);
  return parsed;
}

suite("units", () => {
  test("an event, a phase and a status of a later version are unknown events", () => {
    const data = { ...STAMP, phase: "paused" };
    for (const [type, fields] of [
      ["telepathy", { thought: 1 }],
      ["thread_lifecycle", { phase: "paused" }],
      ["busy_update", { status: "postponed" }],
      ["toString", {}],
    ] as const) {
      const parsed = event(type, fields);
      assert.deepEqual(parsed, { type: "unknown", event: type, ...STAMP, data: { ...STAMP, ...fields } });
    }
    assert.equal(event("thread_lifecycle", { ...data, phase: "started" }).type, "thread_lifecycle");
    assert.equal(parseEvent({ event: "heartbeat", data: "{}" }), undefined);
    assert.throws(() => parseEvent({ event: "text_delta", data: "{" }), { name: "ProtocolError" });
    assert.throws(() => parseEvent({ event: "text_delta", data: "{}" }), { name: "ProtocolError" });
  });

  test("unknown events are read and end nothing", async () => {
    const events = [
      ["thread_lifecycle", { ts: 1, phase: "started", message_id: "m" }],
      ["telepathy", { ts: 2 }],
      [
        "thread_lifecycle",
        {
          ts: 3,
          phase: "completed",
          message_id: "m",
          answer_message_id: "a",
          text: "x",
          stop_reason: "end_turn",
        },
      ],
    ] as const;
    const body = events
      .map(
        ([type, data]) =>
          `id: ${data.ts.toString()}\nevent: ${type}\ndata: ${JSON.stringify({ ...STAMP, ...data })}\n\n`,
      )
      .join("");
    const engine = new Engine({
      url: "http://engine.invalid",
      key: "k",
      fetch: () => Promise.resolve(new Response(body)),
    });
    const turn = engine.run("t", "hello");
    const types: string[] = [];
    for await (const read of turn) types.push(read.type);
    assert.deepEqual(types, ["thread_lifecycle", "unknown", "thread_lifecycle"]);
    assert.equal(await turn.text(), "x");
  });

  test("a repeated step makes void what it had said, and nothing before", () => {
    const transcript = new Transcript();
    const add = (ts: number, type: string, data: object): void => {
      transcript.add(event(type, { ...data, ts }));
    };
    add(1, "content_block_start", { index: 0, block_type: "text" });
    add(2, "text_delta", { text: "I look. " });
    add(3, "content_block_stop", { index: 0 });
    add(4, "content_block_start", { index: 1, block_type: "thinking" });
    add(5, "thinking_delta", { text: "Hm" });
    add(6, "content_block_stop", { index: 1 });
    add(7, "content_block_start", { index: 2, block_type: "text" });
    add(8, "text_delta", { text: "It is re" });
    assert.equal(transcript.text, "I look. It is re");
    add(9, "thread_lifecycle", { phase: "retrying", void_after: 3, attempt: 2, message_id: "m" });
    assert.deepEqual([transcript.text, transcript.thinking], ["I look. ", ""]);
    add(10, "content_block_start", { index: 3, block_type: "text" });
    add(11, "text_delta", { text: "It is green." });
    assert.equal(transcript.text, "I look. It is green.");
    // A sub-agent's events are its own.
    add(12, "agent_event", { tool_call_id: "c", agent: "a", event: "text_delta", data: { text: "no" } });
    assert.deepEqual(
      transcript.blocks.map(({ index, kind, text }) => [index, kind, text]),
      [
        [0, "text", "I look. "],
        [3, "text", "It is green."],
      ],
    );
  });

  test("only what passes by itself is tried again", () => {
    const error = (code: string, status: number): RoundhouseError => apiError(status, "m", { code });
    for (const code of ["RATE_LIMITED", "STARTING_UP", "CAPACITY_EXHAUSTED", "QUIESCED", "OVERLOADED"]) {
      assert.ok(isPassing(error(code, 503), 5), code);
    }
    for (const code of [
      "QUOTA_EXCEEDED",
      "BOOT_TIMEOUT",
      "USAGE_CAP_REACHED",
      "TASK_BUSY",
      "INTERNAL_ERROR",
      "NEW",
    ]) {
      assert.ok(!isPassing(error(code, 503), 1), code);
    }
    assert.ok(isPassing(error("BACKEND_ERROR", 502), 1) && !isPassing(error("BACKEND_ERROR", 502), 2));
    assert.ok(isPassing(new NetworkError("m", { sent: true }), 9));
    assert.ok(!isPassing(new TypeError("m"), 1));
  });

  test("pauses grow, end at five seconds, and are never shorter than `Retry-After`", () => {
    const lost = new NetworkError("m", { sent: true });
    const pauses = [1, 2, 3, 4, 5, 6, 50].map((attempt) => pauseMs(lost, attempt, 0));
    assert.deepEqual(pauses, [250, 500, 1_000, 2_000, 4_000, 5_000, 5_000]);
    assert.equal(pauseMs(lost, 1, 1), 187.5);
    const limited = apiError(429, "m", { code: "RATE_LIMITED", retryAfter: 7 });
    assert.equal(pauseMs(limited, 9, 0), 7_000);
    assert.equal(pauseMs(limited, 9, 1), 7_250);
    const now = Date.parse("2026-11-27T12:00:00Z");
    assert.equal(parseRetryAfter("3", now), 3);
    assert.equal(parseRetryAfter("Fri, 27 Nov 2026 12:00:05 GMT", now), 5);
    assert.equal(parseRetryAfter("Fri, 27 Nov 2026 11:00:00 GMT", now), 0);
    assert.deepEqual([parseRetryAfter(null, now), parseRetryAfter("soon", now)], [undefined, undefined]);
  });

  test("a code of a later version has the class of its status", () => {
    assert.equal(apiError(404, "m", { code: "TASK_NOT_FOUND" }).constructor, TaskNotFoundError);
    assert.equal(apiError(404, "m", { code: "MOON_NOT_FOUND" }).constructor, NotFoundError);
    assert.equal(apiError(400, "m", { code: "toString" }).constructor, BadRequestError);
    assert.equal(apiError(503, "m", { code: "ECLIPSE" }).constructor, UnavailableError);
    assert.equal(apiError(418, "m", { code: "TEAPOT" }).constructor, ApiError);
    assert.equal(apiError(404, "m", { code: "TASK_NOT_FOUND" }).name, "TaskNotFoundError");
  });

  test("addresses are encoded", () => {
    assert.equal(encodeSegment("a/b ü?"), "a%2Fb%20%C3%BC%3F");
    assert.equal(encodeSegment("..."), "...");
    assert.throws(() => encodeSegment(".."), TypeError);
    assert.equal(
      queryString({ q: "a&b ü", none: undefined, no: null, limit: 0, archived: false }),
      "?q=a%26b+%C3%BC&limit=0&archived=false",
    );
  });

  test("a client without an idempotency key sends its message once", async () => {
    const sent: string[] = [];
    const engine = (failure: Error): Engine =>
      new Engine({
        url: "http://engine.invalid",
        key: "k",
        fetch: (_url, init) => {
          sent.push(init.body as string);
          return Promise.reject(failure);
        },
      });
    const lost = new Error("reset");
    await assert.rejects(engine(lost).run("t", "m", { on_busy: "steer" }).text(), NetworkError);
    assert.equal(sent.length, 1);
    assert.ok(!sent[0]?.includes("client_request_id"));
    await assert.rejects(engine(lost).run("t", "m", { reconnectMs: 1_000 }).text(), NetworkError);
    const repeated = sent.slice(1).map((body) => JSON.parse(body) as { client_request_id: string });
    const ids = new Set(repeated.map((body) => body.client_request_id));
    assert.ok(repeated.length > 1 && ids.size === 1, "it is repeated under one id");
  });

  test("the version is that of the workspace", () => {
    const root = new URL("../../", import.meta.url);
    const { version } = JSON.parse(readFileSync(new URL("package.json", root), "utf8")) as {
      version: string;
    };
    const workspace = readFileSync(new URL("../../Cargo.toml", root), "utf8");
    assert.equal(version, /^\[workspace\.package\][^[]*?^version = "([^"]+)"/ms.exec(workspace)?.[1]);
  });
});
