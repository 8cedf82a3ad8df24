/** The chat with a user's engine: its conversations, and the one that is open. */

import { html, useEffect, useState } from "../lib/html.js";
import { change, engine, path, randomId } from "../lib/api.js";
import { ApiError } from "../lib/errors.js";
import { plain } from "../lib/format.js";
import { go, to } from "../lib/router.js";
import { useLoaded } from "../lib/load.js";
import { ActionDialog } from "../parts/dialog.js";
import { ErrorNotice, Loading } from "../parts/notice.js";
import { Time } from "../parts/time.js";
import { toast } from "../parts/toast.js";
import { Thread } from "./thread.js";

export default function Chat({ user, task }) {
  const [ready, setReady] = useState({ state: "waking" });
  const wake = async () => {
    setReady({ state: "waking" });
    try {
      // What it answers has the engine's key, which is not kept: the proxy needs none.
      const { admitted, reason } = await change("POST", path`/engines/${user}/admit`, { json: { auto_wake: true } });
      setReady(admitted ? { state: "ready" } : { state: "denied", reason });
    } catch (error) {
      setReady({ state: "failed", error });
    }
  };
  useEffect(() => {
    wake();
  }, [user]);
  useEffect(() => {
    if (task === undefined) go("engines", user, "chat", `chat-${randomId().slice(0, 8)}`);
  }, [task]);
  if (ready.state === "failed") return html`<${ErrorNotice} error=${ready.error} again=${wake} />`;
  if (ready.state === "denied") return html`<${Denied} user=${user} reason=${ready.reason} again=${wake} />`;
  if (ready.state === "waking" || task === undefined) return html`<${Loading} what="the engine" />`;
  return html`<${Open} user=${user} task=${task} />`;
}

function Open({ user, task }) {
  const [changes, setChanges] = useState(0);
  return html`<div class="chat">
    <h1 class="sr">Chat with <bdi>${plain(user)}</bdi>'s engine</h1>
    <${Conversations} user=${user} task=${task} changes=${changes} />
    <${Thread} key=${task} user=${user} task=${task} changed=${() => setChanges((count) => count + 1)} />
  </div>`;
}

function Denied({ user, reason, again }) {
  const start = async () => {
    await change("POST", path`/engines/${user}/start`);
    again();
  };
  const [dialog, setDialog] = useState(false);
  const message = {
    engine_not_found: "This user has no engine.",
    engine_unhealthy: "The engine has failed and is not restarted soon.",
    engine_stopped: "The engine was stopped.",
  }[reason];
  const error = new ApiError({ status: 409, code: "The engine cannot be used", message: message ?? reason });
  return html`<${ErrorNotice} error=${error} again=${again} />
    <p><a href=${to("engines", user)}>The engine's page</a></p>
    ${reason !== "engine_not_found" && html`<button type="button" class="primary" onClick=${() => setDialog(true)}>Start it</button>`}
    ${dialog && html`<${ActionDialog} title="Start the engine" action="Start" run=${start} close=${() => setDialog(false)} />`}`;
}

function Conversations({ user, task, changes }) {
  const read = (signal) => engine(user).get("/conversations", { query: { limit: 100, archived: false }, signal });
  const { value, error, again } = useLoaded(read, [user, changes]);
  const [deleting, setDeleting] = useState();
  // On a phone the list is folded; elsewhere it is always there.
  const [open, setOpen] = useState(false);
  const list = value?.conversations ?? [];
  const isKnown = list.some((known) => known.task_id === task);
  const remove = async () => {
    await engine(user).send("DELETE", path`/tasks/${deleting.task_id}`);
    toast("Deleted the conversation");
    if (deleting.task_id === task) go("engines", user, "chat");
    else again();
  };
  return html`<nav class=${open ? "conversations open" : "conversations"} aria-label="Conversations">
    <div class="conversations-head">
      <a class="back" href=${to("engines", user)}>← <bdi>${plain(user)}</bdi></a>
      <button type="button" class="fold" aria-expanded=${open} onClick=${() => setOpen(!open)}>Conversations</button>
      <a class="button new" href=${to("engines", user, "chat")}><span class="wide-only">New conversation</span><span class="narrow-only">New</span></a>
    </div>
    ${error !== undefined && html`<${ErrorNotice} error=${error} again=${again} />`}
    <ul>
      ${!isKnown && html`<li class="current"><a href=${to("engines", user, "chat", task)} aria-current="page"><span class="name">New</span></a></li>`}
      ${list.map(
        (known) => html`<li key=${known.task_id} class=${known.task_id === task ? "current" : ""}>
          <a href=${to("engines", user, "chat", known.task_id)} aria-current=${known.task_id === task ? "page" : undefined}>
            <span class="name"><bdi>${plain(known.title ?? known.task_id)}</bdi></span>
            <span class="quiet small">${DOING[known.status]}<${Time} at=${known.updated_at} /></span>
          </a>
          <button type="button" class="plain" aria-label=${`Delete ${plain(known.title ?? known.task_id)}`} title="Delete"
            onClick=${() => setDeleting(known)}>×</button>
        </li>`,
      )}
    </ul>
    ${deleting !== undefined &&
    html`<${ActionDialog} title="Delete the conversation" action="Delete" danger run=${remove} close=${() => setDeleting(undefined)}>
      <p class="wrap"><bdi>${plain(deleting.title ?? deleting.task_id)}</bdi></p>
      <p>Its messages, files and events are erased. What the agent has learned from it may remain in its memory.</p>
    <//>`}
  </nav>`;
}

const DOING = { idle: "", running: "running · ", paused: "waits for you · " };
