"""What the asynchronous client needs; `_sync/_runtime.py` is the synchronous form."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable
from typing import BinaryIO, TypeVar

import anyio
import anyio.to_thread

T = TypeVar("T")

Lock = anyio.Lock
sleep = anyio.sleep


async def resolve(value: T | Awaitable[T]) -> T:
    """The value, awaited if necessary, so that a callback may be a plain function."""
    if inspect.isawaitable(value):
        awaited: T = await value
        return awaited
    return value


async def read(file: BinaryIO, size: int) -> bytes:
    """Reads `size` bytes, or less at the end of the file, without blocking the event loop."""
    return await anyio.to_thread.run_sync(_read, file, size)


def _read(file: BinaryIO, size: int) -> bytes:
    pieces = []
    while size > 0 and (piece := file.read(size)):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


async def write(file: BinaryIO, data: bytes) -> None:
    """Writes without blocking the event loop."""
    await anyio.to_thread.run_sync(file.write, data)
