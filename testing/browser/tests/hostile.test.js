// What others write (users' ids, messages, models, tools, files) is text, whatever it looks like.

import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { Browser, Fleet, ended, eventually, goTo, openChat, say, signIn, skip } from "./support.js";

const AWAY = "https://attacker.example/x";
/** Each would be a script, a request or a broken layout if it were taken for anything but text. */
const PAYLOADS = [
  `<script>alert(1)</script>`,
  `<img src=x onerror=alert(1)>`,
  `<img src="${AWAY}.png">`,
  `<svg onload=alert(1)></svg>`,
  `<iframe srcdoc="<script>alert(1)</script>"></iframe>`,
  `<a href="javascript:alert(1)">click</a>`,
  `<style>@import url(${AWAY});*{display:none}</style>`,
  `<link rel=stylesheet href=${AWAY}>`,
  `<meta http-equiv=refresh content="0;url=${AWAY}">`,
  `<base href="${AWAY}/">`,
  `<form action=${AWAY}><button>send</button></form>`,
  `<math><mtext><table><mglyph><style><img src onerror=alert(1)></style></mglyph></table></mtext></math>`,
  `[click](javascript:alert(1))`,
  `[click](JaVaScRiPt:alert(1))`,
  `[click](data:text/html,<script>alert(1)</script>)`,
  `[click](vbscript:msgbox(1))`,
  `![picture](${AWAY}.png)`,
  `![picture](javascript:alert(1))`,
  `![x](data:image/svg+xml,<svg/onload=alert(1)>)`,
  `[x]: ${AWAY} "title"\n\n![x]`,
  `<${AWAY}>`,
  `\`\`\`html\n</code></pre><script>alert(1)</script>\n\`\`\``,
  `| a | <b onclick=alert(1)>b</b> |\n|---|---|\n| <script>alert(1)</script> | ![](${AWAY}) |`,
  `"><script>alert(1)</script>`,
  `' onmouseover='alert(1)`,
  `\${alert(1)}{{constructor.constructor('alert(1)')()}}`,
  `&lt;script&gt;alert(1)&lt;/script&gt;&#x3C;img src=x onerror=alert(1)&#x3E;`,
  `\u202Egnp.exe\u202C \u2066x\u2069`,
  `${"> ".repeat(300)}deep`,
  `${"*_".repeat(500)}x`,
  "W".repeat(5_000),
  `${"a\u0300".repeat(2_000)}`,
  `__proto__ constructor toString hasOwnProperty`,
];
/** Opens everything that is folded. */
function unfold(page) {
  return page.locator("details").evaluateAll((all) => all.forEach((details) => (details.open = true)));
}

/** What may be in the id of a user. */
const USERS = [
  `<img src=x onerror=alert(1)>`,
  `"><script>alert(1)</script>`,
  `a/../../products?x=1#y`,
  `%2e%2e%2fadmin`,
  `\u202Egnp.exe`,
  `__proto__`,
  `constructor`,
  "W".repeat(200),
];

const SCRIPT = `
rules:
  - when: '(?s)^write (?<path>\\S+) (?<all>.*)$'
    answers:
      - tools: [{ tool: write_file, input: { path: "$path", content: "$all" } }]
      - text: "{{result}}"
  - when: '(?s)^ask (?<all>.*)$'
    answers:
      - tools: [{ tool: ask_user, input: { question: "$all", options: ["$all", "other"] } }]
      - text: "{{result}}"
  - when: '(?s)^(?<all>.*)$'
    answers: [{ thinking: "$all", text: "$all" }]
`;

describe("hostile text", { skip }, () => {
  let fleet;
  let browser;
  before(async () => {
    [fleet, browser] = await Promise.all([Fleet.start({ script: SCRIPT }), Browser.start()]);
    await fleet.provision("ada");
  });
  after(() => Promise.all([fleet?.stop(), browser?.stop()]));

  /** Nothing that only a script, a style or a request of the payload would make is there. */
  async function assertHarmless(page) {
    const found = await page.evaluate(() => {
      const bad = "script:not([src]), style, iframe, object, embed, form[action], base, meta[http-equiv], math, img";
      const elements = [...document.body.querySelectorAll(bad)].map((element) => element.outerHTML);
      for (const element of document.body.querySelectorAll("*")) {
        for (const { name, value } of element.attributes) {
          const isLink = name === "href" && !/^(https?:|mailto:|#)/.test(value);
          if (name.startsWith("on") || name === "srcdoc" || isLink) elements.push(element.outerHTML);
        }
      }
      const wide = document.documentElement.scrollWidth > document.documentElement.clientWidth;
      return { elements, wide };
    });
    assert.deepEqual(found, { elements: [], wide: false });
    assert.deepEqual(page.faults, []);
  }

  for (const width of [360, 1440]) {
    test(`messages, thinking and answers, ${width} px wide`, async () => {
      const page = await browser.page({ viewport: { width, height: 900 } });
      await signIn(page, fleet);
      await openChat(page, "ada", `hostile-${width}`);
      for (const payload of PAYLOADS) {
        await say(page, payload);
        await ended(page);
      }
      await eventually(async () => assert.equal(await page.locator(".message.agent").count(), PAYLOADS.length));
      await unfold(page);
      await assertHarmless(page);
      // As they are stored, too, and in the list's title.
      await page.reload();
      await page.getByRole("button", { name: "Show older messages" }).click();
      await eventually(async () => assert.equal(await page.locator(".message.agent").count(), PAYLOADS.length));
      await assertHarmless(page);
      // Links lead where they say, in a window that knows nothing of this one.
      const links = await page.locator(".markdown a").evaluateAll((all) => all.map((link) => [link.href, link.rel, link.target]));
      assert.ok(links.length > 0);
      for (const [href, rel, target] of links) {
        assert.match(href, /^https:\/\/attacker\.example\//);
        assert.deepEqual([rel, target], ["noopener noreferrer nofollow", "_blank"]);
      }
    });
  }

  test("tools, questions and permissions", async () => {
    const page = await browser.page();
    await signIn(page, fleet);
    await openChat(page, "ada", "asks");
    for (const payload of PAYLOADS.slice(0, 8)) {
      await say(page, `ask ${payload}`);
      await page.getByLabel("The agent asks").waitFor();
      await assertHarmless(page);
      await page.getByLabel("The agent asks").getByRole("button").first().click();
      await ended(page);
      await say(page, `write <svg/onload=alert(1)>.txt ${payload}`);
      await page.getByLabel("A permission is needed").waitFor();
      await assertHarmless(page);
      await page.getByRole("button", { name: "Allow", exact: true }).click();
      await ended(page);
    }
    await unfold(page);
    await assertHarmless(page);
  });

  test("events of an engine that lies", async () => {
    const page = await browser.page();
    await signIn(page, fleet);
    const events = PAYLOADS.flatMap((text, index) => {
      const call = `call-${index}`;
      return [
        ["tool_call", { tool_call_id: call, tool: text, input: { [text]: text } }],
        ["agent_event", { tool_call_id: call, agent: text, event: "text_delta", data: { text } }],
        ["agent_event", { tool_call_id: call, agent: text, event: text, data: { text } }],
        ["tool_hook", { tool_call_id: call, tool: text, hook: text, on: "before", decision: "refuse", reason: text }],
        ["tool_result", { tool_call_id: call, tool: text, output: text, error: index % 2 ? text : undefined, duration_ms: 1 }],
        ["working_memory_update", { key: text, value: { [text]: text } }],
        ["working_memory_update", { key: "plan", value: { agent: text, skills: [text], steps: [text, { [text]: text }] } }],
        ["citations", { citations: [{ url: text, title: text }, { url: "javascript:alert(1)", title: text }] }],
        ["content_block_start", { index, block_type: text }],
        [text.split("\n")[0], { text }],
        ["usage", { model: text, input_tokens: 1, output_tokens: 1 }],
      ];
    });
    events.push(["thread_lifecycle", { phase: "completed", message_id: "m", answer_message_id: "a", text: "", stop_reason: "toString" }]);
    const turn = { turn_id: "turn_1", state: "completed", started_at: "2026-01-01T00:00:00.000Z" };
    const message = { message_id: "m", turn_id: "turn_1", role: "user", content: [{ type: "text", text: PAYLOADS[0] }], created_at: turn.started_at, superseded: false };
    const all = [["thread_lifecycle", { phase: "started", message_id: "m" }], ...events];
    const body = all
      .map(([type, data], index) => {
        const ts = Date.parse(turn.started_at) + index;
        return `id: ${ts}\nevent: ${type}\ndata: ${JSON.stringify({ ...data, task_id: "lies", turn_id: "turn_1", ts })}\n\n`;
      })
      .join("");
    const json = (value) => (route) => route.fulfill({ json: value });
    await page.route("**/tasks/lies/turns*", json({ turns: [turn] }));
    await page.route("**/tasks/lies/messages*", json({ messages: [message], has_older: false, has_newer: false }));
    await page.route("**/tasks/lies/queue", json({ entries: [] }));
    await page.route("**/execute/replay*", (route) => route.fulfill({ contentType: "text/event-stream", body }));
    await openChat(page, "ada", "lies");
    await ended(page);
    await unfold(page);
    assert.equal(await page.locator("details.tool").count(), PAYLOADS.length);
    await assertHarmless(page);
  });

  test("servers, connections, working memory and usage of services that lie", async () => {
    const page = await browser.page();
    await signIn(page, fleet);
    const opened = [];
    await page.exposeFunction("noteOpened", (url) => opened.push(url));
    await page.evaluate(() => {
      globalThis.open = (url) => (globalThis.noteOpened(url), null);
    });
    const json = (value, status = 200) => (route) => route.fulfill({ status, json: value });
    const names = PAYLOADS.map((text, index) => `${text}${index}`);
    const servers = names.map((name) => ({ name, description: name, transport: "http", auth: "oauth", connected: false }));
    const connections = names.map((name) => ({ connection: name, server: name, status: name, tools: [name], error: name }));
    await page.route("**/assets/servers", json({ servers }));
    await page.route("**/assets/connections", json({ connections }));
    await page.route("**/skills", json({ skills: names.map((name) => ({ name, source: name, description: name })) }));
    await goTo(page, "engines", "ada", "agent");
    await eventually(async () => assert.equal(await page.getByRole("button", { name: /^Disconnect / }).count(), names.length));
    await assertHarmless(page);
    // Where to authorise, and what is said of a failure.
    const connect = page.getByRole("button", { name: /^Connect / });
    for (const url of [...PAYLOADS, "javascript:alert(1)", "data:text/html,<script>alert(1)</script>", "blob:x"]) {
      await page.route("**/assets/connect", json({ status: "authorization_required", authorization_url: url, state: url }));
      await connect.first().click();
      await page.getByRole("alert").waitFor();
    }
    assert.deepEqual(opened, []);
    const [text] = PAYLOADS;
    await page.route("**/assets/connect", json({ status: "authorization_required", authorization_url: `https://x.example/?${text}`, state: text }));
    await page.route("**/assets/callback", json({ error: { code: text, message: PAYLOADS.join("\n") } }, 400));
    await connect.first().click();
    await page.getByText("The window ends at a page").click();
    await page.getByLabel("Its whole address").fill(`https://x.example/?${new URLSearchParams({ state: text, error: text })}`);
    await page.getByRole("button", { name: "Finish" }).click();
    await page.getByRole("button", { name: /^Hide what failed/ }).waitFor();
    await assertHarmless(page);
    // Working memory.
    await openChat(page, "ada", "memory-lies");
    const memory = Object.fromEntries(names.map((name) => [name, { [name]: name }]));
    await page.route("**/tasks/memory-lies/memory", json({ memory: { ...memory, plain: PAYLOADS[1] } }));
    await page.getByRole("button", { name: "Working memory" }).click();
    await page.getByRole("button", { name: "Change plain" }).click();
    await assertHarmless(page);
    await page.keyboard.press("Escape");
    // Caps.
    const caps = names.map((name) => ({ scope: name, unit: name, limit: 1, used: 1, remaining: 0, resets_at: name }));
    await page.route("**/usage/caps", json({ caps }));
    await goTo(page, "engines", "ada");
    await eventually(async () => assert.equal(await page.getByRole("meter").count(), names.length));
    await assertHarmless(page);
    // Usage by engine.
    const usage = { turns: 1, calls: 1, failed_calls: 0, input_tokens: 1, output_tokens: 1, cache_read_tokens: 0, cost_usd: 1, unpriced_calls: 0, tool_calls: 0 };
    const rows = names.map((name) => ({ engine_id: name, user_id: name, usage }));
    await page.route("**/usage?*group_by=engine*", (route) =>
      route.fulfill({ json: { from: "2026-01-01", to: "2026-01-30", rows, total: usage, total_admits: { admitted: 0, denied: 0, refused: 0, failed: 0 }, next: null } }),
    );
    await goTo(page, "usage");
    await page.getByLabel("By").selectOption("engine");
    await eventually(async () => assert.equal(await page.getByRole("rowheader").count(), names.length));
    await assertHarmless(page);
  });

  test("ids of users", async () => {
    const page = await browser.page();
    await signIn(page, fleet, { place: "#/engines" });
    for (const user of USERS) await fleet.provision(user);
    const row = (user) => page.getByRole("row").filter({ has: page.locator(`a[href="#/engines/${encodeURIComponent(user)}"]`) });
    for (const user of USERS) await row(user).waitFor();
    await assertHarmless(page);
    for (const user of USERS) {
      await goTo(page, "engines", user);
      await page.getByRole("heading", { name: "Why it is running" }).waitFor();
      await page.getByRole("log").waitFor();
      await assertHarmless(page);
      await openChat(page, user, user);
      await say(page, user);
      await ended(page);
      await assertHarmless(page);
    }
    await goTo(page, "engines", ".");
    await page.getByText("No browser can call").first().waitFor();
    await goTo(page, "audit");
    await page.getByRole("cell", { name: "provision" }).first().waitFor();
    await assertHarmless(page);
    for (const user of USERS) await fleet.call("DELETE", `/engines/${encodeURIComponent(user)}`);
    await goTo(page, "engines");
    await eventually(async () => assert.equal(await page.locator(".tbody .tr").count(), 1));
  });

  test("the address", async () => {
    const page = await browser.page();
    await signIn(page, fleet);
    for (const payload of [...PAYLOADS, "engines/%E0%A4%A/chat", "__proto__/x", "engines//chat/x/y/z"]) {
      await page.goto(`${fleet.console}/console#/${payload}`);
      await page.locator("main > *").first().waitFor();
      await assertHarmless(page);
    }
  });
});
