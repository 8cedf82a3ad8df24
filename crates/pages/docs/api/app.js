/**
 * The operations of both services. The page lists them without a script; this shows the one that the address names, with
 * all that its document says, and a form that calls it.
 */

import { html, render, useEffect, useState } from "../lib/html.js";
import { examplesOf, keysOf, load, operationOf, typeOf } from "./model.js";
import { Schema } from "./schema.js";
import { Line, Text } from "./text.js";
import { Try } from "./try.js";

const KEYS = {
  platform_key: "the platform key of the product (X-Platform-Key)",
  admin_key: "the admin key (X-Admin-Key)",
  admin_bearer: "the admin key (Authorization: Bearer)",
  engine_key: "the engine's key (X-Engine-Key), which the proxy adds",
  bearer: "the engine's key (Authorization: Bearer)",
  browser_token: "a browser token (Authorization: Bearer)",
};

const list = document.getElementById("api");
const place = document.createElement("div");
list.after(place);

function show() {
  const [service, id] = location.hash.slice(1).split("/");
  const isOperation = id !== undefined && (service === "orchestrator" || service === "engine");
  list.hidden = isOperation;
  render(isOperation ? html`<${Operation} key=${location.hash} service=${service} id=${id} />` : null, place);
  if (isOperation) scrollTo(0, 0);
  else document.getElementById(location.hash.slice(1))?.scrollIntoView();
}
addEventListener("hashchange", show);
show();

function Operation({ service, id }) {
  const [state, setState] = useState({});
  useEffect(() => {
    load(service).then(
      (loaded) => setState({ loaded }),
      () => setState({ failed: true }),
    );
  }, [service]);
  if (state.failed) return html`<p role="alert">The document cannot be loaded. Reload the page.</p>`;
  if (state.loaded === undefined) return html`<p role="status">Loading …</p>`;
  const found = operationOf(state.loaded, id);
  const back = html`<p><a href="#${service}">All operations</a></p>`;
  if (found === undefined) return html`${back}<p role="alert">There is no operation ${id}.</p>`;
  return html`${back}<${Described} service=${service} loaded=${state.loaded} ...${found} />`;
}

function Described({ service, loaded, method, path, operation }) {
  const keys = keysOf(operation);
  const body = operation.requestBody;
  return html`
    <h2><code>${method} ${path}</code></h2>
    <p class="lead"><${Line} text=${operation.summary ?? ""} /></p>
    <${Text} text=${operation.description} />
    <p class="quiet">
      ${service === "engine" ? "Served by each engine." : "Served by the orchestrator."}${" "}
      ${keys.length === 0 ? "No key is needed." : `Key: ${keys.map((key) => KEYS[key] ?? key).join(", or ")}.`}
    </p>
    <${Parameters} loaded=${loaded} parameters=${operation.parameters ?? []} />
    ${body !== undefined && html`<h3>Body${body.required ? "" : " (optional)"}</h3><${Contents} loaded=${loaded} contents=${body.content} />`}
    <${Try} service=${service} method=${method} path=${path} operation=${operation} />
    <h3>Answers</h3>
    ${Object.entries(operation.responses).map(
      ([status, response]) => html`<${Response} key=${status} loaded=${loaded} status=${status} response=${response} />`,
    )}
  `;
}

function Parameters({ loaded, parameters }) {
  if (parameters.length === 0) return null;
  return html`<h3>Parameters</h3>
    <ul class="fields">
      ${parameters.map(
        ({ name, in: where, required, description, schema }) => html`<li key=${name}>
          <div class="field"><code>${name}</code> <span class="quiet">${where}, ${typeOf(loaded, schema ?? {})}${required ? "" : ", optional"}</span></div>
          <${Text} text=${description} />
        </li>`,
      )}
    </ul>`;
}

function Contents({ loaded, contents }) {
  return Object.entries(contents).map(
    ([type, content]) => html`
      <p class="quiet">${type}${content.schema === undefined ? "" : `: ${typeOf(loaded, content.schema)}`}</p>
      ${content.schema !== undefined && html`<${Schema} document=${loaded} schema=${content.schema} />`}
      <${Examples} examples=${examplesOf(content)} />
    `,
  );
}

function Examples({ examples }) {
  const text = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 2));
  if (examples.length === 0) return null;
  return examples.map(
    ({ name, value }) => html`<details key=${name} open=${examples.length === 1}>
      <summary>Example${name === "" ? "" : ": "}${name !== "" && html`<code>${name}</code>`}</summary>
      <pre tabindex="0">${text(value)}</pre>
    </details>`,
  );
}

/** Errors all have the same body, so their codes are enough. */
function Response({ loaded, status, response }) {
  const codes = response["x-error-codes"];
  if (codes !== undefined) {
    return html`<h4><code>${status}</code></h4>
      <p><${Line} text=${response.description} /></p>
      <p>${codes.map((code) => html`<a href="errors#${code.toLowerCase()}"><code>${code}</code></a> `)}</p>`;
  }
  const headers = Object.keys(response.headers ?? {}).filter((name) => !["X-Request-Id", "traceparent"].includes(name));
  return html`<h4><code>${status}</code></h4>
    <p><${Line} text=${response.description} /></p>
    ${headers.length > 0 && html`<p class="quiet">Headers: ${headers.map((name) => html`<code>${name}</code> `)}</p>`}
    <${Contents} loaded=${loaded} contents=${response.content ?? {}} />`;
}
