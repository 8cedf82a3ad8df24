/** The field to write a message in, and what can be done while a turn runs. */

import { html, useLayoutEffect, useRef, useState } from "../lib/html.js";
import { ErrorNotice } from "../parts/notice.js";
import { Chip, readFiles } from "./attachments.js";

const MAX_HEIGHT_PX = 220;

export function Composer({ conversation, running, asked }) {
  const [text, setText] = useState("");
  const [files, setFiles] = useState([]);
  const [thinks, setThinks] = useState(false);
  const [error, setError] = useState();
  const field = useRef();
  const busy = running !== undefined;
  useLayoutEffect(() => {
    const { style } = field.current;
    style.height = "auto";
    style.height = `${Math.min(field.current.scrollHeight + 2, MAX_HEIGHT_PX)}px`;
  }, [text]);
  const send = async (how) => {
    const message = text.trim();
    if (message === "") return;
    setText("");
    setFiles([]);
    setError(undefined);
    try {
      const media = files.length === 0 ? {} : { media: files.map((file) => file.block) };
      const extra = { ...media, ...(thinks ? { super_thinking: true } : {}), ...(how === undefined ? {} : { on_busy: how }) };
      await conversation.send({ message, ...extra });
    } catch (failed) {
      // What was written is not lost.
      setText((now) => (now === "" ? message : now));
      setFiles((now) => (now.length === 0 ? files : now));
      setError(failed);
    }
  };
  const submit = (event) => {
    event.preventDefault();
    send(busy ? "queue" : undefined);
  };
  const key = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) submit(event);
  };
  const attach = async (added) => {
    if (added.length === 0) return;
    try {
      const read = await readFiles([...added], files);
      setFiles((now) => [...now, ...read]);
      setError(undefined);
    } catch (failed) {
      setError(failed);
    }
  };
  const choose = (event) => {
    attach([...event.target.files]);
    // The same file can be chosen again.
    event.target.value = "";
  };
  const drop = (event) => {
    event.preventDefault();
    attach([...event.dataTransfer.files]);
  };
  const cancel = () => conversation.cancel().catch(setError);
  const empty = text.trim() === "";
  return html`<form class="composer" onSubmit=${submit} onDragOver=${(event) => event.preventDefault()} onDrop=${drop}>
    ${files.length > 0 &&
    html`<div class="chips">${files.map(
      (file) => html`<${Chip} key=${file} file=${file} remove=${() => setFiles(files.filter((kept) => kept !== file))} />`,
    )}</div>`}
    ${error !== undefined && html`<${ErrorNotice} error=${error} />`}
    <textarea ref=${field} rows="1" aria-label="Message" placeholder=${asked ? "The agent waits for your answer above" : "Write a message"}
      value=${text} onInput=${(event) => setText(event.target.value)} onKeyDown=${key}
      onPaste=${(event) => attach([...event.clipboardData.files])}></textarea>
    <div class="composer-row">
      <label class="button-like small">Attach<input type="file" multiple class="sr" onChange=${choose} /></label>
      <label class="inline small"><input type="checkbox" checked=${thinks} onChange=${() => setThinks(!thinks)} />Think longer</label>
      <span class="quiet small hint">Enter sends, Shift-Enter begins a line</span>
      ${busy && html`<button type="button" onClick=${cancel}>Cancel</button>`}
      ${busy && html`<button type="button" disabled=${empty} onClick=${() => send("steer")}>Steer</button>`}
      <button type="submit" class="primary" disabled=${empty}>${busy ? "Queue" : "Send"}</button>
    </div>
  </form>`;
}
