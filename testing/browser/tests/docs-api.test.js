// The operations of both services: found, read, and tried with the key of the session.

import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { assertAccessible, shot } from "./docs-support.js";
import { Browser, Fleet, eventually, signIn, skip } from "./support.js";

describe("every endpoint", { skip }, () => {
  let fleet;
  let browser;
  before(async () => {
    [fleet, browser] = await Promise.all([Fleet.start(), Browser.start()]);
    await fleet.provision("ada");
  });
  after(() => Promise.all([fleet?.stop(), browser?.stop()]));

  async function open(page, operation) {
    await page.goto(`${fleet.base}/docs/api#${operation}`);
    await page.getByRole("heading", { name: "Try it" }).waitFor();
  }

  test("each operation of both services is shown", async () => {
    const page = await browser.page();
    await page.goto(`${fleet.base}/docs/api`);
    const all = await page.locator("#api li a").evaluateAll((links) => links.map((link) => link.getAttribute("href")));
    assert.ok(all.length > 180, `${all.length} operations`);
    for (const address of all) {
      await page.evaluate((to) => (location.hash = to), address);
      const heading = await page.locator(`#api li a[href="${address}"]`).textContent();
      await page.locator("article h2:visible", { hasText: heading }).first().waitFor();
      assert.ok(await page.getByRole("heading", { name: "Answers" }).isVisible(), address);
      // Every field can be opened, and no type is opened within itself.
      for (let closed = 1, rounds = 0; closed > 0 && rounds < 4; rounds += 1) {
        closed = await page.evaluate(() => {
          const all = [...document.querySelectorAll(".fields details:not([open])")].slice(0, 200);
          all.forEach((details) => (details.open = true));
          return all.length;
        });
      }
    }
    assert.deepEqual(page.faults, []);
  });

  for (const colorScheme of ["light", "dark"]) {
    for (const width of [360, 1440]) {
      test(`an operation and its answer, ${colorScheme}, ${width} px wide`, async () => {
        const page = await browser.page({ colorScheme, viewport: { width, height: 900 }, reducedMotion: "reduce" });
        await open(page, "engine/execute");
        await shot(page, `docs-operation-${colorScheme}-${width}`);
        await assertAccessible(page, "an operation without a session");
        await page.getByLabel("Key", { exact: true }).fill(fleet.key);
        await page.getByRole("button", { name: "Use this key" }).click();
        const body = { task_id: `axe-${colorScheme}-${width}`, message: "Hello!" };
        await page.getByLabel("Body", { exact: true }).first().fill(JSON.stringify(body));
        await page.getByRole("button", { name: "Send" }).click();
        await page.getByText('"phase":"completed"').waitFor();
        await page.locator(".try details").evaluateAll((all) => all.forEach((details) => (details.open = true)));
        await page.getByRole("heading", { name: "The answer" }).scrollIntoViewIfNeeded();
        await shot(page, `docs-answer-${colorScheme}-${width}`);
        await assertAccessible(page, "an operation with its answer");
        assert.deepEqual(page.faults, []);
      });
    }
  }

  test("with the session of the console, a stream is shown as it comes, and curl has no key", async () => {
    const page = await browser.page();
    await signIn(page, fleet);
    await open(page, "engine/execute");
    await page.getByText("With the product's platform key").waitFor();
    await page.getByLabel("Body", { exact: true }).first().fill('{"task_id": "stream", "message": "Tell me something"}');
    const lengths = await page.evaluate(async () => {
      document.querySelector(".try button[type=submit]").click();
      const seen = new Set();
      for (;;) {
        const text = document.querySelector(".answer pre.body")?.textContent ?? "";
        seen.add(text.length);
        if (text.includes('"phase":"completed"')) return [...seen];
        await new Promise((resolve) => setTimeout(resolve, 10));
      }
    });
    assert.ok(lengths.length > 3, `the text had the lengths ${lengths}`);
    await page.locator(".answer").getByText(/200/).first().waitFor();
    await page.getByText("The same with curl").click();
    const line = await page.locator(".try details pre").first().textContent();
    assert.ok(line.includes("/engines/ada/proxy/execute") && line.includes("$ROUNDHOUSE_PLATFORM_KEY"), line);
    assert.ok(!(await page.content()).includes(fleet.key), "the key is on the page");
    assert.deepEqual(page.faults, []);
  });

  test("the orchestrator is asked, a refusal is shown, and a wrong name is no other call", async () => {
    const page = await browser.page();
    await signIn(page, fleet);
    await open(page, "orchestrator/get_engine");
    await page.getByRole("button", { name: "Send" }).click();
    await page.locator(".answer").getByText("user_id is missing.").waitFor();
    await page.getByLabel("user_id (path)").fill("ada");
    await page.getByRole("button", { name: "Send" }).click();
    await page.locator(".answer pre.body").getByText('"status": "running"').waitFor();
    await page.getByLabel("user_id (path)").fill("..");
    await page.getByRole("button", { name: "Send" }).click();
    await page.locator(".answer").getByText(/No browser can call/).waitFor();
    await page.getByLabel("user_id (path)").fill("nobody/..?x#y");
    await page.getByRole("button", { name: "Send" }).click();
    await page.locator(".answer pre.body").getByText("ENGINE_NOT_FOUND").waitFor();
    await page.getByRole("link", { name: "ENGINE_NOT_FOUND" }).click();
    await page.waitForURL(/docs\/errors#engine_not_found$/);
    assert.deepEqual(page.faults, []);
  });

  test("an operator asks with the admin key", async () => {
    const page = await browser.page();
    await open(page, "orchestrator/list_products");
    await page.getByLabel("Kind of key").selectOption("admin");
    await page.getByLabel("Key", { exact: true }).fill(fleet.adminKey);
    await page.getByRole("button", { name: "Use this key" }).click();
    await page.getByRole("button", { name: "Send" }).click();
    await page.locator(".answer pre.body").getByText('"slug": "demo"').waitFor();
    await page.getByRole("button", { name: "Use another one" }).click();
    await page.getByLabel("Key", { exact: true }).waitFor();
    await eventually(async () => assert.equal(await page.evaluate(() => sessionStorage.length), 0));
    assert.deepEqual(page.faults, []);
  });
});
