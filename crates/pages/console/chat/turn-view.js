/** A turn as its events tell it: text, folded thinking, tools, questions, and how it ended. */

import { html } from "../lib/html.js";
import { count, duration, plain } from "../lib/format.js";
import { Markdown } from "./markdown.js";
import { RequestCard } from "./request-card.js";
import { ToolCard } from "./tool-card.js";

const STOPPED = {
  max_turns: "It ended at its limit of model calls.",
  budget: "It ended because a budget was used up.",
  loop: "It ended because the model repeated the same call.",
};

export function TurnView({ turn, conversation }) {
  const { parts, state, error, stopReason, citations } = turn;
  const ended = state !== "running";
  return html`<div class="message agent">
    <${Parts} parts=${parts} ended=${ended} conversation=${conversation} />
    ${state === "failed" && error !== undefined && html`<div class="notice notice-error" role="alert"><strong>${error.code}</strong><p>${error.message}</p></div>`}
    ${state === "cancelled" && html`<p class="note">Cancelled.</p>`}
    ${STOPPED[stopReason] !== undefined && html`<p class="note">${STOPPED[stopReason]}</p>`}
    ${citations.length > 0 && html`<${Citations} citations=${citations} />`}
    ${!ended && html`<p class="live live-reconnecting" role="status">${waits(parts) ? "waits for you" : "working"}</p>`}
    ${ended && html`<p class="small quiet">${figures(turn)}</p>`}
  </div>`;
}

function waits(parts) {
  return parts.some((part) => part.kind === "request" && part.answer === undefined && part.decision === undefined);
}

function figures({ startedAt, endedAt, usage }) {
  const parts = [];
  if (startedAt !== undefined && endedAt !== undefined) parts.push(duration(endedAt - startedAt));
  if (usage !== undefined) {
    parts.push(`${count(usage.input_tokens)} tokens in, ${count(usage.output_tokens)} out`);
    if (usage.cost_usd !== undefined) parts.push(`$${usage.cost_usd.toFixed(4)}`);
    parts.push(plain(usage.model));
  }
  return parts.join(" · ");
}

function Parts({ parts, ended, conversation }) {
  const waiting = new Set(
    parts.filter((part) => part.kind === "request" && part.decision === undefined).map((part) => part.approval?.tool_call_id),
  );
  // A question has no call of its own: the tool that asks waits for the answer, too.
  const asks = !ended && parts.some((part) => part.kind === "request" && part.approval === undefined && part.answer === undefined);
  return parts.map((part) => {
    const key = `${part.kind}-${part.ts}-${part.id ?? ""}`;
    switch (part.kind) {
      case "text":
        return html`<${Markdown} key=${key} text=${part.text} />`;
      case "thinking":
        return html`<details class="thinking" key=${key}><summary>Thinking${part.open && !ended ? " …" : ""}</summary>
          <div class="thought">${part.text}</div></details>`;
      case "tool":
        return html`<${ToolCard} key=${key} tool=${part} ended=${ended} open=${part.agent !== undefined && !ended} waits=${asks || waiting.has(part.id)}>
          ${part.agent !== undefined &&
          html`<div class="agent-parts"><p class="label">Sub-agent <bdi>${plain(part.agent.name)}</bdi></p>
            <${Parts} parts=${part.agent.parts} ended=${ended} conversation=${conversation} /></div>`}
        <//>`;
      case "request":
        return html`<${RequestCard} key=${key} request=${part} ended=${ended} conversation=${conversation} />`;
      case "plan":
        // Of a plan that was begun and given up nothing is left when the answer begins.
        if (part.begun && part !== parts.at(-1)) return null;
        return html`<${Plan} key=${key} plan=${part} />`;
      default:
        return html`<p class="note" key=${key}>${plain(part.text)}</p>`;
    }
  });
}

function Plan({ plan: { agent, skills, steps } }) {
  const means = [
    agent !== undefined && `with the agent ${plain(agent)}`,
    skills.length > 0 && `with ${skills.length === 1 ? "the skill" : "the skills"} ${plain(skills.join(", "))}`,
  ].filter(Boolean);
  return html`<section class="plan" aria-label="Plan">
    <p class="label">Plan${means.length > 0 && html` <span class="means"><bdi>${means.join(", ")}</bdi></span>`}</p>
    ${steps.length > 0 && html`<ol>${steps.map((step, index) => html`<li key=${index}><bdi>${plain(step)}</bdi></li>`)}</ol>`}
  </section>`;
}

function Citations({ citations }) {
  const pages = [...new Map(citations.map((citation) => [citation.url, citation])).values()];
  return html`<ul class="citations small" aria-label="Sources">
    ${pages.map(({ url, title }) => {
      const isWeb = /^https?:\/\//.test(url);
      return html`<li key=${url}>${isWeb ? html`<a href=${url} target="_blank" rel="noopener noreferrer nofollow">${title ?? url}</a>` : url}</li>`;
    })}
  </ul>`;
}
