"""The errors that do not belong to one code: their common base, the groups by status, and local failures."""

from __future__ import annotations


class RoundhouseError(Exception):
    """The base of every error of this package.

    `code` is the stable code by which programs decide, `message` is for people and is not to be matched.
    `status`, `retry_after` (seconds) and `request_id` are those of the response, if there was one.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        status: int | None = None,
        retry_after: float | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.status = status
        self.retry_after = retry_after
        self.request_id = request_id

    def __str__(self) -> str:
        return f"{self.message} ({self.code})" if self.code else self.message


class NetworkError(RoundhouseError):
    """The service could not be reached, or the connection broke.

    With `sent` false the request certainly did not reach the service; with true its outcome is unknown.
    """

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


class ProtocolError(RoundhouseError):
    """A response is not what the service is documented to send: another service may be at the address."""


class NotAdmittedError(RoundhouseError):
    """The user was not admitted.

    `reason` is `engine_not_found`, `engine_sleeping`, `engine_stopped`, `engine_unhealthy`, or a later one.
    """

    def __init__(self, user_id: str, reason: str) -> None:
        super().__init__(f"the user `{user_id}` was not admitted: {reason}", code=reason.upper())
        self.user_id = user_id
        self.reason = reason


class TurnFailedError(RoundhouseError):
    """The turn ended with an `error` event, whose `code` this has.

    With `retryable` the same message may succeed later without a change of configuration.
    """

    def __init__(self, message: str, *, code: str | None, retryable: bool) -> None:
        super().__init__(message, code=code)
        self.retryable = retryable


class TurnCancelledError(RoundhouseError):
    """The turn was cancelled, while it ran or before it began."""


class TurnLostError(RoundhouseError):
    """The events of the turn cannot be read any more: its message was edited or its task deleted."""


class ApiError(RoundhouseError):
    """The service refused the request. A code that this version does not know has the class of its status."""


class BadRequestError(ApiError):
    """Status 400: the request is malformed or has an invalid value."""


class AuthenticationError(ApiError):
    """Status 401: the key is missing or wrong."""


class ForbiddenError(ApiError):
    """Status 403: a policy or a permission forbids it."""


class NotFoundError(ApiError):
    """Status 404: there is no such thing."""


class ConflictError(ApiError):
    """Status 409: the state of the thing does not allow it now."""


class TooManyRequestsError(ApiError):
    """Status 429: a quota or a rate is exceeded."""


class ServerError(ApiError):
    """Status 5xx: the service failed."""


class UnavailableError(ServerError):
    """Status 503: the service cannot take the request now."""
