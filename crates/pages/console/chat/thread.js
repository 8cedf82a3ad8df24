/** An open conversation: its messages, the turn under way, and the field to write in. */

import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../lib/html.js";
import { useStore } from "../lib/store.js";
import { ErrorNotice, Loading } from "../parts/notice.js";
import { Composer } from "./composer.js";
import { Conversation } from "./conversation.js";
import { Answer, UserMessage } from "./messages.js";
import { After } from "./after.js";
import { TurnView } from "./turn-view.js";
import { openRequest } from "./turn.js";
import { WorkingMemory } from "./working-memory.js";

/** As close to the end as this, the page follows what is added. */
const NEAR_PX = 80;

export function Thread({ user, task, changed }) {
  const conversation = useMemo(() => new Conversation(user, task), [user, task]);
  useEffect(() => () => conversation.close(), [conversation]);
  const { phase, messages, hasOlder, turns, queue, sending, error } = useStore(conversation.state);
  const [editing, setEditing] = useState();
  const [memory, setMemory] = useState(false);
  const groups = useMemo(() => group(messages, turns), [messages, turns]);
  const running = conversation.running;
  const ask = running === undefined ? undefined : openRequest(running);
  // Titles and states of the list change with turns.
  useEffect(changed, [phase, running?.state, ask?.id]);
  const box = useRef();
  useFollowedEnd(box, [groups, sending]);
  const last = groups.at(-1);
  return html`<section class="thread" aria-label="Conversation">
    <div class="thread-head"><button type="button" class="small" onClick=${() => setMemory(true)}>Working memory</button></div>
    ${memory && html`<${WorkingMemory} user=${user} task=${task} busy=${running !== undefined} close=${() => setMemory(false)} />`}
    <div class="messages" ref=${box} tabindex="0" role="log" aria-label="Messages" aria-busy=${running !== undefined}>
      ${phase === "loading" && html`<${Loading} what="the conversation" />`}
      ${hasOlder && html`<p class="center"><button type="button" class="small" onClick=${() => conversation.readOlder()}>Show older messages</button></p>`}
      ${phase !== "loading" && groups.length === 0 && sending === undefined && html`<${Welcome} />`}
      ${groups.map(
        (item) => html`<${Group} key=${item.id} item=${item} isLast=${item === last} conversation=${conversation}
          editing=${editing} setEditing=${setEditing} idle=${phase === "idle"} />`,
      )}
      ${sending?.message && html`<div class="message user sending"><div class="bubble">${sending.message}</div></div>`}
      ${queue.map(
        (entry) => html`<div class="message user queued" key=${entry.turn_id}><div class="bubble">${entry.message}</div>
          <p class="small quiet">Waits for its turn, number ${entry.position}
            <button type="button" class="small" onClick=${() => conversation.unqueue(entry.turn_id)}>Remove</button></p></div>`,
      )}
    </div>
    <div class="below">
      ${error !== undefined && html`<${ErrorNotice} error=${error} />`}
      ${phase === "reconnecting" && html`<p class="live live-reconnecting" role="status">reconnecting</p>`}
      <${Composer} conversation=${conversation} running=${running} asked=${ask} />
    </div>
  </section>`;
}

function Welcome() {
  return html`<div class="empty">
    <h2>A new conversation</h2>
    <p>Write the first message below. With the built-in script, try “remember that my colour is green”, “write
      notes.txt: buy milk” or “ask me”.</p>
  </div>`;
}

/** The messages of a turn, with its events if this page has read them. */
function group(messages, turns) {
  const groups = new Map();
  for (const message of messages) {
    const id = message.turn_id;
    if (message.superseded) {
      // A retry has replaced the answer, and so what its events tell.
      if (groups.has(id)) groups.get(id).turn = undefined;
      continue;
    }
    if (!groups.has(id)) groups.set(id, { id, users: [], answers: [], turn: turns.get(id) });
    groups.get(id)[message.role === "user" ? "users" : "answers"].push(message);
  }
  // A turn whose first message was not read yet, or a retry that has no answer yet.
  for (const turn of turns.values()) {
    if (turn.state === "running" && !groups.has(turn.id)) groups.set(turn.id, { id: turn.id, users: [], answers: [], turn });
  }
  return [...groups.values()];
}

function Group({ item, isLast, conversation, editing, setEditing, idle }) {
  const { users, answers, turn } = item;
  const [first, ...steered] = users;
  const question = first?.message_id ?? turn?.messageId;
  const retry = () => conversation.send({ message: "", retry_message_id: question });
  return html`
    ${first !== undefined &&
    html`<${UserMessage} message=${first} conversation=${conversation} editing=${editing} setEditing=${setEditing} canEdit=${idle} />`}
    ${turn !== undefined
      ? html`<${TurnView} turn=${turn} conversation=${conversation} />`
      : html`<${Answer} messages=${answers} />`}
    ${steered.map(
      (message) => html`<${UserMessage} key=${message.message_id} message=${message} conversation=${conversation} />`,
    )}
    ${isLast && idle && question !== undefined && html`<${After} conversation=${conversation} retry=${retry} />`}`;
}

/** Keeps the end in view while what is there grows, unless its reader has scrolled up. */
function useFollowedEnd(box, inputs) {
  const atEnd = useRef(true);
  useEffect(() => {
    const element = box.current;
    const note = () => {
      atEnd.current = element.scrollHeight - element.scrollTop - element.clientHeight < NEAR_PX;
    };
    element.addEventListener("scroll", note, { passive: true });
    return () => element.removeEventListener("scroll", note);
  }, []);
  useLayoutEffect(() => {
    if (atEnd.current) box.current.scrollTop = box.current.scrollHeight;
  }, inputs);
}
