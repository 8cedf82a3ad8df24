# Written by `generate` from `_async`; do not edit.
"""Tool servers (MCP): those of the platform, the user's connections to them, and the user's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._core.call import Call, given, segment
from ..models import (
    ConnectionList,
    ConnectOutcome,
    Deleted,
    Disconnected,
    ServerList,
    UserServer,
    UserServerList,
)
from .resource import Resource


class ConnectionsResource(Resource):
    """The tool servers of the catalog, and the user's connections to them."""

    def servers(self) -> ServerList:
        """The tool servers that the engine knows."""
        return self._call(Call("GET", "/assets/servers", ServerList))

    def list(self) -> ConnectionList:
        """The user's connections."""
        return self._call(Call("GET", "/assets/connections", ConnectionList))

    def connect(
        self, server: str, *, credentials: Mapping[str, Any] | None = None, redirect_to: str | None = None
    ) -> ConnectOutcome:
        """Connects to a server, or tells where the user authorizes it."""
        body = given(server=server, credentials=credentials, redirect_to=redirect_to)
        return self._call(Call("POST", "/assets/connect", ConnectOutcome, body=body))

    def disconnect(self, connection: str) -> Disconnected:
        """Removes a connection with its credentials."""
        return self._call(Call("DELETE", f"/assets/connections/{segment(connection)}", Disconnected))


class ServersResource(Resource):
    """The user's own tool servers."""

    def list(self) -> UserServerList:
        """All of them, with the state of their tools."""
        return self._call(Call("GET", "/mcp/servers", UserServerList))

    def get(self, name: str) -> UserServer:
        """One of them."""
        return self._call(Call("GET", f"/mcp/servers/{segment(name)}", UserServer))

    def add(self, name: str, url: str, **fields: Any) -> UserServer:
        """Adds a server, with the fields `description`, `auth` and `api_key_header`."""
        body = given(name=name, url=url, **fields)
        return self._call(Call("POST", "/mcp/servers", UserServer, body=body))

    def update(self, name: str, **changes: Any) -> UserServer:
        """Changes `description` or `enabled`."""
        path = f"/mcp/servers/{segment(name)}"
        return self._call(Call("PATCH", path, UserServer, body=changes, idempotent=True))

    def approve(self, name: str, digest: str) -> UserServer:
        """Approves the tools with the digest that the user was shown."""
        path, body = f"/mcp/servers/{segment(name)}/approve", {"digest": digest}
        return self._call(Call("POST", path, UserServer, body=body, idempotent=True))

    def connect(
        self, name: str, *, credentials: Mapping[str, Any] | None = None, redirect_to: str | None = None
    ) -> ConnectOutcome:
        """Connects to a server, or tells where the user authorizes it."""
        path = f"/mcp/servers/{segment(name)}/connect"
        body = given(credentials=credentials, redirect_to=redirect_to)
        return self._call(Call("POST", path, ConnectOutcome, body=body))

    def delete(self, name: str) -> Deleted:
        """Removes a server with its credentials."""
        return self._call(Call("DELETE", f"/mcp/servers/{segment(name)}", Deleted))
