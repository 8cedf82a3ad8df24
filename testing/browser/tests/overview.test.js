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

  test("a tab that was left reads no events, and goes on where it was left", async () => {
    const page = await browser.page();
    const streams = [];
    page.on("request", (request) => request.url().includes("/events?") && streams.push(request));
    const gone = new Promise((resolve) => page.on("requestfailed", (request) => request === streams[0] && resolve()));
    await page.addInitScript(() => {
      const { setTimeout } = globalThis;
      // Five minutes are over at once, as soon as somebody says so.
      globalThis.setTimeout = (call, ms, ...rest) => setTimeout(call, ms === 300_000 && globalThis.isLong ? 0 : ms, ...rest);
      Object.defineProperty(document, "hidden", { get: () => globalThis.isLeft === true });
      globalThis.leave = (isLeft) => {
        globalThis.isLeft = isLeft;
        document.dispatchEvent(new Event("visibilitychange"));
      };
    });
    await signIn(page, fleet, { place: "#/engines" });
    await page.getByText("live").waitFor();
    // Who is back soon has missed nothing.
    await page.evaluate(() => globalThis.leave(true));
    await fleet.provision("before-left");
    await page.evaluate(() => globalThis.leave(false));
    await page.getByRole("link", { name: "before-left" }).waitFor();
    await page.evaluate(() => {
      globalThis.isLong = true;
      globalThis.leave(true);
    });
    await gone;
    await fleet.provision("while-left");
    assert.equal(streams.length, 1);
    await page.evaluate(() => globalThis.leave(false));
    await page.getByRole("link", { name: "while-left" }).waitFor();
    assert.equal(streams.length, 2);
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
