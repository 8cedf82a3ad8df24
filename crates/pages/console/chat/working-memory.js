/** What the agent keeps in view within this conversation: shown, changed and removed between two turns. */

import { html, useState } from "../lib/html.js";
import { engine, path } from "../lib/api.js";
import { plain } from "../lib/format.js";
import { useLoaded } from "../lib/load.js";
import { Dialog } from "../parts/dialog.js";
import { ErrorNotice, Loading } from "../parts/notice.js";

/** @param {{user: string, task: string, busy: boolean, close: () => void}} props */
export function WorkingMemory({ user, task, busy, close }) {
  const { value, error, again } = useLoaded((signal) => read(user, task, signal), [user, task]);
  const [editing, setEditing] = useState();
  const [failure, setFailure] = useState();
  const entries = Object.entries(value ?? {});
  const write = async (method, key, options) => {
    setFailure(undefined);
    try {
      await engine(user).send(method, path`/tasks/${task}/memory/${key}`, options);
      setEditing(undefined);
      await again();
    } catch (failed) {
      setFailure(failed);
    }
  };
  const save = (key, text) => write("PUT", key, { json: { value: parse(text) } });
  return html`<${Dialog} title="Working memory" close=${close}>
    <div class="working-memory">
      <p class="quiet small">What the agent keeps in view within this conversation. Its next turn is told what you change.</p>
      ${busy && html`<p class="notice" role="status">A turn is running: it can be changed when the turn has ended.</p>`}
      ${(failure ?? error) !== undefined && html`<${ErrorNotice} error=${failure ?? error} again=${again} />`}
      ${value === undefined && error === undefined && html`<${Loading} what="the working memory" />`}
      ${value !== undefined && entries.length === 0 && html`<p>Nothing is kept. The agent keeps something if you ask it to, or you add it here.</p>`}
      <ul class="entries">${entries.map(([key, kept]) => {
        const name = plain(key);
        if (editing === key) return html`<li key=${key}><${Edit} name=${key} text=${textOf(kept)} busy=${busy} save=${save} close=${() => setEditing(undefined)} /></li>`;
        return html`<li key=${key}><div class="head"><code><bdi>${name}</bdi></code><span class="buttons">
            <button type="button" class="small" disabled=${busy} aria-label=${`Change ${name}`} onClick=${() => setEditing(key)}>Change</button>
            <button type="button" class="small" disabled=${busy} aria-label=${`Remove ${name}`} onClick=${() => write("DELETE", key)}>Remove</button></span></div>
          <pre class="code" tabindex="0" role="group" aria-label=${`Value of ${name}`}>${plainLines(textOf(kept))}</pre></li>`;
      })}</ul>
      ${editing === NEW
        ? html`<${Edit} text="" busy=${busy} save=${save} close=${() => setEditing(undefined)} />`
        : html`<button type="button" disabled=${busy || value === undefined} onClick=${() => setEditing(NEW)}>Add</button>`}
      <div class="actions"><button type="button" onClick=${close}>Close</button></div>
    </div>
  <//>`;
}

/** No key of the memory is this one. */
const NEW = Symbol("new");

async function read(user, task, signal) {
  try {
    return (await engine(user).get(path`/tasks/${task}/memory`, { signal })).memory;
  } catch (error) {
    // The conversation begins with its first message.
    if (error.code === "TASK_NOT_FOUND") return {};
    throw error;
  }
}

function Edit({ name, text: before, busy, save, close }) {
  const [key, setKey] = useState(name ?? "");
  const [text, setText] = useState(before);
  const submit = (event) => {
    event.preventDefault();
    save(key.trim(), text);
  };
  return html`<form onSubmit=${submit}>
    ${name === undefined
      ? html`<label class="field"><span>Name</span><input autocomplete="off" value=${key} onInput=${(event) => setKey(event.target.value)} /></label>`
      : html`<p><code><bdi>${plain(name)}</bdi></code></p>`}
    <label class="field"><span>Value <span class="quiet">(text, or JSON)</span></span>
      <textarea rows="4" class="code-input" spellcheck=${false} value=${text} onInput=${(event) => setText(event.target.value)}></textarea></label>
    <div class="actions"><button type="button" onClick=${close}>Cancel</button>
      <button type="submit" class="primary" disabled=${busy || key.trim() === "" || text === ""}>Save</button></div>
  </form>`;
}

/** A value as it is edited. A text that would be read as JSON is quoted, so that what is shown is what is saved. */
function textOf(value) {
  if (typeof value === "string" && parse(value) === value) return value;
  return JSON.stringify(value, null, 2);
}

function parse(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

function plainLines(text) {
  return text.split("\n").map(plain).join("\n");
}
