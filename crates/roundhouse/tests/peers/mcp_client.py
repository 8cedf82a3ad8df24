"""Asks an engine with the official SDK of the Model Context Protocol: `mcp_client.py SCENARIO MODE URL KEY`. MODE is
`legacy`, with a handshake, or `auto`, the newest revision. Prints one JSON object per line."""

import asyncio
import json
import sys

import httpx2
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp.types import ElicitResult

mode, url, key = sys.argv[2:5]


def show(**fields):
    print(json.dumps(fields, ensure_ascii=False), flush=True)


async def pressed_enter():
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)


class Connection:
    """A client, and the HTTP client beneath it."""

    def __init__(self, elicit=None, key=key, headers=None):
        self.http = httpx2.AsyncClient(headers={"Authorization": f"Bearer {key}"} | (headers or {}), timeout=60)
        transport = streamable_http_client(url, http_client=self.http)
        self.client = Client(transport, mode=mode, elicitation_callback=elicit, read_timeout_seconds=60)

    async def __aenter__(self):
        await self.http.__aenter__()
        return await self.client.__aenter__()

    async def __aexit__(self, *error):
        await self.client.__aexit__(*error)
        return await self.http.__aexit__(*error)


def text(result):
    return "".join(block.text for block in result.content)


async def ask():
    async with Connection() as client:
        tools = (await client.list_tools()).tools
        show(tools=[tool.name for tool in tools], revision=client.protocol_version,
             server=client.server_info.name, instructions=bool(client.instructions))
        progress = []

        async def reported(done, _total, message):
            progress.append([done, message])

        first = await client.call_tool("ask", {"message": "Wer bist du?", "task_id": "täsk"}, progress_callback=reported)
        show(text=text(first), structured=first.structured_content, error=first.is_error, progress=progress)
        again = await client.call_tool("ask", {"message": "Und?", "task_id": "täsk"})
        show(text=text(again), structured=again.structured_content)
        fresh = await client.call_tool("ask", {"message": "Neu."})
        show(text=text(fresh), task=fresh.structured_content["task_id"])
        listed = await client.call_tool("tasks", {})
        show(tasks=sorted(entry["task_id"] for entry in listed.structured_content["conversations"]))
        turns = (await client.call_tool("tasks", {"task_id": "täsk"})).structured_content
        read = await client.call_tool("tasks", {"task_id": "täsk", "turn_id": turns["turns"][-1]["turn_id"]})
        show(turns=[turn["state"] for turn in turns["turns"]], text=read.structured_content["turn"]["text"])
        found = await client.call_tool("memory_search", {"query": "Ada"})
        show(found=[entry["kind"] for entry in found.structured_content["results"]])


async def permission():
    asked = []

    async def elicit(_context, request):
        asked.append([request.message, sorted(request.requested_schema["properties"])])
        show(asked=len(asked))
        return ElicitResult(action="accept", content={"answer": "yes", "feedback": "Gern."})

    async with Connection(elicit) as client:
        result = await client.call_tool("ask", {"message": "Write.", "task_id": "task"})
        show(text=text(result), status=result.structured_content["status"], asked=asked)


async def refusal():
    actions = iter(["decline", "cancel"])

    async def elicit(_context, _request):
        return ElicitResult(action=next(actions))

    async with Connection(elicit) as client:
        for _ in range(2):
            result = await client.call_tool("ask", {"message": "Write."})
            structured = result.structured_content
            show(text=text(result), status=structured["status"], task=structured["task_id"])


async def alone():
    """Without a way to ask its user."""
    async with Connection() as client:
        result = await client.call_tool("ask", {"message": "Write.", "task_id": "task"})
        structured = result.structured_content
        show(text=text(result), status=structured["status"], pending=structured["pending"])
        await pressed_enter()
        while True:
            read = await client.call_tool("tasks", {"task_id": "task", "turn_id": structured["turn_id"]})
            turn = read.structured_content["turn"]
            if turn["status"] == "completed":
                break
            await asyncio.sleep(0.05)
        show(text=turn["text"])


async def killed():
    """The engine is killed while it answers; the answer is fetched afterwards."""
    arguments = {"message": "Tell.", "task_id": "task", "client_request_id": "once"}
    try:
        async with Connection() as client:
            await client.call_tool("ask", arguments)
        show(broken=False)
    except Exception as error:
        show(broken=type(error).__name__)
    await pressed_enter()
    async with Connection() as client:
        result = await client.call_tool("ask", arguments)
        show(text=text(result), structured=result.structured_content)
        turns = (await client.call_tool("tasks", {"task_id": "task"})).structured_content["turns"]
        show(turns=[turn["state"] for turn in turns])


async def resumed():
    """The engine is killed while it answers, and the SDK takes the stream up again by itself."""
    progress = []

    async def reported(done, _total, message):
        progress.append([done, message])
        show(progress=message)

    async with Connection() as client:
        result = await client.call_tool("ask", {"message": "Tell.", "task_id": "task"}, progress_callback=reported)
        show(text=text(result), progress=progress)
        turns = (await client.call_tool("tasks", {"task_id": "task"})).structured_content["turns"]
        show(turns=[turn["state"] for turn in turns])


async def asked_over_a_kill():
    """The engine is killed while its question is shown."""
    asked = []

    async def elicit(_context, request):
        asked.append(request.message)
        show(asked=len(asked))
        await pressed_enter()
        return ElicitResult(action="accept", content={"answer": "yes"})

    async with Connection(elicit) as client:
        result = await client.call_tool("ask", {"message": "Write.", "task_id": "task"})
        show(text=text(result), asked=len(asked))


async def cancel():
    async with Connection() as client:
        call = asyncio.create_task(client.call_tool("ask", {"message": "Think.", "task_id": "task"}))
        await pressed_enter()
        call.cancel()
        try:
            await call
        except asyncio.CancelledError:
            pass
        while True:
            turns = (await client.call_tool("tasks", {"task_id": "task"})).structured_content["turns"]
            if turns[0]["state"] != "running":
                break
            await asyncio.sleep(0.05)
        show(states=[turn["state"] for turn in turns])


async def errors():
    async def refused(name, arguments):
        try:
            result = await client.call_tool(name, arguments)
            show(error=result.is_error, text=text(result))
        except MCPError as error:
            show(code=error.error.code, text=error.error.message)

    async with Connection() as client:
        await refused("tell", {})
        await refused("ask", {})
        await refused("ask", {"message": "Hi", "massage": 1})
        await refused("ask", {"message": " ", "task_id": "blank"})
        await refused("ask", {"message": "Hi", "task_id": "busy"})
        await refused("tasks", {"task_id": "none"})
        await refused("tasks", {"turn_id": "turn_1"})
        await refused("memory_search", {"query": "a", "limit": 0})
    for options in ({"key": "sk-svc-wrong"}, {"headers": {"Origin": "https://evil.example"}}):
        try:
            async with Connection(**options) as client:
                await client.list_tools()
            show(refused=False)
        except Exception:
            show(refused=True)


asyncio.run(globals()[sys.argv[1]]())
