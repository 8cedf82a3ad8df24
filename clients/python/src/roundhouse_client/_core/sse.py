"""A parser of Server-Sent Events that takes bytes in any pieces."""

from __future__ import annotations

from dataclasses import dataclass

from .._errors.base import ProtocolError

MAX_EVENT_BYTES = 128 * 1024 * 1024
"""The size of the largest event that is accepted: more than any event of an engine."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class SseMessage:
    """An event as it was sent."""

    event: str
    """The type; `message` if there was no `event:` line."""
    data: str
    """The data; several lines are joined by line feeds."""
    id: str | None
    """The value of this event's own `id:` line; `None` without one."""


class SseParser:
    """Parses a stream as the HTML standard describes; an event that is cut off at the end is dropped."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._scanned = 0
        self._at_start = True
        self._event = ""
        self._id: str | None = None
        self._data: list[str] = []
        self._data_bytes = 0

    def feed(self, chunk: bytes) -> list[SseMessage]:
        """Takes the next bytes and returns the events that they complete."""
        self._rest += chunk
        messages: list[SseMessage] = []
        if self._at_start and not self._skip_byte_order_mark():
            return messages
        start = 0
        while (line_end := self._find_line_end(start)) is not None:
            end, following = line_end
            message = self._take_line(bytes(self._rest[start:end]))
            if message is not None:
                messages.append(message)
            start = self._scanned = following
        del self._rest[:start]
        self._scanned -= start
        if len(self._rest) + self._data_bytes > MAX_EVENT_BYTES:
            raise ProtocolError(f"an event is larger than {MAX_EVENT_BYTES} bytes")
        return messages

    def _skip_byte_order_mark(self) -> bool:
        """Whether the beginning is known; until then nothing is parsed."""
        if len(self._rest) < len(_BYTE_ORDER_MARK) and _BYTE_ORDER_MARK.startswith(self._rest):
            return False
        if self._rest.startswith(_BYTE_ORDER_MARK):
            del self._rest[: len(_BYTE_ORDER_MARK)]
        self._at_start = False
        return True

    def _find_line_end(self, start: int) -> tuple[int, int] | None:
        """Returns where the line ends and where the next one begins; `None` if that is not known yet."""
        begin = max(start, self._scanned)
        feed = self._rest.find(b"\n", begin)
        end = feed if feed >= 0 else len(self._rest)
        carriage = self._rest.find(b"\r", begin, end)
        if carriage < 0:
            self._scanned = end
            return (feed, feed + 1) if feed >= 0 else None
        if carriage + 1 == len(self._rest):
            # A line feed may follow, which belongs to this line.
            self._scanned = carriage
            return None
        return carriage, carriage + (2 if self._rest[carriage + 1] == 0x0A else 1)

    def _take_line(self, line: bytes) -> SseMessage | None:
        if not line:
            return self._dispatch()
        name, _, value = line.decode("utf-8", errors="replace").partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
            self._data_bytes += len(line)
        elif name == "event":
            self._event = value
        elif name == "id" and "\0" not in value:
            self._id = value
        return None

    def _dispatch(self) -> SseMessage | None:
        message = (
            SseMessage(self._event or "message", "\n".join(self._data), self._id) if self._data else None
        )
        self._event, self._id, self._data, self._data_bytes = "", None, [], 0
        return message
