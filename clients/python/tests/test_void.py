"""A model that says something else when it is asked again: what was said first is void."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from fleet import Fleet as RunningFleet
from roundhouse_client import Event, Fleet
from roundhouse_client.events import TextDeltaEvent, TurnCompletedEvent, TurnRetryingEvent


class FickleModel(BaseHTTPRequestHandler):
    """Speaks the protocol of chat completions; its first answer breaks off, and the next one is another."""

    answers = 0

    def do_POST(self) -> None:
        """Answers in words, of which each is a chunk."""
        self.rfile.read(int(self.headers["content-length"]))
        FickleModel.answers += 1
        first = FickleModel.answers == 1
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        for word in ("eins ", "zwei ", "drei ") if first else ("uno ", "dos"):
            self._send({"index": 0, "delta": {"role": "assistant", "content": word}, "finish_reason": None})
        if not first:
            self._send({"index": 0, "delta": {}, "finish_reason": "stop"})
            self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def _send(self, choice: dict[str, object]) -> None:
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


@pytest.fixture
def model() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), FickleModel)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_repeated_step_voids_what_was_said(model: str) -> None:
    variables = {"LLM_PROVIDER": "openai-compatible", "LLM_MODEL": "m", "LLM_BASE_URL": model}
    with (
        RunningFleet(**variables, LLM_API_KEY="provider-key") as running,
        Fleet(running.url, running.key) as fleet,
    ):
        turn = fleet.admit("ada").run("fickle", "Count")
        shown: list[Event] = []
        voided: list[Event] = []
        for event in turn:
            if isinstance(event, TurnRetryingEvent):
                voided += [earlier for earlier in shown if event.voids(earlier)]
                shown = [earlier for earlier in shown if not event.voids(earlier)]
            shown.append(event)
    assert "".join(event.text for event in voided if isinstance(event, TextDeltaEvent)) == "eins zwei drei "
    assert "".join(event.text for event in shown if isinstance(event, TextDeltaEvent)) == "uno dos"
    assert isinstance(shown[-1], TurnCompletedEvent)
    assert turn.text_so_far == turn.text() == "uno dos"
