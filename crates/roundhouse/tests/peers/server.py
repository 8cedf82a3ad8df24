"""An MCP server made with the official SDK, with a tool for everything that connections are tested with.

    server.py                      over stdio
    server.py http                 over streamable HTTP, on a free port of 127.0.0.1; prints `{"url": …}`
    server.py http --stateless     without sessions
    server.py http --key KEY       with an API key in `X-Api-Key` or as a Bearer token
    server.py http --issuer URL    with access tokens of the authorization server there

It speaks every revision of the protocol that the SDK speaks; `protocol` says which one the client chose.
"""

import argparse
import base64
import hashlib
import json
import os
import socket
import urllib.parse
import urllib.request
from typing import Annotated, Literal

import anyio
import uvicorn
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.mcpserver import (
    AcceptedElicitation, Context, Elicit, ElicitationResult, MCPServer, Resolve,
)
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult, ImageContent, TextContent, ToolAnnotations
from pydantic import BaseModel, Field

PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)
READ_ONLY = ToolAnnotations(read_only_hint=True)

calls = {"cancelled": 0, "finished": 0, "booked": 0}


class Seats(BaseModel):
    seats: int = Field(description="How many seats", ge=1, le=12)


class Booking(Seats):
    place: Literal["inside", "by the window"] = Field(description="Where")


def ask_seats(name: str) -> Elicit[Seats]:
    return Elicit(f"How many seats for {name}?", Seats)


def ask_booking(name: str) -> Elicit[Booking]:
    return Elicit(f"How many seats for {name}, and where?", Booking)


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


def echo(text: str) -> str:
    """Gives back what it is given."""
    return text


def look_up(word: str) -> str:
    """Looks a word up, and changes nothing."""
    return f"{word}: a word of {len(word)} letters"


async def wait(seconds: float, context: Context) -> str:
    """Takes its time."""
    try:
        for step in range(int(seconds * 10)):
            await context.report_progress(step, seconds * 10)
            await anyio.sleep(0.1)
    except anyio.get_cancelled_exc_class():
        calls["cancelled"] += 1
        raise
    calls["finished"] += 1
    return f"waited {seconds} s"


def tally() -> str:
    """Says how many calls of other tools were cancelled and came to their end."""
    return json.dumps(calls)


def book(name: str, answer: Annotated[ElicitationResult[Seats], Resolve(ask_seats)]) -> str:
    """Books a table, and asks for a thing that it needs to know."""
    if not isinstance(answer, AcceptedElicitation):
        return f"nothing is booked: {answer.action}"
    calls["booked"] += 1
    return f"{answer.data.seats} seats for {name}"


def reserve(name: str, answer: Annotated[ElicitationResult[Booking], Resolve(ask_booking)]) -> str:
    """Books a table, and asks for two things that it needs to know."""
    if not isinstance(answer, AcceptedElicitation):
        return f"nothing is booked: {answer.action}"
    calls["booked"] += 1
    return f"{answer.data.seats} seats {answer.data.place} for {name}"


async def grow(context: Context) -> str:
    """Adds the tool `grown` and calls `fading` `renamed` from now on."""
    server = context.mcp_server
    server.add_tool(lambda: "I have grown.", name="grown", description="Was not there before.")
    server.remove_tool("fading")
    server.add_tool(fading, name="renamed", description="Was called `fading`.")
    # To clients that listen, and to those of earlier revisions.
    await context.notify_tools_changed()
    if context.protocol_version < "2026-07-28":
        await context.session.send_tool_list_changed()
    return "grown"


def fading() -> str:
    """Is there until `grow` is called."""
    return "still here"


def die() -> str:
    """Ends the server in the middle of the call."""
    os._exit(7)


def fail(reason: str) -> str:
    """Fails."""
    raise ToolError(f"it failed: {reason}")


def picture() -> CallToolResult:
    """Gives words, a picture and structured content."""
    return CallToolResult(
        content=[
            TextContent(type="text", text="One pixel."),
            ImageContent(type="image", data=PIXEL, mime_type="image/png"),
        ],
        structured_content={"width": 1, "height": 1},
    )


def figures() -> CallToolResult:
    """Gives structured content alone."""
    return CallToolResult(content=[], structured_content={"apples": 12, "pears": None})


def pages(kib: int) -> str:
    """Gives much text: so many KiB between `first` and `last`."""
    line = "0123456789abcdef" * 64
    return "first\n" + (line[:-1] + "\n") * kib + "last"


def protocol(context: Context) -> str:
    """Says which revision of the protocol is spoken."""
    return context.protocol_version


def surroundings() -> str:
    """Says in which environment, folder and process it runs. Of values it tells their hash."""
    values = {name: hashlib.sha256(value.encode()).hexdigest() for name, value in os.environ.items()}
    return json.dumps({"environment": values, "folder": os.getcwd(), "pid": os.getpid()})


def read(path: str) -> str:
    """Reads a file, or says why it cannot."""
    try:
        with open(path, "rb") as file:
            return f"{len(file.read())} bytes"
    except OSError as error:
        return f"no: {error.strerror}"


def visit(host: str, port: int) -> str:
    """Opens a connection, or says why it cannot."""
    try:
        socket.create_connection((host, port), timeout=5).close()
        return "connected"
    except OSError as error:
        return f"no: {error.strerror}"


def credential(context: Context) -> str:
    """Says with which header it was let in, and the hash of what the header holds."""
    for name in ("x-api-key", "authorization"):
        if value := (context.headers or {}).get(name):
            return f"{name} {hashlib.sha256(value.encode()).hexdigest()}"
    return "none"


class Introspection:
    """Asks the authorization server what a token is worth, each time."""

    def __init__(self, issuer):
        self.endpoint = f"{issuer}/token/introspection"
        secret = os.environ.get("RESOURCE_SECRET", "resource-server-secret")
        self.basic = base64.b64encode(f"resource-server:{secret}".encode()).decode()

    async def verify_token(self, token):
        found = await anyio.to_thread.run_sync(self.introspect, token)
        if not found["active"]:
            return None
        return AccessToken(
            token=token, client_id=found["client_id"], scopes=found.get("scope", "").split(),
            expires_at=found["exp"], resource=found.get("aud"), subject=found.get("sub"),
        )

    def introspect(self, token):
        body = urllib.parse.urlencode({"token": token}).encode()
        request = urllib.request.Request(self.endpoint, body, {"authorization": f"Basic {self.basic}"})
        with urllib.request.urlopen(request, timeout=10) as response:
            return json.load(response)


def with_key(app, key):
    """Lets nobody in without the key."""
    async def guarded(scope, receive, send):
        headers = dict(scope.get("headers", []))
        shown = (headers.get(b"x-api-key"), headers.get(b"authorization"))
        if scope["type"] == "http" and shown != (key.encode(), None) and shown != (None, b"Bearer " + key.encode()):
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b"no key, no service"})
            return
        await app(scope, receive, send)
    return guarded


def made(auth=None, verifier=None):
    server = MCPServer("peer", version="1.0.0", auth=auth, token_verifier=verifier)
    for tool in (add, echo, wait, book, reserve, grow, fading, die, fail, picture, figures, pages, surroundings, read, visit):
        server.add_tool(tool)
    for tool in (look_up, tally, protocol, credential):
        server.add_tool(tool, annotations=READ_ONLY)
    return server


def serve(options):
    listener = socket.create_server(("127.0.0.1", options.port))
    base = f"http://127.0.0.1:{listener.getsockname()[1]}"
    if options.issuer:
        auth = AuthSettings(
            issuer_url=options.issuer, resource_server_url=f"{base}/mcp", required_scopes=["mcp:tools"],
            validate_token_resource=True,
        )
        server = made(auth, Introspection(options.issuer))
    else:
        server = made()
    app = server.streamable_http_app(stateless_http=options.stateless)
    if options.key:
        app = with_key(app, options.key)
    print(json.dumps({"url": f"{base}/mcp"}), flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="info")).run(sockets=[listener])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("transport", choices=["stdio", "http"], nargs="?", default="stdio")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--stateless", action="store_true")
    parser.add_argument("--key")
    parser.add_argument("--issuer")
    options = parser.parse_args()
    if options.transport == "stdio":
        made().run("stdio")
    else:
        serve(options)


main()
