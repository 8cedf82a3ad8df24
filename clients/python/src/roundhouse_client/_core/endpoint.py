"""Where a service is, and how a client of it is set up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from .._errors.base import NetworkError
from .._version import __version__
from .call import Call, segment

USER_AGENT = f"roundhouse-client-python/{__version__}"

# The service closes a connection after 30 idle seconds, and a request must not meet that.
LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=100, keepalive_expiry=15.0)

# An admit may take as long as a boot. The streams of turns have a timeout of their own.
TIMEOUT = httpx.Timeout(connect=5.0, read=110.0, write=60.0, pool=5.0)

STREAM_TIMEOUT = 45.0
"""Seconds without a byte after which a stream counts as broken: an engine sends a heartbeat every 15."""


@dataclass(frozen=True)
class Endpoint:
    """The address of a service and the headers that authenticate the caller."""

    url: str
    headers: Mapping[str, str] = field(repr=False)

    @classmethod
    def product(cls, url: str, key: str) -> Endpoint:
        """An orchestrator, for a product."""
        return cls(_base(url), {"X-Platform-Key": key})

    @classmethod
    def operator(cls, url: str, key: str) -> Endpoint:
        """An orchestrator, for its operator."""
        return cls(_base(url), {"X-Admin-Key": key})

    @classmethod
    def engine(cls, url: str, key: str) -> Endpoint:
        """An engine."""
        return cls(_base(url), {"X-Engine-Key": key})

    @classmethod
    def page(cls, url: str, token: str) -> Endpoint:
        """An engine, or the orchestrator's proxy to one, for whoever has a browser token."""
        return cls(_base(url), {"Authorization": f"Bearer {token}"})

    def proxied(self, user_id: str) -> Endpoint:
        """The engine of a user, through this orchestrator."""
        return Endpoint(f"{self.url}/engines/{segment(user_id)}/proxy", self.headers)

    def request_headers(self, call: Call[Any]) -> dict[str, str]:
        """The headers of a request."""
        headers = {"User-Agent": USER_AGENT, **self.headers}
        if call.body is not None:
            headers["Content-Type"] = "application/json"
        return {**headers, **call.headers}


def _base(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"the address of a service begins with http:// or https://, unlike {url!r}")
    return url.rstrip("/")


def network_error(error: httpx.RequestError, what: str) -> NetworkError:
    """The error of this package for one of the HTTP client."""
    unsent = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
    reason = str(error) or type(error).__name__
    return NetworkError(f"{what}: {reason}", sent=not isinstance(error, unsent))
