// The documentation: read without a script, searched, by keyboard, for everyone, and on a phone.

import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { assertAccessible, shot } from "./docs-support.js";
import { Browser, Fleet, eventually, skip } from "./support.js";

/** One page of each kind. */
const PAGES = ["", "/tour", "/memory", "/errors", "/events", "/configuration", "/monitoring", "/api"];

describe("documentation", { skip }, () => {
  let fleet;
  let browser;
  before(async () => {
    [fleet, browser] = await Promise.all([Fleet.start(), Browser.start()]);
  });
  after(() => Promise.all([fleet?.stop(), browser?.stop()]));

  for (const colorScheme of ["light", "dark"]) {
    for (const width of [360, 1440]) {
      test(`pages, ${colorScheme}, ${width} px wide`, async () => {
        const page = await browser.page({ colorScheme, viewport: { width, height: 900 }, reducedMotion: "reduce" });
        for (const path of PAGES) {
          await page.goto(`${fleet.base}/docs${path}`);
          await page.getByRole("searchbox").waitFor();
          await shot(page, `docs${path.replace("/", "-")}-${colorScheme}-${width}`);
          await assertAccessible(page, `/docs${path}`);
        }
        await page.getByRole("searchbox").fill("replay");
        await page.getByRole("status").waitFor();
        await shot(page, `docs-search-${colorScheme}-${width}`);
        await assertAccessible(page, "the results of a search");
        assert.deepEqual(page.faults, []);
      });
    }
  }

  test("every page is read without a script", async () => {
    const page = await browser.page({ javaScriptEnabled: false });
    await page.goto(`${fleet.base}/docs`);
    const parts = await page.locator("#pages h2 a").evaluateAll((links) => links.map((link) => link.href));
    const seen = new Set();
    for (const part of [`${fleet.base}/docs`, ...parts]) {
      await page.goto(part);
      for (const address of await page.locator("#pages li a").evaluateAll((links) => links.map((link) => link.href))) {
        seen.add(address);
      }
    }
    assert.ok(seen.size > 70, `${seen.size} pages`);
    for (const address of seen) {
      const response = await page.goto(address);
      assert.equal(response.status(), 200, address);
      assert.equal(await page.locator("article h1").count(), 1, address);
      assert.equal(await page.locator('[aria-current="page"]').count(), 1, address);
      assert.equal(response.headers()["set-cookie"], undefined);
    }
    assert.deepEqual(page.faults, []);
  });

  test("a search finds a section in any writing of its words, and leads to it", async () => {
    const page = await browser.page();
    await page.goto(`${fleet.base}/docs/tour`);
    await page.keyboard.press("/");
    await page.keyboard.type("ENGINE_not_found");
    await page.getByRole("link", { name: /^ENGINE_NOT_FOUND/ }).first().waitFor();
    await page.keyboard.press("ArrowDown");
    await page.keyboard.press("Enter");
    await page.waitForURL(/\/docs\/errors#engine_not_found$/);
    await page.keyboard.press("/");
    await page.getByRole("searchbox").fill("replày");
    await page.getByText("Stream and replay").first().waitFor();
    await page.getByRole("searchbox").fill("xyzzy-nothing");
    await page.getByText("Nothing is found.").waitFor();
    await page.keyboard.press("Escape");
    await eventually(async () => assert.equal(await page.getByText("Nothing is found.").isVisible(), false));
    await page.getByRole("searchbox").fill("webhook");
    await page.getByRole("searchbox").press("Enter");
    await page.waitForURL(/webhook/);
    assert.deepEqual(page.faults, []);
  });

  test("by keyboard: to the text, an example that is wider than the page, the next page", async () => {
    const page = await browser.page({ viewport: { width: 360, height: 800 } });
    await page.goto(`${fleet.base}/docs/architecture`);
    await page.getByRole("searchbox").waitFor();
    await page.keyboard.press("Tab");
    assert.equal(await page.evaluate(() => document.activeElement.textContent), "Skip to the text");
    await page.keyboard.press("Enter");
    await eventually(async () => assert.equal(await page.evaluate(() => document.activeElement.id), "content"));
    await eventually(async () => assert.ok((await page.locator("article pre[tabindex='0']").count()) > 0));
    await page.locator(".pager a[rel=next]").focus();
    await page.keyboard.press("Enter");
    await page.waitForURL(/adding-a-provider/);
    assert.deepEqual(page.faults, []);
  });

  test("below another path of a reverse proxy all of it works", async () => {
    const page = await browser.page();
    await page.route("**/below/**", async (route) => {
      const url = route.request().url().replace("/below/", "/");
      const response = await route.fetch({ url });
      await route.fulfill({ response });
    });
    await page.goto(`${fleet.base}/below/docs`);
    await page.getByRole("link", { name: "A tour in ten minutes" }).click();
    await page.waitForURL(/\/below\/docs\/tour$/);
    await page.getByRole("searchbox").fill("memory");
    await page.getByRole("link", { name: /Memory and its search/ }).first().click();
    await page.waitForURL(/\/below\/docs\/memory/);
    // A browser may ask for the icon as late as this, and the fleet is about to stop.
    await page.unrouteAll({ behavior: "wait" });
    assert.deepEqual(page.faults, []);
  });
});
