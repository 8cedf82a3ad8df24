"""An MCP server that does all that one must not do, a fault a time. It needs nothing but Python.

    misbehaving.py FAULT         over stdio
    misbehaving.py FAULT http    over streamable HTTP, on a free port of 127.0.0.1; prints `{"url": …}`

FAULT is one of those in `FAULTS`. Where a fault leaves it the choice it has the tools `good`, which answers, and `bad`.
"""

import itertools
import json
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ANYTHING = {"type": "object", "properties": {"text": {"type": "string"}}}
MIB = 1024 * 1024

FAULTS = {
    "silent-start": "never answers the first request",
    "silent-call": "never answers a call of `bad`",
    "silent-list": "never answers a request for its tools",
    "flood-message": "answers a call of `bad` with a message of 300 MiB",
    "flood-line": "answers a call of `bad` with bytes without end and without a line's end",
    "flood-notices": "answers a call of `bad` with notifications without end",
    "flood-errors": "writes to its error output without end",
    "flood-pages": "has always one more page of tools",
    "many-tools": "has 10,000 tools",
    "huge-tool": "has a tool with a definition of 1 MiB",
    "bad-schemas": "has tools whose schemas are none",
    "too-deep": "lists its tools in JSON that is deeper than anybody reads",
    "bad-names": "has tools with absurd names, and two of one name",
    "not-a-list": "has tools that are not a list",
    "dies-at-start": "ends before it answers anything",
    "dies-in-call": "ends in the middle of a call of `bad`",
    "garbage": "answers a call of `bad` with what is no JSON, and goes on",
    "wrong-id": "answers a call of `bad` under another id",
    "twice": "answers a call of `bad` twice",
    "wrong-result": "answers a call of `bad` with a result of another form",
    "wrong-version": "speaks a revision of the protocol that does not exist",
    "asks-much": "asks for sampling, roots and what does not exist in a call of `bad`",
}


def tool(name, schema=ANYTHING, **more):
    return {"name": name, "description": f"The tool {name}.", "inputSchema": schema, **more}


def tools(fault, cursor):
    good = [tool("good"), tool("bad")]
    match fault:
        case "many-tools":
            return {"tools": good + [tool(f"tool-{number}") for number in range(10_000)]}
        case "huge-tool":
            return {"tools": [*good, tool("huge", description="x" * MIB)]}
        case "bad-schemas":
            schemas = [
                None, "object", 7, [], {"type": "strange"}, {"type": "string"}, {"type": "object", "required": "x"},
                {"$ref": "#/nowhere"}, {"$ref": "http://127.0.0.1:1/schema.json"}, {"type": "object", "properties": []},
                {"type": "object", "properties": {"text": {"pattern": "("}}}, nested(20),
            ]
            return {"tools": good + [tool(f"schema-{at}", schema) for at, schema in enumerate(schemas)]}
        case "too-deep":
            return {"tools": [*good, tool("deep", nested(300))]}
        case "bad-names":
            names = [
                "", " ", "a b", "a/b", "../../etc", "x" * 200, "naïve", "ядро", "\u202egnp", "a\nb", "__", "good", 7, None,
            ]
            return {"tools": good + [tool(name) for name in names]}
        case "not-a-list":
            return {"tools": {"good": tool("good")}}
        case "flood-pages":
            page = int(cursor or 0)
            return {"tools": (good if page == 0 else []) + [tool(f"page-{page}")], "nextCursor": str(page + 1)}
    return {"tools": good}


def nested(depth):
    schema = ANYTHING
    for _ in range(depth):
        schema = {"type": "object", "properties": {"inner": schema}}
    return schema


def line(message):
    return json.dumps(message).encode() + b"\n"


def answered(request, result):
    return line({"jsonrpc": "2.0", "id": request["id"], "result": result})


def text(words):
    return {"content": [{"type": "text", "text": words}]}


def ask(number, method):
    return line({"jsonrpc": "2.0", "id": f"ask-{number}", "method": method, "params": {}})


def bad_call(fault, transport, request):
    """What comes of a call of `bad`: the lines."""
    good = answered(request, text("the bad tool answers"))
    match fault:
        case "silent-call":
            time.sleep(3600)
        case "flood-message":
            yield b'{"jsonrpc": "2.0", "id": ' + json.dumps(request["id"]).encode() + b', "result": {"content": ['
            yield b'{"type": "text", "text": "'
            yield from itertools.repeat(b"x" * MIB, 300)
            yield b'"}]}}\n'
        case "flood-line":
            yield from itertools.repeat(b"x" * MIB)
        case "flood-notices":
            notice = line({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
            message = {"level": "info", "data": "x" * 1024}
            more = line({"jsonrpc": "2.0", "method": "notifications/message", "params": message})
            yield from itertools.repeat((notice + more) * 64)
        case "dies-in-call":
            # Over HTTP it is the connection that ends.
            if transport == "http":
                raise ConnectionAbortedError
            os._exit(9)
        case "garbage":
            yield b"this is no JSON\n"
            yield b'{"jsonrpc": "2.0", "id": \n'
            yield b"\xff\xfe\x00\n"
            yield b"[]\n"
            yield good
        case "wrong-id":
            yield line({"jsonrpc": "2.0", "id": 123456, "result": text("not yours")})
            yield line({"jsonrpc": "2.0", "id": None, "result": text("nobody's")})
            time.sleep(3600)
        case "twice":
            yield good
            yield answered(request, text("and again"))
        case "wrong-result":
            yield answered(request, {"content": "a text", "isError": "perhaps"})
        case "asks-much":
            for number, method in enumerate(("sampling/createMessage", "roots/list", "nothing/known")):
                yield ask(number, method)
            yield good
        case _:
            yield good


def reply(fault, transport, request):
    """What a request is answered with: the lines."""
    if fault == "silent-start":
        time.sleep(3600)
    method, parameters = request.get("method"), request.get("params") or {}
    if "id" not in request or method is None:
        return
    if method == "server/discover":
        yield line({"jsonrpc": "2.0", "id": request["id"], "error": {"code": -32601, "message": "no such method"}})
    elif method == "initialize":
        version = "2099-01-01" if fault == "wrong-version" else "2025-06-18"
        yield answered(request, {
            "protocolVersion": version, "capabilities": {"tools": {"listChanged": True}},
            "serverInfo": {"name": "misbehaving", "version": "1"},
        })
    elif method == "tools/list":
        if fault == "silent-list":
            time.sleep(3600)
        yield answered(request, tools(fault, parameters.get("cursor")))
    elif method == "tools/call" and parameters.get("name") == "bad":
        yield from bad_call(fault, transport, request)
    elif method == "tools/call":
        yield answered(request, text("the good tool answers"))
    else:
        yield answered(request, {})


class Stdio:
    """One thread a request, as a server that hangs in one may still answer others."""

    def __init__(self, fault):
        self.fault, self.lock = fault, threading.Lock()

    def serve(self):
        if self.fault == "flood-errors":
            threading.Thread(target=self.complain, daemon=True).start()
        for request in sys.stdin.buffer:
            threading.Thread(target=self.answer, args=(json.loads(request),), daemon=True).start()

    def complain(self):
        while True:
            sys.stderr.write("x" * 4096 + "\n")

    def answer(self, request):
        # What is one answer is not mixed with others.
        with self.lock if self.fault.startswith("flood") else threading.Lock():
            for piece in reply(self.fault, "stdio", request):
                sys.stdout.buffer.write(piece)
                sys.stdout.buffer.flush()


class Http(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if "id" not in request or "method" not in request:
            self.send_response(202)
            self.send_header("content-length", "0")
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        pieces = reply(self.server.fault, "http", request)
        begun = False
        for piece in pieces:
            self.wfile.write(piece if begun else b"data: " + piece)
            begun = not piece.endswith(b"\n")
            if not begun:
                self.wfile.write(b"\n")
            self.wfile.flush()

    def do_GET(self):
        self.send_response(405)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


def main():
    fault, transport = sys.argv[1], (sys.argv[2:] or ["stdio"])[0]
    if fault not in FAULTS:
        sys.exit(f"no fault {fault!r} but " + ", ".join(FAULTS))
    if fault == "dies-at-start":
        sys.exit("it does not want to")
    if transport == "stdio":
        return Stdio(fault).serve()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Http)
    server.fault, server.daemon_threads = fault, True
    print(json.dumps({"url": f"http://127.0.0.1:{server.server_port}/mcp"}), flush=True)
    server.serve_forever()


main()
