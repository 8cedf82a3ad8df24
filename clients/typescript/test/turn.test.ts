/** Turns over real connections to a real engine. */

import assert from "node:assert/strict";
import { after, before, suite, test } from "node:test";
import { Engine, type TurnEvent, TurnCancelledError, TurnFailedError } from "../src/index.js";
import { TestFleet } from "./support/fleet.js";
import { CuttingProxy } from "./support/proxy.js";

/**
 * Events without what differs from turn to turn: ids, times, what is recalled of earlier turns, and how deltas of one
 * millisecond are merged.
 */
function shapes(events: readonly TurnEvent[]): unknown[] {
  const shaped: Record<string, unknown>[] = [];
  for (const event of events) {
    if (event.type === "working_memory_update" && event.key === "recalled") continue;
    const text = JSON.stringify(event).replace(
      /"(\w*_id|\w*_tokens|ts|duration_ms)":("[^"]*"|\d+)/g,
      '"$1":0',
    );
    const next = JSON.parse(text) as Record<string, unknown>;
    const last = shaped.at(-1);
    if (event.type.endsWith("_delta") && last?.["type"] === event.type) {
      last["text"] = String(last["text"]) + String(next["text"]);
    } else shaped.push(next);
  }
  return shaped;
}

async function collect(turn: AsyncIterable<TurnEvent>): Promise<TurnEvent[]> {
  const events: TurnEvent[] = [];
  for await (const event of turn) events.push(event);
  return events;
}

suite("turns", () => {
  let fleet: TestFleet;
  let engine: Engine;

  before(async () => {
    fleet = await TestFleet.start();
    engine = await fleet.fleet.admit("ada");
  });
  after(async () => {
    await CuttingProxy.closeAll();
    await fleet.end();
  });

  test("the events of a turn are typed, and its result is its text", async () => {
    const turn = engine.run("events", "remember colour green");
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

  test("a turn that is cut after any event is read as if it had not been", async () => {
    const key = (await fleet.fleet.engineRecord("ada")).api_key;
    const direct = await collect(engine.run("uncut", "remember colour green"));
    assert.ok(direct.length > 15, `the turn is too short to be cut: ${direct.length.toString()} events`);
    // Each task is cut after another number of events, and, between two, in the middle of one.
    await Promise.all(
      Array.from({ length: direct.length }, async (_, index) => {
        const cutting = await CuttingProxy.to(engine.url);
        cutOnceAfter(cutting, index, index % 2 === 0 ? 0 : 20);
        const client = new Engine({ url: cutting.url, key });
        const turn = client.run(`cut-${index.toString()}`, "remember colour green");
        const events = await collect(turn);
        assert.deepEqual(shapes(events), shapes(direct), `cut after ${index.toString()} events`);
        assert.equal(new Set(events.map((event) => event.ts)).size, events.length, "none came twice");
        assert.ok(cutting.connections > 1 || index >= events.length, "it was cut");
        assert.equal((await turn.result()).text, "Noted: colour is green.");
        const replayed = await collect(client.follow(turn.taskId, turn.turnId ?? ""));
        assert.deepEqual(events, replayed, "they are what the engine has stored");
        const turns = await client.tasks.turns(turn.taskId).toArray();
        assert.equal(turns.length, 1, "the message was not sent twice");
        await cutting.close();
      }),
    );
  });

  test("a turn whose connection is cut after each of its events is complete", async () => {
    const proxy = await CuttingProxy.to(engine.url);
    proxy.onData = cutAfterEachEvent;
    const client = new Engine({ url: proxy.url, key: (await fleet.fleet.engineRecord("ada")).api_key });
    const turn = client.run("each", "echo one two three", { reconnectMs: 60_000 });
    const events = await collect(turn);
    assert.equal((await turn.result()).text, "one two three");
    proxy.onData = undefined;
    assert.deepEqual(events, await collect(client.follow("each", turn.turnId ?? "")));
    assert.ok(proxy.connections > 5);
    await proxy.close();
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

  test("a turn is cancelled", async () => {
    const turn = engine.run("cancelled", "slowly");
    for await (const event of turn) if (event.type === "text_delta") break;
    assert.equal(await turn.cancel(), true);
    await assert.rejects(turn.text(), TurnCancelledError);
    assert.equal(await turn.cancel(), false, "it has ended");
    assert.equal((await engine.tasks.turn("cancelled", turn.turnId ?? "")).state, "cancelled");
    assert.equal(await engine.run("never", "Hello").cancel(), false, "it was never sent");
  });

  test("a message behind another turn is queued, seen and taken out", async () => {
    const first = engine.run("queue", "slowly");
    for await (const event of first) if (event.type === "text_delta") break;
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
    for await (const event of first) if (event.type === "text_delta") break;
    const second = engine.run("steered", "echo steered", { on_busy: "steer" });
    const [update] = await collectSome(second, 1);
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

  test("an engine that is killed in the middle goes on, and its client too", async () => {
    const user = await fleet.fleet.admit("killed");
    const { engine_id } = await fleet.fleet.engineRecord("killed");
    const turn = user.run("killed", "slowly");
    const events: TurnEvent[] = [];
    for await (const event of turn) {
      events.push(event);
      if (events.length === 20) fleet.killEngine(engine_id);
    }
    assert.ok(events.some((event) => event.type === "thread_lifecycle" && event.phase === "resumed"));
    assert.deepEqual(events, await collect(user.follow("killed", turn.turnId ?? "")));
    assert.equal(turn.transcript.text, await turn.text(), "what a repeated step made void is not counted");
  });
});

async function collectSome(turn: AsyncIterable<TurnEvent>, count: number): Promise<TurnEvent[]> {
  const events: TurnEvent[] = [];
  for await (const event of turn) {
    events.push(event);
    if (events.length === count) break;
  }
  return events;
}

/** Cuts the first connection that streams events: after `count` of them and `more` bytes of the next one. */
function cutOnceAfter(proxy: CuttingProxy, count: number, more: number): void {
  let seen = 0;
  let isDone = false;
  proxy.onData = (chunk, cut) => {
    if (isDone) return chunk;
    let end = seen === count ? headEnd(chunk) : 0;
    for (let at = chunk.indexOf("\n\n"); at >= 0 && seen < count; at = chunk.indexOf("\n\n", at + 2)) {
      seen += 1;
      end = at + 2;
    }
    if (seen < count || end === 0) return chunk;
    isDone = true;
    cut();
    return chunk.subarray(0, end + more);
  };
}

/** Where a response's head ends; 0 if this is the middle of one. */
function headEnd(chunk: Buffer): number {
  return chunk.subarray(0, 5).toString("latin1") === "HTTP/" ? chunk.indexOf("\r\n\r\n") + 4 : 0;
}

/** Cuts each connection after one event; other answers pass. */
function cutAfterEachEvent(chunk: Buffer, cut: () => void): Buffer {
  const isStream = chunk.includes("text/event-stream") || chunk.includes("\nevent: ");
  const end = isStream ? chunk.indexOf("\n\n") : -1;
  if (end < 0) return chunk;
  cut();
  return chunk.subarray(0, end + 2);
}
