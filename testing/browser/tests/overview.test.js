// The overview: what has happened in the last hour, and what happens now.

import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { Browser, Fleet, Wire, screenshot, signIn, skip } from "./support.js";

describe("overview", { skip }, () => {
  let fleet;
  let browser;
  before(async () => {
    [fleet, browser] = await Promise.all([Fleet.start(), Browser.start()]);
  });
  after(() => Promise.all([fleet?.stop(), browser?.stop()]));

  const tile = (page, name) => page.locator(".tile", { hasText: name }).locator("strong");

  test("figures and plots begin with the last hour, and go on live", async () => {
    await fleet.provision("ada");
    const page = await browser.page();
    await signIn(page, fleet);
    await page.getByRole("img", { name: "Changes per minute: provisioned 1" }).waitFor();
    await page.getByRole("img", { name: /Time of boots and wakes: p50.* up to \d+ ms/ }).waitFor();
    await fleet.provision("bob");
    await fleet.call("POST", "/engines/bob/stop");
    await page.getByRole("img", { name: "Changes per minute: provisioned 2, asleep or stopped 1" }).waitFor();
    assert.equal(await tile(page, "engines").first().textContent(), "2");
    assert.equal(await tile(page, "running").textContent(), "1");
    await page.getByText("2 engines were ever provisioned, 0 destroyed.").waitFor();
    await screenshot(page, "overview");
    assert.deepEqual(page.faults, []);
  });

  test("what was missed while the network was cut is there when it is back", async () => {
    const wire = await Wire.to(fleet.console);
    const page = await browser.page();
    await signIn(page, fleet, { base: wire.base, place: "#/engines" });
    await page.getByText("live").waitFor();
    wire.cut();
    await page.getByText("reconnecting").waitFor();
    await fleet.provision("carl");
    wire.mend();
    await page.getByRole("link", { name: "carl" }).waitFor();
    assert.deepEqual(page.faults, []);
    wire.close();
  });
});
