/** Admission, and engines that move under their client. */

import assert from "node:assert/strict";
import { once } from "node:events";
import { type AddressInfo, createServer } from "node:net";
import { after, before, suite, test } from "node:test";
import {
  Admin,
  type AuditRow,
  BadRequestError,
  DeadlineError,
  Engine,
  EngineAlreadyRunningError,
  EngineNotFoundError,
  Fleet,
  HitlNotPendingError,
  InvalidAdminKeyError,
  InvalidEngineKeyError,
  InvalidPlatformKeyError,
  InvalidRequestError,
  NetworkError,
  NotAdmittedError,
  PolicyDeniedError,
  ProtocolError,
  QuotaExceededError,
  RateLimitedError,
  RoundhouseError,
  TaskBusyError,
  TaskNotFoundError,
} from "../src/index.js";
import { TestFleet } from "./support/fleet.js";
import { CuttingProxy } from "./support/proxy.js";
import { eventually } from "./support/wait.js";

suite("fleets", () => {
  let running: TestFleet;
  let fleet: Fleet;

  before(async () => {
    running = await TestFleet.start();
    fleet = running.fleet;
  });
  after(async () => {
    await CuttingProxy.closeAll();
    await running.end();
  });

  test("a user who shows up first gets an engine, and later the same one", async () => {
    const user = "Zoë/東京 %?";
    const engine = await fleet.admit(user);
    assert.equal((await engine.health()).status, "ok");
    assert.equal(await engine.run("hello", "echo hello").text(), "hello");
    const again = await fleet.admit(user);
    assert.equal(again.url, engine.url);
    assert.equal((await fleet.engineRecord(user)).user_id, user);
  });

  test("a hundred users at once each get their own engine", async () => {
    const users = Array.from({ length: 100 }, (_, index) => `user-${index.toString()}`);
    const texts = await Promise.all(
      users.map(async (user) => {
        const engine = await fleet.admit(user, { deadlineMs: 90_000 });
        return engine.run("hello", `echo I am ${user}`).text();
      }),
    );
    assert.deepEqual(
      texts,
      users.map((user) => `I am ${user}`),
    );
    const listed = await fleet.engines({ pageSize: 30 }).toArray();
    const found = new Set(listed.map((engine) => engine.user_id));
    assert.ok(users.every((user) => found.has(user)));
    assert.equal(found.size, listed.length, "no engine is on two pages");
    assert.equal((await fleet.engines().toArray(7)).length, 7);
    await Promise.all(users.map((user) => fleet.destroy(user)));
  });

  test("an engine whose key was rotated is found again, also in the middle of a turn", async () => {
    const engine = await fleet.admit("mover");
    assert.equal(await engine.run("task", "echo one").text(), "one");
    const turn = engine.run("task", "slowly");
    for await (const event of turn) if (event.type === "text_delta") break;
    const oldKey = (await fleet.engineRecord("mover")).api_key;
    const key = await fleet.rotateKey("mover");
    assert.notEqual(key, oldKey);
    assert.match(key, /^sk-svc-/);
    assert.match(await turn.text(), /nine ten$/, "the rest of a turn is read with the new key");
    await fleet.rotateKey("mover");
    assert.equal((await engine.tasks.list().toArray()).length, 1);
    const old = new Engine({ url: engine.url, key: oldKey });
    await assert.rejects(old.hitl.pending(), InvalidEngineKeyError);
  });

  test("an engine that fell asleep is woken by the next call", async () => {
    const sleepy = await running.product("sleepy", { idle_sleep_threshold_s: 0.5 });
    const engine = await sleepy.admit("sleeper");
    await engine.run("task", "remember colour green").text();
    const isAsleep = async (): Promise<boolean> =>
      (await sleepy.engineRecord("sleeper")).status === "sleeping";
    await eventually("the engine sleeps", isAsleep);
    assert.deepEqual(await engine.tasks.memory("task"), { colour: "green" });
    await eventually("the engine sleeps", isAsleep);
    assert.equal(await engine.run("task", "echo awake").text(), "awake");
  });

  test("many calls that find the key rotated share one admission", async () => {
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

  test("an engine that was stopped is not admitted before it is started", async () => {
    const engine = await fleet.admit("stopped");
    assert.equal((await fleet.stop("stopped")).status, "stopped");
    await assert.rejects(engine.hitl.pending(), (error) => {
      assert.ok(error instanceof NotAdmittedError);
      assert.deepEqual([error.reason, error.userId], ["engine_stopped", "stopped"]);
      return true;
    });
    await fleet.start("stopped");
    assert.deepEqual(await engine.hitl.pending(), []);
    await assert.rejects(fleet.start("stopped"), EngineAlreadyRunningError);
    await assert.rejects(fleet.wake("nobody"), { name: "NotAdmittedError", reason: "engine_not_found" });
  });

  test("engines are reached through the orchestrator", async () => {
    const engine = await fleet.admit("proxied", { viaProxy: true });
    assert.ok(engine.url.startsWith(running.url));
    assert.equal(await engine.run("hello", "echo through the proxy").text(), "through the proxy");
    await engine.upload("a b/ü.txt", "hello");
    assert.equal(await (await engine.download("a b/ü.txt")).text(), "hello");
  });

  test("a product over its rate waits as long as the answer says", async () => {
    const limited = await running.product("limited", { rate_limit_rpm: 2 });
    await limited.admit("one");
    await limited.admit("one");
    await assert.rejects(limited.admit("one", { deadlineMs: 1_000 }), (error) => {
      assert.ok(error instanceof RateLimitedError);
      assert.deepEqual([error.code, error.status], ["RATE_LIMITED", 429]);
      assert.ok((error.retryAfter ?? 0) > 1, "it says when to come back");
      return true;
    });
  });

  test("an admit that is refused for a moment is made again when the answer says", async () => {
    const refusal = { error: { code: "RATE_LIMITED", message: "Too many." } };
    const times: number[] = [];
    const patient = new Fleet({
      url: running.url,
      productKey: running.productKey,
      fetch: (url, init) => {
        times.push(Date.now());
        if (times.length > 1) return fetch(url, init);
        return Promise.resolve(Response.json(refusal, { status: 429, headers: { "retry-after": "1" } }));
      },
    });
    await patient.admit("patient");
    const [first, second] = times;
    assert.ok(first !== undefined && second !== undefined && second - first >= 1_000);
    assert.equal(times.length, 2);
  });

  test("what the service refuses is an error of its code's class", async () => {
    const expect = async (
      promise: Promise<unknown>,
      type: unknown,
      code: string,
      status: number,
    ): Promise<void> => {
      await assert.rejects(promise, (error) => {
        assert.ok(error instanceof (type as typeof RoundhouseError), String(error));
        assert.ok(error instanceof RoundhouseError);
        assert.deepEqual([error.code, error.status], [code, status]);
        assert.ok(error.message.length > 0 && error.requestId !== undefined);
        return true;
      });
    };
    const stranger = new Fleet({ url: running.url, productKey: "pk-svc-unknown" });
    await expect(stranger.status(), InvalidPlatformKeyError, "INVALID_PLATFORM_KEY", 401);
    const register = running.admin.api.call("post", "/products/register", {
      body: { slug: "Not A Slug", display_name: "x" },
    });
    await expect(register, InvalidRequestError, "INVALID_REQUEST", 400);
    await expect(fleet.engineRecord("nobody"), EngineNotFoundError, "ENGINE_NOT_FOUND", 404);
    const full = await running.product("full", { max_engines: 0 });
    await expect(full.admit("one"), QuotaExceededError, "QUOTA_EXCEEDED", 429);
    const suspended = await running.product("suspended", { suspended: true });
    await expect(suspended.admit("one"), PolicyDeniedError, "POLICY_DENIED", 403);

    const engine = await fleet.admit("errors");
    await expect(engine.run("", "hello").text(), BadRequestError, "INVALID_REQUEST", 400);
    await expect(engine.tasks.turns("none").toArray(), TaskNotFoundError, "TASK_NOT_FOUND", 404);
    await expect(
      engine.hitl.respond({ task_id: "none", answer: "yes" }),
      HitlNotPendingError,
      "HITL_NOT_PENDING",
      404,
    );
    const turn = engine.run("busy", "slowly");
    for await (const event of turn) if (event.type === "text_delta") break;
    await expect(engine.run("busy", "hello").text(), TaskBusyError, "TASK_BUSY", 409);
    await expect(
      engine.hitl.respond({ task_id: "busy", answer: "yes" }),
      HitlNotPendingError,
      "HITL_NOT_PENDING",
      404,
    );
    await turn.cancel();
    await assert.rejects(engine.rpc("tool.none", {}), { code: "METHOD_NOT_FOUND" }, "the flat form too");
  });

  test("a service that is not there, is another one, or is silent is told apart", async () => {
    const options = { productKey: "pk-svc-x", retryMs: 0 };
    const nobody = new Fleet({ url: `http://127.0.0.1:${(await unusedPort()).toString()}`, ...options });
    await assert.rejects(nobody.status(), (error) => error instanceof NetworkError && !error.sent);
    const other = new Fleet({
      url: "http://example.invalid",
      ...options,
      fetch: () => Promise.resolve(new Response("<html>", { status: 502 })),
    });
    await assert.rejects(other.status(), ProtocolError);
    const silent = new Fleet({
      url: "http://example.invalid",
      ...options,
      timeoutMs: 20,
      fetch: (_url, init) =>
        new Promise((_resolve, reject) => {
          init.signal?.addEventListener("abort", () => {
            reject(new Error("aborted"));
          });
        }),
    });
    await assert.rejects(silent.status(), DeadlineError);
    await assert.rejects(silent.admit("ada", { deadlineMs: 20 }), DeadlineError);
    await assert.rejects(silent.admit("ada", { signal: AbortSignal.abort(new Error("enough")) }), {
      message: "enough",
    });
  });

  test("a call that may have had an effect is not made twice, one that reads is", async () => {
    const record = (await fleet.admit("lost")).url;
    const proxy = await CuttingProxy.to(record);
    const engine = new Engine({ url: proxy.url, key: (await fleet.engineRecord("lost")).api_key });
    let answers = 0;
    proxy.onData = (chunk, cut) => {
      answers += 1;
      if (answers > 1) return chunk;
      cut();
      return chunk.subarray(0, 20);
    };
    await assert.rejects(engine.memory.save({ content: "The tea is green." }), (error) => {
      return error instanceof NetworkError && error.sent;
    });
    proxy.onData = undefined;
    assert.equal((await engine.memory.list().toArray()).length, 1, "it was saved once");
    answers = 0;
    proxy.onData = (chunk, cut) => {
      answers += 1;
      if (answers > 1) return chunk;
      cut();
      return chunk.subarray(0, 20);
    };
    assert.equal((await engine.memory.list().toArray()).length, 1);
    assert.ok(answers > 1);
  });

  test("the audit log is read in pages and followed over lost connections", async () => {
    const proxy = await CuttingProxy.to(running.url);
    const follower = new Fleet({ url: proxy.url, productKey: running.productKey });
    const all = (await fleet.audit({ pageSize: 5 }).toArray()).reverse();
    assert.ok(all.length > 5);
    const followed: AuditRow[] = [];
    for await (const row of follower.events({ after: 0 })) {
      followed.push(row);
      if (followed.length === 3) proxy.cutAll();
      if (followed.length === all.length) break;
    }
    assert.deepEqual(followed, all);
  });

  test("ids that addresses cannot contain are refused, not sent elsewhere", async () => {
    await assert.rejects(async () => fleet.destroy(".."), TypeError);
    await assert.rejects(fleet.admit("."), TypeError);
  });

  test("a wrong admin key is refused", async () => {
    assert.ok((await running.admin.products().toArray()).some((product) => product.slug === "demo"));
    const wrong = new Admin({ url: running.url, adminKey: "wrong" });
    await assert.rejects(wrong.products().toArray(), InvalidAdminKeyError);
  });
});

/** A port on which nobody listens. */
async function unusedPort(): Promise<number> {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  await new Promise((resolve) => server.close(resolve));
  return port;
}
