"""What the synchronous client needs; `_async/_runtime.py` is the asynchronous form."""

from __future__ import annotations

import threading
import time
from typing import BinaryIO, TypeVar

T = TypeVar("T")

Lock = threading.Lock
sleep = time.sleep


def resolve(value: T) -> T:
    """The value of a callback."""
    return value


def read(file: BinaryIO, size: int) -> bytes:
    """Reads `size` bytes, or less at the end of the file."""
    pieces = []
    while size > 0 and (piece := file.read(size)):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def write(file: BinaryIO, data: bytes) -> None:
    """Writes."""
    file.write(data)
