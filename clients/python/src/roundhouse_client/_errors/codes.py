"""The errors by their code: one class for each code of the two services."""

from __future__ import annotations

from .base import (
    ApiError,
    AuthenticationError,
    BadRequestError,
    ConflictError,
    ForbiddenError,
    NotFoundError,
    ServerError,
    TooManyRequestsError,
    UnavailableError,
)


class InvalidRequestError(BadRequestError):
    """Malformed JSON, a missing field or an invalid value; the message names it."""


class ModelNotPermittedError(BadRequestError):
    """The engine's configuration has no such model; the message names those that it has."""


class ToolDeniedError(BadRequestError):
    """The catalog or the operator does not allow this tool."""


class ToolFailedError(BadRequestError):
    """The tool failed, or refused its input; the message says why."""


class InvalidStateError(BadRequestError):
    """The `state` of an authorization is unknown, was already used, or is older than ten minutes."""


class InvalidIssuerError(BadRequestError):
    """An authorization response came from another authorization server than the one that was asked."""


class OauthDeniedError(BadRequestError):
    """The authorization server, or the user there, denied access."""


class InvalidPlatformKeyError(AuthenticationError):
    """`X-Platform-Key` is missing or unknown."""


class InvalidAdminKeyError(AuthenticationError):
    """`X-Admin-Key` is missing or wrong."""


class InvalidEngineKeyError(AuthenticationError):
    """`X-Engine-Key` is missing or wrong."""


class InvalidTokenError(AuthenticationError):
    """The browser token is malformed, of another engine, or was not signed for this engine's current key."""


class TokenExpiredError(AuthenticationError):
    """The browser token has expired. The product's backend mints another one."""


class TokenRevokedError(AuthenticationError):
    """The browser token was revoked."""


class TokenScopeError(ForbiddenError):
    """The browser token does not permit this call, or not for this task."""


class PolicyDeniedError(ForbiddenError):
    """The product's policy forbids the action."""


class ProductDisabledError(ForbiddenError):
    """The operator has disabled the product, or is deleting it."""


class PlatformSkillError(ForbiddenError):
    """The skill comes with the engine: it can be neither changed nor deleted."""


class UserServersNotPermittedError(ForbiddenError):
    """The catalog does not permit the user's own tool servers, or not this one."""


class PathNotFoundError(NotFoundError):
    """There is no such path."""


class ProductNotFoundError(NotFoundError):
    """There is no such product."""


class EngineNotFoundError(NotFoundError):
    """The user has no engine."""


class TaskNotFoundError(NotFoundError):
    """There is no such task, or no task yet."""


class TaskNotRunningError(NotFoundError):
    """No turn is running on this task."""


class MessageNotFoundError(NotFoundError):
    """There is no such message in this task."""


class TurnNotFoundError(NotFoundError):
    """There is no such turn in this task, or it is not queued any more."""


class HitlNotPendingError(NotFoundError):
    """The task has no pending request, or not the one that was answered."""


class TokenNotFoundError(NotFoundError):
    """The user's engine has no such browser token in force."""


class KeyNotFoundError(NotFoundError):
    """The product has no such platform key in force."""


class ScheduleNotFoundError(NotFoundError):
    """There is no such schedule."""


class DeliveryNotFoundError(NotFoundError):
    """There is no such delivery to the webhook."""


class WebhookNotFoundError(NotFoundError):
    """The product has no such webhook."""


class RolloutNotFoundError(NotFoundError):
    """There is no such rollout."""


class ApprovalNotFoundError(NotFoundError):
    """There is no such approval request in this task."""


class SkillNotFoundError(NotFoundError):
    """There is no such skill."""


class ServerNotFoundError(NotFoundError):
    """There is no such tool server, neither in the catalog nor of the user."""


class ConnectionNotFoundError(NotFoundError):
    """There is no such connection to a tool server."""


class FileNotFoundError(NotFoundError):
    """There is no such file or folder."""


class UploadNotFoundError(NotFoundError):
    """There is no such upload: it was completed or cancelled, or is too old."""


class FileNotAccessibleError(ForbiddenError):
    """The system does not permit access to the file, or it is neither a file nor a folder."""


class MethodNotFoundError(NotFoundError):
    """`POST /rpc` has no such method or operation."""


class MethodNotAllowedError(ApiError):
    """The path does not support this method; `Allow` lists the supported ones."""


class RequestTimeoutError(ApiError):
    """The body of the request did not arrive in time."""


class ProductSlugExistsError(ConflictError):
    """The slug is already in use."""


class ProductNotDisabledError(ConflictError):
    """Only a disabled product can be deleted."""


class ProductDeletingError(ConflictError):
    """The product is being deleted, which cannot be undone."""


class ConfirmationInvalidError(ConflictError):
    """The confirmation is another product's or too old, or the product was enabled since. Ask again."""


class RolloutUnderWayError(ConflictError):
    """Another rollout is under way."""


class RolloutOverError(ConflictError):
    """The rollout is over, or a later one has begun."""


class EngineAlreadyExistsError(ConflictError):
    """The user already has an engine."""


class EngineNotRunningError(ConflictError):
    """The action needs a running engine."""


class EngineAlreadyRunningError(ConflictError):
    """The engine is already running."""


class ApprovalAnsweredError(ConflictError):
    """The approval request was answered, or its turn has ended."""


class TaskBusyError(ConflictError):
    """Another turn is running on this task."""


class TaskExistsError(ConflictError):
    """A task of this id exists already."""


class ScheduleExistsError(ConflictError):
    """A schedule of this id exists already."""


class SkillExistsError(ConflictError):
    """A skill of this name exists already."""


class ServerExistsError(ConflictError):
    """A tool server of this name exists already, in the catalog or with another address."""


class ToolsChangedError(ConflictError):
    """The server's tools are no longer those that the user was shown. Show them again."""


class FactReplacedError(ConflictError):
    """The fact is no longer in force; the message names the one that is."""


class FileConflictError(ConflictError):
    """What is in the file's place does not permit the change: a folder that is not empty, for example."""


class UploadConflictError(ConflictError):
    """The upload has another number of bytes than the request assumes; `Upload-Offset` says how many."""


class WebhookNotConfiguredError(ConflictError):
    """The catalog names no webhook."""


class IdempotencyKeyInUseError(ConflictError):
    """The call with this `Idempotency-Key` is under way, or its caller has too many. Repeat it later."""


class IdempotencyKeyReusedError(ApiError):
    """Another request was made with this `Idempotency-Key`. Each call needs a key of its own."""


class PreconditionFailedError(ApiError):
    """A condition of the request (`If-Match`, `If-None-Match`) does not hold."""


class RangeNotSatisfiableError(ApiError):
    """The file is shorter than the requested range."""


class PayloadTooLargeError(ApiError):
    """The body exceeds the size limit."""


class QuotaExceededError(TooManyRequestsError):
    """The product has as many engines as its policy allows. Do not retry."""


class RateLimitedError(TooManyRequestsError):
    """The product's request rate is exceeded. Retry with back-off, honouring `Retry-After`."""


class QueueFullError(TooManyRequestsError):
    """The queue of the task, or all queues of the engine, are full; the message names the limit."""


class ScheduleLimitError(TooManyRequestsError):
    """The engine has as many schedules as it may have. Delete one first."""


class TokenLimitError(TooManyRequestsError):
    """The engine has as many browser tokens in force as it may have. `Retry-After` says when one expires."""


class KeyLimitError(TooManyRequestsError):
    """The product has as many platform keys in force as it may have. Revoke one first."""


class WebhookLimitError(TooManyRequestsError):
    """The product has as many webhooks as it may have. Delete one first."""


class ServerLimitError(TooManyRequestsError):
    """The user has as many tool servers as the catalog permits. Delete one first."""


class UsageCapReachedError(TooManyRequestsError):
    """A cap on usage is reached; `retry_after` says when a day's cap begins again."""


class InternalError(ServerError):
    """An unexpected failure."""


class BackendError(ServerError):
    """The backend that runs the engines failed. Retry at most once."""


class OutputInvalidError(ServerError):
    """The model's answer does not match the schema of the request; the message says where."""


class ServerFailedError(ServerError):
    """A tool server or its authorization server cannot be reached, or refuses; the message says why."""


class AssetsNotConfiguredError(UnavailableError):
    """Credentials cannot be stored: the engine has no key to seal them with."""


class StartingUpError(UnavailableError):
    """The service is starting or is the standby. Retry with back-off."""


class PortExhaustionError(UnavailableError):
    """There is no free port in the engine port range."""


class CapacityExhaustedError(UnavailableError):
    """The host or its network is full."""


class MaintenanceError(UnavailableError):
    """The deployment is under maintenance; the message is the operator's. Running engines are admitted."""


class ShuttingDownError(UnavailableError):
    """The service is stopping."""


class QuiescedError(UnavailableError):
    """The engine is about to be put to sleep. Retry with an admit, which wakes it."""


class OverloadedError(UnavailableError):
    """Too many turns are running."""


class BootTimeoutError(ServerError):
    """The engine was not healthy within the boot timeout. Do not retry."""


class StorageFullError(ServerError):
    """The engine's quota of files is used up, or its disk is full. Retry once files have been deleted."""


CODES: dict[str, type[ApiError]] = {
    "INVALID_REQUEST": InvalidRequestError,
    "MODEL_NOT_PERMITTED": ModelNotPermittedError,
    "TOOL_DENIED": ToolDeniedError,
    "TOOL_FAILED": ToolFailedError,
    "INVALID_STATE": InvalidStateError,
    "INVALID_ISSUER": InvalidIssuerError,
    "OAUTH_DENIED": OauthDeniedError,
    "INVALID_PLATFORM_KEY": InvalidPlatformKeyError,
    "INVALID_ADMIN_KEY": InvalidAdminKeyError,
    "INVALID_ENGINE_KEY": InvalidEngineKeyError,
    "INVALID_TOKEN": InvalidTokenError,
    "TOKEN_EXPIRED": TokenExpiredError,
    "TOKEN_REVOKED": TokenRevokedError,
    "TOKEN_SCOPE": TokenScopeError,
    "POLICY_DENIED": PolicyDeniedError,
    "PRODUCT_DISABLED": ProductDisabledError,
    "PLATFORM_SKILL": PlatformSkillError,
    "USER_SERVERS_NOT_PERMITTED": UserServersNotPermittedError,
    "NOT_FOUND": PathNotFoundError,
    "PRODUCT_NOT_FOUND": ProductNotFoundError,
    "ENGINE_NOT_FOUND": EngineNotFoundError,
    "TASK_NOT_FOUND": TaskNotFoundError,
    "TASK_NOT_RUNNING": TaskNotRunningError,
    "MESSAGE_NOT_FOUND": MessageNotFoundError,
    "TURN_NOT_FOUND": TurnNotFoundError,
    "HITL_NOT_PENDING": HitlNotPendingError,
    "TOKEN_NOT_FOUND": TokenNotFoundError,
    "KEY_NOT_FOUND": KeyNotFoundError,
    "SCHEDULE_NOT_FOUND": ScheduleNotFoundError,
    "DELIVERY_NOT_FOUND": DeliveryNotFoundError,
    "WEBHOOK_NOT_FOUND": WebhookNotFoundError,
    "ROLLOUT_NOT_FOUND": RolloutNotFoundError,
    "APPROVAL_NOT_FOUND": ApprovalNotFoundError,
    "SKILL_NOT_FOUND": SkillNotFoundError,
    "SERVER_NOT_FOUND": ServerNotFoundError,
    "CONNECTION_NOT_FOUND": ConnectionNotFoundError,
    "FILE_NOT_FOUND": FileNotFoundError,
    "UPLOAD_NOT_FOUND": UploadNotFoundError,
    "FILE_NOT_ACCESSIBLE": FileNotAccessibleError,
    "METHOD_NOT_FOUND": MethodNotFoundError,
    "METHOD_NOT_ALLOWED": MethodNotAllowedError,
    "REQUEST_TIMEOUT": RequestTimeoutError,
    "PRODUCT_SLUG_EXISTS": ProductSlugExistsError,
    "PRODUCT_NOT_DISABLED": ProductNotDisabledError,
    "PRODUCT_DELETING": ProductDeletingError,
    "CONFIRMATION_INVALID": ConfirmationInvalidError,
    "ROLLOUT_UNDER_WAY": RolloutUnderWayError,
    "ROLLOUT_OVER": RolloutOverError,
    "ENGINE_ALREADY_EXISTS": EngineAlreadyExistsError,
    "ENGINE_NOT_RUNNING": EngineNotRunningError,
    "ENGINE_ALREADY_RUNNING": EngineAlreadyRunningError,
    "APPROVAL_ANSWERED": ApprovalAnsweredError,
    "TASK_BUSY": TaskBusyError,
    "TASK_EXISTS": TaskExistsError,
    "SCHEDULE_EXISTS": ScheduleExistsError,
    "SKILL_EXISTS": SkillExistsError,
    "SERVER_EXISTS": ServerExistsError,
    "TOOLS_CHANGED": ToolsChangedError,
    "FACT_REPLACED": FactReplacedError,
    "FILE_CONFLICT": FileConflictError,
    "UPLOAD_CONFLICT": UploadConflictError,
    "WEBHOOK_NOT_CONFIGURED": WebhookNotConfiguredError,
    "IDEMPOTENCY_KEY_IN_USE": IdempotencyKeyInUseError,
    "IDEMPOTENCY_KEY_REUSED": IdempotencyKeyReusedError,
    "PRECONDITION_FAILED": PreconditionFailedError,
    "RANGE_NOT_SATISFIABLE": RangeNotSatisfiableError,
    "PAYLOAD_TOO_LARGE": PayloadTooLargeError,
    "QUOTA_EXCEEDED": QuotaExceededError,
    "RATE_LIMITED": RateLimitedError,
    "QUEUE_FULL": QueueFullError,
    "SCHEDULE_LIMIT": ScheduleLimitError,
    "TOKEN_LIMIT": TokenLimitError,
    "KEY_LIMIT": KeyLimitError,
    "WEBHOOK_LIMIT": WebhookLimitError,
    "SERVER_LIMIT": ServerLimitError,
    "USAGE_CAP_REACHED": UsageCapReachedError,
    "INTERNAL_ERROR": InternalError,
    "BACKEND_ERROR": BackendError,
    "OUTPUT_INVALID": OutputInvalidError,
    "SERVER_FAILED": ServerFailedError,
    "ASSETS_NOT_CONFIGURED": AssetsNotConfiguredError,
    "STARTING_UP": StartingUpError,
    "PORT_EXHAUSTION": PortExhaustionError,
    "CAPACITY_EXHAUSTED": CapacityExhaustedError,
    "MAINTENANCE": MaintenanceError,
    "SHUTTING_DOWN": ShuttingDownError,
    "QUIESCED": QuiescedError,
    "OVERLOADED": OverloadedError,
    "BOOT_TIMEOUT": BootTimeoutError,
    "STORAGE_FULL": StorageFullError,
}
