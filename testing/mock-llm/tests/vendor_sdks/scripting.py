"""What the checks of all wires share: the provider's script, a tool and a question."""

import json
import sys
import urllib.request

BASE_URL = sys.argv[1]
TOOL = {
    "name": "add",
    "description": "Adds two numbers.",
    "input_schema": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    },
}
FUNCTION = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds two numbers.",
        "parameters": TOOL["input_schema"],
    },
}
USER = {"role": "user", "content": "What is 1 + 2?"}
USAGE = {"input": 100, "output": 50, "cache_read": 30, "cache_write": 20, "reasoning": 10}


def script(*replies):
    """Adds replies to the provider's script."""
    request = urllib.request.Request(
        BASE_URL + "/control/replies",
        data=json.dumps(replies).encode(),
        headers={"content-type": "application/json"},
    )
    with urllib.request.urlopen(request) as response:
        assert response.status == 204


def raises(kind, call):
    """Calls and returns the error, which must be exactly of this kind."""
    try:
        call()
    except Exception as error:
        assert type(error) is kind, f"{type(error)} is not {kind}: {error}"
        return error
    raise AssertionError(f"{kind} was not raised")


def text(text):
    return {"type": "text", "text": text}


def thinking(text):
    return {"type": "thinking", "text": text}


def tool_use(a, b):
    return {"type": "tool_use", "name": "add", "input": {"a": a, "b": b}}


def refuse(reason, **details):
    return {"fault": {"kind": "refuse", "refusal": {"reason": reason, **details}}}


def fault(kind, **details):
    return {"blocks": [text("0123456789")], "fault": {"kind": kind, **details}}
