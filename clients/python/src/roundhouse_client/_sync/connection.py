# Written by `generate` from `_async`; do not edit.
"""Sends calls to a service: repeats them as the policy says, and finds an engine that has moved."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import TypeVar

import httpx
from typing_extensions import Self

from .._core.call import Call, error_of
from .._core.endpoint import LIMITS, STREAM_TIMEOUT, TIMEOUT, Endpoint, network_error
from .._core.retry import RetryPolicy, may_repeat, needs_admit
from .._core.sse import SseMessage, SseParser
from .._errors.base import NetworkError, RoundhouseError
from ._runtime import Lock, sleep

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Response:
    """A response that was read to its end."""

    status: int
    headers: httpx.Headers
    body: bytes


def new_http_client() -> httpx.Client:
    """The HTTP client that is used by default. It uses no proxy of the environment, which would see keys."""
    return httpx.Client(timeout=TIMEOUT, limits=LIMITS, trust_env=False)


class Connection:
    """A client of one service at one address, which `renew` can replace."""

    def __init__(
        self,
        http: httpx.Client,
        endpoint: Endpoint,
        retry: RetryPolicy,
        renew: Callable[[], Endpoint] | None = None,
    ) -> None:
        self.http = http
        self.endpoint = endpoint
        self.retry = retry
        self._renew = renew
        self._renewing = Lock()

    def call(self, call: Call[T], retry: RetryPolicy | None = None) -> T:
        """Sends the call and returns what its response says."""
        return call.read((self.exchange(call, retry)).body)

    def exchange(self, call: Call[T], retry: RetryPolicy | None = None) -> Response:
        """Sends the call and returns its response, which is a success."""
        return self._repeat(call, retry or self.retry, self._exchange_once)

    def open(self, call: Call[T], retry: RetryPolicy | None = None) -> OpenResponse:
        """Sends the call and returns its response, of which only the head has arrived."""
        return self._repeat(call, retry or self.retry, self._open_once)

    def _repeat(self, call: Call[T], policy: RetryPolicy, send: Callable[[Call[T], Endpoint], R]) -> R:
        started, attempt, renewed = time.monotonic(), 0, False
        while True:
            attempt += 1
            endpoint = self.endpoint
            try:
                return send(call, endpoint)
            except RoundhouseError as error:
                failure = error
            stale = self._renew is not None and needs_admit(failure)
            if stale and not renewed and _may_go_on_at_once(call, failure):
                renewed = True
            else:
                elapsed = time.monotonic() - started
                delay = policy.delay(failure, attempt=attempt, elapsed=elapsed, repeatable=call.repeatable)
                if delay is None:
                    raise failure
                sleep(delay)
            if stale:
                self._renew_from(endpoint, failure)

    def _exchange_once(self, call: Call[T], endpoint: Endpoint) -> Response:
        with self._open_once(call, endpoint) as opened:
            body = opened.read()
            return Response(opened.response.status_code, opened.response.headers, body)

    def _open_once(self, call: Call[T], endpoint: Endpoint) -> OpenResponse:
        timeout = self.http.timeout
        if call.timeout is not None:
            timeout = httpx.Timeout(
                timeout.connect, read=call.timeout, write=timeout.write, pool=timeout.pool
            )
        what = f"{call.method} {call.path}"
        with ExitStack() as stack:
            try:
                response = stack.enter_context(
                    self.http.stream(
                        call.method,
                        endpoint.url + call.path,
                        params=call.query_items or None,
                        content=call.content(),
                        headers=endpoint.request_headers(call),
                        timeout=timeout,
                    )
                )
            except httpx.RequestError as error:
                raise network_error(error, what) from error
            opened = OpenResponse(response, what, stack.pop_all())
        if not response.is_success:
            with opened:
                raise error_of(response.status_code, response.headers, opened.read())
        return opened

    def _renew_from(self, stale: Endpoint, failure: RoundhouseError) -> None:
        """Looks up the engine, once for all who found it gone from `stale`."""
        assert self._renew is not None
        with self._renewing:
            if self.endpoint is stale:
                try:
                    self.endpoint = self._renew()
                except NetworkError as error:
                    raise failure from error

    def events(self, call: Call[T], retry: RetryPolicy | None = None) -> EventStream:
        """Sends the call and returns the events of its response."""
        return EventStream(self.open(_as_stream(call), retry))


def _may_go_on_at_once(call: Call[T], failure: RoundhouseError) -> bool:
    """Whether the call may be sent again: it was not carried out, or may be repeated."""
    return not isinstance(failure, NetworkError) or may_repeat(failure, attempt=1, repeatable=call.repeatable)


def _as_stream(call: Call[T]) -> Call[T]:
    headers = {"Accept": "text/event-stream", **call.headers}
    fields = {**call.__dict__, "headers": headers, "timeout": STREAM_TIMEOUT}
    return Call(**fields)


class OpenResponse:
    """A response whose body is read step by step."""

    def __init__(self, response: httpx.Response, what: str, stack: ExitStack) -> None:
        self.response = response
        self._what = what
        self._stack = stack

    def read(self) -> bytes:
        """Reads the whole body."""
        try:
            return self.response.read()
        except httpx.RequestError as error:
            raise network_error(error, self._what) from error

    def chunks(self) -> Iterator[bytes]:
        """The body in the pieces in which it arrives."""
        try:
            for chunk in self.response.iter_bytes():
                yield chunk
        except httpx.RequestError as error:
            raise network_error(error, self._what) from error

    def close(self) -> None:
        """Closes the connection if the body was not read to its end."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class EventStream:
    """The events of a response, one by one."""

    def __init__(self, opened: OpenResponse) -> None:
        self._opened = opened
        self._chunks = opened.chunks()
        self._parser = SseParser()
        self._messages: deque[SseMessage] = deque()

    def next(self) -> SseMessage | None:
        """The next event; `None` at the end of the stream."""
        while not self._messages:
            chunk = next(self._chunks, None)
            if chunk is None:
                return None
            self._messages.extend(self._parser.feed(chunk))
        return self._messages.popleft()

    def close(self) -> None:
        """Closes the connection."""
        self._opened.close()
