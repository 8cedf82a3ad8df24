"""When a failed request is repeated, and after which pause."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from .._errors.base import NetworkError, RoundhouseError

# The service refuses with these before it does anything, so any request may be repeated.
_REFUSED_UNDONE = frozenset({"RATE_LIMITED", "CAPACITY_EXHAUSTED", "OVERLOADED", "QUIESCED", "SHUTTING_DOWN"})

# A change may have been made although these were answered.
_OUTCOME_UNKNOWN = frozenset({"STARTING_UP", "REQUEST_TIMEOUT"})

_BACKEND_ERROR = "BACKEND_ERROR"

_STALE_ENGINE = frozenset({"INVALID_ENGINE_KEY", "QUIESCED", "SHUTTING_DOWN", "ENGINE_NOT_RUNNING"})


@dataclass(frozen=True)
class RetryPolicy:
    """How long and how often a request is repeated.

    A request that is not safe to repeat is repeated only if the service certainly did not carry it out: it
    could not be connected to, or refused with a code that says so. `Retry-After` is honoured, and never cut
    short: if it goes beyond the deadline, the error is raised at once.
    """

    deadline: float = 60.0
    """Seconds from the first attempt after which no further one begins."""
    max_attempts: int = 10
    base: float = 0.25
    """Seconds before the second attempt; doubled with each further one."""
    cap: float = 5.0
    """The longest pause that is chosen without `Retry-After`."""
    jitter: float = 0.2
    """The part of a pause by which it is longer or shorter at random."""
    random: Callable[[], float] = field(default=random.random, repr=False, compare=False)

    def back_off(self, attempt: int) -> float:
        """The pause after the attempt with this number, counted from 1."""
        pause = min(self.cap, self.base * 2.0 ** min(attempt - 1, 16))
        return pause * (1.0 + self.jitter * (2.0 * self.random() - 1.0))

    def delay(
        self, error: RoundhouseError, *, attempt: int, elapsed: float, repeatable: bool
    ) -> float | None:
        """The pause before the next attempt; `None` if there is none.

        `attempt` is the number of the attempt that failed with `error`, `elapsed` the time since the first
        began.
        """
        if attempt >= self.max_attempts or not may_repeat(error, attempt=attempt, repeatable=repeatable):
            return None
        pause = self.back_off(attempt)
        if error.retry_after is not None:
            pause = max(pause, error.retry_after)
        return pause if elapsed + pause <= self.deadline else None


def may_repeat(error: RoundhouseError, *, attempt: int, repeatable: bool) -> bool:
    """Whether a request that failed like this may be sent again."""
    if isinstance(error, NetworkError):
        return repeatable or not error.sent
    if error.code in _REFUSED_UNDONE:
        return True
    if error.code in _OUTCOME_UNKNOWN:
        return repeatable
    return error.code == _BACKEND_ERROR and repeatable and attempt == 1


def needs_admit(error: RoundhouseError) -> bool:
    """Whether the engine may have another address or key now, which an admit tells.

    None of these requests was carried out, except with a `NetworkError` that is `sent`.
    """
    return isinstance(error, NetworkError) or error.code in _STALE_ENGINE


def parse_retry_after(value: str | None) -> float | None:
    """The seconds of a `Retry-After` header; `None` if there is none that can be read."""
    try:
        seconds = float(value) if value is not None else -1.0
    except ValueError:
        return None
    return seconds if 0.0 <= seconds < float("inf") else None
