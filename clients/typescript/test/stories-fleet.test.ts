/** The stories of `stories.md` about admission, and engines that move under their client. */

import assert from "node:assert/strict";
import { after, before, suite, test } from "node:test";
import {
  Admin,
  Engine,
  EngineAlreadyExistsError,
  EngineAlreadyRunningError,
  EngineNotFoundError,
  type Fetch,
  Fleet,
  InvalidAdminKeyError,
  InvalidEngineKeyError,
  InvalidPlatformKeyError,
  InvalidRequestError,
  NetworkError,
  NotAdmittedError,
  PolicyDeniedError,
  QuotaExceededError,
  RateLimitedError,
  TokenRevokedError,
  TokenScopeError,
  type TurnEvent,
} from "../src/index.js";
import { expectRefusal } from "./support/errors.js";
import { readUntil, stored } from "./support/events.js";
import { TestFleet } from "./support/fleet.js";
import { unusedPort } from "./support/ports.js";
import { eventually } from "./support/wait.js";

suite("stories of fleets", () => {
  let running: TestFleet;
  let fleet: Fleet;
  /** A product whose rate is used up. Most of its minute passes while the other stories are told. */
  let patient: Fleet;
  /** What `patient` was answered. */
  const answers: { readonly at: number; readonly status: number; readonly retryAfter: number }[] = [];

  before(async () => {
    running = await TestFleet.start();
    fleet = running.fleet;
    const recording: Fetch = async (url, init) => {
      const response = await fetch(url, init);
      const retryAfter = Number(response.headers.get("retry-after") ?? Number.NaN);
      answers.push({ at: performance.now(), status: response.status, retryAfter });
      return response;
    };
    patient = await running.product("patient", { rate_limit_rpm: 1 }, { fetch: recording });
    await patient.admit("one");
  });
  after(async () => {
    await running.end();
  });

  test("first_admit", async () => {
    const user = "Zoë/東京 %?";
    const engine = await fleet.admit(user);
    assert.equal(await engine.run("first", "Hello").text(), "You said: Hello");
    assert.equal((await engine.health()).status, "ok");
    const record = await fleet.engineRecord(user);
    assert.deepEqual([record.status, record.user_id], ["running", user]);
    assert.equal((await fleet.admit(user)).url, engine.url);
    assert.equal((await fleet.engineRecord(user)).engine_id, record.engine_id);
  });

  test("hundred_users_at_once", async () => {
    const users = Array.from({ length: 100 }, (_, index) => `crowd-${index.toString()}`);
    const texts = await Promise.all(
      users.map(async (user) => (await fleet.admit(user)).run("crowd", `I am ${user}`).text()),
    );
    assert.deepEqual(
      texts,
      users.map((user) => `You said: I am ${user}`),
    );
    const listed = await fleet.engines({ pageSize: 30 }).toArray();
    const found = new Set(listed.map((engine) => engine.user_id));
    assert.ok(users.every((user) => found.has(user)));
    assert.equal(found.size, listed.length, "no engine is on two pages");
    const lanes = Array.from({ length: 10 }, (_, lane) => users.filter((_, index) => index % 10 === lane));
    const destroyAll = async (lane: string[]): Promise<void> => {
      for (const user of lane) await fleet.destroy(user);
    };
    await Promise.all(lanes.map(destroyAll));
  });

  test("sleeping_engine_is_woken", async () => {
    const sleepy = await running.product("sleepy", { idle_sleep_threshold_s: 0.2 });
    const engine = await sleepy.admit("ada");
    assert.equal(await engine.run("before", "Hello").text(), "You said: Hello");
    const isAsleep = async (): Promise<boolean> => (await sleepy.engineRecord("ada")).status === "sleeping";
    await eventually("the engine sleeps", isAsleep);
    const messages = await engine.messages("before").toArray();
    assert.deepEqual(
      messages.map((message) => message.role),
      ["assistant", "user"],
    );
    await eventually("the engine sleeps", isAsleep);
    assert.equal(await engine.run("after", "Good morning").text(), "You said: Good morning");
  });

  test("retry_after_is_honoured", async () => {
    const slow = await running.product("slow", { rate_limit_rpm: 1 });
    await slow.admit("one");
    const started = Date.now();
    await assert.rejects(slow.admit("one", { deadlineMs: 5_000 }), (error) => {
      assert.ok(error instanceof RateLimitedError);
      assert.deepEqual([error.code, error.status], ["RATE_LIMITED", 429]);
      assert.ok(error.retryAfter !== undefined && error.retryAfter > 5 && error.retryAfter <= 60);
      assert.ok(error.requestId !== undefined);
      return true;
    });
    assert.ok(Date.now() - started < 4_000, "a wait beyond the deadline is not begun");

    // If the minute is over already, this begins another one.
    while (!answers.some(({ status }) => status === 429)) await patient.admit("one");
    const [refused, next, ...more] = answers.slice(answers.findIndex(({ status }) => status === 429));
    assert.deepEqual([next?.status, more], [200, []], "it comes back once");
    assert.ok(refused !== undefined && next !== undefined && refused.retryAfter >= 1);
    assert.ok(next.at - refused.at >= refused.retryAfter * 1_000, "it waits as long as it was told to");
  });

  test("stopped_engine_stays_stopped", async () => {
    const engine = await fleet.admit("stopped");
    assert.equal((await fleet.stop("stopped")).status, "stopped");
    await assert.rejects(engine.hitl.pending(), (error) => {
      assert.ok(error instanceof NotAdmittedError);
      assert.deepEqual([error.reason, error.userId], ["engine_stopped", "stopped"]);
      return true;
    });
    await fleet.start("stopped");
    assert.equal(await engine.run("again", "Hello").text(), "You said: Hello");
  });

  test("key_rotated_under_a_client", async () => {
    const engine = await fleet.admit("rotated");
    const oldKey = (await fleet.engineRecord("rotated")).api_key;
    const key = await fleet.rotateKey("rotated");
    assert.match(key, /^sk-svc-/);
    assert.notEqual(key, oldKey);
    assert.equal(await engine.run("rotated", "Hello").text(), "You said: Hello");
    await fleet.rotateKey("rotated");
    await engine.upload("a.txt", "a");
    const old = new Engine({ url: engine.url, key: oldKey });
    const refused = old.run("rotated", "Hello").text();
    await expectRefusal(refused, InvalidEngineKeyError, "INVALID_ENGINE_KEY", 401);
  });

  test("key_rotated_in_mid_turn", async () => {
    const turn = (await fleet.admit("moved")).run("rotated", "slowly");
    await readUntil(turn, "text_delta");
    await fleet.rotateKey("moved");
    assert.match(await turn.text(), /nine ten$/);
  });

  test("one_admission_for_many_calls", async () => {
    let admissions = 0;
    const counting = new Fleet({
      url: running.url,
      productKey: running.productKey,
      fetch: (url, init) => {
        if (url.endsWith("/admit")) admissions += 1;
        return fetch(url, init);
      },
    });
    const engine = await counting.admit("shared");
    await fleet.rotateKey("shared");
    await Promise.all(Array.from({ length: 20 }, () => engine.tasks.list().toArray()));
    assert.equal(admissions, 2);
  });

  async function checkKilled(user: string, viaProxy: boolean): Promise<void> {
    const engine = await fleet.admit(user, { viaProxy });
    const { engine_id } = await fleet.engineRecord(user);
    const turn = engine.run("killed", "slowly");
    const events: TurnEvent[] = [];
    for await (const event of turn) {
      events.push(event);
      const deltas = events.filter(({ type }) => type === "text_delta");
      if (event.type === "text_delta" && deltas.length === 4) running.killEngine(engine_id);
    }
    assert.ok(events.some((event) => event.type === "thread_lifecycle" && event.phase === "resumed"));
    assert.match(await turn.text(), /^one two .* nine ten$/);
    assert.equal(turn.transcript.text, await turn.text(), "what a repeated step made void is not counted");
    assert.equal(new Set(events.map((event) => event.ts)).size, events.length, "none came twice");
    assert.deepEqual(events, await stored(engine, turn));
  }

  test("engine_killed_in_mid_answer", () => checkKilled("killed", false));

  test("engine_killed_behind_the_proxy", () => checkKilled("killed-behind-the-proxy", true));

  test("page_with_a_browser_token", async () => {
    const origins = ["https://app.example.com"];
    assert.deepEqual(await fleet.setOrigins(origins), origins);
    assert.deepEqual(await fleet.origins(), origins);
    const engine = await fleet.admit("page");
    const { token, token_id } = await fleet.mintToken("page", ["chat", "answer"], {
      taskId: "mine",
      lifetimeS: 600,
    });
    const known = await fleet.tokens("page", { pageSize: 1 }).toArray();
    assert.deepEqual(
      known.map((one) => one.token_id),
      [token_id],
    );
    for (const url of [engine.url, `${running.url}/engines/page/proxy`]) {
      const page = new Engine({ url, token });
      const asked: string[] = [];
      const turn = page.run("mine", "write page.txt: ja", {
        onRequest: async (request) => {
          const questions = await fleet.inbox({ userId: "page", pageSize: 1 }).toArray();
          asked.push(request.request_id);
          assert.deepEqual(
            questions.map((question) => question.request_id),
            asked,
          );
          return { decision: "allow_once" };
        },
      });
      assert.match(await turn.text(), /^Done: /);
      assert.equal(asked.length, 1);
      assert.deepEqual(await fleet.inbox({ userId: "page" }).toArray(), []);
      await assert.rejects(page.run("other", "Hello").text(), TokenScopeError);
      await assert.rejects(page.download("page.txt"), TokenScopeError);
    }
    assert.equal((await fleet.revokeToken("page", token_id)).in_force, true);
    await assert.rejects(
      new Engine({ url: engine.url, token }).run("mine", "Hello").text(),
      TokenRevokedError,
    );
  });

  test("typed_errors_of_the_orchestrator", async () => {
    await fleet.provision("errors");
    await expectRefusal(fleet.provision("errors"), EngineAlreadyExistsError, "ENGINE_ALREADY_EXISTS", 409);
    await expectRefusal(fleet.start("errors"), EngineAlreadyRunningError, "ENGINE_ALREADY_RUNNING", 409);
    await expectRefusal(fleet.destroy("nobody"), EngineNotFoundError, "ENGINE_NOT_FOUND", 404);
    await assert.rejects(fleet.wake("nobody"), { name: "NotAdmittedError", reason: "engine_not_found" });
    const stranger = new Fleet({ url: running.url, productKey: "pk-svc-wrong" });
    await expectRefusal(stranger.status(), InvalidPlatformKeyError, "INVALID_PLATFORM_KEY", 401);
    const wrong = new Admin({ url: running.url, adminKey: "wrong" });
    await expectRefusal(wrong.products().toArray(), InvalidAdminKeyError, "INVALID_ADMIN_KEY", 401);
    const misnamed = running.admin.register({ slug: "Not A Slug", display_name: "x" });
    await expectRefusal(misnamed, InvalidRequestError, "INVALID_REQUEST", 400);
    const full = await running.product("full", { max_engines: 0 });
    await expectRefusal(full.admit("one"), QuotaExceededError, "QUOTA_EXCEEDED", 429);
    const suspended = await running.product("suspended", { suspended: true });
    await expectRefusal(suspended.admit("one"), PolicyDeniedError, "POLICY_DENIED", 403);
    const nobody = new Fleet({
      url: `http://127.0.0.1:${(await unusedPort()).toString()}`,
      productKey: "pk-svc-x",
    });
    await assert.rejects(
      nobody.admit("one", { deadlineMs: 500 }),
      (error) => error instanceof NetworkError && !error.sent,
    );
  });
});
