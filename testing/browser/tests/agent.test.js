// What an agent knows and can use.

import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { Browser, Fleet, eventually, goTo, screenshot, signIn, skip } from "./support.js";

describe("agent", { skip }, () => {
  let fleet;
  let browser;
  before(async () => {
    [fleet, browser] = await Promise.all([Fleet.start(), Browser.start()]);
    await fleet.provision("ada");
  });
  after(() => Promise.all([fleet?.stop(), browser?.stop()]));

  async function agent() {
    const page = await browser.page();
    await signIn(page, fleet);
    await goTo(page, "engines", "ada");
    await page.getByRole("link", { name: "Memory and skills" }).click();
    return page;
  }

  test("what it knows is searched and forgotten", async () => {
    for (const content of ["Ada likes green.", "<img src=x onerror=alert(1)> is her dog."]) {
      await fleet.call("POST", "/engines/ada/proxy/memory/knowledge", { content });
    }
    const page = await agent();
    await page.getByText("Ada likes green.").waitFor();
    await page.getByText("is her dog.").waitFor();
    await screenshot(page, "agent");
    const search = page.getByLabel("Search what it knows");
    await search.fill("green");
    await search.press("Enter");
    await eventually(async () => assert.equal(await page.getByText("is her dog.").count(), 0));
    await page.getByRole("button", { name: "Forget" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Forget" }).click();
    await page.getByText("Nothing is found.").waitFor();
    const { knowledge } = await fleet.call("GET", "/engines/ada/proxy/memory/knowledge");
    assert.deepEqual(knowledge.map(({ content }) => content), ["<img src=x onerror=alert(1)> is her dog."]);
    assert.deepEqual(page.faults, []);
  });

  test("a skill's instructions are read", async () => {
    const page = await agent();
    await page.getByText("meeting-notes").click();
    await page.getByLabel("Instructions").getByText(/Decided/).waitFor();
    await page.getByText("0 in, 0 out").waitFor();
    assert.deepEqual(page.faults, []);
  });

  test("a server is connected with a key, or in a window of its own", async () => {
    const page = await browser.page();
    let connections = [];
    const sent = [];
    const servers = ["api_key", "oauth"].map((auth) => ({ name: auth, description: `by ${auth}`, transport: "http", auth, connected: false }));
    await page.route("**/assets/servers", (route) =>
      route.fulfill({ json: { servers: servers.map((server) => ({ ...server, connected: connections.some((known) => known.server === server.name && known.status === "connected") })) } }),
    );
    await page.route("**/assets/connections", (route) => route.fulfill({ json: { connections } }));
    await page.route("**/assets/connect", (route) => {
      const body = route.request().postDataJSON();
      sent.push(body);
      const isKey = body.server === "api_key";
      connections.push({ connection: body.server, server: body.server, status: isKey ? "connected" : "pending", tools: ["a", "b"], created_at: "2026-01-01T00:00:00.000Z" });
      const url = `${fleet.base}/health`;
      return route.fulfill({ json: isKey ? { status: "connected" } : { status: "authorization_required", authorization_url: url, state: "x" } });
    });
    await signIn(page, fleet);
    await goTo(page, "engines", "ada", "agent");
    await page.getByRole("button", { name: "Connect api_key" }).click();
    await page.getByRole("dialog").getByLabel(/The key/).fill("secret");
    await page.getByRole("dialog").getByRole("button", { name: "Connect" }).click();
    await page.getByText("connected · 2 tools").waitFor();
    const [popup] = await Promise.all([
      page.context().waitForEvent("page"),
      page.getByRole("button", { name: "Connect oauth" }).click(),
    ]);
    await popup.waitForURL(`${fleet.base}/health`);
    assert.equal(await popup.evaluate(() => globalThis.opener), null);
    await page.getByText("waits for the authorisation").waitFor();
    connections = connections.map((known) => ({ ...known, status: "connected" }));
    await page.getByRole("button", { name: "Disconnect oauth" }).waitFor();
    await eventually(async () => assert.equal(await page.getByText("waits for the authorisation").count(), 0));
    assert.deepEqual(sent, [{ server: "api_key", credentials: { api_key: "secret" } }, { server: "oauth" }]);
    assert.deepEqual(page.faults.filter((fault) => !fault.startsWith("a window was opened")), []);
  });
});
