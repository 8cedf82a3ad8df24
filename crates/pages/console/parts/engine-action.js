/** What can be done to an engine in each state, and the dialogs that ask before it is done. */

import { html } from "../lib/html.js";
import { change } from "../lib/api.js";
import { ACTIONS } from "../lib/fleet.js";
import { plain } from "../lib/format.js";
import { ActionDialog } from "./dialog.js";
import { toast } from "./toast.js";

const START = { action: "start", title: "Start" };
const STOP = { action: "stop", title: "Stop" };
const DESTROY = { action: "destroy", title: "Destroy" };

const POSSIBLE = {
  running: [STOP, DESTROY],
  sleeping: [START, DESTROY],
  stopped: [START, DESTROY],
  failed: [START, DESTROY],
};

export function actionsOf(status) {
  return POSSIBLE[status] ?? [DESTROY];
}

const DIALOGS = {
  start: {
    title: "Start the engine",
    action: "Start",
    done: "Started",
    text: "It boots, and takes turns again as soon as it is healthy.",
  },
  stop: {
    title: "Stop the engine",
    action: "Stop",
    done: "Stopped",
    text: "It gets 30 seconds to finish. A turn that runs is continued when the engine is started again. Its data stay. An admit does not wake a stopped engine.",
  },
  rotate: {
    title: "Rotate the key",
    action: "Rotate the key",
    done: "Rotated the key of",
    text: "The old key stops working at once, and so do all browser tokens of this engine.",
  },
  destroy: {
    title: "Destroy the engine",
    action: "Destroy",
    done: "Destroyed",
    text: "The engine is removed with everything its user has told it: conversations, memory, files. This cannot be undone.",
    danger: true,
  },
};

/** @param {{action: keyof typeof DIALOGS, user: string, close: () => void, done?: (result: object) => void}} props */
export function EngineAction({ action, user, close, done }) {
  const { title, action: label, done: past, text, danger } = DIALOGS[action];
  const run = async () => {
    const result = await change(...ACTIONS[action](user));
    toast(`${past} ${plain(user)}`);
    done?.(result);
  };
  return html`<${ActionDialog} title=${title} action=${label} run=${run} close=${close} danger=${danger}
    typed=${danger ? user : undefined}>
    <p>User <strong class="wrap"><bdi>${plain(user)}</bdi></strong></p>
    <p>${text}</p>
  <//>`;
}
