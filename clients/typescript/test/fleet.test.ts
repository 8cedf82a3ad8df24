/** What else a fleet offers, beside the stories of `stories.md`. */

import assert from "node:assert/strict";
import { after, before, suite, test } from "node:test";
import { type AuditRow, DeadlineError, Engine, Fleet, NetworkError, ProtocolError } from "../src/index.js";
import { TestFleet } from "./support/fleet.js";
import { unusedPort } from "./support/ports.js";
import { CuttingProxy } from "./support/proxy.js";

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

  test("engines are reached through the orchestrator", async () => {
    const engine = await fleet.admit("proxied", { viaProxy: true });
    assert.ok(engine.url.startsWith(running.url));
    assert.equal(await engine.run("hello", "echo through the proxy").text(), "through the proxy");
    await engine.upload("a b/ü.txt", "hello");
    assert.equal(await (await engine.download("a b/ü.txt")).text(), "hello");
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
    for (const user of ["a", "b", "c"]) {
      await fleet.provision(user);
      await fleet.rotateKey(user);
    }
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
});
