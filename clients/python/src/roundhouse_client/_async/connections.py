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
from .resource import AsyncResource


class AsyncConnectionsResource(AsyncResource):
    """The tool servers of the catalog, and the user's connections to them."""

    async def servers(self) -> ServerList:
        """The tool servers that the engine knows."""
        return await self._call(Call("GET", "/assets/servers", ServerList))

    async def list(self) -> ConnectionList:
        """The user's connections."""
        return await self._call(Call("GET", "/assets/connections", ConnectionList))

    async def connect(
        self, server: str, *, credentials: Mapping[str, Any] | None = None, redirect_to: str | None = None
    ) -> ConnectOutcome:
        """Connects to a server, or tells where the user authorizes it."""
        body = given(server=server, credentials=credentials, redirect_to=redirect_to)
        return await self._call(Call("POST", "/assets/connect", ConnectOutcome, body=body))

    async def disconnect(self, connection: str) -> Disconnected:
        """Removes a connection with its credentials."""
        return await self._call(Call("DELETE", f"/assets/connections/{segment(connection)}", Disconnected))


class AsyncServersResource(AsyncResource):
    """The user's own tool servers."""

    async def list(self) -> UserServerList:
        """All of them, with the state of their tools."""
        return await self._call(Call("GET", "/mcp/servers", UserServerList))

    async def get(self, name: str) -> UserServer:
        """One of them."""
        return await self._call(Call("GET", f"/mcp/servers/{segment(name)}", UserServer))

    async def add(self, name: str, url: str, **fields: Any) -> UserServer:
        """Adds a server, with the fields `description`, `auth` and `api_key_header`."""
        body = given(name=name, url=url, **fields)
        return await self._call(Call("POST", "/mcp/servers", UserServer, body=body))

    async def update(self, name: str, **changes: Any) -> UserServer:
        """Changes `description` or `enabled`."""
        path = f"/mcp/servers/{segment(name)}"
        return await self._call(Call("PATCH", path, UserServer, body=changes, idempotent=True))

    async def approve(self, name: str, digest: str) -> UserServer:
        """Approves the tools with the digest that the user was shown."""
        path, body = f"/mcp/servers/{segment(name)}/approve", {"digest": digest}
        return await self._call(Call("POST", path, UserServer, body=body, idempotent=True))

    async def connect(
        self, name: str, *, credentials: Mapping[str, Any] | None = None, redirect_to: str | None = None
    ) -> ConnectOutcome:
        """Connects to a server, or tells where the user authorizes it."""
        path = f"/mcp/servers/{segment(name)}/connect"
        body = given(credentials=credentials, redirect_to=redirect_to)
        return await self._call(Call("POST", path, ConnectOutcome, body=body))

    async def delete(self, name: str) -> Deleted:
        """Removes a server with its credentials."""
        return await self._call(Call("DELETE", f"/mcp/servers/{segment(name)}", Deleted))
