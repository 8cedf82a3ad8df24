/** The built package in a browser, which reaches an engine through the product's own site. */

import assert from "node:assert/strict";
import { after, before, suite, test } from "node:test";
import type { Page } from "playwright-core";
import type * as Client from "../src/index.js";
import { Browser, PACKAGE, skip } from "./support/browser.js";
import { collect } from "./support/events.js";
import { TestFleet } from "./support/fleet.js";
import { Site } from "./support/site.js";

suite("in a browser", { skip }, () => {
  let fleet: TestFleet;
  let engine: Client.Engine;
  let site: Site;
  let browser: Browser;
  let page: Page;

  before(async () => {
    fleet = await TestFleet.start();
    engine = await fleet.fleet.admit("ada");
    site = await Site.start({ url: engine.url, key: (await fleet.fleet.engineRecord("ada")).api_key });
    browser = await Browser.start();
    page = await browser.open(site.url);
  });
  after(async () => {
    await browser.end();
    await site.end();
    await fleet.end();
  });

  test("a turn is streamed", async () => {
    const read = await page.evaluate(async (path) => {
      const { Engine } = (await import(path)) as typeof Client;
      const engine = new Engine({ url: `${location.origin}/engine`, key: "the site knows it" });
      const turn = engine.run("streamed", "slowly");
      const deltas: string[] = [];
      let stateAtFirst = "";
      for await (const event of turn) {
        if (event.type !== "text_delta") continue;
        if (deltas.length === 0) stateAtFirst = (await engine.tasks.turn(turn.taskId, event.turn_id)).state;
        deltas.push(event.text);
      }
      return { stateAtFirst, deltas, text: await turn.text(), transcript: turn.transcript.text };
    }, PACKAGE);
    assert.equal(read.stateAtFirst, "running", "the text arrives while it is written");
    assert.ok(read.deltas.length > 5);
    assert.equal(read.deltas.join(""), read.text);
    assert.equal(read.transcript, read.text);
    assert.match(read.text, /^one two .* nine ten$/);
  });

  test("a question is answered in the page", async () => {
    const text = await page.evaluate(async (path) => {
      const { Engine } = (await import(path)) as typeof Client;
      const engine = new Engine({ url: `${location.origin}/engine`, key: "the site knows it" });
      return engine
        .run("question", "ask me", {
          onRequest: ({ question, options }) => {
            document.title = question;
            return options?.at(-1);
          },
        })
        .text();
    }, PACKAGE);
    assert.equal(text, "You like 青.");
    assert.equal(await page.title(), "Welche Farbe, 色?");
  });

  test("a turn whose streams are cut is complete, and nothing comes twice", async () => {
    site.cutAfter = 2;
    const read = await page.evaluate(async (path) => {
      const { Engine } = (await import(path)) as typeof Client;
      const engine = new Engine({ url: `${location.origin}/engine`, key: "the site knows it" });
      const turn = engine.run("cut", "remember colour = grün");
      const events: Client.TurnEvent[] = [];
      for await (const event of turn) events.push(event);
      return { events, turnId: turn.turnId, text: await turn.text() };
    }, PACKAGE);
    site.cutAfter = Infinity;
    assert.equal(read.text, "Noted: colour is grün.");
    assert.ok(site.cuts > 3, `it was cut ${site.cuts.toString()} times`);
    assert.deepEqual(read.events, await collect(engine.follow("cut", read.turnId ?? "")));
  });

  test("a file is stored and read, and a refusal is an error of its class", async () => {
    const read = await page.evaluate(async (path) => {
      const { Engine, FileNotFoundError } = (await import(path)) as typeof Client;
      const engine = new Engine({ url: `${location.origin}/engine`, key: "the site knows it" });
      const { size } = await engine.upload("größe.txt", new Blob(["Grüße 🙂"]));
      const text = await (await engine.download("größe.txt")).text();
      const refusal: unknown = await engine.download("none.txt").catch((error: unknown) => error);
      return { size, text, isTyped: refusal instanceof FileNotFoundError };
    }, PACKAGE);
    assert.deepEqual(read, { size: 12, text: "Grüße 🙂", isTyped: true });
  });

  test("the page has thrown nothing", () => {
    assert.deepEqual(browser.faults, []);
  });
});
