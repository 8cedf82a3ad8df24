"""A model that says something else when it is asked again."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def fickle_model() -> Iterator[str]:
    """The address of a model that breaks off after `eins zwei drei`, and says `uno dos` when asked again."""
    answers = [0]

    class Model(BaseHTTPRequestHandler):
        """Speaks the protocol of chat completions."""

        def do_POST(self) -> None:
            """Answers in words, of which each is a chunk."""
            self.rfile.read(int(self.headers["content-length"]))
            answers[0] += 1
            first = answers[0] == 1
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            for word in ("eins ", "zwei ", "drei ") if first else ("uno ", "dos"):
                self._send({"role": "assistant", "content": word}, None)
            if not first:
                self._send({}, "stop")
                self.wfile.write(b"data: [DONE]\n\n")
            self.close_connection = True

        def _send(self, delta: dict[str, str], finish_reason: str | None) -> None:
            choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
            chunk = {
                "id": "c",
                "object": "chat.completion.chunk",
                "created": 1,
                "model": "m",
                "choices": [choice],
            }
            self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
            self.wfile.flush()

        def log_message(self, format: str, *args: object) -> None:
            """Logs nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
