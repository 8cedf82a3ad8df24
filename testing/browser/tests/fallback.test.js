// What the page says where the console cannot start.

import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { Browser, Fleet, eventually, screenshot, skip } from "./support.js";

describe("fallback", { skip }, () => {
  let fleet;
  let browser;
  before(async () => {
    [fleet, browser] = await Promise.all([Fleet.start(), Browser.start()]);
  });
  after(() => Promise.all([fleet?.stop(), browser?.stop()]));

  const advice = (page) => page.getByText("The console has not started.");

  for (const module of ["app.js", "lib/store.js", "vendor/preact.mjs"]) {
    test(`a browser that does not get ${module}`, async () => {
      const page = await browser.page();
      await page.route(`**/${module}`, (route) => route.abort());
      await page.goto(`${fleet.console}/console`);
      await advice(page).waitFor();
      await page.getByText("Reload the page.").waitFor();
      if (module === "app.js") await screenshot(page, "fallback");
      await page.unroute(`**/${module}`);
      await page.reload();
      await page.getByLabel("Platform key").waitFor();
      assert.equal(await advice(page).count(), 0);
      assert.deepEqual(page.faults, []);
    });
  }

  test("a browser that is too old", async () => {
    const page = await browser.page();
    await page.addInitScript(() => {
      delete AbortSignal.any;
    });
    await page.goto(`${fleet.console}/console`);
    await page.getByText("Use a current browser").waitFor();
    assert.deepEqual(page.faults, []);
  });

  test("a browser without JavaScript", async () => {
    const page = await browser.page({ javaScriptEnabled: false });
    await page.goto(`${fleet.console}/console`);
    // What is found by its text is not looked for in there.
    await page.locator("noscript strong").waitFor();
    await screenshot(page, "fallback-noscript");
    await advice(page).waitFor();
    assert.deepEqual(page.faults, []);
  });

  test("nobody sees it while the console starts", async () => {
    const page = await browser.page();
    let release;
    const held = new Promise((resolve) => {
      release = resolve;
    });
    await page.route("**/app.js", async (route) => {
      await held;
      await route.continue();
    });
    const loaded = page.goto(`${fleet.console}/console`);
    await advice(page).waitFor({ state: "attached" });
    // Once the style sheet is there, without which nothing is drawn.
    await eventually(async () => assert.ok(!(await advice(page).isVisible())));
    release();
    await loaded;
    await page.getByLabel("Platform key").waitFor();
    assert.equal(await advice(page).count(), 0);
    assert.deepEqual(page.faults, []);
  });

  test("a view that cannot be loaded says so", async () => {
    const page = await browser.page();
    await page.route("**/views/overview.js", (route) => route.abort());
    await page.goto(`${fleet.console}/console`);
    await page.getByLabel("Platform key").fill(fleet.key);
    await page.getByRole("button", { name: "Sign in" }).click();
    await page.getByRole("alert").getByText("reload the page").waitFor();
    await page.unroute("**/views/overview.js");
    await page.getByRole("button", { name: "Try again" }).click();
    await page.getByRole("heading", { name: "Overview" }).waitFor();
    assert.deepEqual(page.faults, []);
  });
});
