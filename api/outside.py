"""What an engine reaches outside: a tool server with one tool, and a receiver of webhooks."""

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

KEY = "tool-server-key"
TOOL = {
    "name": "find_note",
    "description": "Finds notes.",
    "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}},
}


def mcp_answer(request: dict) -> dict:
    match request["method"]:
        case "initialize":
            version, server = "2025-11-25", {"name": "notes", "version": "1"}
            result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": server}
        case "tools/list":
            result = {"tools": [TOOL]}
        case method:
            return {"error": {"code": -32601, "message": f"there is no method `{method}`"}}
    return {"result": result}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/webhook":
            self.answer(204)
        elif self.headers["Authorization"] != f"Bearer {KEY}":
            self.answer(401)
        elif "id" not in request:
            self.answer(202)
        else:
            answer = {"jsonrpc": "2.0", "id": request["id"], **mcp_answer(request)}
            self.answer(200, json.dumps(answer).encode())

    # There is no stream of messages, and no session to end.
    def do_GET(self) -> None:
        self.answer(405)

    do_DELETE = do_GET

    def answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextlib.contextmanager
def serving() -> Iterator[str]:
    """The address of both, `/mcp` and `/webhook`, while it is served."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
