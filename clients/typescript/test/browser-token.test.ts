/** A page with a browser token calls its user's engine across origins: at the engine, and through the orchestrator. */

import assert from "node:assert/strict";
import { after, before, suite, test } from "node:test";
import { type Engine, TaskNotFoundError } from "../src/index.js";
import type * as Client from "../src/index.js";
import { Browser, PACKAGE, skip } from "./support/browser.js";
import { TestFleet } from "./support/fleet.js";
import { Site } from "./support/site.js";

suite("a page on another origin", { skip }, () => {
  let fleet: TestFleet;
  let engine: Engine;
  let site: Site;
  let stranger: Site;
  let browser: Browser;
  let token: string;

  before(async () => {
    fleet = await TestFleet.start();
    engine = await fleet.fleet.admit("ada");
    site = await Site.start();
    stranger = await Site.start();
    await fleet.fleet.setOrigins([site.url]);
    ({ token } = await fleet.fleet.mintToken("ada", ["chat"]));
    browser = await Browser.start();
  });
  after(async () => {
    await browser.end();
    await site.end();
    await stranger.end();
    await fleet.end();
  });

  async function checkAllowed(url: string, taskId: string): Promise<void> {
    const page = await browser.open(site.url);
    const read = await page.evaluate(
      async ({ path, url, token, taskId }) => {
        const { Engine, TokenScopeError } = (await import(path)) as typeof Client;
        const engine = new Engine({ url, token });
        const turn = engine.run(taskId, "slowly");
        const deltas: string[] = [];
        let stateAtFirst = "";
        for await (const event of turn) {
          if (event.type !== "text_delta") continue;
          if (deltas.length === 0) stateAtFirst = (await engine.tasks.turn(taskId, event.turn_id)).state;
          deltas.push(event.text);
        }
        const refusal: unknown = await engine.usageTotal().catch((error: unknown) => error);
        const { code, status, requestId } = refusal as Client.TokenScopeError;
        const isTyped = refusal instanceof TokenScopeError;
        return { origin: location.origin, stateAtFirst, deltas, isTyped, code, status, requestId };
      },
      { path: PACKAGE, url, token, taskId },
    );
    assert.notEqual(read.origin, new URL(url).origin);
    assert.equal(read.stateAtFirst, "running", "the text arrives while it is written");
    assert.ok(read.deltas.length > 5);
    assert.match(read.deltas.join(""), /^one two .* nine ten$/);
    assert.deepEqual([read.isTyped, read.code, read.status], [true, "TOKEN_SCOPE", 403]);
    assert.ok(read.requestId !== undefined, "the headers of a refusal are readable too");
  }

  async function checkStranger(url: string, taskId: string): Promise<void> {
    const page = await browser.open(stranger.url);
    const failures = await page.evaluate(
      async ({ path, url, token, taskId }) => {
        const { Engine, NetworkError } = (await import(path)) as typeof Client;
        const engine = new Engine({ url, token, retryMs: 1 });
        const calls = [
          engine.run(taskId, "Hello", { reconnectMs: 1 }).text(),
          engine.tasks.turn(taskId, "turn_x"),
          engine.health(),
        ];
        const settled = await Promise.allSettled<unknown>(calls);
        return settled.map((call) => call.status === "rejected" && call.reason instanceof NetworkError);
      },
      { path: PACKAGE, url, token, taskId },
    );
    assert.deepEqual(failures, [true, true, true], "it can read no answer, and no refusal either");
    await assert.rejects(engine.tasks.turns(taskId).toArray(), TaskNotFoundError, "its message was not sent");
  }

  test("reads a turn and a refusal directly at the engine", () => checkAllowed(engine.url, "direct"));

  test("reads a turn and a refusal through the orchestrator's proxy", () =>
    checkAllowed(`${fleet.url}/engines/ada/proxy`, "proxied"));

  test("gets nothing at the engine if its origin is not allowed", () =>
    checkStranger(engine.url, "stranger-direct"));

  test("gets nothing through the proxy if its origin is not allowed", () =>
    checkStranger(`${fleet.url}/engines/ada/proxy`, "stranger-proxied"));

  test("has thrown nothing", () => {
    assert.deepEqual(browser.faults, []);
  });
});
