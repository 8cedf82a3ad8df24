// A tool server that wants a user's consent, and the authorization server that asks for it. It refuses a client that
// does not do what OAuth 2.1 wants: a registered redirect, PKCE, a code once.

import { createHash } from "node:crypto";
import http from "node:http";

export class AuthorizationServer {
  #clients = new Map();
  #codes = new Map();
  #tokens = new Set();
  #ids = 0;
  /** What a denial says. */
  denial = "The person declined.";

  static async start() {
    const server = new AuthorizationServer();
    server.http = http.createServer((request, response) =>
      server.#answer(request, response).catch((error) => response.writeHead(500).end(String(error.stack))),
    );
    await new Promise((resolve) => server.http.listen(0, "127.0.0.1", resolve));
    server.base = `http://127.0.0.1:${server.http.address().port}`;
    return server;
  }

  stop() {
    this.http.closeAllConnections();
    this.http.close();
  }

  async #answer(request, response) {
    const url = new URL(request.url, this.base);
    const body = await bodyOf(request);
    const json = (value, status = 200) => response.writeHead(status, { "content-type": "application/json" }).end(JSON.stringify(value));
    const { base } = this;
    switch (url.pathname) {
      case "/.well-known/oauth-protected-resource/mcp":
        return json({ resource: `${base}/mcp`, authorization_servers: [base] });
      case "/.well-known/oauth-authorization-server":
        return json({
          issuer: base,
          authorization_endpoint: `${base}/authorize`,
          token_endpoint: `${base}/token`,
          registration_endpoint: `${base}/register`,
          response_types_supported: ["code"],
          code_challenge_methods_supported: ["S256"],
          token_endpoint_auth_methods_supported: ["none"],
          authorization_response_iss_parameter_supported: true,
        });
      case "/register": {
        const client = JSON.parse(body);
        const id = `client-${(this.#ids += 1)}`;
        this.#clients.set(id, client);
        return json({ ...client, client_id: id }, 201);
      }
      case "/authorize":
        return this.#consent(url.searchParams, response);
      case "/decide":
        return this.#decide(url.searchParams, response);
      case "/token":
        return this.#exchange(new URLSearchParams(body), json);
      case "/mcp":
        return this.#tools(request, body, response, json);
      default:
        return json({ error: "not_found" }, 404);
    }
  }

  #consent(query, response) {
    const client = this.#clients.get(query.get("client_id"));
    const isRight =
      client?.redirect_uris.includes(query.get("redirect_uri")) && query.get("code_challenge_method") === "S256" && query.has("state");
    if (!isRight) return response.writeHead(400).end("no such client, redirect, challenge or state");
    const link = (decision) => `<a href="/decide?${new URLSearchParams({ ...Object.fromEntries(query), decision }).toString().replaceAll("&", "&amp;")}">${decision}</a>`;
    return response
      .writeHead(200, { "content-type": "text/html" })
      .end(`<!doctype html><title>Consent</title><h1>May the agent use your notes?</h1>${link("Allow")} ${link("Deny")}`);
  }

  #decide(query, response) {
    const back = new URL(query.get("redirect_uri"));
    back.searchParams.set("state", query.get("state"));
    back.searchParams.set("iss", this.base);
    if (query.get("decision") === "Allow") {
      const code = `code-${(this.#ids += 1)}`;
      this.#codes.set(code, query);
      back.searchParams.set("code", code);
    } else {
      back.searchParams.set("error", "access_denied");
      back.searchParams.set("error_description", this.denial);
    }
    return response.writeHead(302, { location: back.href }).end();
  }

  #exchange(form, json) {
    const asked = this.#codes.get(form.get("code"));
    this.#codes.delete(form.get("code"));
    const challenge = createHash("sha256").update(form.get("code_verifier") ?? "").digest("base64url");
    const isRight =
      asked?.get("code_challenge") === challenge &&
      asked.get("client_id") === form.get("client_id") &&
      asked.get("redirect_uri") === form.get("redirect_uri");
    if (!isRight) return json({ error: "invalid_grant" }, 400);
    const token = `token-${(this.#ids += 1)}`;
    this.#tokens.add(token);
    return json({ access_token: token, token_type: "Bearer", expires_in: 3_600 });
  }

  #tools(request, body, response, json) {
    if (!this.#tokens.has(request.headers.authorization?.replace(/^Bearer /, ""))) {
      const metadata = `${this.base}/.well-known/oauth-protected-resource/mcp`;
      return response.writeHead(401, { "www-authenticate": `Bearer resource_metadata="${metadata}"` }).end();
    }
    if (request.method !== "POST") return response.writeHead(405).end();
    const { id, method, params } = JSON.parse(body);
    if (id === undefined) return response.writeHead(202).end();
    const number = { type: "number" };
    const add = { name: "add", description: "Adds", inputSchema: { type: "object", properties: { a: number, b: number } } };
    const results = {
      initialize: () => ({ protocolVersion: "2025-06-18", capabilities: { tools: {} }, serverInfo: { name: "notes", version: "1" } }),
      "tools/list": () => ({ tools: [add] }),
      "tools/call": () => ({ content: [{ type: "text", text: `the sum is ${params.arguments.a + params.arguments.b}` }] }),
    };
    if (results[method] === undefined) return json({}, 400);
    return json({ jsonrpc: "2.0", id, result: results[method]() });
  }
}

async function bodyOf(request) {
  const chunks = [];
  for await (const chunk of request) chunks.push(chunk);
  return Buffer.concat(chunks).toString();
}
