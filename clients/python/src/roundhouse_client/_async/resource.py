"""A group of calls of an engine."""

from __future__ import annotations

from .connection import AsyncConnection


class AsyncResource:
    """What all groups have: the connection to the engine."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection
        self._call = connection.call
