// Admits by the minute, and what was used by day.

import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { Browser, Fleet, ended, eventually, goTo, openChat, say, screenshot, signIn, skip } from "./support.js";

describe("usage", { skip }, () => {
  let fleet;
  let browser;
  before(async () => {
    const env = { ENGINE_USAGE_MAX_TOKENS_PER_DAY: "100000", ENGINE_USAGE_MAX_TOKENS_PER_TASK: "5000" };
    [fleet, browser] = await Promise.all([Fleet.start({ env }), Browser.start()]);
    await fleet.provision("ada");
  });
  after(() => Promise.all([fleet?.stop(), browser?.stop()]));

  const admit = (user) => fleet.call("POST", `/engines/${user}/admit`, {});
  /** The parts of what a plot says in words. */
  const plot = (page, name) => page.getByRole("img", { name });

  test("admits are plotted by outcome from the opening of the page on, also while another page is shown", async () => {
    await admit("ada");
    // Counts are stored every few seconds.
    await eventually(async () => assert.equal((await fleet.call("GET", "/usage")).total_admits.admitted, 1));
    const page = await browser.page();
    await signIn(page, fleet);
    await page.getByText("what was before is kept by day only").waitFor();
    await plot(page, "Admits per minute: Nobody has been admitted since then").waitFor();
    await page.getByText("Today: 1 admitted, 0 denied, 0 refused, 0 failed.").waitFor();
    for (let turn = 0; turn < 3; turn += 1) await admit("ada");
    await admit("nobody");
    await goTo(page, "policy");
    await page.getByText("no limit").first().waitFor();
    await goTo(page, "overview");
    await page.getByText("Today: 4 admitted, 1 denied, 0 refused, 0 failed.").waitFor({ timeout: 30_000 });
    await plot(page, "Admits per minute: admitted 3, denied 1").waitFor();
    await screenshot(page, "overview-admits");
    assert.deepEqual(page.faults, []);
  });

  test("a day's turns, tokens, costs and admits are a plot and a table", async () => {
    const page = await browser.page();
    await signIn(page, fleet);
    await openChat(page, "ada", "used");
    await say(page, "hello");
    await ended(page);
    // What it has used of its caps is on its page.
    await page.getByRole("link", { name: "← ada" }).click();
    const meter = page.getByRole("meter", { name: "Tokens today" });
    await meter.waitFor();
    await page.getByText(/^\d+ of 100,000, begins again in \d+ (h|min)/).waitFor();
    await page.getByText("at most 5,000").waitFor();
    assert.ok((await meter.evaluate((element) => element.value)) > 0);
    await screenshot(page, "engine-caps");
    // Its use is asked for before the engine stops.
    await fleet.call("POST", "/engines/ada/stop");
    await page.getByRole("link", { name: "Usage", exact: true }).click();
    await page.getByRole("heading", { name: "Usage" }).waitFor();
    const today = new Date().toISOString().slice(0, 10);
    const row = page.getByRole("row").filter({ has: page.getByRole("rowheader", { name: today }) });
    await row.waitFor();
    const { rows } = await fleet.call("GET", "/usage");
    const { usage, admits } = rows.at(-1);
    assert.ok(usage.turns === 1 && usage.input_tokens > 0, JSON.stringify(usage));
    const expected = [1, admits.admitted, admits.denied, 0, 0, 1, usage.input_tokens, usage.output_tokens, usage.tool_calls];
    const cells = await row.getByRole("cell").allTextContents();
    assert.deepEqual(cells.slice(0, -1), expected.map((value) => new Intl.NumberFormat("en").format(value)));
    assert.match(cells.at(-1), /^\$\d/);
    await plot(page, `Tokens per day: in ${usage.input_tokens}, out ${usage.output_tokens}`).waitFor();
    for (const [name, said] of [
      ["turns", "Turns per day: turns 1"],
      ["engines", "Engines used per day: engines 1"],
      ["admits", `Admits per day: admitted ${admits.admitted}, denied ${admits.denied}`],
    ]) {
      await page.getByLabel("Show").selectOption(name);
      await plot(page, said).waitFor();
    }
    await screenshot(page, "usage");
    // By engine, and of a range in which nothing was.
    await page.getByLabel("By").selectOption("engine");
    await page.getByRole("rowheader", { name: "ada" }).getByRole("link").waitFor();
    await page.getByLabel("Of the last").selectOption("400");
    await page.getByRole("rowheader", { name: "ada" }).waitFor();
    assert.deepEqual(page.faults, []);
  });

  test("the operator sees all products, and one of them", async () => {
    await fleet.call("POST", "/products/register", { slug: "other", display_name: "<b>Other</b>" }, { "X-Admin-Key": fleet.adminKey });
    const page = await browser.page();
    await signIn(page, fleet, { kind: "Operator" });
    await page.getByRole("link", { name: "Usage", exact: true }).click();
    await page.getByRole("heading", { name: "Usage of all products" }).waitFor();
    await page.getByLabel("By").selectOption("product");
    await page.getByRole("rowheader", { name: /demo/ }).waitFor();
    await goTo(page, "products");
    await page.getByRole("button", { name: "Open other" }).click();
    await page.getByRole("link", { name: "Usage", exact: true }).click();
    await page.getByText("Nothing was used in these days.").waitFor();
    await plot(page, "Tokens per day: Nothing in these days").waitFor();
    assert.deepEqual(page.faults, []);
  });

  test("what cannot be read says so, and is read again", async () => {
    const page = await browser.page();
    await signIn(page, fleet);
    await page.route("**/usage?*", (route) => route.fulfill({ status: 500, json: { error: { code: "INTERNAL_ERROR", message: "<img src=x>" } } }));
    await goTo(page, "usage");
    await page.getByRole("alert").getByText("<img src=x>").waitFor();
    await page.unroute("**/usage?*");
    await page.getByRole("button", { name: "Try again" }).click();
    await page.getByRole("rowheader").first().waitFor();
    assert.deepEqual(page.faults, []);
  });
});
