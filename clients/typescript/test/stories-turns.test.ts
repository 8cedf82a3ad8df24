/** The stories of `stories.md` about turns: lost connections, people, and cancellation. */

import assert from "node:assert/strict";
import { after, before, suite, test } from "node:test";
import {
  Engine,
  FileNotFoundError,
  HitlNotPendingError,
  InvalidRequestError,
  MessageNotFoundError,
  MethodNotFoundError,
  NetworkError,
  SkillNotFoundError,
  TaskBusyError,
  TaskNotFoundError,
  TaskNotRunningError,
  type Turn,
  type TurnEvent,
  TurnCancelledError,
} from "../src/index.js";
import { expectRefusal } from "./support/errors.js";
import { collect, cutAfterEachEvent, cutOnceAfter, readUntil, stored } from "./support/events.js";
import { FickleModel } from "./support/fickle.js";
import { TestFleet } from "./support/fleet.js";
import { unusedPort } from "./support/ports.js";
import { CuttingProxy } from "./support/proxy.js";

suite("stories of turns", () => {
  let fleet: TestFleet;
  let engine: Engine;
  let key: string;

  before(async () => {
    fleet = await TestFleet.start();
    engine = await fleet.fleet.admit("ada");
    key = (await fleet.fleet.engineRecord("ada")).api_key;
  });
  after(async () => {
    await CuttingProxy.closeAll();
    await fleet.end();
  });

  test("cut_once_after_any_event", async () => {
    const { length } = await collect(engine.run("uncut", "remember colour = blau"));
    assert.ok(length > 8, `the turn is too short to be cut: ${length.toString()} events`);
    // Between two, a connection is cut in the middle of an event.
    await Promise.all(
      Array.from({ length: length + 1 }, async (_, index) => {
        const proxy = await CuttingProxy.to(engine.url);
        cutOnceAfter(proxy, index, index % 2 === 0 ? 0 : 20);
        const client = new Engine({ url: proxy.url, key });
        const turn = client.run(`cut-${index.toString()}`, "remember colour = blau");
        const events = await collect(turn);
        assert.deepEqual(events, await stored(engine, turn), `cut after ${index.toString()} events`);
        assert.equal(new Set(events.map((event) => event.ts)).size, events.length, "none came twice");
        assert.equal(await turn.text(), "Noted: colour is blau.");
        assert.ok(proxy.connections > 1 || index >= events.length, "it was cut");
        const turns = await engine.tasks.turns(turn.taskId).toArray();
        assert.equal(turns.length, 1, "the message was not sent twice");
        await proxy.close();
      }),
    );
  });

  test("cut_after_every_event", async () => {
    const proxy = await CuttingProxy.to(engine.url);
    proxy.onData = cutAfterEachEvent;
    const client = new Engine({ url: proxy.url, key });
    const turn = client.run("cut-each", "remember colour = blau", { reconnectMs: 60_000 });
    const events = await collect(turn);
    assert.deepEqual(events, await stored(engine, turn));
    assert.equal(new Set(events.map((event) => event.ts)).size, events.length, "none came twice");
    assert.equal(await turn.text(), "Noted: colour is blau.");
    assert.ok(proxy.connections >= events.length - 1);
    await proxy.close();
  });

  test("repeated_step_is_void", async () => {
    const model = await FickleModel.start();
    const running = await TestFleet.start({
      LLM_PROVIDER: "openai-compatible",
      LLM_MODEL: "m",
      LLM_BASE_URL: model.url,
      LLM_API_KEY: "provider-key",
    });
    try {
      const turn = (await running.fleet.admit("ada")).run("fickle", "Count");
      const said: string[] = [];
      let voided = "";
      for await (const event of turn) {
        if (event.type === "text_delta") said.push(event.text);
        if (event.type === "thread_lifecycle" && event.phase === "retrying") {
          voided = said.splice(0).join("");
          assert.equal(turn.transcript.text, "");
        }
      }
      assert.equal(voided, "eins zwei drei ");
      assert.equal(said.join(""), "uno dos");
      assert.equal(turn.transcript.text, "uno dos");
      assert.equal(await turn.text(), "uno dos");
    } finally {
      await running.end();
      await model.end();
    }
  });

  test("question_answered", async () => {
    const turn = engine.run("question", "ask me", {
      onRequest: async ({ kind, question, options }) => {
        assert.deepEqual([kind, question], ["question", "Welche Farbe, 色?"]);
        assert.deepEqual(options, ["rot", "grün", "青"]);
        await Promise.resolve();
        return "зелёный";
      },
    });
    assert.equal(await turn.text(), "You like зелёный.");
  });

  test("permission_allowed", async () => {
    const asked: unknown[] = [];
    const turn = engine.run("allowed", "write allowed.txt: ja", {
      onRequest: (request, { approval }) => {
        asked.push([request.kind, approval?.tool, approval?.preview.kind]);
        return "yes";
      },
    });
    assert.match(await turn.text(), /^Done: /);
    assert.deepEqual(asked, [["permission", "write_file", "diff"]]);
    assert.equal(await (await engine.download("allowed.txt")).text(), "ja");
  });

  test("permission_denied", async () => {
    const turn = engine.run("denied", "write denied.txt: nein", {
      onRequest: () => ({ answer: "no", feedback: "Nicht jetzt." }),
    });
    const results: string[] = [];
    for await (const event of turn) if (event.type === "tool_result") results.push(event.error ?? "");
    assert.equal(results.length, 1);
    assert.match(results.join(), /Nicht jetzt\./);
    await assert.rejects(engine.download("denied.txt"), FileNotFoundError);
  });

  test("permission_with_edited_input", async () => {
    const turn = engine.run("edited", "write edited.txt: anders", {
      onRequest: (_, { approval }) => {
        assert.deepEqual(approval?.input, { path: "edited.txt", content: "anders" });
        const input = { path: "edited-2.txt", content: "änders 🍐" };
        return { decision: "allow_once", input, message: "So." };
      },
    });
    const resolved: TurnEvent[] = [];
    for await (const event of turn) if (event.type === "approval_resolved") resolved.push(event);
    const [first] = resolved;
    assert.ok(resolved.length === 1 && first?.type === "approval_resolved");
    assert.equal(first.decision, "allow_once");
    assert.equal(await (await engine.download("edited-2.txt")).text(), "änders 🍐");
    await assert.rejects(engine.download("edited.txt"), FileNotFoundError);
  });

  test("asked_once_over_cut_connections", async () => {
    const proxy = await CuttingProxy.to(engine.url);
    proxy.onData = cutAfterEachEvent;
    const client = new Engine({ url: proxy.url, key });
    let count = 0;
    const onRequest = (): string => {
      count += 1;
      return "rot";
    };
    const turn = client.run("asked-once", "ask me", { onRequest });
    const events = await collect(turn);
    assert.equal(await turn.text(), "You like rot.");
    assert.equal(count, 1);
    const late = engine.follow("asked-once", turn.turnId ?? "", { onRequest });
    assert.deepEqual(events, await collect(late));
    assert.equal(count, 1, "what was answered is not asked again");
    await proxy.close();
  });

  test("turn_cancelled", async () => {
    const turn = engine.run("cancelled", "slowly");
    await readUntil(turn, "text_delta");
    assert.equal(await turn.cancel(), true);
    const last = (await collect(turn)).at(-1);
    assert.ok(last?.type === "thread_lifecycle" && last.phase === "cancelled");
    await assert.rejects(turn.text(), TurnCancelledError);
    assert.equal(await turn.cancel(), false, "it has ended");
    assert.equal((await engine.tasks.turn("cancelled", turn.turnId ?? "")).state, "cancelled");
  });

  test("queued_message_cancelled", async () => {
    const running = engine.run("queue", "slowly");
    await readUntil(running, "text_delta");
    const queued = engine.run("queue", "then this", { on_busy: "queue" });
    await readUntil(queued, "busy_update");
    assert.equal(await queued.cancel(), true);
    await assert.rejects(queued.text(), TurnCancelledError);
    assert.match(await running.text(), /nine ten$/);
  });

  test("late_cancel_spares_the_next_turn", async () => {
    const next: Turn[] = [];
    const late = new Engine({
      url: engine.url,
      key,
      // The cancellation is on its way until its turn has ended and the next one runs.
      fetch: async (url, init) => {
        if (url.endsWith("/execute/cancel")) {
          await engine.follow("late", turn.turnId ?? "").text();
          const other = engine.run("late", "slowly");
          await readUntil(other, "text_delta");
          next.push(other);
        }
        return fetch(url, init);
      },
    });
    const turn = late.run("late", "slowly");
    await readUntil(turn, "text_delta");
    const { turnId } = turn;
    assert.equal(await turn.cancel(), false);
    await expectRefusal(engine.cancel("late", { turnId }), TaskNotRunningError, "TASK_NOT_RUNNING", 404);
    const steering = engine.steer("late", "In French.", { turnId });
    await expectRefusal(steering, TaskNotRunningError, "TASK_NOT_RUNNING", 404);
    assert.equal(next.length, 1);
    assert.match((await next[0]?.text()) ?? "", /nine ten$/);
    assert.match(await turn.text(), /nine ten$/);
  });

  test("cancelled_before_its_first_event", async () => {
    const stop = new AbortController();
    let sent = 0;
    const client = new Engine({
      url: engine.url,
      key,
      // The reader leaves between the acceptance of the message and the first event.
      fetch: async (url, init) => {
        const response = await fetch(url, init);
        if (url.endsWith("/execute") && ++sent === 1) stop.abort();
        return response;
      },
    });
    const turn = client.run("left-early", "slowly", { signal: stop.signal });
    await assert.rejects(turn.text(), { name: "AbortError" });
    assert.equal(turn.turnId, undefined);
    assert.equal(await turn.cancel(), true);
    const turns = await engine.tasks.turns("left-early").toArray();
    assert.deepEqual(
      turns.map(({ turn_id, state }) => [turn_id, state]),
      [[turn.turnId, "cancelled"]],
    );
    assert.equal(await client.run("unsent", "Hello").cancel(), false);
    await assert.rejects(engine.tasks.turns("unsent").toArray(), TaskNotFoundError);
  });

  test("typed_errors_of_the_engine", async () => {
    await expectRefusal(engine.run("errors", " ").text(), InvalidRequestError, "INVALID_REQUEST", 400);
    await expectRefusal(engine.cancel("none"), TaskNotFoundError, "TASK_NOT_FOUND", 404);
    const running = engine.run("errors", "slowly");
    await readUntil(running, "text_delta");
    await expectRefusal(engine.run("errors", "Hello").text(), TaskBusyError, "TASK_BUSY", 409);
    const answer = { task_id: "errors", request_id: "request_unknown", answer: "yes" };
    await expectRefusal(engine.hitl.respond(answer), HitlNotPendingError, "HITL_NOT_PENDING", 404);
    await running.cancel();
    await assert.rejects(running.text(), TurnCancelledError);
    const edit = engine.run("errors", "Hello", { edit_message_id: "msg_unknown" }).text();
    await expectRefusal(edit, MessageNotFoundError, "MESSAGE_NOT_FOUND", 404);
    await expectRefusal(engine.rpc("tool.unknown", {}), MethodNotFoundError, "METHOD_NOT_FOUND", 404);
    await expectRefusal(engine.skills.get("unknown"), SkillNotFoundError, "SKILL_NOT_FOUND", 404);
    const nobody = new Engine({
      url: `http://127.0.0.1:${(await unusedPort()).toString()}`,
      key: "sk-svc-x",
      retryMs: 500,
    });
    await assert.rejects(nobody.cancel("errors"), NetworkError);
  });
});
