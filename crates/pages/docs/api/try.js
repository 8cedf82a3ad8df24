/** A form that calls an operation with the session's key, and shows the answer as it comes. */

import { copy } from "../copy.js";
import { html, useRef, useState } from "../lib/html.js";
import { keyHeaders, session, signIn, signOut } from "../lib/session.js";
import { useStore } from "../lib/store.js";
import { Answer, read } from "./answer.js";
import { examplesOf, keysOf } from "./model.js";
import { curlOf, parametersOf, requestOf } from "./request.js";

/** Which user's engine is called; kept from operation to operation. */
let lastUser = "ada";

export function Try({ service, method, path, operation }) {
  const who = useStore(session);
  const fixed = { service, method, path, operation };
  const types = streamed(operation);
  const [form, setForm] = useState(() => ({ user: lastUser, values: {}, body: exampleBody(operation), accept: "" }));
  const [answer, setAnswer] = useState();
  const running = useRef();
  const patch = (fields) => setForm((before) => ({ ...before, ...fields }));

  const keyed = service === "engine" || keysOf(operation).length > 0;
  const keys = keyed && who !== undefined ? keyHeaders(who) : {};
  let request;
  let missing = "";
  try {
    request = requestOf({ ...fixed, ...form });
  } catch (error) {
    missing = error.message;
  }

  const send = async (event) => {
    event.preventDefault();
    if (request === undefined) return setAnswer({ failure: missing });
    running.current?.abort();
    const abort = new AbortController();
    running.current = abort;
    const { url, headers, body } = request;
    const init = { method, headers: { ...headers, ...keys }, body, signal: abort.signal };
    await read(url, init, (shown) => running.current === abort && setAnswer(shown));
  };

  return html`<section class="try" aria-label="Try it">
    <h3>Try it</h3>
    <${Session} who=${who} keyed=${keyed} service=${service} operation=${operation} />
    <form onSubmit=${send}>
      ${service === "engine" &&
      html`<${Input} label="The engine of the user" value=${form.user} onInput=${(user) => {
        lastUser = user;
        patch({ user });
      }} />`}
      ${parametersOf(operation).map(({ name, in: where, required, schema }) => {
        const key = `${where} ${name}`;
        const label = `${name} (${where}${required ? "" : ", optional"})`;
        const change = (value) => patch({ values: { ...form.values, [key]: value } });
        return html`<${Input} key=${key} label=${label} value=${form.values[key] ?? ""} options=${schema?.enum} onInput=${change} />`;
      })}
      ${operation.requestBody !== undefined &&
      html`<label>Body<textarea rows=${Math.min(16, 2 + form.body.split("\n").length)} spellcheck=${false} value=${form.body}
        onInput=${(event) => patch({ body: event.currentTarget.value })} /></label>`}
      ${types.length > 1 && html`<${Input} label="Accept" value=${form.accept} options=${types} onInput=${(accept) => patch({ accept })} />`}
      <p>
        <button class="primary" type="submit" disabled=${keyed && who === undefined}>Send</button>${" "}
        ${answer?.open && html`<button type="button" onClick=${() => running.current?.abort()}>Stop</button>`}
        ${method !== "GET" && method !== "HEAD" && html` <span class="quiet">It is a real call: what it changes, is changed.</span>`}
      </p>
    </form>
    ${request === undefined
      ? html`<p class="quiet">${missing}</p>`
      : html`<${Curl} text=${curlOf(request, method, keyed ? keyName(who, operation, service) : undefined)} />`}
    ${answer !== undefined && html`<${Answer} ...${answer} />`}
  </section>`;
}

/** The call as a line for a shell. */
function Curl({ text }) {
  const [done, setDone] = useState("");
  const block = useRef();
  return html`<details><summary>The same with curl</summary>
    <pre tabindex="0" ref=${block}>${text}</pre>
    <p><button class="small" type="button" onClick=${async () => setDone(await copy(text, block.current))}>Copy</button>
      <span class="quiet" role="status"> ${done}</span></p>
  </details>`;
}

/** Whose key is used, or where to enter one. */
function Session({ who, keyed, service, operation }) {
  const [kind, setKind] = useState("platform");
  const [key, setKey] = useState("");
  if (!keyed) return null;
  if (who !== undefined) {
    const accepted = keysOf(operation);
    const isWrong = who.kind === "admin" ? service === "engine" || !accepted.includes("admin_key") : service !== "engine" && !accepted.includes("platform_key");
    const name = who.kind === "admin" ? "the operator's admin key" : "the product's platform key";
    return html`<p class="quiet">
      With ${name}, which this tab has. <button class="plain" type="button" onClick=${() => signOut()}>Use another one</button>
      ${isWrong && html`<br />This operation takes the other kind of key, so it will be refused.`}
    </p>`;
  }
  const enter = (event) => {
    event.preventDefault();
    if (key.trim() !== "") signIn({ kind, key: key.trim() });
  };
  return html`<form onSubmit=${enter}>
    <p class="quiet">Enter a key, or sign in at the console in this tab. It is kept in this tab until it is closed, and sent to this orchestrator only.</p>
    <${Input} label="Kind of key" value=${kind} options=${["platform", "admin"]} required=${true} onInput=${setKind} />
    <${Input} label="Key" type="password" value=${key} onInput=${setKey} />
    <p><button type="submit">Use this key</button></p>
  </form>`;
}

function Input({ label, value, options, type = "text", required = false, onInput }) {
  const change = (event) => onInput(event.currentTarget.value);
  if (options !== undefined) {
    return html`<label>${label}<select value=${value} onChange=${change}>
      ${!required && html`<option value=""></option>`}
      ${options.map((option) => html`<option value=${option}>${option}</option>`)}
    </select></label>`;
  }
  return html`<label>${label}<input type=${type} value=${value} autocomplete="off" spellcheck=${false} onInput=${change} /></label>`;
}

/** The header of the key that a call of this operation has. */
function keyName(who, operation, service) {
  if (who !== undefined) return who.kind === "admin" ? "X-Admin-Key" : "X-Platform-Key";
  return service === "engine" || keysOf(operation).includes("platform_key") ? "X-Platform-Key" : "X-Admin-Key";
}

function exampleBody(operation) {
  const content = Object.values(operation.requestBody?.content ?? {})[0] ?? {};
  const example = examplesOf(content)[0]?.value;
  return example === undefined ? "" : typeof example === "string" ? example : JSON.stringify(example, null, 2);
}

/** The media types of a success, if there is a choice. */
function streamed(operation) {
  const successes = Object.entries(operation.responses).filter(([status]) => status.startsWith("2"));
  return [...new Set(successes.flatMap(([, response]) => Object.keys(response.content ?? {})))];
}
