// A tool server that wants its user's consent: from Connect to a tool that a turn uses, and all that can go wrong between.

import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { AuthorizationServer } from "./authorization-server.js";
import { Browser, Fleet, ended, eventually, freePort, goTo, openChat, say, screenshot, signIn, skip } from "./support.js";

const SCRIPT = `
rules:
  - when: '^add$'
    answers:
      - tools: [{ tool: notes__add, input: { a: 2, b: 3 } }]
      - text: "It says: {{result}}"
`;
const HOSTILE = `<img src=x onerror=alert(1)><script>alert(1)</script>"'\u202Ejavascript:alert(1)`;

describe("authorization", { skip }, () => {
  let fleet;
  let browser;
  let server;
  before(async () => {
    [browser, server] = await Promise.all([Browser.start(), AuthorizationServer.start()]);
    const port = await freePort();
    const notes = { type: "http", url: `${server.base}/mcp`, auth: "oauth", description: "Notes and boards" };
    fleet = await Fleet.start({
      script: SCRIPT,
      port,
      env: { OAUTH_REDIRECT_BASE_URL: `http://127.0.0.1:${port}/console` },
      catalog: { "mcp.json": { mcpServers: { notes } } },
    });
  });
  after(async () => {
    server?.stop();
    await Promise.all([fleet?.stop(), browser?.stop()]);
  });

  /** The connections of a user's engine, in a page of its own profile. */
  async function connections(user) {
    await fleet.provision(user);
    const page = await browser.page();
    await signIn(page, fleet);
    await goTo(page, "engines", user, "agent");
    return page;
  }

  const connect = (page) => page.getByRole("button", { name: "Connect notes", exact: true });
  const hasEnded = (page) => eventually(async () => assert.equal(await page.getByText("waits for the authorisation").count(), 0));
  const faults = (page) => page.faults.filter((fault) => !fault.startsWith("a window was opened"));
  const stored = async (user) => (await fleet.call("GET", `/engines/${user}/proxy/assets/connections`)).connections;

  async function opened(page, action) {
    const [popup] = await Promise.all([page.context().waitForEvent("page"), action.click()]);
    popup.setDefaultTimeout(15_000);
    popup.on("dialog", (dialog) => page.faults.push(`a script ran: ${dialog.message()}`));
    await popup.getByRole("heading", { name: "May the agent use your notes?" }).waitFor();
    assert.equal(await popup.evaluate(() => globalThis.opener), null);
    return popup;
  }

  /** Where the browser would be sent after this decision. */
  async function decided(popup, decision) {
    const link = await popup.getByRole("link", { name: decision }).getAttribute("href");
    const answer = await fetch(new URL(link, server.base), { redirect: "manual" });
    return answer.headers.get("location");
  }

  test("a server is connected in a window of its own, and a turn uses its tool", async () => {
    const page = await connections("ada");
    const popup = await opened(page, connect(page));
    await page.getByText("waits for the authorisation").waitFor();
    await screenshot(page, "authorization-waits");
    await popup.getByRole("link", { name: "Allow" }).click();
    // The window says so, and closes if the browser lets it.
    const closed = popup.waitForEvent("close").catch(() => undefined);
    await Promise.race([closed, popup.getByText("Connected notes.").waitFor()]);
    if (!popup.isClosed()) assert.ok(!popup.url().includes("code="), popup.url());
    await page.getByText("connected · 1 tool").waitFor();
    await hasEnded(page);
    await openChat(page, "ada", "tools");
    await say(page, "add");
    await page.getByRole("button", { name: "Allow", exact: true }).click();
    await page.getByText("It says: the sum is 5").waitFor();
    await ended(page);
    assert.deepEqual(faults(page), []);
  });

  test("who denies is told what to do, and what the server says about it is text", async () => {
    const page = await connections("denies");
    server.denial = HOSTILE;
    const popup = await opened(page, connect(page));
    await popup.getByRole("link", { name: "Deny" }).click();
    await popup.getByRole("alert").getByText("Not connected: OAUTH_DENIED").waitFor();
    await popup.getByText("<script>alert(1)</script>").waitFor();
    await screenshot(popup, "authorization-denied-window");
    const alert = page.getByRole("alert");
    await alert.getByText("OAUTH_DENIED").waitFor();
    await alert.getByText("Connect again").waitFor();
    await screenshot(page, "authorization-denied");
    assert.equal(await page.locator("main img, main script").count(), 0);
    assert.equal(await popup.locator("main img, main script").count(), 0);
    assert.deepEqual(await stored("denies"), []);
    await page.getByRole("button", { name: /^Hide what failed/ }).click();
    assert.equal(await alert.count(), 0);
    // It is not the end of it.
    const again = await opened(page, connect(page));
    await again.getByRole("link", { name: "Allow" }).click();
    await page.getByText("connected · 1 tool").waitFor();
    assert.deepEqual(faults(page), []);
  });

  test("a window that was closed is opened again, also after a reload", async () => {
    const page = await connections("closes");
    await (await opened(page, connect(page))).close();
    await page.reload();
    await page.getByText("waits for the authorisation").waitFor();
    const popup = await opened(page, page.getByRole("link", { name: "Open the authorisation page of notes" }));
    // Whichever view is shown when the window comes back.
    await goTo(page, "engines");
    await page.reload();
    await page.getByRole("link", { name: "closes" }).waitFor();
    await popup.getByRole("link", { name: "Allow" }).click();
    await eventually(async () => assert.deepEqual((await stored("closes")).map(({ status }) => status), ["connected"]));
    await goTo(page, "engines", "closes", "agent");
    await page.getByText("connected · 1 tool").waitFor();
    await hasEnded(page);
    assert.deepEqual(faults(page), []);
  });

  test("where no window is opened, there is a link; nobody has to wait", async () => {
    const page = await connections("blocks");
    await page.evaluate(() => {
      // As a browser that blocks windows.
      globalThis.open = () => null;
    });
    await connect(page).click();
    const link = page.getByRole("link", { name: "Open the authorisation page of notes" });
    await link.waitFor();
    assert.ok((await link.getAttribute("href")).startsWith(`${server.base}/authorize?`));
    await page.getByRole("button", { name: "Stop waiting for notes" }).click();
    await hasEnded(page);
    await connect(page).waitFor();
    assert.deepEqual(page.faults, []);
  });

  test("a browser that cannot come back has its address copied", async () => {
    const page = await connections("copies");
    const popup = await opened(page, connect(page));
    // Where it comes back to is not reached.
    const address = await decided(popup, "Allow");
    await popup.close();
    await page.getByText("The window ends at a page that cannot be reached").click();
    const field = page.getByLabel("Its whole address");
    for (const wrong of ["nothing", "javascript:alert(1)", address.replace(/state=[^&]+/, "state=x"), address.replace(/&code=[^&]+/, "")]) {
      await field.fill(wrong);
      await page.getByRole("button", { name: "Finish" }).click();
      await page.getByRole("alert").getByText("This is not the address").waitFor();
      await field.fill("");
    }
    await field.fill(address);
    await page.getByRole("button", { name: "Finish" }).click();
    await page.getByText("connected · 1 tool").waitFor();
    await hasEnded(page);
    assert.deepEqual(faults(page), []);
  });

  test("an answer that has come already, and one that nobody waits for", async () => {
    const page = await connections("twice");
    const popup = await opened(page, connect(page));
    // The product's backend was faster.
    const back = new URL(await decided(popup, "Allow"));
    await page.route("**/assets/connections", (route) => route.abort());
    await fleet.call("GET", `/engines/twice/proxy/assets/oauth/callback${back.search}`);
    await popup.goto(back.href);
    await popup.getByRole("alert").getByText("INVALID_STATE").waitFor();
    await page.getByRole("alert").getByText("Connect again, and finish within ten minutes.").waitFor();
    await page.unroute("**/assets/connections");
    // Nobody waits for this one.
    await page.evaluate(() => sessionStorage.clear());
    await page.close();
    await popup.goto("about:blank");
    await popup.goto(`${fleet.console}/console/assets/oauth/callback?code=x&state=${encodeURIComponent(HOSTILE)}`);
    await popup.getByText("No open console waits for this").waitFor();
    await popup.goto("about:blank");
    await popup.goto(`${fleet.console}/console#/authorized`);
    await popup.getByText("There is nothing to finish here").waitFor();
    assert.equal(await popup.locator("main img, main script").count(), 0);
    assert.deepEqual(faults(page), []);
  });

  test("what is not finished in time expires", async () => {
    const page = await connections("late");
    await (await opened(page, connect(page))).close();
    await page.evaluate(() => {
      const begun = JSON.parse(sessionStorage.getItem("roundhouse.authorizations"));
      const earlier = begun.map((known) => ({ ...known, begunAt: known.begunAt - 601_000 }));
      sessionStorage.setItem("roundhouse.authorizations", JSON.stringify(earlier));
    });
    await page.reload();
    await page.getByRole("alert").getByText("has expired. Connect again.").waitFor();
    assert.deepEqual(faults(page), []);
  });

  test("a denial that the product's backend was told of", async () => {
    const page = await connections("told");
    const popup = await opened(page, connect(page));
    const { search } = new URL(await decided(popup, "Deny"));
    await popup.close();
    const path = `/engines/told/proxy/assets/oauth/callback${search}`;
    await assert.rejects(fleet.call("GET", path), /OAUTH_DENIED/);
    await page.getByRole("alert").getByText("access was denied, or the authorisation failed").waitFor();
    assert.deepEqual(faults(page), []);
  });
});
