"""A network between a client and a service that cuts connections, and where it does so."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from types import TracebackType

from clients import Client
from roundhouse_client import Engine, Event, RetryPolicy, Turn

PATIENT = RetryPolicy(base=0.01, cap=0.05, max_attempts=20)


class Cutter:
    """A TCP proxy that cuts connections where `cut` says.

    `cut` gets what a connection has received from the service so far and returns how much of it to pass on
    before the connection is cut, or `None` to pass on everything.
    """

    def __init__(self, target: str, cut: Callable[[bytes], int | None]) -> None:
        host, port = target.removeprefix("http://").split(":")
        self._target = (host, int(port))
        self.cut = cut
        self.connections = 0
        self.cuts = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            service = socket.create_connection(self._target)
        except OSError:
            client.close()
            return
        threading.Thread(target=_pump, args=(client, service), daemon=True).start()
        seen, passed = b"", 0
        with client, service:
            while True:
                try:
                    received = service.recv(65536)
                except OSError:
                    return
                if not received:
                    return
                seen += received
                limit = self.cut(seen)
                until = len(seen) if limit is None else limit
                try:
                    client.sendall(seen[passed:until])
                    passed = max(passed, until)
                    if limit is not None:
                        self.cuts += 1
                        client.shutdown(socket.SHUT_RDWR)
                        service.shutdown(socket.SHUT_RDWR)
                        return
                except OSError:
                    return

    def __enter__(self) -> Cutter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()


def _pump(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass


def key_of(engine: Engine) -> str:
    """The key of an engine."""
    return engine._connection.endpoint.headers["X-Engine-Key"]


def through(cutter: Cutter, engine: Engine, client: Client) -> Engine:
    """The engine, reached through the proxy, by a client that comes back soon."""
    return client.engine(cutter.url, key_of(engine), retry=PATIENT)


def stored(engine: Engine, turn: Turn) -> list[Event]:
    """The events that the engine has of a turn."""
    assert turn.turn_id is not None
    return list(engine.follow(turn.task_id, turn.turn_id))


def is_stream(seen: bytes) -> bool:
    return b"text/event-stream" in seen


def after_events(seen: bytes, count: int) -> int | None:
    """Where the event with this number ends; `None` if it has not."""
    head = seen.find(b"\r\n\r\n") if is_stream(seen) else -1
    at = head + 2
    for _ in range(count):
        at = seen.find(b"\n\n", at + 2)
        if at < 0:
            return None
    return at + 2 if head >= 0 else None


def once_after(count: int) -> Callable[[bytes], int | None]:
    """Cuts one stream, after so many of its events."""
    left = [1]

    def cut(seen: bytes) -> int | None:
        at = after_events(seen, count)
        if at is None or not left[0]:
            return None
        left[0] = 0
        return at

    return cut
