// The pictures of the README: what they show is there, and each is small. `testing/browser/screenshots` takes them anew.

import assert from "node:assert/strict";
import { existsSync, readFileSync, statSync, writeFileSync } from "node:fs";
import path from "node:path";
import { after, before, describe, test } from "node:test";
import { Browser, Fleet, ended, openChat, say, signIn, skip } from "./support.js";

const MAX_BYTES = 80 * 1024;
const ROOT = new URL("../../../", import.meta.url).pathname;
/** Where to write them, if they are to be taken. */
const FOLDER = process.env.ROUNDHOUSE_PICTURES;
const MINUTE = 60_000;
const USERS = ["ada", "grace", "alan", "barbara", "edsger", "frances", "john", "katherine", "ken", "margaret", "niklaus", "radia"];

const SCRIPT = `
rules:
  - when: 'launch'
    answers:
      - thinking: "The notes of the meeting should say it. I read them first."
        tools: [{ tool: write_file, input: { path: "launch.md", content: "# Launch\\n\\n- Tuesday, 10:00 UTC\\n- Grace presses the button\\n- Barbara watches the error rate\\n" } }]
      - text: |
          Done: the summary is in \`launch.md\`.

          | What | Who | When |
          |---|---|---|
          | Press the button | Grace | Tuesday, 10:00 UTC |
          | Watch the error rate | Barbara | until noon |

          **Open:** nobody has taken the announcement yet. Shall I draft it?
  - when: 'draft'
    answers:
      - tools: [{ tool: write_file, input: { path: "announcement.md", content: "We are live.\\n" } }]
      - text: "{{result}}"
`;

describe("pictures", { skip }, () => {
  let fleet;
  let browser;
  before(async () => {
    [fleet, browser] = await Promise.all([Fleet.start({ script: SCRIPT }), Browser.start()]);
    for (const user of USERS) await fleet.provision(user);
  });
  after(() => Promise.all([fleet?.stop(), browser?.stop()]));

  async function picture(page, name) {
    const session = await page.context().newCDPSession(page);
    const { data } = await session.send("Page.captureScreenshot", { format: "webp", quality: 82 });
    const bytes = Buffer.from(data, "base64");
    assert.ok(bytes.length <= MAX_BYTES, `${name} has ${bytes.length} bytes`);
    if (FOLDER !== undefined) writeFileSync(path.join(FOLDER, `${name}.webp`), bytes);
  }

  const options = { viewport: { width: 1200, height: 800 }, colorScheme: "light", reducedMotion: "reduce" };

  test("the overview, after an hour", async () => {
    for (const user of USERS.slice(7, 9)) await fleet.call("POST", `/engines/${user}/stop`);
    const page = await browser.page(options);
    // The hour is over in a moment: its rows are spread, and the counts of admits grow with the page's clock.
    const start = Date.now() - 58 * MINUTE;
    await page.route("**/audit?*", async (route) => {
      const response = await route.fetch();
      const { rows } = await response.json();
      const spread = (row, at) => ({ ...row, at: new Date(start + (((at * 37) % 53) + 4) * MINUTE).toISOString() });
      return route.fulfill({ response, json: { rows: rows.map(spread) } });
    });
    let reads = 0;
    await page.route("**/usage?*", (route) => {
      reads += 1;
      const counts = { admitted: reads * 9 + Math.round(6 * Math.sin(reads / 4)), denied: Math.floor(reads / 5), refused: Math.floor(reads / 17), failed: 0 };
      return route.fulfill({ json: { rows: [{ day: new Date().toISOString().slice(0, 10), admits: counts }], total_admits: counts } });
    });
    await page.clock.install({ time: start });
    await signIn(page, fleet);
    await page.getByText("Today:").waitFor();
    for (let minute = 0; minute < 56; minute += 1) {
      const read = page.waitForResponse("**/usage?*");
      await page.clock.runFor(MINUTE);
      await read;
    }
    await page.getByText("live").waitFor();
    await page.getByRole("img", { name: /^Admits per minute: admitted [\d,]+/ }).waitFor();
    await picture(page, "console");
    assert.deepEqual(page.faults, []);
  });

  test("a conversation", async () => {
    const page = await browser.page({ ...options, viewport: { width: 1200, height: 960 } });
    await signIn(page, fleet);
    await openChat(page, "ada", "launch");
    await say(page, "What was decided about the launch? Write me a summary.");
    await page.getByRole("button", { name: "Allow", exact: true }).click();
    await ended(page);
    await say(page, "Yes, draft it.");
    await page.getByLabel("A permission is needed").getByText("+We are live.").waitFor();
    await picture(page, "chat");
    assert.deepEqual(page.faults, []);
  });

  test("those that the README shows are there, and small", () => {
    const readme = readFileSync(path.join(ROOT, "README.md"), "utf8");
    const shown = [...readme.matchAll(/docs\/images\/[\w.-]+/g)].map(([name]) => name);
    assert.deepEqual(shown, ["docs/images/console.webp", "docs/images/chat.webp"]);
    for (const name of shown) {
      assert.ok(existsSync(path.join(ROOT, name)), `${name} is missing: testing/browser/screenshots takes it`);
      assert.ok(statSync(path.join(ROOT, name)).size <= MAX_BYTES, name);
      assert.equal(readFileSync(path.join(ROOT, name)).toString("latin1", 8, 12), "WEBP");
    }
  });
});
