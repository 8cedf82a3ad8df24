// The pictures of the documentation. Each is taken of a page whose content is stored beside this test: if the page shows
// something else today, the picture is stale, and this fails. `testing/browser/screenshots` takes all pictures anew.

import assert from "node:assert/strict";
import { existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { after, before, describe, test } from "node:test";
import { Browser, Fleet, ended, goTo, openChat, say, signIn, skip } from "./support.js";

const PICTURES = new URL("../../../docs/images/", import.meta.url);
const CONTENTS = new URL("../images/", import.meta.url);
const RENEW = process.env.ROUNDHOUSE_RENEW_IMAGES === "1";

/** What a page says, without what is different each time. */
async function contentOf(page) {
  const text = await page.locator("main").ariaSnapshot();
  const same = text.replace(/[0-9a-f]{16,}/g, "ID").replace(/\d+(\.\d+)? (ms|s|min|h|d)\b/g, "0 s");
  return `${same.replace(/\d+/g, "0")}\n`;
}

async function picture(page, name) {
  const content = await contentOf(page);
  const stored = new URL(`${name}.yaml`, CONTENTS);
  const file = new URL(`${name}.jpg`, PICTURES);
  if (RENEW) {
    mkdirSync(PICTURES, { recursive: true });
    mkdirSync(CONTENTS, { recursive: true });
    writeFileSync(stored, content);
    await page.screenshot({ path: file.pathname, type: "jpeg", quality: 65 });
  }
  assert.ok(existsSync(file), `docs/images/${name}.jpg is missing`);
  assert.equal(content, readFileSync(stored, "utf8"), `docs/images/${name}.jpg is stale: testing/browser/screenshots takes it`);
}

describe("pictures of the documentation", { skip }, () => {
  let fleet;
  let browser;
  before(async () => {
    [fleet, browser] = await Promise.all([Fleet.start(), Browser.start()]);
    for (const user of ["ada", "grace", "lin"]) await fleet.provision(user);
    await fleet.call("POST", "/engines/lin/stop");
  });
  after(() => Promise.all([fleet?.stop(), browser?.stop()]));

  async function open() {
    const viewport = { width: 1000, height: 600 };
    return browser.page({ colorScheme: "light", viewport, reducedMotion: "reduce" });
  }

  test("the console's engines", async () => {
    const page = await open();
    await signIn(page, fleet);
    await goTo(page, "engines");
    await page.getByRole("link", { name: "lin" }).waitFor();
    await page.getByText("stopped").and(page.locator(":visible")).first().waitFor();
    await picture(page, "console-engines");
  });

  test("a chat that asks for a permission", async () => {
    const page = await open();
    await signIn(page, fleet);
    await openChat(page, "ada", "shopping");
    await say(page, "remember that my colour is green");
    await ended(page);
    await say(page, "write notes.txt: buy milk");
    await page.getByLabel("A permission is needed").waitFor();
    // In the list of conversations, too, which is read a moment later.
    await page.getByRole("link", { name: /waits for you/ }).waitFor();
    await picture(page, "console-chat");
  });

  test("an endpoint of the documentation", async () => {
    const page = await open();
    await signIn(page, fleet);
    await page.goto(`${fleet.base}/docs/api#orchestrator/get_fleet_status`);
    await page.getByRole("button", { name: "Send" }).click();
    await page.locator(".answer pre.body").getByText('"running": 2').waitFor();
    await page.getByRole("heading", { name: "Try it" }).scrollIntoViewIfNeeded();
    await picture(page, "docs-try");
  });
});
