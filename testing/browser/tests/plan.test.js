// A turn with a plan and a sub-agent, on an engine: as it happens, and the same after a reload.

import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { Browser, Fleet, ended, openChat, say, screenshot, signIn, skip } from "./support.js";

const REPORT = Array.from({ length: 40 }, (_, index) => `r${index + 1}`).join(" ");
// The planner's question and the sub-agent's task are messages like others.
const SCRIPT = `
rules:
  - when: "The user's new message:"
    answers: [{ text: '{"agent": "researcher", "skills": ["meeting-notes"], "steps": ["Look <b>under</b> the mat.", "Say where it is."]}' }]
  - when: '^where$'
    answers:
      - text: "I have somebody look."
        tools: [{ tool: run_agent, input: { agent: researcher, task: "Find the key." } }]
      - text: "It was found."
  - when: '^Find the key'
    answers:
      - thinking: "Under the mat?"
        text: "I look."
        tools: [{ tool: working_memory_set, input: { key: mat, value: "looked under" } }]
      - text: "${REPORT}"
        delay_ms: 60
`;
const model = { provider: "scripted", model: "m", context_window: 100_000 };

describe("plans and sub-agents", { skip }, () => {
  let fleet;
  let browser;
  before(async () => {
    const gateway = { models: { one: model }, default: "one", planner: "one" };
    const catalog = { "gateway.json": gateway, "planning.json": { plan: "always" } };
    [fleet, browser] = await Promise.all([Fleet.start({ script: SCRIPT, catalog }), Browser.start()]);
    await fleet.provision("ada");
  });
  after(() => Promise.all([fleet?.stop(), browser?.stop()]));

  /** What a turn shows, without its times. */
  async function shown(page) {
    await page.locator("details").evaluateAll((all) => all.forEach((details) => (details.open = true)));
    const text = await page.locator(".message.agent").last().innerText();
    return text.replace(/\d[\d.]* (ms|s)\b/g, "TIME");
  }

  test("a plan and what a sub-agent does are shown as they happen, and after a reload", async () => {
    const page = await browser.page();
    await signIn(page, fleet);
    await openChat(page, "ada", "plans");
    await say(page, "where");
    const plan = page.getByRole("region", { name: "Plan" });
    await plan.getByText("Say where it is.").waitFor();
    assert.deepEqual(await plan.getByRole("listitem").allTextContents(), ["Look <b>under</b> the mat.", "Say where it is."]);
    await plan.getByText("with the agent researcher, with the skill meeting-notes").waitFor();
    // The call that runs is unfolded, and what the sub-agent says streams.
    const agent = page.locator(".agent-parts");
    await agent.getByText("Sub-agent researcher").waitFor();
    await agent.getByText(/r5 /).waitFor();
    assert.ok(!(await agent.innerText()).includes("r40"));
    assert.match(await page.locator("details.tool", { has: agent }).locator(":scope > summary").innerText(), /run_agent[^]*running/);
    await agent.locator("details.tool", { hasText: "working_memory_set" }).first().waitFor();
    await screenshot(page, "chat-sub-agent");
    await page.getByText("It was found.").waitFor();
    await ended(page);
    const live = await shown(page);
    for (const part of ["I have somebody look.", "Under the mat?", "I look.", "looked under", REPORT, "It was found."]) {
      assert.ok(live.includes(part), `${part} is not in ${live}`);
    }
    await page.reload();
    await page.getByText("It was found.").waitFor();
    await ended(page);
    assert.equal(await shown(page), live);
    assert.deepEqual(page.faults, []);
  });

  test("a reload in the midst of a sub-agent loses nothing", async () => {
    const page = await browser.page();
    await signIn(page, fleet);
    await openChat(page, "ada", "midst");
    await say(page, "where");
    await page.locator(".agent-parts").getByText(/r5 /).waitFor();
    await page.reload();
    await page.getByText("It was found.").waitFor();
    await ended(page);
    const live = await shown(page);
    assert.equal(live.split("I look.").length, 2, live);
    assert.ok(live.includes(REPORT), live);
    assert.deepEqual(page.faults, []);
  });
});
