"""Writes the synchronous client from the asynchronous one, token by token."""

from __future__ import annotations

import io
import itertools
import re
import tokenize

_NAMES = {
    "aclose": "close",
    "aiter_bytes": "iter_bytes",
    "aread": "read",
    "AsyncIterable": "Iterable",
    "AsyncIterator": "Iterator",
    "AsyncGenerator": "Generator",
    "AsyncClient": "Client",
    "AsyncContextManager": "ContextManager",
    "asynccontextmanager": "contextmanager",
    "AsyncExitStack": "ExitStack",
    "enter_async_context": "enter_context",
    "StopAsyncIteration": "StopIteration",
    "_async": "_sync",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "anext": "next",
}

_DROPPED = frozenset({"async", "await"})

_AWAITABLE = re.compile(r"\bAwaitable\[((?:[^\[\]]|\[[^\[\]]*\])*)\]")

NOTE = "# Written by `generate` from `_async`; do not edit.\n"


def to_sync(source: str) -> str:
    """The synchronous form of a module."""
    source = _AWAITABLE.sub(r"\1", source)
    lines = source.splitlines(keepends=True)
    edits: list[tuple[int, int, int, str]] = []
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    for token, following in itertools.pairwise(tokens):
        row, column = token.start
        if token.type == tokenize.NAME and token.string in _DROPPED:
            edits.append((row, column, following.start[1], ""))
        elif token.type == tokenize.NAME and (name := _name(token.string)) != token.string:
            edits.append((row, column, token.end[1], name))
        elif token.type == tokenize.STRING and token.start[0] != token.end[0]:
            for number in range(token.start[0], token.end[0] + 1):
                lines[number - 1] = _prose(lines[number - 1])
        elif token.type == tokenize.STRING and token.string.startswith('"""'):
            edits.append((row, column, token.end[1], _prose(token.string)))
    for row, start, end, text in reversed(edits):
        line = lines[row - 1]
        lines[row - 1] = line[:start] + text + line[end:]
    return NOTE + "".join(lines)


def _name(name: str) -> str:
    if name in _NAMES:
        return _NAMES[name]
    return re.sub(r"^(_?)Async(?=[A-Z])", r"\1", name)


def _prose(text: str) -> str:
    text = re.sub(r"\bAsync(?=[A-Z])", "", text)
    return re.sub(r"\b(?:async |await )", "", text)
