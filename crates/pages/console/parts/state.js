/** The state of an engine or of a fleet, by colour, shape and word. */

import { html } from "../lib/html.js";
import { STATES } from "../lib/states.js";

export function State({ state }) {
  const known = STATES.includes(state) ? state : "unknown";
  return html`<span class=${`state state-${known}`}>${state}</span>`;
}

const HEALTH = { ok: "running", degraded: "provisioning", critical: "failed" };

export function Health({ health }) {
  return html`<span class=${`state state-${HEALTH[health] ?? "unknown"}`}>${health}</span>`;
}
