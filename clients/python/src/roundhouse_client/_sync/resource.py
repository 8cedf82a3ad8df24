# Written by `generate` from `_async`; do not edit.
"""A group of calls of an engine."""

from __future__ import annotations

from .connection import Connection


class Resource:
    """What all groups have: the connection to the engine."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._call = connection.call
