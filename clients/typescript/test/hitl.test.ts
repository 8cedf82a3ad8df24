/** What else people are asked, beside the stories of `stories.md`. */

import assert from "node:assert/strict";
import { after, before, suite, test } from "node:test";
import { Engine, InvalidRequestError } from "../src/index.js";
import { TestFleet } from "./support/fleet.js";
import { CuttingProxy } from "./support/proxy.js";

suite("requests to a person", () => {
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

  test("what is left open is answered later, by another reader or another client", async () => {
    const turn = engine.run("later", "ask me", { onRequest: () => undefined });
    for await (const event of turn) if (event.type === "hitl_request") break;
    const [pending] = await engine.hitl.pending();
    assert.equal(pending?.task_id, "later");
    // Another process reads the turn from its beginning, and is asked once.
    let count = 0;
    const follower = engine.follow("later", turn.turnId ?? "", {
      onRequest: () => {
        count += 1;
        return "red";
      },
    });
    assert.equal(await follower.text(), "You like red.");
    assert.equal(count, 1);
    assert.equal(await turn.text(), "You like red.");
    // What was answered long ago is not asked again.
    const late = engine.follow("later", turn.turnId ?? "", { onRequest: () => assert.fail("it was asked") });
    assert.equal(await late.text(), "You like red.");
  });

  test("a reader that left at the request is asked when it returns", async () => {
    const turn = engine.run("returned", "ask me", { onRequest: () => "green" });
    for await (const event of turn) if (event.type === "hitl_request") break;
    assert.equal(await turn.text(), "You like green.");
  });

  test("a request that is answered elsewhere is taken back", async () => {
    let reason = "";
    const turn = engine.run("elsewhere", "ask me", {
      onRequest: async ({ request_id }, { signal }) => {
        const aborted = new Promise<undefined>((resolve) => {
          signal.addEventListener("abort", () => {
            reason = "aborted";
            resolve(undefined);
          });
        });
        await engine.hitl.respond({ task_id: "elsewhere", request_id, answer: "blue" });
        return aborted;
      },
    });
    assert.equal(await turn.text(), "You like blue.");
    assert.equal(reason, "aborted");
  });

  test("the answer of a function whose connection is cut meanwhile is sent", async () => {
    const proxy = await CuttingProxy.to(engine.url);
    const client = new Engine({ url: proxy.url, key: (await fleet.fleet.engineRecord("ada")).api_key });
    let count = 0;
    const turn = client.run("cut", "ask me", {
      onRequest: async () => {
        count += 1;
        proxy.cutAll();
        await new Promise((resolve) => setTimeout(resolve, 20));
        return "red";
      },
    });
    assert.equal(await turn.text(), "You like red.");
    assert.equal(count, 1);
    await proxy.close();
  });

  test("a function that fails, or gives an impossible answer, ends the reading and not the turn", async () => {
    const failing = engine.run("failing", "ask me", {
      onRequest: () => Promise.reject(new Error("no idea")),
    });
    await assert.rejects(failing.text(), { message: "no idea" });
    const impossible = engine.run("impossible", "write d.txt: x", { onRequest: () => "perhaps" });
    await assert.rejects(impossible.text(), InvalidRequestError);
    const pending = (await engine.hitl.pending()).map((request) => request.task_id);
    assert.ok(pending.includes("failing") && pending.includes("impossible"));
    await engine.cancel("failing");
    await engine.cancel("impossible");
  });

  test("a lasting approval is listed and revoked", async () => {
    const turn = engine.run("lasting", "write notes/a.txt: x", {
      onRequest: () => ({ decision: "allow_always", pattern: "notes/*" }),
    });
    await turn.text();
    await engine
      .run("lasting", "write notes/b.txt: x", { onRequest: () => assert.fail("it was asked") })
      .text();
    const [grant] = await engine.hitl.grants();
    assert.ok(grant !== undefined);
    assert.equal(grant.pattern, "notes/*");
    await engine.hitl.revoke(grant.id);
    assert.deepEqual(await engine.hitl.grants(), []);
  });
});
