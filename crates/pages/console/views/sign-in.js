/** Signing in with a key. */

import { html, useState } from "../lib/html.js";
import { get } from "../lib/api.js";
import { ApiError } from "../lib/errors.js";
import { signIn } from "../lib/session.js";
import { Mark } from "../parts/frame.js";
import { ErrorNotice } from "../parts/notice.js";

const KINDS = {
  platform: {
    title: "Product",
    label: "Platform key",
    hint: html`The product's key. <code>roundhouse up</code> keeps it in <code>platform.key</code> of its folder.`,
    check: "/status",
    refused: "INVALID_PLATFORM_KEY",
  },
  admin: {
    title: "Operator",
    label: "Admin key",
    hint: html`The deployment's <code>ORCH_ADMIN_KEY</code>. <code>roundhouse up</code> keeps it in <code>admin.key</code> of its folder.`,
    check: "/fleet/status",
    refused: "INVALID_ADMIN_KEY",
  },
};

export function SignIn({ farewell }) {
  const [kind, setKind] = useState("platform");
  const [key, setKey] = useState("");
  const [state, setState] = useState({ busy: false, error: undefined });
  const { label, hint, check, refused } = KINDS[kind];
  const submit = async (event) => {
    event.preventDefault();
    const who = { kind, key: key.trim() };
    setState({ busy: true, error: undefined });
    try {
      if (!/^[!-~]+$/.test(who.key)) throw wrong(label, refused);
      await get(check, { as: who });
      signIn(who);
    } catch (error) {
      setState({ busy: false, error: error.code === refused ? wrong(label, refused) : error });
    }
  };
  return html`<main class="narrow sign-in">
    <h1><${Mark} />Roundhouse</h1>
    ${farewell !== "" && html`<p class="notice" role="status">${farewell}</p>`}
    <form onSubmit=${submit}>
      <fieldset class="choice">
        <legend>Sign in as</legend>
        ${Object.entries(KINDS).map(
          ([name, { title }]) => html`<label key=${name}>
            <input type="radio" name="kind" checked=${name === kind} onChange=${() => setKind(name)} />${title}
          </label>`,
        )}
      </fieldset>
      <label class="field"><span>${label}</span>
        <input type="password" autocomplete="off" spellcheck=${false} required value=${key}
          aria-describedby="key-hint" onInput=${(event) => setKey(event.target.value)} />
      </label>
      <p id="key-hint" class="quiet small">${hint}</p>
      ${state.error !== undefined && html`<${ErrorNotice} error=${state.error} />`}
      <button type="submit" class="primary wide" disabled=${state.busy}>${state.busy ? "Signing in …" : "Sign in"}</button>
      <p class="quiet small">The key stays in this tab until you sign out or close it. It is sent to this orchestrator only.</p>
    </form>
  </main>`;
}

function wrong(label, code) {
  const message = `This ${label.toLowerCase()} is not known here. Check that it is complete, and for this orchestrator.`;
  return new ApiError({ status: 401, code, message });
}
