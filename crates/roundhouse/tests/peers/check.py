"""Tries the peers with the official SDK's own client: what it finds right, an engine must find right too.

    check.py            the server over stdio, and over HTTP with and without sessions, in both eras of the protocol
    check.py ISSUER     the server behind the authorization server there, a person's way to it included
"""

import asyncio
import json
import pathlib
import subprocess
import sys
import urllib.parse

import httpx2
from mcp import Client, StdioServerParameters, stdio_client
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider, TokenStorage
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientMetadata
from mcp.types import ElicitResult

HERE = pathlib.Path(__file__).parent
SERVER = str(HERE / "server.py")


def words(result):
    return "".join(block.text for block in result.content if block.type == "text")


async def answer(_context, request):
    assert "How many seats for Ada" in request.message, request
    place = {"place": "by the window"} if "where" in request.message else {}
    return ElicitResult(action="accept", content={"seats": 3} | place)


async def tried(transport, mode, revision):
    async with Client(transport, mode=mode, elicitation_callback=answer) as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
        assert {"add", "book", "fading", "credential"} <= names and "grown" not in names, names
        call = client.call_tool
        assert words(await call("protocol", {})) == revision, await call("protocol", {})
        assert words(await call("add", {"a": 2, "b": 3})) == "5"
        assert (await call("fail", {"reason": "why not"})).is_error
        picture = await call("picture", {})
        assert picture.structured_content["width"] == 1 and picture.content[1].type == "image", picture
        assert words(await call("book", {"name": "Ada"})) == "3 seats for Ada"
        assert words(await call("reserve", {"name": "Ada"})) == "3 seats by the window for Ada"
        assert words(await call("grow", {})) == "grown"
        names = {tool.name for tool in (await client.list_tools(cache_mode="refresh")).tools}
        assert {"grown", "renamed"} <= names and "fading" not in names, names
        try:
            await asyncio.wait_for(call("wait", {"seconds": 60}), 0.5)
        except TimeoutError:
            pass
        for _ in range(100):
            tally = json.loads(words(await call("tally", {})))
            if tally["cancelled"] == 1:
                break
            await asyncio.sleep(0.05)
        assert tally == {"cancelled": 1, "finished": 0, "booked": 2}, (mode, transport, tally)


def started(*line):
    process = subprocess.Popen([*line], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return process, json.loads(process.stdout.readline())["url"]


async def plainly():
    for mode, revision in (("legacy", "2025-11-25"), ("auto", "2026-07-28")):
        parameters = StdioServerParameters(command=sys.executable, args=[SERVER], env={"PYTHONPATH": ":".join(sys.path)})
        await tried(stdio_client(parameters), mode, revision)
        for options in ([], ["--stateless"]):
            if options == ["--stateless"] and mode == "legacy":
                # Without a session there is no way back to the client in the middle of a call.
                continue
            process, url = started(sys.executable, SERVER, "http", *options)
            try:
                await tried(streamable_http_client(url), mode, revision)
            finally:
                process.kill()
        print(f"well: {mode}")


class Memory(TokenStorage):
    tokens = client = None

    async def get_tokens(self):
        return self.tokens

    async def set_tokens(self, tokens):
        self.tokens = tokens

    async def get_client_info(self):
        return self.client

    async def set_client_info(self, client):
        self.client = client


class Person:
    """Goes where a browser would go, up to the address that is the client's."""

    async def visit(self, url):
        async with httpx2.AsyncClient() as browser:
            while not url.startswith("https://product.example/"):
                response = await browser.get(url)
                assert response.is_redirect, (response.status_code, response.text)
                url = urllib.parse.urljoin(url, response.headers["location"])
        self.query = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(url).query))

    async def callback(self):
        return AuthorizationCodeResult(**self.query)


async def with_leave(issuer):
    process, url = started(sys.executable, SERVER, "http", "--issuer", issuer)
    person, memory = Person(), Memory()
    metadata = OAuthClientMetadata(
        redirect_uris=["https://product.example/assets/oauth/callback"], client_name="check",
        grant_types=["authorization_code", "refresh_token"], token_endpoint_auth_method="none",
    )
    auth = OAuthClientProvider(url, metadata, memory, person.visit, person.callback)
    try:
        async with httpx2.AsyncClient(auth=auth, timeout=30) as http:
            async with Client(streamable_http_client(url, http_client=http)) as client:
                assert words(await client.call_tool("add", {"a": 2, "b": 3})) == "5"
                shown = words(await client.call_tool("credential", {}))
                assert shown.startswith("authorization "), shown
                first = memory.tokens.access_token
                # Longer than the tokens of a server that is tried so live.
                await asyncio.sleep(2.5)
                assert words(await client.call_tool("add", {"a": 2, "b": 3})) == "5"
                print("well: renewed" if memory.tokens.access_token != first else "well: kept")
        async with httpx2.AsyncClient() as http:
            assert (await http.post(url, json={})).status_code == 401
    finally:
        process.kill()


asyncio.run(with_leave(sys.argv[1]) if len(sys.argv) > 1 else plainly())
