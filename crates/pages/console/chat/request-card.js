/** What the agent asks its user: whether a tool may be called, or a question. */

import { html, useState } from "../lib/html.js";
import { plain } from "../lib/format.js";
import { ErrorNotice } from "../parts/notice.js";
import { Code } from "./tool-card.js";

const DECISIONS = {
  allow_once: { title: "Allow", past: "Allowed" },
  allow_task: { title: "Allow in this conversation", past: "Allowed in this conversation" },
  allow_always: { title: "Always allow", past: "Allowed always" },
  deny: { title: "Deny", past: "Denied" },
};
const RISKS = { low: "low risk", medium: "medium risk", high: "high risk" };

export function RequestCard({ request, ended, conversation }) {
  const { approval, ask, decision, answer } = request;
  if (decision !== undefined || answer !== undefined) return html`<${Settled} request=${request} />`;
  if (ended) return html`<p class="note">It was not answered.</p>`;
  if (approval !== undefined) return html`<${Approval} approval=${approval} conversation=${conversation} />`;
  return html`<${Question} request=${request} ask=${ask} conversation=${conversation} />`;
}

function Settled({ request: { approval, ask, decision, answer } }) {
  if (decision !== undefined) {
    const tool = approval === undefined ? "the call" : plain(approval.tool);
    return html`<p class="note">${DECISIONS[decision.decision]?.past ?? "Decided"}: ${tool}</p>`;
  }
  return html`<div class="request settled"><p>${ask.question}</p><p><strong>${answer}</strong></p></div>`;
}

function useSending() {
  const [state, setState] = useState({ busy: false, error: undefined });
  const send = async (call) => {
    setState({ busy: true, error: undefined });
    try {
      await call();
    } catch (error) {
      setState({ busy: false, error });
    }
  };
  return { ...state, send };
}

function Approval({ approval, conversation }) {
  const { busy, error, send } = useSending();
  const [message, setMessage] = useState("");
  const decide = (decision) =>
    send(() => {
      const extra = message.trim() === "" ? {} : { message: message.trim() };
      return conversation.decide(approval.request_id, { decision, ...extra });
    });
  return html`<section class="request" aria-label="A permission is needed">
    <p class="head"><strong><bdi>${plain(approval.tool)}</bdi> needs your permission</strong>
      <span class=${`risk risk-${approval.risk}`}>${RISKS[approval.risk] ?? approval.risk}</span></p>
    <${Preview} preview=${approval.preview} />
    ${approval.reason === "untrusted_content" && html`<p class="small">The conversation has content that nobody has vouched for.</p>`}
    ${approval.reason === "tool_changed" && html`<p class="small">It was allowed, but the tool has changed since.</p>`}
    <label class="field"><span class="small">A word to the agent <span class="quiet">(optional)</span></span>
      <input value=${message} maxlength="4000" onInput=${(event) => setMessage(event.target.value)} /></label>
    ${error !== undefined && html`<${ErrorNotice} error=${error} />`}
    <div class="choices">
      ${approval.decisions.map(
        (decision) => html`<button key=${decision} type="button" disabled=${busy}
          class=${decision === "allow_once" ? "primary" : ""} onClick=${() => decide(decision)}>${DECISIONS[decision]?.title ?? decision}</button>`,
      )}
    </div>
  </section>`;
}

function Preview({ preview }) {
  switch (preview.kind) {
    case "diff":
      return html`<p><code>${plain(preview.path)}</code> ${preview.present === "missing" ? "is a new file" : "is changed"}</p>
        <pre class="code diff" tabindex="0" role="group" aria-label="Change">${preview.diff.split("\n").map(
          (line, index) => html`<span key=${index} class=${CLASSES[line[0]] ?? ""}>${line}\n</span>`,
        )}</pre>${preview.truncated && html`<p class="small">This is only the beginning.</p>`}`;
    case "command":
      return html`<${Code} label="Command" text=${preview.command} />
        <p class="small">${preview.network ? "It can use the network." : "Without the network."}${preview.folder === undefined ? "" : ` In ${plain(preview.folder)}.`}</p>`;
    case "address":
      return html`<p class="wrap"><code>${preview.method} ${plain(preview.url)}</code></p>`;
    default:
      return html`<${Code} label="What it does" text=${preview.text ?? JSON.stringify(preview)} />`;
  }
}

const CLASSES = { "+": "added", "-": "removed" };

function Question({ request, ask, conversation }) {
  const { busy, error, send } = useSending();
  const [text, setText] = useState("");
  const answer = (value) => send(() => conversation.answer(request.id, value));
  const submit = (event) => {
    event.preventDefault();
    answer(text.trim());
  };
  const options = ask.kind === "permission" ? ["yes", "no"] : (ask.options ?? []);
  return html`<section class="request" aria-label="The agent asks">
    <p><strong>${ask.question}</strong></p>
    ${options.length > 0 &&
    html`<div class="choices">${options.map(
      (option) => html`<button key=${option} type="button" disabled=${busy} onClick=${() => answer(option)}><bdi>${plain(option)}</bdi></button>`,
    )}</div>`}
    ${ask.kind !== "permission" &&
    html`<form class="answer" onSubmit=${submit}>
      <input aria-label="Your answer" placeholder=${options.length > 0 ? "Or something else" : "Your answer"} value=${text}
        onInput=${(event) => setText(event.target.value)} />
      <button type="submit" class="primary" disabled=${busy || text.trim() === ""}>Answer</button></form>`}
    ${error !== undefined && html`<${ErrorNotice} error=${error} />`}
  </section>`;
}
