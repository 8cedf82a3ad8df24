"""A code editor, as far as the protocol goes: ACP's official Python SDK, which a story directs with one JSON command per
line. Its arguments are the agent's command line. It prints one JSON object per line for everything that it sees."""

import asyncio
import json
import os
import re
import sys

from acp import PROTOCOL_VERSION, RequestError, spawn_agent_process
from acp.schema import CreateElicitationResponse, RequestPermissionResponse
from pydantic import BaseModel, TypeAdapter

METHODS = {
    "initialize": "initialize",
    "session/new": "new_session",
    "session/load": "load_session",
    "session/resume": "resume_session",
    "session/list": "list_sessions",
    "session/close": "close_session",
    "session/prompt": "prompt",
    "session/set_config_option": "set_config_option",
}


def plain(value):
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True, exclude_none=True)
    return value


def show(**fields):
    print(json.dumps({name: plain(value) for name, value in fields.items()}), flush=True)


class Editor:
    def __init__(self):
        self.answers = {}

    def on_connect(self, connection):
        pass

    async def ask(self, what, params):
        key = len(self.answers) + 1
        self.answers[key] = asyncio.get_running_loop().create_future()
        show(**{what: params, "key": key})
        return await self.answers[key]

    async def request_permission(self, session_id, tool_call, options, **rest):
        params = {
            "sessionId": session_id,
            "toolCall": plain(tool_call),
            "options": [plain(option) for option in options],
        }
        return RequestPermissionResponse.model_validate(await self.ask("permission", params))

    async def create_elicitation(self, message, mode, **rest):
        params = {"message": message, "mode": plain(mode)}
        return TypeAdapter(CreateElicitationResponse).validate_python(await self.ask("elicitation", params))

    async def session_update(self, session_id, update, **rest):
        show(session=session_id, update=update)


async def call(connection, order):
    names = {re.sub("[A-Z]", lambda c: "_" + c.group().lower(), name): value for name, value in order["params"].items()}
    try:
        result = await getattr(connection, METHODS[order["call"]])(**names)
        show(tag=order["tag"], result=result)
    except RequestError as error:
        show(tag=order["tag"], error={"code": error.code, "message": str(error), "data": error.data})


async def main():
    editor = Editor()
    assert PROTOCOL_VERSION == 1
    lines = asyncio.StreamReader(limit=2**26)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    environment = dict(os.environ)
    async with spawn_agent_process(
        editor, *sys.argv[1:], env=environment, transport_kwargs={"stderr": None, "limit": 2**26}
    ) as (connection, process):
        calls = set()
        while line := await lines.readline():
            order = json.loads(line)
            if "call" in order:
                task = asyncio.create_task(call(connection, order))
                calls.add(task)
                task.add_done_callback(calls.discard)
            if "cancel" in order:
                await connection.cancel(session_id=order["cancel"])
            if "answer" in order:
                answer = editor.answers[order["answer"]]
                if "result" in order:
                    answer.set_result(order["result"])
                else:
                    answer.set_exception(RequestError.method_not_found("asking"))
        process.stdin.close()
        show(exit=await process.wait())


asyncio.run(main())
