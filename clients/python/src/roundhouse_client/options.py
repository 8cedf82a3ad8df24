"""What callers pass to a turn: answers to its requests, and the requests as a callback gets them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from .events import ApprovalRequestEvent, HitlRequestEvent


@dataclass(frozen=True)
class Request:
    """What the agent waits for: a question, or the permission to call a tool."""

    request_id: str
    task_id: str
    kind: str
    """`permission` or `question`."""
    question: str
    """The text to show."""
    options: tuple[str, ...]
    """The answers to choose from, if the agent provides any."""
    approval: ApprovalRequestEvent | None
    """With `permission`: the call, what it would do, and what can be decided."""
    event: HitlRequestEvent


@dataclass(frozen=True)
class Answer:
    """An answer in words: `yes`, `no` or `always` to a permission, any text to a question."""

    answer: str
    feedback: str | None = None
    """Further words to the agent."""
    content_blocks: Sequence[Mapping[str, Any]] = ()
    """Text, images and documents for the agent."""
    scope: Literal["task", "engine"] | None = None
    """With `always`: where it holds."""


@dataclass(frozen=True)
class Decision:
    """A decision about a tool call, in the terms of `Request.approval`."""

    decision: Literal["allow_once", "allow_task", "allow_always", "deny"]
    pattern: str | None = None
    """With `allow_task` and `allow_always`: which later calls are covered."""
    input: Mapping[str, Any] | None = None
    """The input to run the call with, in place of the model's."""
    message: str | None = None
    """A word to the agent."""


Reply: TypeAlias = Answer | Decision | str | bool | None
"""What a callback returns. A text is an `Answer`; true and false are `yes` and `no`; `None` leaves the
request waiting, to be answered by somebody else or later.
"""

RequestHandler: TypeAlias = Callable[[Request], Reply]
"""Answers a request of the agent. While it runs, no further events are read."""

AsyncRequestHandler: TypeAlias = Callable[[Request], Awaitable[Reply] | Reply]
"""Answers a request of the agent; a plain function will do, too."""
