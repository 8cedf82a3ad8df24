// Signing in, the engines' table and the page of an engine, as a person uses them.

import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { Browser, Fleet, eventually, goTo, screenshot, signIn, skip } from "./support.js";

describe("engines", { skip }, () => {
  let fleet;
  let browser;
  before(async () => {
    [fleet, browser] = await Promise.all([Fleet.start(), Browser.start()]);
  });
  after(() => Promise.all([fleet?.stop(), browser?.stop()]));

  test("a wrong key says so, the right one is kept until one signs out", async () => {
    const page = await browser.page();
    await page.goto(`${fleet.console}/console`);
    await page.getByLabel("Platform key").fill(`pk-svc-${"x".repeat(43)}`);
    await page.getByRole("button", { name: "Sign in" }).click();
    await page.getByRole("alert").getByText("This platform key is not known here").waitFor();
    await screenshot(page, "sign-in-wrong-key");
    // What is no header value is no key either.
    await page.getByLabel("Platform key").fill("schlüssel\u0000");
    await page.getByRole("button", { name: "Sign in" }).click();
    await page.getByRole("alert").getByText("This platform key is not known here").waitFor();
    await signIn(page, fleet);
    await page.reload();
    await page.getByRole("heading", { name: "Overview" }).waitFor();
    const stored = () =>
      page.evaluate(() => [document.cookie, JSON.stringify(localStorage), JSON.stringify(sessionStorage)]);
    const [cookie, local, session] = await stored();
    assert.deepEqual([cookie, local], ["", "{}"]);
    assert.ok(session.includes(fleet.key));
    await page.getByRole("button", { name: "Sign out" }).click();
    await page.getByLabel("Platform key").waitFor();
    assert.deepEqual(await stored(), ["", "{}", "{}"]);
    assert.deepEqual(page.faults, []);
  });

  test("a key that is revoked ends the session", async () => {
    const admin = { "X-Admin-Key": fleet.adminKey };
    const product = { slug: "brief", display_name: "Brief" };
    const { product_id: id, platform_api_key: key } = await fleet.call("POST", "/products/register", product, admin);
    const page = await browser.page();
    await signIn(page, { ...fleet, console: fleet.console, key });
    const { keys } = await fleet.call("GET", `/products/${id}/keys`, undefined, admin);
    const response = await fetch(`${fleet.base}/products/${id}/keys/${keys[0].key_id}`, { method: "DELETE", headers: admin });
    assert.ok(response.ok);
    await goTo(page, "audit");
    await page.getByText("The key is not accepted any more").waitFor();
    assert.equal(await page.evaluate(() => sessionStorage.length), 0);
    assert.deepEqual(page.faults, []);
  });

  test("what others do is there at once", async () => {
    const page = await browser.page();
    await signIn(page, fleet, { place: "#/engines" });
    await page.getByText("There are no engines yet").waitFor();
    await fleet.provision("ada");
    const row = page.getByRole("row").filter({ hasText: "ada" });
    await row.getByText("running").waitFor();
    await fleet.call("POST", "/engines/ada/stop");
    await row.getByText("stopped").waitFor();
    await row.getByRole("button", { name: "Start ada" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Start" }).click();
    await row.getByText("running").waitFor();
    await fleet.call("DELETE", "/engines/ada");
    await page.getByText("There are no engines yet").waitFor();
    assert.deepEqual(page.faults, []);
  });

  test("rows are searched, filtered and sorted", async () => {
    for (const user of ["carl", "anna", "bert"]) await fleet.provision(user);
    await fleet.call("POST", "/engines/bert/stop");
    const page = await browser.page();
    await signIn(page, fleet, { place: "#/engines" });
    const users = () => page.locator(".tbody .td-user a").allTextContents();
    await eventually(async () => assert.deepEqual(await users(), ["bert", "anna", "carl"]));
    await page.getByRole("button", { name: /Sort by user/ }).click();
    await eventually(async () => assert.deepEqual(await users(), ["anna", "bert", "carl"]));
    await page.getByRole("button", { name: /Sort by user/ }).click();
    await eventually(async () => assert.deepEqual(await users(), ["carl", "bert", "anna"]));
    await page.getByRole("combobox").selectOption("stopped");
    await eventually(async () => assert.deepEqual(await users(), ["bert"]));
    await page.getByRole("combobox").selectOption("");
    await page.getByLabel("Search users").fill("ANN");
    await eventually(async () => assert.deepEqual(await users(), ["anna"]));
    await page.getByLabel("Search users").fill("nobody");
    await page.getByText("No engine matches").waitFor();
    await page.getByRole("button", { name: "Show all" }).click();
    await eventually(async () => assert.equal((await users()).length, 3));
    await screenshot(page, "engines");
    assert.deepEqual(page.faults, []);
    for (const user of ["carl", "anna", "bert"]) await fleet.call("DELETE", `/engines/${user}`);
  });

  test("a crash is shown with its why, and the restart after it", async () => {
    await fleet.provision("eve");
    const page = await browser.page();
    await signIn(page, fleet);
    await goTo(page, "engines", "eve");
    await page.getByRole("heading", { name: "Why it is running" }).waitFor();
    process.kill(fleet.engineProcess(), "SIGKILL");
    await page.getByRole("cell", { name: "crash" }).first().waitFor();
    await page.getByRole("heading", { name: "Why it is failed" }).waitFor();
    await page.getByText(/Next: it is restarted/).waitFor();
    await screenshot(page, "engine-crashed");
    await page.getByRole("cell", { name: "restart", exact: true }).first().waitFor();
    await page.getByRole("heading", { name: "Why it is running" }).waitFor();
    // The log of both of its lives.
    await page.getByRole("log").getByText("The engine is ready").first().waitFor();
    assert.deepEqual(page.faults, []);
    await fleet.call("DELETE", "/engines/eve");
  });

  test("a key is rotated, and shown once", async () => {
    await fleet.provision("kim");
    const page = await browser.page();
    await signIn(page, fleet);
    await goTo(page, "engines", "kim");
    await page.getByRole("button", { name: "Rotate key" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Rotate the key" }).click();
    const shown = await page.getByLabel("The new key").locator("code").textContent();
    assert.equal(shown, (await fleet.call("GET", "/engines/kim")).api_key);
    await page.getByRole("button", { name: "Hide" }).click();
    assert.ok(!(await page.content()).includes(shown));
    assert.deepEqual(page.faults, []);
    await fleet.call("DELETE", "/engines/kim");
  });

  test("an engine is destroyed only once its user's name was typed", async () => {
    await fleet.provision("zoë");
    const page = await browser.page();
    await signIn(page, fleet);
    await goTo(page, "engines", "zoë");
    await page.getByRole("button", { name: "Destroy" }).click();
    const dialog = page.getByRole("dialog");
    const destroy = dialog.getByRole("button", { name: "Destroy" });
    assert.ok(await destroy.isDisabled());
    await dialog.getByLabel(/to confirm/).fill("zoe");
    assert.ok(await destroy.isDisabled());
    await page.keyboard.press("Enter");
    assert.equal((await fleet.call("GET", "/engines")).total, 1);
    await dialog.getByLabel(/to confirm/).fill("zoë");
    await screenshot(page, "destroy");
    await destroy.click();
    await page.getByText("The engine was destroyed").waitFor();
    assert.equal((await fleet.call("GET", "/engines")).total, 0);
    assert.deepEqual(page.faults, []);
  });

  test("the audit log is filtered, and its chain verified", async () => {
    const page = await browser.page();
    await signIn(page, fleet, { place: "#/audit" });
    await page.getByLabel("Event").selectOption("destroy");
    await page.getByRole("cell", { name: "destroy" }).first().waitFor();
    await eventually(async () => assert.equal(await page.getByRole("cell", { name: "provision" }).count(), 0));
    await page.getByRole("button", { name: "Verify the chain" }).click();
    const { rows } = await fleet.call("GET", "/audit?limit=1");
    await page.getByText(`All ${rows[0].id} rows are as they were written.`).waitFor();
    await screenshot(page, "audit-verified");
    // A row that says something else than was written.
    await page.route("**/audit?*", async (route) => {
      const response = await route.fetch();
      await route.fulfill({ response, body: (await response.text()).replace('"reason":"requested"', '"reason":"invented"') });
    });
    await page.getByRole("button", { name: "Verify the chain" }).click();
    await page.getByText(/The chain is broken at row/).waitFor();
    assert.deepEqual(page.faults, []);
  });
});
