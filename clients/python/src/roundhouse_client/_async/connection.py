"""Sends calls to a service: repeats them as the policy says, and finds an engine that has moved."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
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


def new_http_client() -> httpx.AsyncClient:
    """The HTTP client that is used by default. It uses no proxy of the environment, which would see keys."""
    return httpx.AsyncClient(timeout=TIMEOUT, limits=LIMITS, trust_env=False)


class AsyncConnection:
    """A client of one service at one address, which `renew` can replace."""

    def __init__(
        self,
        http: httpx.AsyncClient,
        endpoint: Endpoint,
        retry: RetryPolicy,
        renew: Callable[[], Awaitable[Endpoint]] | None = None,
    ) -> None:
        self.http = http
        self.endpoint = endpoint
        self.retry = retry
        self._renew = renew
        self._renewing = Lock()

    async def call(self, call: Call[T], retry: RetryPolicy | None = None) -> T:
        """Sends the call and returns what its response says."""
        return call.read((await self.exchange(call, retry)).body)

    async def exchange(self, call: Call[T], retry: RetryPolicy | None = None) -> Response:
        """Sends the call and returns its response, which is a success."""
        return await self._repeat(call, retry or self.retry, self._exchange_once)

    async def open(self, call: Call[T], retry: RetryPolicy | None = None) -> OpenResponse:
        """Sends the call and returns its response, of which only the head has arrived."""
        return await self._repeat(call, retry or self.retry, self._open_once)

    async def _repeat(
        self, call: Call[T], policy: RetryPolicy, send: Callable[[Call[T], Endpoint], Awaitable[R]]
    ) -> R:
        started, attempt, renewed = time.monotonic(), 0, False
        while True:
            attempt += 1
            endpoint = self.endpoint
            try:
                return await send(call, endpoint)
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
                await sleep(delay)
            if stale:
                await self._renew_from(endpoint, failure)

    async def _exchange_once(self, call: Call[T], endpoint: Endpoint) -> Response:
        async with await self._open_once(call, endpoint) as opened:
            body = await opened.read()
            return Response(opened.response.status_code, opened.response.headers, body)

    async def _open_once(self, call: Call[T], endpoint: Endpoint) -> OpenResponse:
        timeout = self.http.timeout
        if call.timeout is not None:
            timeout = httpx.Timeout(
                timeout.connect, read=call.timeout, write=timeout.write, pool=timeout.pool
            )
        what = f"{call.method} {call.path}"
        async with AsyncExitStack() as stack:
            try:
                response = await stack.enter_async_context(
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
            async with opened:
                raise error_of(response.status_code, response.headers, await opened.read())
        return opened

    async def _renew_from(self, stale: Endpoint, failure: RoundhouseError) -> None:
        """Looks up the engine, once for all who found it gone from `stale`."""
        assert self._renew is not None
        async with self._renewing:
            if self.endpoint is stale:
                try:
                    self.endpoint = await self._renew()
                except NetworkError as error:
                    raise failure from error

    async def events(self, call: Call[T], retry: RetryPolicy | None = None) -> AsyncEventStream:
        """Sends the call and returns the events of its response."""
        return AsyncEventStream(await self.open(_as_stream(call), retry))


def _may_go_on_at_once(call: Call[T], failure: RoundhouseError) -> bool:
    """Whether the call may be sent again: it was not carried out, or may be repeated."""
    return not isinstance(failure, NetworkError) or may_repeat(failure, attempt=1, repeatable=call.repeatable)


def _as_stream(call: Call[T]) -> Call[T]:
    headers = {"Accept": "text/event-stream", **call.headers}
    fields = {**call.__dict__, "headers": headers, "timeout": STREAM_TIMEOUT}
    return Call(**fields)


class OpenResponse:
    """A response whose body is read step by step."""

    def __init__(self, response: httpx.Response, what: str, stack: AsyncExitStack) -> None:
        self.response = response
        self._what = what
        self._stack = stack

    async def read(self) -> bytes:
        """Reads the whole body."""
        try:
            return await self.response.aread()
        except httpx.RequestError as error:
            raise network_error(error, self._what) from error

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body in the pieces in which it arrives."""
        try:
            async for chunk in self.response.aiter_bytes():
                yield chunk
        except httpx.RequestError as error:
            raise network_error(error, self._what) from error

    async def aclose(self) -> None:
        """Closes the connection if the body was not read to its end."""
        await self._stack.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class AsyncEventStream:
    """The events of a response, one by one."""

    def __init__(self, opened: OpenResponse) -> None:
        self._opened = opened
        self._chunks = opened.chunks()
        self._parser = SseParser()
        self._messages: deque[SseMessage] = deque()

    async def next(self) -> SseMessage | None:
        """The next event; `None` at the end of the stream."""
        while not self._messages:
            chunk = await anext(self._chunks, None)
            if chunk is None:
                return None
            self._messages.extend(self._parser.feed(chunk))
        return self._messages.popleft()

    async def aclose(self) -> None:
        """Closes the connection."""
        await self._opened.aclose()
