/** What an OpenAPI document says, in the form that the views want. */

const documents = new Map();

/** The document of a service, which is loaded once. */
export function load(service) {
  if (!documents.has(service)) {
    const loaded = fetch(new URL(`../openapi/${service}.json`, import.meta.url)).then((response) => {
      if (!response.ok) throw new Error(`HTTP ${response.status}`);
      return response.json();
    });
    loaded.catch(() => documents.delete(service));
    documents.set(service, loaded);
  }
  return documents.get(service);
}

/** @returns {{method: string, path: string, operation: object} | undefined} */
export function operationOf(document, id) {
  for (const [path, item] of Object.entries(document.paths)) {
    for (const [method, operation] of Object.entries(item)) {
      if (operation.operationId === id) return { method: method.toUpperCase(), path, operation };
    }
  }
  return undefined;
}

const PREFIX = "#/components/schemas/";

/** A schema with its references followed: its name, if it has one, and whether it may be null. */
export function resolved(document, schema) {
  let name;
  let nullable = false;
  let description = schema.description;
  let found = schema;
  for (;;) {
    if (found.$ref !== undefined) {
      name = found.$ref.slice(PREFIX.length);
      found = document.components.schemas[name] ?? {};
    } else {
      const choices = found.oneOf ?? found.anyOf;
      const others = choices?.filter((choice) => choice.type !== "null") ?? [];
      if (choices !== undefined && others.length < choices.length) nullable = true;
      if (others.length !== 1) break;
      found = others[0];
    }
    description ??= found.description;
  }
  const types = [found.type].flat().filter((type) => type !== undefined);
  if (types.includes("null")) nullable = true;
  return { name, nullable, description, schema: found, types: types.filter((type) => type !== "null") };
}

/** The properties of an object, with those of all its parts. */
export function propertiesOf(document, schema) {
  const all = { properties: { ...schema.properties }, required: new Set(schema.required) };
  for (const part of schema.allOf ?? []) {
    const inner = propertiesOf(document, resolved(document, part).schema);
    Object.assign(all.properties, inner.properties);
    inner.required.forEach((name) => all.required.add(name));
  }
  return all;
}

/** The variants of a union, each with a name. */
export function variantsOf(document, schema) {
  const choices = (schema.oneOf ?? schema.anyOf ?? []).filter((choice) => choice.type !== "null");
  return choices.map((choice) => {
    const variant = resolved(document, choice);
    const tag = Object.entries(propertiesOf(document, variant.schema).properties).find(
      ([, property]) => property.enum?.length === 1,
    );
    const title = variant.name ?? (tag === undefined ? typeOf(document, choice) : `${tag[0]}: ${tag[1].enum[0]}`);
    return { title, choice };
  });
}

/** The type of a value in a few words. */
export function typeOf(document, property) {
  const { name, nullable, schema, types } = resolved(document, property);
  const orNull = nullable ? " or null" : "";
  if (schema.items !== undefined) return `array of ${typeOf(document, schema.items)}${orNull}`;
  if (types.length === 0 && (schema.oneOf ?? schema.anyOf) !== undefined) return `${name ?? "one of several"}${orNull}`;
  const type = types.join(" or ") || (schema.properties || schema.allOf ? "object" : "any");
  return `${name === undefined || type === name ? type : `${name} (${type})`}${orNull}`;
}

/** What a schema demands of a value beyond its type. */
export function limitsOf(schema) {
  const limits = [];
  const between = (low, high, unit) => {
    if (low !== undefined && high !== undefined) limits.push(`${low} to ${high}${unit}`);
    else if (low !== undefined) limits.push(`at least ${low}${unit}`);
    else if (high !== undefined) limits.push(`at most ${high}${unit}`);
  };
  between(schema.minimum, schema.maximum, "");
  if (schema.exclusiveMinimum !== undefined) limits.push(`more than ${schema.exclusiveMinimum}`);
  between(schema.minLength, schema.maxLength, " characters");
  between(schema.minItems, schema.maxItems, " items");
  if (schema.pattern !== undefined) limits.push(`matches ${schema.pattern}`);
  if (schema.default !== undefined) limits.push(`default ${JSON.stringify(schema.default)}`);
  return limits;
}

/** The examples of a body, each with its name; the only one has none. */
export function examplesOf(content) {
  if (content.example !== undefined) return [{ name: "", value: content.example }];
  return Object.entries(content.examples ?? {}).map(([name, { value }]) => ({ name, value }));
}

/** The names of the keys that an operation accepts. */
export function keysOf(operation) {
  return [...new Set((operation.security ?? []).flatMap((way) => Object.keys(way)))];
}
