/** The fields of a value, as far as somebody opens them. */

import { html, useState } from "../lib/html.js";
import { limitsOf, propertiesOf, resolved, typeOf, variantsOf } from "./model.js";
import { Text } from "./text.js";

/** How deep fields are open at first. */
const OPEN = 1;

/** The schema of a body. `above` has the names of the types that this one is in: none is opened within itself. */
export function Schema({ document, schema, depth = 0, above = [] }) {
  const { name, schema: found } = resolved(document, schema);
  const within = name === undefined ? above : [...above, name];
  if (found.items !== undefined) {
    return html`<${Schema} document=${document} schema=${found.items} depth=${depth} above=${within} />`;
  }
  const { properties, required } = propertiesOf(document, found);
  const names = Object.keys(properties);
  const variants = variantsOf(document, found);
  const values = typeof found.additionalProperties === "object" ? found.additionalProperties : undefined;
  return html`
    ${names.length > 0 &&
    html`<ul class="fields">
      ${names.map(
        (field) => html`<li key=${field}>
          <${Field} document=${document} name=${field} schema=${properties[field]} required=${required.has(field)}
            depth=${depth} above=${within} />
        </li>`,
      )}
    </ul>`}
    ${values !== undefined &&
    html`<ul class="fields"><li>
      <${Field} document=${document} name="any name" schema=${values} depth=${depth} above=${within} />
    </li></ul>`}
    ${variants.length > 1 &&
    html`<p class="quiet">One of:</p>
      <ul class="fields">
        ${variants.map(
          ({ title, choice }) => html`<li key=${title}>
            <${Inner} summary=${html`<code>${title}</code>`} document=${document} schema=${choice} depth=${depth + 1}
              above=${within} open=${false} />
          </li>`,
        )}
      </ul>`}
  `;
}

function Field({ document, name, schema, required = true, depth, above }) {
  const { description, schema: found } = resolved(document, schema);
  const inner = found.items === undefined ? found : resolved(document, found.items).schema;
  const limits = [...limitsOf(found), ...(found === inner ? [] : limitsOf(inner).map((limit) => `each ${limit}`))];
  return html`
    <div class="field"><code>${name}</code> <span class="quiet">${typeOf(document, schema)}${required ? "" : ", optional"}</span></div>
    <${Text} text=${description} />
    ${inner.enum !== undefined &&
    html`<p class="quiet">${inner.enum.length === 1 ? "Always " : "One of "}${inner.enum.map((value) => html`<code>${JSON.stringify(value)}</code> `)}</p>`}
    ${limits.length > 0 && html`<p class="quiet">${limits.join("; ")}</p>`}
    <${Nested} document=${document} schema=${schema} depth=${depth} above=${above} />
  `;
}

/** The fields of a field, unless it has none. */
function Nested({ document, schema, depth, above }) {
  const { name, schema: found } = resolved(document, schema);
  if (found.items !== undefined) {
    return html`<${Nested} document=${document} schema=${found.items} depth=${depth} above=${above} />`;
  }
  const hasFields =
    Object.keys(propertiesOf(document, found).properties).length > 0 ||
    variantsOf(document, found).length > 1 ||
    typeof found.additionalProperties === "object";
  if (!hasFields) return null;
  if (name !== undefined && above.includes(name)) return html`<p class="quiet">The same fields as ${name} above.</p>`;
  const summary = name ?? "its fields";
  return html`<${Inner} summary=${summary} document=${document} schema=${schema} depth=${depth + 1} above=${above}
    open=${depth < OPEN} />`;
}

/** Fields that are drawn when they are opened: there are types within types within types. */
function Inner({ summary, document, schema, depth, above, open: atFirst }) {
  const [open, setOpen] = useState(atFirst);
  return html`<details open=${open} onToggle=${(event) => setOpen(event.currentTarget.open)}>
    <summary>${summary}</summary>
    ${open && html`<${Schema} document=${document} schema=${schema} depth=${depth} above=${above} />`}
  </details>`;
}
