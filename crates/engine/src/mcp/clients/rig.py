import json, os, sys, time


def send(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def receive():
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    return json.loads(line)


def answer(request, result):
    send({"id": request["id"], "result": result})


def refuse(request, message="no such method", code=-32601):
    send({"id": request["id"], "error": {"code": code, "message": message}})


def tool(name, **more):
    return {"name": name, "inputSchema": {"type": "object", "properties": {}}, **more}


def text(text, **more):
    return {"content": [{"type": "text", "text": text}], **more}


def note(line):
    with open("notes", "a") as notes:
        notes.write(line + "\n")


INFO = {"serverInfo": {"name": "test", "version": "1"}, "capabilities": {"tools": {"listChanged": True}}}


def serve(call, tools=lambda: [tool("echo")], other=lambda message: refuse(message) if "id" in message else None):
    """Speaks the revision of 2025-06-18; `call` answers calls."""
    note("started")
    while True:
        message = receive()
        method = message.get("method")
        if method == "initialize":
            answer(message, {"protocolVersion": "2025-06-18", **INFO})
        elif method == "tools/list":
            answer(message, {"tools": tools()})
        elif method == "tools/call":
            call(message)
        elif method is not None:
            other(message)
