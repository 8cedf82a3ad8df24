// Each page for everyone: axe-core finds nothing, in light and dark, on a phone and a wide screen; and all can be done
// by keyboard.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, before, describe, test } from "node:test";
import { Browser, Fleet, ended, eventually, goTo, openChat, say, screenshot, signIn, skip } from "./support.js";

const AXE = readFileSync(new URL("../node_modules/axe-core/axe.min.js", import.meta.url), "utf8");

describe("accessibility", { skip }, () => {
  let fleet;
  let browser;
  before(async () => {
    [fleet, browser] = await Promise.all([Fleet.start({ env: { ENGINE_USAGE_MAX_TOKENS_PER_DAY: "1000000" } }), Browser.start()]);
    for (const user of ["ada", "bob"]) await fleet.provision(user);
    await fleet.call("POST", "/engines/bob/stop");
  });
  after(() => Promise.all([fleet?.stop(), browser?.stop()]));

  async function assertAccessible(page, name) {
    await page.evaluate(AXE);
    const { violations } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
    const found = violations.map(({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html).join("\n")}`);
    assert.deepEqual(found, [], name);
    const wide = await page.evaluate(() => document.documentElement.scrollWidth > document.documentElement.clientWidth);
    assert.ok(!wide, `${name} is wider than the screen`);
  }

  /** A tool server that waits for its user, in a browser that opens no window. */
  async function offerServers(page) {
    const server = { name: "notes", description: "Notes and boards", transport: "http", auth: "oauth", connected: false };
    const connection = { connection: "c", server: "notes", status: "pending", tools: [], created_at: "2026-01-01T00:00:00.000Z" };
    const outcome = { status: "authorization_required", authorization_url: "https://notes.example/authorize", state: "s" };
    await page.route("**/assets/servers", (route) => route.fulfill({ json: { servers: [server] } }));
    await page.route("**/assets/connections", (route) => route.fulfill({ json: { connections: [connection] } }));
    await page.route("**/assets/connect", (route) => route.fulfill({ json: outcome }));
    await page.reload();
    await page.evaluate(() => {
      globalThis.open = () => null;
    });
  }

  for (const colorScheme of ["light", "dark"]) {
    for (const width of [360, 1440]) {
      test(`each page, ${colorScheme}, ${width} px wide`, async () => {
        const page = await browser.page({ colorScheme, viewport: { width, height: 900 }, reducedMotion: "reduce" });
        const check = async (name) => {
          await screenshot(page, `${name}-${colorScheme}-${width}`);
          await assertAccessible(page, name);
        };
        await page.goto(`${fleet.console}/console`);
        await page.getByLabel("Platform key").waitFor();
        await check("sign-in");
        await signIn(page, fleet);
        await page.getByText("engines were ever provisioned").waitFor();
        await check("overview");
        await goTo(page, "engines");
        await page.getByRole("link", { name: "ada" }).waitFor();
        await check("engines");
        await page.getByRole("button", { name: "Provision an engine" }).click();
        await check("provision");
        await page.keyboard.press("Escape");
        await goTo(page, "engines", "ada");
        await page.getByRole("log").waitFor();
        await page.getByRole("meter", { name: "Tokens today" }).waitFor();
        await check("engine");
        await page.getByRole("button", { name: "Destroy" }).click();
        await check("destroy");
        await page.keyboard.press("Escape");
        await goTo(page, "engines", "ada", "agent");
        await page.getByText("Model calls").waitFor();
        await page.getByText("meeting-notes").waitFor();
        await check("agent");
        await offerServers(page);
        await page.getByRole("button", { name: "Connect notes", exact: true }).click();
        await page.getByText("waits for the authorisation").waitFor();
        await page.getByText("The window ends at a page").click();
        await page.getByLabel("Its whole address").fill("nothing");
        await page.getByRole("button", { name: "Finish" }).click();
        await check("authorization");
        await openChat(page, "ada", `axe-${colorScheme}-${width}`);
        await check("chat-empty");
        await say(page, "remember that my colour is green");
        await ended(page);
        await say(page, "ask me");
        await page.getByLabel("The agent asks").waitFor();
        await check("chat-question");
        await page.getByLabel("The agent asks").getByRole("button", { name: "green" }).click();
        await ended(page);
        await say(page, "write notes.txt: buy milk");
        await page.getByLabel("A permission is needed").waitFor();
        await page.locator("details").evaluateAll((all) => all.forEach((details) => (details.open = true)));
        await check("chat-permission");
        await page.getByRole("button", { name: "Deny" }).click();
        await ended(page);
        await page.getByRole("button", { name: "Correct" }).click();
        await page.getByLabel("What would have been right?").fill("Nothing.");
        await check("chat-correction");
        await page.getByRole("button", { name: "Working memory" }).click();
        await page.getByRole("button", { name: "Change colour" }).click();
        await check("working-memory");
        await page.keyboard.press("Escape");
        await goTo(page, "usage");
        await page.getByRole("rowheader").first().waitFor();
        await check("usage");
        await goTo(page, "audit");
        await page.getByRole("cell", { name: "provision" }).first().waitFor();
        await check("audit");
        await goTo(page, "policy");
        await page.getByText("no limit").first().waitFor();
        await check("policy");
        await page.getByRole("button", { name: "Sign out" }).click();
        await signIn(page, fleet, { kind: "Operator", place: "#/" });
        await page.getByRole("button", { name: "Open demo" }).waitFor();
        await check("products");
        await goTo(page, "usage");
        await page.getByText("Usage of all products").waitFor();
        await check("usage-of-all");
        await page.goto("about:blank");
        await page.goto(`${fleet.console}/console#/authorized?state=x&code=y`);
        await page.getByText("No open console waits for this").waitFor();
        await check("authorized");
        await page.route("**/app.js", (route) => route.abort());
        await page.goto("about:blank");
        await page.goto(`${fleet.console}/console`);
        await page.getByText("The console has not started").waitFor();
        await check("fallback");
        assert.deepEqual(page.faults, []);
      });
    }
  }

  test("provision, chat and destroy by keyboard alone", async () => {
    const page = await browser.page();
    const { keyboard } = page;
    const focused = () =>
      page.evaluate(() => {
        const { activeElement: element } = document;
        return element.getAttribute("aria-label") ?? element.labels?.[0]?.textContent.trim() ?? element.textContent.trim();
      });
    /** Moves by Tab to what has this name, and sees where the focus is on the way. */
    const tabTo = async (name) => {
      for (let step = 0; step < 60; step += 1) {
        const at = await focused();
        if (name.test(at)) return;
        await keyboard.press("Tab");
        // The field to write in has its ring around the whole of it. The body is the way out of the page, and a page that
        // has just been gone to has the focus as a whole.
        const visible = await page.evaluate(() => {
          const { activeElement: element } = document;
          if (element === document.body || element.matches("main")) return true;
          if (element.matches(".composer textarea")) return getComputedStyle(element.closest(".composer")).boxShadow !== "none";
          return getComputedStyle(element.matches("[type=file]") ? element.parentElement : element).outlineStyle !== "none";
        });
        assert.ok(visible, `the focus is not visible on ${await focused()}`);
      }
      assert.fail(`no Tab leads to ${name}`);
    };
    await page.goto(`${fleet.console}/console`);
    await page.getByLabel("Platform key").waitFor();
    await tabTo(/^Platform key/);
    await keyboard.type(fleet.key);
    await keyboard.press("Enter");
    await page.getByRole("heading", { name: "Overview" }).waitFor();
    await tabTo(/^Engines$/);
    await keyboard.press("Enter");
    await page.getByRole("heading", { name: "Engines" }).waitFor();
    await tabTo(/^Provision an engine$/);
    await keyboard.press("Enter");
    await page.getByRole("dialog").waitFor();
    await tabTo(/^User id/);
    await keyboard.type("tab");
    await keyboard.press("Enter");
    await page.getByRole("heading", { name: "tab" }).waitFor();
    await page.getByRole("heading", { name: "Why it is running" }).waitFor();
    await tabTo(/^Chat$/);
    await keyboard.press("Enter");
    await page.getByLabel("Message", { exact: true }).waitFor();
    await tabTo(/^Message$/);
    await keyboard.type("write notes.txt: buy milk");
    await keyboard.press("Enter");
    await page.getByLabel("A permission is needed").waitFor();
    await keyboard.press("Shift+Tab");
    for (let step = 0; step < 10 && (await focused()) !== "Allow"; step += 1) await keyboard.press("Shift+Tab");
    await keyboard.press("Enter");
    await ended(page);
    await tabTo(/^Working memory$/);
    await keyboard.press("Enter");
    await page.getByRole("dialog").getByText("Nothing is kept.").waitFor();
    await tabTo(/^Add$/);
    await keyboard.press("Enter");
    await tabTo(/^Name/);
    await keyboard.type("colour");
    await tabTo(/^Value/);
    await keyboard.type("green");
    await tabTo(/^Save$/);
    await keyboard.press("Enter");
    await page.getByLabel("Value of colour").waitFor();
    await keyboard.press("Escape");
    await eventually(async () => assert.equal(await focused(), "Working memory"));
    await goTo(page, "engines");
    await page.getByRole("link", { name: "tab" }).waitFor();
    await tabTo(/^tab$/);
    // Up and down lead from row to row.
    await keyboard.press("ArrowDown");
    await eventually(async () => assert.notEqual(await focused(), "tab"));
    await keyboard.press("ArrowUp");
    await eventually(async () => assert.equal(await focused(), "tab"));
    await keyboard.press("Enter");
    await page.getByRole("heading", { name: "Why it is running" }).waitFor();
    await tabTo(/^Destroy$/);
    await keyboard.press("Enter");
    await page.getByRole("dialog").waitFor();
    await tabTo(/to confirm/);
    await keyboard.type("tab");
    await keyboard.press("Enter");
    await page.getByText("The engine was destroyed").waitFor();
    // Closing a dialog gives the focus back.
    await goTo(page, "engines", "bob");
    await page.getByRole("heading", { name: "Why it is stopped" }).waitFor();
    await tabTo(/^Start$/);
    await keyboard.press("Enter");
    await page.getByRole("dialog").waitFor();
    await keyboard.press("Escape");
    await eventually(async () => assert.equal(await focused(), "Start"));
    assert.deepEqual(page.faults, []);
  });
});
