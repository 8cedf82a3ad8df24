/** What else turns do, beside the stories of `stories.md`. */

import assert from "node:assert/strict";
import { after, before, suite, test } from "node:test";
import { type Engine, type TurnEvent, TurnCancelledError, TurnFailedError } from "../src/index.js";
import { collect, readUntil } from "./support/events.js";
import { TestFleet } from "./support/fleet.js";

suite("turns", () => {
  let fleet: TestFleet;
  let engine: Engine;

  before(async () => {
    fleet = await TestFleet.start();
    engine = await fleet.fleet.admit("ada");
  });
  after(async () => {
    await fleet.end();
  });

  test("the events of a turn are typed, and its result is its text", async () => {
    const turn = engine.run("events", "remember colour = green");
    const seen: string[] = [];
    for await (const event of turn) {
      switch (event.type) {
        case "thread_lifecycle":
          seen.push(event.phase === "completed" ? `completed: ${event.text}` : event.phase);
          break;
        case "tool_call":
          seen.push(`${event.tool} ${JSON.stringify(event.input)}`);
          break;
        case "tool_result":
          seen.push(event.output);
          break;
        default:
      }
    }
    assert.deepEqual(seen, [
      "started",
      'working_memory_set {"key":"colour","value":"green"}',
      "kept under `colour`",
      "completed: Noted: colour is green.",
    ]);
    const result = await turn.result();
    assert.equal(result.text, "Noted: colour is green.");
    assert.equal(result.stopReason, "end_turn");
    assert.equal(result.turnId, turn.turnId);
    assert.ok((result.usage?.output_tokens ?? 0) > 0);
    assert.equal(turn.transcript.text, "Noted: colour is green.");
    assert.equal(turn.transcript.thinking, "I note it, as I was told to.");
    assert.deepEqual(await collect(turn), [], "there is nothing more to read");
  });

  test("leaving the loop closes the connection and not the turn; reading goes on from there", async () => {
    const turn = engine.run("left", "slowly");
    const before: TurnEvent[] = [];
    for await (const event of turn) {
      before.push(event);
      if (before.length === 10) break;
    }
    assert.equal(turn.ended, false);
    const text = await turn.text();
    assert.match(text, /^one two .* nine ten$/);
    const rest = await collect(engine.follow("left", turn.turnId ?? "", { after: before.at(-1)?.ts ?? 0 }));
    const all = await collect(engine.follow("left", turn.turnId ?? ""));
    assert.deepEqual([...before, ...rest], all);
    assert.equal(turn.transcript.text, text);
  });

  test("a message behind another turn is queued, seen and taken out", async () => {
    const first = engine.run("queue", "slowly");
    await readUntil(first, "text_delta");
    const second = engine.run("queue", "echo second", { on_busy: "queue" });
    const updates: unknown[] = [];
    for await (const event of second) {
      if (event.type === "busy_update" && event.status === "queued") updates.push(event.position);
      break;
    }
    assert.deepEqual(updates, [1]);
    const third = engine.run("queue", "echo third", { on_busy: "queue" });
    for await (const event of third) {
      assert.equal(event.type, "busy_update");
      break;
    }
    assert.equal(await second.cancel(), true);
    await assert.rejects(second.text(), TurnCancelledError);
    assert.equal(await first.cancel(), true);
    assert.equal(await third.text(), "third");
  });

  test("a message is given to the running turn", async () => {
    const first = engine.run("steered", "slowly");
    await readUntil(first, "text_delta");
    const second = engine.run("steered", "echo steered", { on_busy: "steer" });
    const [update] = await readUntil(second, "busy_update");
    assert.ok(update?.type === "busy_update" && update.status === "steered");
    assert.equal(second.turnId, first.turnId);
    assert.equal(await second.text(), await first.text());
  });

  test("a turn runs in the background and is read afterwards", async () => {
    const started = await engine.start("background", "echo behind the scenes");
    assert.equal(started.status, "started");
    assert.equal(await engine.follow("background", started.turn_id).text(), "behind the scenes");
  });

  test("a failed turn throws what the engine says", async () => {
    const turn = engine.run("failed", "fail");
    await assert.rejects(turn.text(), (error) => {
      assert.ok(error instanceof TurnFailedError);
      assert.equal(error.code, "PROVIDER_REFUSED");
      assert.equal(error.retryable, false);
      assert.equal(error.turnId, turn.turnId);
      return true;
    });
    const events = await collect(engine.follow("failed", turn.turnId ?? ""));
    assert.equal(events.at(-1)?.type, "error", "an iteration ends with the event and throws nothing");
  });

  test("text of any language arrives as it was sent", async () => {
    const text = "Grüße 你好 नमस्ते 🙂‍↔️ שלום e\u0301";
    const turn = engine.run("Ταξίδι 1/2?", `echo ${text}`);
    const deltas: string[] = [];
    for await (const event of turn) if (event.type === "text_delta") deltas.push(event.text);
    assert.equal(deltas.join(""), text);
    assert.equal(await turn.text(), text);
    const [answer, question] = await engine.messages("Ταξίδι 1/2?").toArray();
    assert.deepEqual(answer?.content, [{ type: "text", text }]);
    assert.deepEqual(question?.content, [{ type: "text", text: `echo ${text}` }]);
  });

  test("reading ends with its signal, and the turn goes on", async () => {
    const abort = new AbortController();
    const turn = engine.run("aborted", "slowly", { signal: abort.signal });
    await assert.rejects(
      async () => {
        for await (const event of turn) if (event.type === "text_delta") abort.abort(new Error("enough"));
      },
      { message: "enough" },
    );
    assert.equal((await engine.tasks.turn("aborted", turn.turnId ?? "")).state, "running");
    await engine.cancel("aborted");
  });

  test("a turn that is read twice at once is refused", async () => {
    const turn = engine.run("twice", "slowly");
    for await (const _event of turn) {
      await assert.rejects(turn.text(), TypeError);
      break;
    }
    assert.equal(await turn.cancel(), true);
  });
});
