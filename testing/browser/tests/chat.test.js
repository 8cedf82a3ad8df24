// The chat: what an agent says, does and asks; and that nothing is lost or said twice when the network is.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, before, describe, test } from "node:test";
import { Browser, Fleet, Wire, ended, eventually, openChat, say, screenshot, signIn, skip } from "./support.js";

/** The numbers that the long answer counts up. */
const NUMBERS = Array.from({ length: 150 }, (_, index) => `n${index + 1}`);
const SCRIPT = `
rules:
  - when: '^count$'
    answers:
      - text: "${NUMBERS.join(" ")}"
        delay_ms: 20
  - when: '^think$'
    answers:
      - thinking: "Let me see what there is."
        text: "I have **thought**."
  - when: '^write$'
    answers:
      - tools: [{ tool: write_file, input: { path: "notes.txt", content: "buy milk" } }]
      - text: "The tool said: {{result}}"
  - when: '^ask$'
    answers:
      - tools: [{ tool: ask_user, input: { question: "Which colour?", options: ["red", "green"] } }]
      - text: "So it is {{result}}."
  - when: '^keep$'
    answers:
      - tools: [{ tool: working_memory_set, input: { key: "<b>colour</b>", value: "green" } }]
      - text: "It is kept."
  - when: '^fail$'
    answers: [{ text: "I begin, and then", error: refused }]
  - when: '(?s)^(?<all>.*)$'
    answers: [{ text: "You said: $all" }]
`;

describe("chat", { skip }, () => {
  let fleet;
  let browser;
  before(async () => {
    [fleet, browser] = await Promise.all([Fleet.start({ script: SCRIPT }), Browser.start()]);
    await fleet.provision("ada");
  });
  after(() => Promise.all([fleet?.stop(), browser?.stop()]));

  async function chat(task, base) {
    const page = await browser.page();
    await signIn(page, fleet, { base });
    await openChat(page, "ada", task);
    return page;
  }
  const lastAnswer = (page) => page.locator(".message.agent").last();

  test("text streams, and thinking is folded", async () => {
    const page = await chat("thinking");
    await say(page, "think");
    await ended(page);
    await lastAnswer(page).locator("strong", { hasText: "thought" }).waitFor();
    const thought = page.getByText("Let me see what there is.");
    assert.ok(!(await thought.isVisible()));
    await page.getByText("Thinking", { exact: true }).click();
    await thought.waitFor();
    await page.getByRole("button", { name: "Good" }).click();
    await page.getByText("Thank you").waitFor();
    assert.deepEqual(page.faults, []);
  });

  test("a permission is given, and another denied", async () => {
    const page = await chat("permission");
    await say(page, "write");
    const card = page.getByLabel("A permission is needed");
    await card.getByText("+buy milk").waitFor();
    await screenshot(page, "chat-permission");
    await card.getByRole("button", { name: "Allow", exact: true }).click();
    await ended(page);
    await page.getByText("Allowed: write_file").waitFor();
    const tool = page.locator("details.tool");
    await tool.locator("summary").click();
    await tool.getByLabel("Input").getByText("notes.txt").waitFor();
    assert.match(await tool.locator(".tool-state").textContent(), /^done · \d+ ms$/);
    await say(page, "write");
    await card.getByLabel(/A word to the agent/).fill("not today");
    await card.getByRole("button", { name: "Deny" }).click();
    await ended(page);
    await page.getByText("Denied: write_file").waitFor();
    assert.ok((await lastAnswer(page).textContent()).includes("not today"));
    assert.deepEqual(page.faults, []);
  });

  test("a question is answered after a reload, by a choice and by text", async () => {
    const page = await chat("question");
    await say(page, "ask");
    await page.getByLabel("The agent asks").getByText("Which colour?").waitFor();
    await page.reload();
    await page.getByLabel("The agent asks").getByRole("button", { name: "green" }).click();
    await page.getByText("So it is green.").waitFor();
    await ended(page);
    await say(page, "ask");
    await page.getByLabel("Your answer").fill("a dark blue");
    await page.getByRole("button", { name: "Answer" }).click();
    await page.getByText("So it is a dark blue.").waitFor();
    assert.deepEqual(page.faults, []);
  });

  test("a correction is sent, and the next turn knows it", async () => {
    const page = await chat("corrected");
    await say(page, "what is the capital?");
    await ended(page);
    await page.getByRole("button", { name: "Correct" }).click();
    const field = page.getByLabel("What would have been right?");
    await field.fill("é".repeat(4_097));
    await page.getByText("A correction has at most 8 KiB").waitFor();
    assert.ok(await page.locator("form.correction").getByRole("button", { name: "Send" }).isDisabled());
    await field.fill("It is <b>Canberra</b>.");
    await page.locator("form.correction").getByRole("button", { name: "Send" }).click();
    await page.getByText("the next turn knows it").waitFor();
    assert.equal(await field.count(), 0);
    const { knowledge } = await fleet.call("GET", "/engines/ada/proxy/memory/knowledge");
    assert.ok(knowledge.some(({ source, content }) => source === "feedback" && content.includes("It is <b>Canberra</b>.")));
    assert.deepEqual(page.faults, []);
  });

  test("working memory is shown, changed, added to and removed between turns", async () => {
    const page = await chat("memory");
    const open = () => page.getByRole("button", { name: "Working memory" }).click();
    const dialog = page.getByRole("dialog", { name: "Working memory" });
    const value = dialog.getByRole("textbox", { name: /^Value/ });
    const memory = async () => (await fleet.call("GET", "/engines/ada/proxy/tasks/memory/memory")).memory;
    await open();
    await dialog.getByText("Nothing is kept.").waitFor();
    await page.keyboard.press("Escape");
    await dialog.waitFor({ state: "hidden" });
    await say(page, "keep");
    await ended(page);
    await open();
    await dialog.getByLabel("Value of <b>colour</b>").getByText("green").waitFor();
    await screenshot(page, "chat-working-memory");
    await dialog.getByRole("button", { name: "Change <b>colour</b>" }).click();
    await value.fill('{"is": ["red", 2]}');
    await dialog.getByRole("button", { name: "Save" }).click();
    await dialog.getByLabel("Value of <b>colour</b>").getByText("red").waitFor();
    assert.deepEqual(await memory(), { "<b>colour</b>": { is: ["red", 2] } });
    // A text that looks like JSON stays a text.
    await dialog.getByRole("button", { name: "Add" }).click();
    await dialog.getByLabel("Name").fill("a/b ?#");
    await value.fill('"7"');
    await dialog.getByRole("button", { name: "Save" }).click();
    assert.equal(await dialog.getByLabel("Value of a/b ?#").textContent(), '"7"');
    await dialog.getByRole("button", { name: "Remove <b>colour</b>" }).click();
    await eventually(async () => assert.deepEqual(await memory(), { "a/b ?#": "7" }));
    // What does not fit says so, and nothing is lost.
    await dialog.getByRole("button", { name: "Change a/b ?#" }).click();
    await value.fill("x".repeat(40_000));
    await dialog.getByRole("button", { name: "Save" }).click();
    await dialog.getByRole("alert").waitFor();
    assert.equal((await value.inputValue()).length, 40_000);
    await dialog.getByRole("button", { name: "Close" }).click();
    // While a turn runs, it is read only.
    await say(page, "count");
    await page.getByText("n3 ").first().waitFor();
    await open();
    await dialog.getByText("A turn is running").waitFor();
    assert.ok(await dialog.getByRole("button", { name: "Remove a/b ?#" }).isDisabled());
    await page.keyboard.press("Escape");
    await page.getByRole("button", { name: "Cancel" }).click();
    await ended(page);
    assert.deepEqual(page.faults, []);
  });

  test("a message is edited, and an answer repeated", async () => {
    const page = await chat("edits");
    await say(page, "first");
    await page.getByText("You said: first").waitFor();
    await ended(page);
    await say(page, "second");
    await page.getByText("You said: second").waitFor();
    await ended(page);
    await page.getByRole("button", { name: "Edit" }).first().click();
    await page.getByLabel("Edit the message").fill("better");
    await page.locator("form.edit").getByRole("button", { name: "Send" }).click();
    await page.getByText("You said: better").waitFor();
    await eventually(async () => assert.equal(await page.getByText("You said: second").count(), 0));
    await ended(page);
    await page.getByRole("button", { name: "Retry" }).click();
    await eventually(async () => {
      const { turns } = await fleet.call("GET", "/engines/ada/proxy/tasks/edits/turns");
      // The edit has replaced both turns that were there.
      assert.deepEqual(turns.map((turn) => turn.state), ["completed", "completed"]);
    });
    await ended(page);
    assert.equal(await page.getByText("You said: better").count(), 1);
    assert.deepEqual(page.faults, []);
  });

  test("a turn is cancelled, a message waits, and another is given to the turn that runs", async () => {
    const page = await chat("busy");
    await say(page, "count");
    await page.getByText("n3 ").first().waitFor();
    await say(page, "afterwards");
    await page.getByText("Waits for its turn").waitFor();
    await page.getByLabel("Message", { exact: true }).fill("and this");
    await page.getByRole("button", { name: "Steer" }).click();
    await page.locator(".message.user", { hasText: "and this" }).waitFor();
    await page.getByRole("button", { name: "Cancel" }).click();
    await page.getByText("Cancelled.").waitFor();
    await page.getByText("You said: afterwards").waitFor();
    await ended(page);
    assert.deepEqual(page.faults, []);
  });

  test("files go with a message, and come back", async () => {
    const page = await chat("files");
    const png = Buffer.from("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg==", "base64");
    const note = { name: "<b>note</b>.txt", mimeType: "text/plain", buffer: Buffer.from("buy milk") };
    await page.getByLabel("Attach").setInputFiles([{ name: "dot.png", mimeType: "image/png", buffer: png }, note]);
    await page.getByText("8 bytes").waitFor();
    await say(page, "look at these");
    await ended(page);
    await page.getByRole("img", { name: "dot.png" }).waitFor();
    const width = () => page.getByRole("img", { name: "dot.png" }).evaluate((image) => image.naturalWidth);
    await eventually(async () => assert.equal(await width(), 1));
    const [download] = await Promise.all([
      page.waitForEvent("download"),
      page.getByRole("button", { name: "Download <b>note</b>.txt" }).click(),
    ]);
    assert.equal(readFileSync(await download.path(), "utf8"), "buy milk");
    assert.deepEqual(page.faults, []);
  });

  test("a failure says what failed", async () => {
    const page = await chat("failure");
    await say(page, "fail");
    await lastAnswer(page).getByRole("alert").getByText("PROVIDER_REFUSED").waitFor();
    assert.deepEqual(page.faults, []);
  });

  for (const how of ["the network is cut", "the page is reloaded"]) {
    test(`exactly the rest of an answer follows when ${how}`, async () => {
      const wire = await Wire.to(fleet.console);
      const page = await chat(how.replaceAll(" ", "-"), wire.base);
      await say(page, "count");
      await page.getByText("n20 ").waitFor();
      if (how === "the network is cut") {
        wire.cut();
        await page.getByText("reconnecting").waitFor();
        const seen = await lastAnswer(page).locator(".markdown").textContent();
        assert.ok(!seen.includes("n150"));
        wire.mend();
      } else {
        await page.reload();
      }
      await page.getByText("n150").waitFor();
      await ended(page);
      const words = (await lastAnswer(page).locator(".markdown").allTextContents()).join(" ").trim().split(/\s+/);
      assert.deepEqual(words, NUMBERS);
      assert.deepEqual(page.faults, []);
      wire.close();
    });
  }

  test("an answer survives the death of its engine", async () => {
    const page = await chat("killed");
    await say(page, "count");
    await page.getByText("n20 ").waitFor();
    process.kill(fleet.engineProcess(), "SIGKILL");
    await page.getByText("n150").waitFor({ timeout: 60_000 });
    await ended(page);
    const words = (await lastAnswer(page).locator(".markdown").allTextContents()).join("").trim().split(/\s+/);
    assert.deepEqual(words, NUMBERS);
    assert.deepEqual(page.faults, []);
  });

  test("conversations are listed, opened and deleted", async () => {
    const page = await chat("listed");
    await say(page, "a conversation to delete");
    await ended(page);
    const list = page.getByRole("navigation", { name: "Conversations" });
    await list.getByRole("link", { name: /a conversation to delete/ }).waitFor();
    await screenshot(page, "chat");
    await list.getByRole("link", { name: "New conversation" }).click();
    await page.getByText("A new conversation").waitFor();
    await list.getByRole("button", { name: "Delete a conversation to delete" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
    await eventually(async () => assert.equal(await list.getByText("a conversation to delete").count(), 0));
    assert.deepEqual(page.faults, []);
  });
});
