"""An MCP server of an earlier revision of the protocol, made with the SDK of its time.

    old_server.py         over stdio
    old_server.py http    over streamable HTTP, on a free port of 127.0.0.1; prints `{"url": …}`
    old_server.py sse     over HTTP with server-sent events, as the first revision has it
"""

import json
import socket
import sys

import uvicorn
from mcp.server.fastmcp import Context, FastMCP
from mcp.types import LATEST_PROTOCOL_VERSION
from pydantic import BaseModel, Field

server = FastMCP("old")


class Seats(BaseModel):
    seats: int = Field(description="How many seats")


@server.tool()
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@server.tool()
def echo(text: str) -> str:
    """Gives back what it is given."""
    return text


@server.tool()
def fail(reason: str) -> str:
    """Fails."""
    raise ValueError(f"it failed: {reason}")


@server.tool()
def protocol() -> str:
    """Says which revision of the protocol is spoken."""
    return LATEST_PROTOCOL_VERSION


@server.tool()
async def book(name: str, context: Context) -> str:
    """Books a table, and asks for what it needs to know, where the revision lets it."""
    answer = await context.elicit(f"How many seats for {name}?", Seats)
    if answer.action != "accept":
        return f"nothing is booked: {answer.action}"
    return f"{answer.data.seats} seats for {name}"


@server.tool()
async def grow(context: Context) -> str:
    """Adds the tool `grown` and calls `fading` `renamed` from now on."""
    server.add_tool(lambda: "I have grown.", name="grown", description="Was not there before.")
    server._tool_manager._tools.pop("fading")
    server.add_tool(fading, name="renamed", description="Was called `fading`.")
    await context.session.send_tool_list_changed()
    return "grown"


@server.tool()
def fading() -> str:
    """Is there until `grow` is called."""
    return "still here"


def serve(app, path):
    listener = socket.create_server(("127.0.0.1", 0))
    print(json.dumps({"url": f"http://127.0.0.1:{listener.getsockname()[1]}{path}"}), flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="info")).run(sockets=[listener])


match sys.argv[1:]:
    case ["sse"]:
        serve(server.sse_app(), "/sse")
    case ["http"]:
        serve(server.streamable_http_app(), "/mcp")
    case _:
        server.run("stdio")
