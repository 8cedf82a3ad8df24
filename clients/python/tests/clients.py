"""Both clients under one interface, so that each story is told once and heard by both."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Protocol, cast

import anyio.to_thread
import httpx
from anyio.from_thread import BlockingPortal

from roundhouse_client import (
    Admin,
    AsyncAdmin,
    AsyncEngine,
    AsyncFleet,
    Engine,
    Fleet,
    RetryPolicy,
)

RequestHook = Callable[[httpx.Request], None]
ResponseHook = Callable[[httpx.Response], None]
Hooks = dict[str, list[Callable[..., Any]]]


class Client(Protocol):
    """One of the two clients. What it makes has the methods of the synchronous one."""

    def fleet(self, url: str, key: str, *, http: httpx.Client | None = None) -> Fleet: ...

    def admin(self, url: str, key: str) -> Admin: ...

    def engine(
        self,
        url: str,
        key: str | None = None,
        *,
        token: str | None = None,
        retry: RetryPolicy | None = None,
        http: httpx.Client | None = None,
    ) -> Engine: ...

    def http(
        self, *, before: RequestHook | None = None, after: ResponseHook | None = None
    ) -> AbstractContextManager[httpx.Client]:
        """An HTTP client for it. `before` is called with each request, and `after` with each response."""
        ...


class SyncClient:
    """The synchronous client."""

    fleet = staticmethod(Fleet)
    admin = staticmethod(Admin)
    engine = staticmethod(Engine)

    def http(
        self, *, before: RequestHook | None = None, after: ResponseHook | None = None
    ) -> AbstractContextManager[httpx.Client]:
        hooks: Hooks = {"request": [before] if before else [], "response": [after] if after else []}
        return httpx.Client(event_hooks=hooks, timeout=60)


class AsyncClient:
    """The asynchronous client, in an event loop of its own."""

    def __init__(self, portal: BlockingPortal) -> None:
        self._portal = portal

    def fleet(self, url: str, key: str, *, http: httpx.Client | None = None) -> Fleet:
        return cast(Fleet, Driven(self._portal, AsyncFleet(url, key, http=cast(Any, http))))

    def admin(self, url: str, key: str) -> Admin:
        return cast(Admin, Driven(self._portal, AsyncAdmin(url, key)))

    def engine(
        self,
        url: str,
        key: str | None = None,
        *,
        token: str | None = None,
        retry: RetryPolicy | None = None,
        http: httpx.Client | None = None,
    ) -> Engine:
        engine = AsyncEngine(url, key, token=token, retry=retry, http=cast(Any, http))
        return cast(Engine, Driven(self._portal, engine))

    def http(
        self, *, before: RequestHook | None = None, after: ResponseHook | None = None
    ) -> AbstractContextManager[httpx.Client]:
        hooks: Hooks = {
            "request": [_in_a_thread(before)] if before else [],
            "response": [_in_a_thread(after)] if after else [],
        }
        driven = Driven(self._portal, httpx.AsyncClient(event_hooks=hooks, timeout=60))
        return cast(AbstractContextManager[httpx.Client], driven)


class Driven:
    """An object of the asynchronous client, used by a thread as if it were its synchronous twin."""

    def __init__(self, portal: BlockingPortal, target: Any) -> None:
        self._portal = portal
        self._target = target

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, "aclose" if name == "close" else name)
        return self._blocking(value) if inspect.ismethod(value) else _driven(self._portal, value)

    def _blocking(self, method: Callable[..., Any]) -> Callable[..., Any]:
        async def run(*arguments: Any, **options: Any) -> Any:
            # What asks a person may use the client itself.
            given = {name: _in_a_thread(one) if callable(one) else one for name, one in options.items()}
            result = method(*arguments, **given)
            return await result if inspect.isawaitable(result) else result

        def call(*arguments: Any, **options: Any) -> Any:
            result = self._portal.call(lambda: run(*arguments, **options))
            return _driven(self._portal, result)

        return call

    def __iter__(self) -> Iterator[Any]:
        return _iterate(self._portal, self._target.__aiter__())

    def __enter__(self) -> Any:
        return _driven(self._portal, self._portal.call(self._target.__aenter__))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._portal.call(self._target.__aexit__, kind, error, trace)


def _driven(portal: BlockingPortal, value: Any) -> Any:
    if hasattr(value, "__anext__"):
        return _iterate(portal, value)
    return Driven(portal, value) if type(value).__module__.startswith("roundhouse_client._async") else value


_END = object()


def _iterate(portal: BlockingPortal, iterator: Any) -> Iterator[Any]:
    async def following() -> Any:
        return await anext(iterator, _END)

    try:
        while (value := portal.call(following)) is not _END:
            yield value
    finally:
        portal.call(iterator.aclose)


def _in_a_thread(function: Callable[..., Any]) -> Callable[..., Any]:
    async def run(*arguments: Any) -> Any:
        return await anyio.to_thread.run_sync(function, *arguments)

    return run
