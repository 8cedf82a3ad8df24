"""What files contain."""

from __future__ import annotations

import hashlib


def data(size: int) -> bytes:
    """So many bytes (a multiple of 32) that do not repeat themselves."""
    return b"".join(hashlib.sha256(str(number).encode()).digest() for number in range(size // 32))
