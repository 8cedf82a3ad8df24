/** A request as the form describes it: its address, its headers, and the line that makes curl send it. */

import { BASE } from "../lib/base.js";

/** The parameters that a form asks for: keys come from the session. */
export function parametersOf(operation) {
  return (operation.parameters ?? []).filter(({ in: where }) => ["path", "query", "header"].includes(where));
}

/**
 * @returns {{url: URL, headers: Record<string, string>, body?: string}}
 * @throws {Error} with what is missing
 */
export function requestOf({ service, method, path, operation, user, values, body, accept }) {
  const filled = path.replace(/\{\*?(\w+)\}/g, (_, name) => segment(name, values[`path ${name}`]));
  const below = service === "engine" ? `engines/${segment("user_id", user)}/proxy` : "";
  const url = new URL(`${below}${filled}`.replace(/^\//, ""), BASE);
  const headers = {};
  for (const { name, in: where, required } of parametersOf(operation)) {
    const value = values[`${where} ${name}`] ?? "";
    if (where === "path") continue;
    if (value === "" && required) throw new Error(`${name} is missing.`);
    if (value !== "" && where === "query") url.searchParams.set(name, value);
    if (value !== "" && where === "header") headers[name] = value;
  }
  if (accept) headers.Accept = accept;
  const types = Object.keys(operation.requestBody?.content ?? {});
  if (types.length === 0 || body === "" || method === "GET") return { url, headers };
  return { url, headers: { ...headers, "Content-Type": types[0] }, body };
}

function segment(name, value = "") {
  if (value === "") throw new Error(`${name} is missing.`);
  // A path of a file has parts; anything else is one.
  const parts = name === "path" ? value.split("/") : [value];
  if (parts.some((part) => part === "." || part === "..")) {
    throw new Error(`No browser can call an address with the name "${value}" in it.`);
  }
  return parts.map(encodeURIComponent).join("/");
}

const VARIABLES = { "X-Platform-Key": "ROUNDHOUSE_PLATFORM_KEY", "X-Admin-Key": "ROUNDHOUSE_ADMIN_KEY" };

/**
 * The line for a shell. The key comes from a variable and through a pipe: what is an argument of a program, every user of
 * the machine can read.
 */
export function curlOf({ url, headers, body }, method, keyHeader) {
  const lines = [];
  const piped = VARIABLES[keyHeader];
  const start = piped === undefined ? "" : `printf '${keyHeader}: %s' "$${piped}" |\n  `;
  const key = piped === undefined ? "" : " -H @-";
  lines.push(`${start}curl -sSN${key}${method === "GET" ? "" : method === "HEAD" ? " --head" : ` -X ${method}`}`);
  for (const [name, value] of Object.entries(headers)) lines.push(`-H ${quoted(`${name}: ${value}`)}`);
  if (body !== undefined) lines.push(`--data-binary ${quoted(body)}`);
  lines.push(quoted(url.href));
  return lines.join(" \\\n    ");
}

function quoted(text) {
  return `'${text.replaceAll("'", `'\\''`)}'`;
}
