/** Messages as they are stored: a user's, and an answer whose events were not read. */

import { html, useState } from "../lib/html.js";
import { ErrorNotice } from "../parts/notice.js";
import { Time } from "../parts/time.js";
import { Attachment } from "./attachments.js";
import { Markdown } from "./markdown.js";
import { ToolCard } from "./tool-card.js";

export function UserMessage({ message, conversation, editing, setEditing, canEdit }) {
  const text = textOf(message);
  const isEdited = editing !== undefined && editing === message.message_id;
  return html`<div class="message user">
    ${isEdited
      ? html`<${Edit} text=${text} message=${message} conversation=${conversation} close=${() => setEditing(undefined)} />`
      : html`<div class="bubble">${text}${message.content.filter((block) => block.media_type !== undefined).map(
          (block) => html`<${Attachment} key=${block.hash} block=${block} user=${conversation.user} task=${conversation.task} />`,
        )}</div>
        <p class="small quiet"><${Time} at=${message.created_at} />
          ${canEdit && html` <button type="button" class="plain small underline" onClick=${() => setEditing(message.message_id)}>Edit</button>`}
        </p>`}
  </div>`;
}

function textOf(message) {
  return message.content.map((block) => (block.type === "text" ? block.text : "")).join("");
}

function Edit({ text: before, message, conversation, close }) {
  const [text, setText] = useState(before);
  const [error, setError] = useState();
  const submit = async (event) => {
    event.preventDefault();
    try {
      await conversation.send({ message: text, edit_message_id: message.message_id });
      close();
    } catch (failed) {
      setError(failed);
    }
  };
  return html`<form class="edit" onSubmit=${submit}>
    <textarea rows="3" aria-label="Edit the message" value=${text} onInput=${(event) => setText(event.target.value)}
      ref=${focusOnce}></textarea>
    ${error !== undefined && html`<${ErrorNotice} error=${error} />`}
    <p class="small quiet">What came after this message is forgotten, and the engine answers again.</p>
    <div class="actions"><button type="button" onClick=${close}>Cancel</button>
      <button type="submit" class="primary" disabled=${text.trim() === ""}>Send</button></div>
  </form>`;
}

function focusOnce(element) {
  if (element !== null && !element.dataset.focused) {
    element.dataset.focused = "yes";
    element.focus();
  }
}

export function Answer({ messages }) {
  const blocks = messages.flatMap((message) => message.content);
  const results = new Map(blocks.filter((block) => block.type === "tool_result").map((block) => [block.tool_call_id, block]));
  if (blocks.length === 0) return null;
  return html`<div class="message agent">
    ${blocks.map((block, index) => {
      if (block.type === "text") return html`<${Markdown} key=${index} text=${block.text} />`;
      if (block.type !== "tool_use") return null;
      const { output, error } = results.get(block.tool_call_id) ?? {};
      const tool = { tool: block.tool, input: block.input, output, error: error ?? undefined, hooks: [] };
      return html`<${ToolCard} key=${index} tool=${tool} ended />`;
    })}
  </div>`;
}
