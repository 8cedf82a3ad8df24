// An MCP server made with the official TypeScript SDK that is its own authorization server, as that SDK makes it, over
// streamable HTTP. The counterpart of `oauth_server.py`.
//
// It listens on a free port of 127.0.0.1 and prints `{"url": …}`, its issuer. The user agrees at once.
//
//   GET  /test/tokens    the tokens that it gave, and whether each is still valid

import { randomBytes } from 'node:crypto';
import { createServer } from 'node:http';
import { InvalidTokenError } from '@modelcontextprotocol/sdk/server/auth/errors.js';
import { requireBearerAuth } from '@modelcontextprotocol/sdk/server/auth/middleware/bearerAuth.js';
import { getOAuthProtectedResourceMetadataUrl, mcpAuthRouter } from '@modelcontextprotocol/sdk/server/auth/router.js';
import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js';
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import express from 'express';
import { z } from 'zod';

const SCOPE = 'mcp:tools';
const LIFE_S = 3600;

class Provider {
  #clients = new Map();
  #codes = new Map();
  #tokens = new Map();
  given = [];

  get clientsStore() {
    return {
      getClient: (id) => this.#clients.get(id),
      registerClient: (client) => {
        this.#clients.set(client.client_id, client);
        return client;
      },
    };
  }

  async authorize(client, params, response) {
    const code = randomBytes(24).toString('base64url');
    this.#codes.set(code, { client: client.client_id, params });
    const back = new URL(params.redirectUri);
    back.searchParams.set('code', code);
    if (params.state !== undefined) back.searchParams.set('state', params.state);
    response.redirect(back.href);
  }

  async challengeForAuthorizationCode(_client, code) {
    return this.#codes.get(code).params.codeChallenge;
  }

  async exchangeAuthorizationCode(client, code) {
    const { params } = this.#codes.get(code);
    this.#codes.delete(code);
    return this.#give(client.client_id, params.scopes ?? [SCOPE], params.resource);
  }

  async exchangeRefreshToken(client, token) {
    const { scopes, resource } = this.#tokens.get(token);
    this.#tokens.delete(token);
    return this.#give(client.client_id, scopes, resource);
  }

  async verifyAccessToken(token) {
    const found = this.#tokens.get(token);
    if (found?.expiresAt === undefined) throw new InvalidTokenError('no such token');
    return { token, ...found };
  }

  async revokeToken(client, { token }) {
    if (this.#tokens.get(token)?.clientId !== client.client_id) return;
    for (const [other, { clientId }] of this.#tokens) {
      if (clientId === client.client_id) this.#tokens.delete(other);
    }
  }

  isValid(token) {
    return this.#tokens.has(token);
  }

  #give(clientId, scopes, resource) {
    const [access, refresh] = [0, 1].map(() => randomBytes(24).toString('base64url'));
    this.#tokens.set(access, { clientId, scopes, resource, expiresAt: Math.floor(Date.now() / 1000) + LIFE_S });
    this.#tokens.set(refresh, { clientId, scopes, resource });
    this.given.push(access, refresh);
    return {
      access_token: access, refresh_token: refresh, token_type: 'Bearer', expires_in: LIFE_S, scope: scopes.join(' '),
    };
  }
}

function peer() {
  const server = new McpServer({ name: 'peer', version: '1.0.0' });
  const add = { description: 'Adds two numbers.', inputSchema: { a: z.number().int(), b: z.number().int() } };
  server.registerTool('add', add, ({ a, b }) => ({ content: [{ type: 'text', text: String(a + b) }] }));
  return server;
}

const server = createServer();
server.listen(0, '127.0.0.1', () => {
  const base = new URL(`http://127.0.0.1:${server.address().port}`);
  const resource = new URL('/mcp', base);
  const provider = new Provider();
  const app = express();
  app.use(mcpAuthRouter({ provider, issuerUrl: base, resourceServerUrl: resource, scopesSupported: [SCOPE] }));
  const resourceMetadataUrl = getOAuthProtectedResourceMetadataUrl(resource);
  const authorized = requireBearerAuth({ verifier: provider, requiredScopes: [SCOPE], resourceMetadataUrl });
  app.all('/mcp', authorized, express.json(), async (request, response) => {
    // Without sessions: each request has a server of its own.
    const transport = new StreamableHTTPServerTransport({ sessionIdGenerator: undefined });
    response.on('close', () => transport.close());
    await peer().connect(transport);
    await transport.handleRequest(request, response, request.body);
  });
  app.get('/test/tokens', (_request, response) => {
    response.json(provider.given.map((value) => ({ value, active: provider.isValid(value) })));
  });
  server.on('request', app);
  console.log(JSON.stringify({ url: base.origin }));
});
