"""Typed client of Roundhouse: a private, durable AI agent for every user of your product."""

from . import errors, events, models
from ._async.engine import AsyncEngine
from ._async.fleet import AsyncAdmin, AsyncFleet
from ._async.transfers import AsyncDownload
from ._async.turn import AsyncTurn
from ._core.execute import TurnOptions
from ._core.retry import RetryPolicy
from ._core.turn import TurnResult
from ._sync.engine import Engine
from ._sync.fleet import Admin, Fleet
from ._sync.transfers import Download
from ._sync.turn import Turn
from ._version import __version__
from .errors import (
    ApiError,
    NetworkError,
    NotAdmittedError,
    RoundhouseError,
    TurnCancelledError,
    TurnFailedError,
    TurnLostError,
)
from .events import Event, UnknownEvent
from .options import Answer, AsyncRequestHandler, Decision, Reply, Request, RequestHandler

__all__ = [
    "Admin",
    "Answer",
    "ApiError",
    "AsyncAdmin",
    "AsyncDownload",
    "AsyncEngine",
    "AsyncFleet",
    "AsyncRequestHandler",
    "AsyncTurn",
    "Decision",
    "Download",
    "Engine",
    "Event",
    "Fleet",
    "NetworkError",
    "NotAdmittedError",
    "Reply",
    "Request",
    "RequestHandler",
    "RetryPolicy",
    "RoundhouseError",
    "Turn",
    "TurnCancelledError",
    "TurnFailedError",
    "TurnLostError",
    "TurnOptions",
    "TurnResult",
    "UnknownEvent",
    "__version__",
    "errors",
    "events",
    "models",
]
