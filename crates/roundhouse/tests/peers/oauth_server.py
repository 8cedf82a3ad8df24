"""An MCP server made with the official SDK that is its own authorization server, as the SDK makes it.

    oauth_server.py    over streamable HTTP, on a free port of 127.0.0.1; prints `{"url": …}`, its issuer

The user agrees at once. `GET /test/tokens` tells which tokens it gave, and whether each is still worth something.
"""

import json
import secrets
import socket
import time

import uvicorn
from mcp.server.auth.provider import (
    AccessToken, AuthorizationCode, OAuthAuthorizationServerProvider, RefreshToken, construct_redirect_uri,
)
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions, RevocationOptions
from mcp.server.mcpserver import MCPServer
from mcp.shared.auth import OAuthToken
from starlette.responses import JSONResponse

SCOPE = "mcp:tools"
LIFE_S = 3600


class Provider(OAuthAuthorizationServerProvider):
    def __init__(self):
        self.clients, self.codes, self.tokens, self.given = {}, {}, {}, []

    async def get_client(self, client_id):
        return self.clients.get(client_id)

    async def register_client(self, client_info):
        self.clients[client_info.client_id] = client_info

    async def authorize(self, client, params):
        code = secrets.token_urlsafe(24)
        self.codes[code] = AuthorizationCode(
            code=code, scopes=params.scopes or [SCOPE], expires_at=time.time() + 60, client_id=client.client_id,
            code_challenge=params.code_challenge, redirect_uri=params.redirect_uri, resource=params.resource,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
        )
        return construct_redirect_uri(str(params.redirect_uri), code=code, state=params.state)

    async def load_authorization_code(self, client, authorization_code):
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(self, client, authorization_code):
        del self.codes[authorization_code.code]
        return self.give(client, authorization_code.scopes, authorization_code.resource)

    async def load_refresh_token(self, client, refresh_token):
        found = self.tokens.get(refresh_token)
        return found if isinstance(found, RefreshToken) else None

    async def exchange_refresh_token(self, client, refresh_token, scopes):
        del self.tokens[refresh_token.token]
        return self.give(client, scopes, refresh_token.resource)

    async def load_access_token(self, token):
        found = self.tokens.get(token)
        return found if isinstance(found, AccessToken) else None

    async def revoke_token(self, token):
        for other in [other for other in self.tokens.values() if other.client_id == token.client_id]:
            del self.tokens[other.token]

    def give(self, client, scopes, resource):
        access, refresh = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
        common = {"client_id": client.client_id, "scopes": scopes, "resource": resource}
        self.tokens[access] = AccessToken(token=access, expires_at=int(time.time()) + LIFE_S, **common)
        self.tokens[refresh] = RefreshToken(token=refresh, **common)
        self.given += [access, refresh]
        return OAuthToken(
            access_token=access, token_type="Bearer", expires_in=LIFE_S, scope=" ".join(scopes), refresh_token=refresh,
        )


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


def main():
    listener = socket.create_server(("127.0.0.1", 0))
    base = f"http://127.0.0.1:{listener.getsockname()[1]}"
    provider = Provider()
    auth = AuthSettings(
        issuer_url=base, resource_server_url=f"{base}/mcp", required_scopes=[SCOPE],
        client_registration_options=ClientRegistrationOptions(enabled=True, valid_scopes=[SCOPE], default_scopes=[SCOPE]),
        revocation_options=RevocationOptions(enabled=True), validate_token_resource=True,
    )
    server = MCPServer("peer", version="1.0.0", auth=auth, auth_server_provider=provider)
    server.add_tool(add)

    @server.custom_route("/test/tokens", methods=["GET"])
    async def tokens(_):
        return JSONResponse([{"value": token, "active": token in provider.tokens} for token in provider.given])

    app = server.streamable_http_app()
    print(json.dumps({"url": base}), flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="info")).run(sockets=[listener])


main()
