// An authorization server made with `oidc-provider`: metadata, dynamic registration, client-id metadata documents,
// PKCE, resource indicators, `iss`, rotated refresh tokens, introspection and revocation are that library's. A person
// who agrees to everything (or to nothing) sits before it, so that a test can follow the authorization address with
// plain requests.
//
// It listens on a free port of 127.0.0.1 and prints `{"url": …}`. Environment: ACCESS_TOKEN_TTL_S, REGISTRATION
// (`dynamic` or `document`: which of the two ways to become a client it offers), RESOURCE_SECRET (of the client
// `resource-server`, who may introspect).
//
// Beside the protocol's endpoints:
//   GET  /test/log       what the token, registration and revocation endpoints were asked and how that ended
//   GET  /test/tokens    the tokens that it gave, and whether each is still worth something
//   POST /test/settings  {"access_token_ttl_s"?, "answer"?: "agree" | "deny", "down"?, "documents"?: {url: document}}
//   POST /test/end       every access token ends at once, before its time
//   POST /test/revoke    every grant is revoked, as a person does who wants no more of it

import { createServer } from 'node:http';
import { Provider } from 'oidc-provider';

const SCOPES = ['mcp:tools'];

const settings = {
  access_token_ttl_s: Number(process.env.ACCESS_TOKEN_TTL_S ?? 3600),
  answer: 'agree',
  down: false,
  documents: {},
};
const log = [];
const grants = new Set();
const tokens = [];

function configuration() {
  const byDocument = process.env.REGISTRATION === 'document';
  return {
    clients: [
      {
        client_id: 'resource-server',
        client_secret: process.env.RESOURCE_SECRET ?? 'resource-server-secret',
        redirect_uris: [],
        response_types: [],
        grant_types: [],
      },
    ],
    scopes: ['offline_access', ...SCOPES],
    findAccount: (_context, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
    pkce: { required: () => true },
    rotateRefreshToken: true,
    issueRefreshToken: (_context, client) => client.grantTypeAllowed('refresh_token'),
    expiresWithSession: () => false,
    interactions: { url: (_context, interaction) => `/interaction/${interaction.uid}` },
    cookies: { keys: ['not-a-secret'] },
    ttl: { AccessToken: () => settings.access_token_ttl_s, Grant: 86400, Interaction: 600, Session: 86400 },
    fetch: (url, options) => {
      const document = settings.documents[url];
      return document ? Response.json(document) : fetch(url, options);
    },
    features: {
      devInteractions: { enabled: false },
      introspection: { enabled: true, allowedPolicy: (_context, client) => client.clientId === 'resource-server' },
      revocation: {
        enabled: true,
        allowedPolicy: (_context, client, token) => token.clientId === client.clientId,
      },
      registration: { enabled: !byDocument },
      clientIdMetadataDocument: { enabled: byDocument, ack: 'draft-02' },
      resourceIndicators: {
        enabled: true,
        defaultResource: () => undefined,
        useGrantedResource: () => true,
        getResourceServerInfo: () => ({
          scope: SCOPES.join(' '),
          accessTokenFormat: 'opaque',
          accessTokenTTL: settings.access_token_ttl_s,
        }),
      },
    },
  };
}

// What a person does at the pages of an authorization server: they sign in and agree, or decline.
async function interact(provider, request, response) {
  const { prompt, params, session, grantId } = await provider.interactionDetails(request, response);
  if (settings.answer === 'deny') {
    const denied = { error: 'access_denied', error_description: 'The person declined.' };
    return provider.interactionFinished(request, response, denied, { mergeWithLastSubmission: false });
  }
  if (prompt.name === 'login') {
    return provider.interactionFinished(request, response, { login: { accountId: 'ada' } });
  }
  const clientId = params.client_id;
  const grant = grantId
    ? await provider.Grant.find(grantId)
    : new provider.Grant({ accountId: session.accountId, clientId });
  if (prompt.details.missingOIDCScope) {
    grant.addOIDCScope(prompt.details.missingOIDCScope.join(' '));
  }
  for (const [resource, scopes] of Object.entries(prompt.details.missingResourceScopes ?? {})) {
    grant.addResourceScope(resource, scopes.join(' '));
  }
  const consent = { grantId: await grant.save() };
  grants.add(consent.grantId);
  return provider.interactionFinished(request, response, { consent }, { mergeWithLastSubmission: true });
}

async function revokeAll(provider) {
  for (const grant of grants) {
    await Promise.all([
      provider.AccessToken.revokeByGrantId(grant),
      provider.RefreshToken.revokeByGrantId(grant),
      provider.Grant.adapter.destroy(grant),
    ]);
  }
  grants.clear();
}

async function endAccessTokens(provider) {
  for (const { value } of tokens.filter(({ kind }) => kind === 'AccessToken')) {
    await (await provider.AccessToken.find(value))?.destroy();
  }
}

async function given(provider) {
  return Promise.all(
    tokens.map(async ({ kind, value }) => {
      const found = await provider[kind].find(value);
      return { kind, value, active: Boolean(found?.isValid) };
    }),
  );
}

async function bodyOf(request) {
  const chunks = [];
  for await (const chunk of request) {
    chunks.push(chunk);
  }
  return JSON.parse(Buffer.concat(chunks).toString() || '{}');
}

function say(response, body, status = 200) {
  response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body));
}

async function answer(provider, request, response) {
  const { pathname } = new URL(request.url, provider.issuer);
  if (pathname === '/test/log') {
    return say(response, log);
  }
  if (pathname === '/test/tokens') {
    return say(response, await given(provider));
  }
  if (pathname === '/test/settings') {
    return say(response, Object.assign(settings, await bodyOf(request)));
  }
  if (pathname === '/test/end') {
    await endAccessTokens(provider);
    return say(response, {});
  }
  if (pathname === '/test/revoke') {
    await revokeAll(provider);
    return say(response, {});
  }
  if (settings.down) {
    return say(response, { error: 'temporarily_unavailable' }, 503);
  }
  if (pathname.startsWith('/interaction/')) {
    return interact(provider, request, response);
  }
  return provider.callback()(request, response);
}

// Notes what the endpoints that clients call themselves were asked.
async function note(context, next) {
  await next();
  const { path, status, oidc } = context;
  if (['/token', '/reg', '/token/revocation'].includes(path)) {
    const { grant_type: grant, resource, scope, token_type_hint: hint } = oidc?.params ?? {};
    const registered = path === '/reg' ? oidc?.body : undefined;
    log.push({ path, status, grant, resource, scope, hint, registered, error: context.body?.error });
  }
}

const server = createServer();
server.listen(0, '127.0.0.1', () => {
  const url = `http://127.0.0.1:${server.address().port}`;
  const provider = new Provider(url, configuration());
  provider.use(note);
  provider.on('access_token.saved', ({ jti }) => tokens.push({ kind: 'AccessToken', value: jti }));
  provider.on('refresh_token.saved', ({ jti }) => {
    // It is saved again when it is used.
    if (!tokens.some(({ value }) => value === jti)) {
      tokens.push({ kind: 'RefreshToken', value: jti });
    }
  });
  server.on('request', (request, response) => {
    answer(provider, request, response).catch((error) => say(response, { error: String(error) }, 500));
  });
  console.log(JSON.stringify({ url }));
});
