// What an operator sees and does with the admin key.

import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { Browser, Fleet, screenshot, signIn, skip } from "./support.js";

describe("operator", { skip }, () => {
  let fleet;
  let browser;
  before(async () => {
    [fleet, browser] = await Promise.all([Fleet.start(), Browser.start()]);
    await fleet.provision("ada");
  });
  after(() => Promise.all([fleet?.stop(), browser?.stop()]));

  test("a product is registered, and its key works", async () => {
    const page = await browser.page();
    await signIn(page, fleet, { kind: "Operator" });
    await page.getByRole("cell", { name: "Demo demo" }).waitFor();
    await page.getByRole("button", { name: "Register a product" }).click();
    const dialog = page.getByRole("dialog");
    await dialog.getByLabel("Slug").fill("Not A Slug");
    await dialog.getByLabel("Name").fill("Letters");
    await dialog.getByRole("button", { name: "Register" }).click();
    await dialog.getByRole("alert").getByText("INVALID_REQUEST").waitFor();
    await dialog.getByLabel("Slug").fill("letters");
    await dialog.getByRole("button", { name: "Register" }).click();
    const key = await page.getByLabel("The new platform key").locator("code").textContent();
    await screenshot(page, "products");
    const answer = await fetch(`${fleet.base}/status`, { headers: { "X-Platform-Key": key } });
    assert.equal(answer.status, 200);
    await page.getByRole("cell", { name: "Letters letters" }).waitFor();
    assert.deepEqual(page.faults, []);
  });

  test("a policy is checked, compared and put in force", async () => {
    const page = await browser.page();
    await signIn(page, fleet, { kind: "Operator" });
    await page.getByRole("button", { name: "Open demo" }).click();
    await page.getByRole("link", { name: "Policy" }).click();
    await page.getByText("no limit").first().waitFor();
    await page.getByRole("button", { name: "Edit" }).click();
    const dialog = page.getByRole("dialog");
    const put = dialog.getByRole("button", { name: "Put in force" });
    const field = dialog.getByRole("textbox", { name: "Policy" });
    for (const [text, problem] of [
      [`{"max_engines": `, "This is not JSON yet"],
      [`{"max_engine": 3}`, "There is no field max_engine."],
      [`{"max_engines": "3"}`, "max_engines must be a number."],
      [`[]`, "A policy is an object."],
    ]) {
      await field.fill(text);
      await dialog.getByText(problem).waitFor();
      assert.ok(await put.isDisabled());
    }
    await field.fill(`{"max_engines": 3, "rate_limit_rpm": 600}`);
    await dialog.getByText("+ 3").waitFor();
    await screenshot(page, "policy-edit");
    await put.click();
    await page.getByText("at most 3; there are 1").waitFor();
    const product = await fleet.call("GET", "/products", undefined, { "X-Admin-Key": fleet.adminKey });
    assert.deepEqual(product.products[0].policy, { max_engines: 3, rate_limit_rpm: 600 });
    assert.deepEqual(page.faults, []);
  });

  test("an operator acts for a product, but does not talk as its users", async () => {
    const page = await browser.page();
    await signIn(page, fleet, { kind: "Operator" });
    await page.getByRole("button", { name: "Open demo" }).click();
    await page.getByRole("link", { name: "Engines" }).click();
    await page.getByRole("link", { name: "ada" }).click();
    await page.getByRole("button", { name: "Stop" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Stop" }).click();
    await page.getByRole("heading", { name: "Why it is stopped" }).waitFor();
    assert.equal(await page.getByRole("link", { name: "Chat" }).count(), 0);
    const { rows } = await fleet.call("GET", "/audit?limit=1");
    assert.deepEqual([rows[0].event, rows[0].detail.actor], ["stop", "admin"]);
    await page.getByRole("button", { name: "Leave the product" }).click();
    await page.getByRole("heading", { name: "Products" }).waitFor();
    assert.deepEqual(page.faults, []);
  });
});
