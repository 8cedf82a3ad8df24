"""A request to a service and the reading of its response, without the sending."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from urllib.parse import quote

from pydantic import BaseModel, TypeAdapter, ValidationError

from .._errors.base import (
    ApiError,
    AuthenticationError,
    BadRequestError,
    ConflictError,
    ForbiddenError,
    NotFoundError,
    ProtocolError,
    ServerError,
    TooManyRequestsError,
    UnavailableError,
)
from .._errors.codes import CODES
from .retry import parse_retry_after

T = TypeVar("T")

QueryValue = str | int | float | bool | None

_BY_STATUS: dict[int, type[ApiError]] = {
    400: BadRequestError,
    401: AuthenticationError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    429: TooManyRequestsError,
    503: UnavailableError,
}

_REPEATABLE_METHODS = frozenset({"GET", "HEAD", "PUT"})


@dataclass(frozen=True)
class Call(Generic[T]):
    """A request whose response is a `T`."""

    method: str
    path: str
    """The path with its segments encoded."""
    answer: type[T] | None = None
    """What the body of the response is; `None` if it is not read."""
    query: Mapping[str, QueryValue] = field(default_factory=dict)
    body: Any = None
    """What is sent as JSON."""
    raw: bytes | None = None
    """What is sent as it is, in place of `body`."""
    headers: Mapping[str, str] = field(default_factory=dict)
    idempotent: bool | None = None
    """Whether it may be repeated if its outcome is unknown; by default as its method says."""
    timeout: float | None = None
    """Seconds without a byte of the response after which it counts as lost; by default those of the
    client.
    """

    @property
    def repeatable(self) -> bool:
        """Whether it may be repeated if its outcome is unknown."""
        return self.method in _REPEATABLE_METHODS if self.idempotent is None else self.idempotent

    @property
    def query_items(self) -> list[tuple[str, str | int | float | bool | None]]:
        """The parameters of the query that have a value."""
        given = ((name, value) for name, value in self.query.items() if value is not None)
        return [(name, _query_text(value)) for name, value in given]

    def content(self) -> bytes | None:
        """The body as it is sent."""
        if self.body is None:
            return self.raw
        return json.dumps(plain(self.body), ensure_ascii=False, separators=(",", ":")).encode()

    def read(self, body: bytes) -> T:
        """Reads the body of a successful response."""
        if self.answer is None:
            return None  # type: ignore[return-value]
        return read_json(self.answer, body, f"{self.method} {self.path}")


def read_json(kind: type[T], body: bytes, what: str) -> T:
    """Reads `body` as a `kind`."""
    try:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind.model_validate_json(body)
        return TypeAdapter(kind).validate_json(body)
    except ValidationError as error:
        raise ProtocolError(f"the response to {what} is not what is documented: {error}") from error


def error_of(status: int, headers: Mapping[str, str], body: bytes) -> ApiError:
    """The error that a response with a status other than 2xx stands for."""
    code, message = _envelope(body)
    kind = CODES.get(code or "") or _BY_STATUS.get(status) or (ServerError if status >= 500 else ApiError)
    return kind(
        message or f"the service answered with status {status}",
        code=code,
        status=status,
        retry_after=parse_retry_after(headers.get("retry-after")),
        request_id=headers.get("x-request-id"),
    )


def _envelope(body: bytes) -> tuple[str | None, str | None]:
    """The code and the message: nested as everywhere, or flat as `/rpc` has them."""
    try:
        document = json.loads(body)
    except ValueError:
        return None, None
    error = document.get("error") if isinstance(document, dict) else None
    if isinstance(error, dict):
        return _text(error.get("code")), _text(error.get("message"))
    if isinstance(error, str):
        return error, _text(document.get("message"))
    return None, None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _query_text(value: str | int | float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def plain(value: Any) -> Any:
    """A value of JSON: models become objects, without what was not set."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True, exclude_unset=True)
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [plain(item) for item in value]
    return value


def given(**fields: Any) -> dict[str, Any]:
    """The fields that are not `None`, as the body of a request."""
    return {name: value for name, value in fields.items() if value is not None}


def segment(text: str) -> str:
    """A segment of a path. `.` and `..` are encoded too, because clients would resolve them."""
    if text in (".", ".."):
        return text.replace(".", "%2E")
    return quote(text, safe="")


def file_path(path: str) -> str:
    """The path of a file in a workspace, of names that are separated by `/`."""
    return "/".join(segment(name) for name in path.strip("/").split("/"))
