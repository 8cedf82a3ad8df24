/** The errors by their code: one class for each code of the two services. */

import {
  ApiError,
  AuthenticationError,
  BadRequestError,
  ConflictError,
  ForbiddenError,
  NotFoundError,
  ServerError,
  TooManyRequestsError,
  UnavailableError,
  type ErrorDetails,
} from "./errors.js";
import type { components as EngineComponents } from "./generated/engine.js";
import type { components as OrchestratorComponents } from "./generated/orchestrator.js";

/** The codes that this version knows. A service of a later version may have others. */
export type ErrorCode = (EngineComponents | OrchestratorComponents)["schemas"]["ErrorCode"];

/** Malformed JSON, a missing field or an invalid value; the message names it. */
export class InvalidRequestError extends BadRequestError {}

/** The engine's configuration has no such model; the message names those that it has. */
export class ModelNotPermittedError extends BadRequestError {}

/** The catalog or the operator does not allow this tool. */
export class ToolDeniedError extends BadRequestError {}

/** The tool failed, or refused its input; the message says why. */
export class ToolFailedError extends BadRequestError {}

/** The `state` of an authorization is unknown, was already used, or is older than ten minutes. */
export class InvalidStateError extends BadRequestError {}

/** An authorization response came from another authorization server than the one that was asked. */
export class InvalidIssuerError extends BadRequestError {}

/** The authorization server, or the user there, denied access. */
export class OauthDeniedError extends BadRequestError {}

/** `X-Platform-Key` is missing or unknown. */
export class InvalidPlatformKeyError extends AuthenticationError {}

/** `X-Admin-Key` is missing or wrong. */
export class InvalidAdminKeyError extends AuthenticationError {}

/** `X-Engine-Key` is missing or wrong. */
export class InvalidEngineKeyError extends AuthenticationError {}

/** The browser token is malformed, of another engine, or was not signed for this engine's current key. */
export class InvalidTokenError extends AuthenticationError {}

/** The browser token has expired. The product's backend mints another one. */
export class TokenExpiredError extends AuthenticationError {}

/** The browser token was revoked. */
export class TokenRevokedError extends AuthenticationError {}

/** The browser token does not permit this call, or not for this task. */
export class TokenScopeError extends ForbiddenError {}

/** The product's policy forbids the action. */
export class PolicyDeniedError extends ForbiddenError {}

/** The operator has disabled the product, or is deleting it. */
export class ProductDisabledError extends ForbiddenError {}

/** The skill comes with the engine: it can be neither changed nor deleted. */
export class PlatformSkillError extends ForbiddenError {}

/** The catalog does not permit the user's own tool servers, or not this one. */
export class UserServersNotPermittedError extends ForbiddenError {}

/** There is no such path. */
export class PathNotFoundError extends NotFoundError {}

/** There is no such product. */
export class ProductNotFoundError extends NotFoundError {}

/** The user has no engine. */
export class EngineNotFoundError extends NotFoundError {}

/** There is no such task, or no task yet. */
export class TaskNotFoundError extends NotFoundError {}

/** No turn is running on this task. */
export class TaskNotRunningError extends NotFoundError {}

/** There is no such message in this task. */
export class MessageNotFoundError extends NotFoundError {}

/** There is no such turn in this task, or it is not queued any more. */
export class TurnNotFoundError extends NotFoundError {}

/** This task has no pending request, or not the one that was answered. */
export class HitlNotPendingError extends NotFoundError {}

/** This user's engine has no such browser token in force. */
export class TokenNotFoundError extends NotFoundError {}

/** The product has no such platform key in force. */
export class KeyNotFoundError extends NotFoundError {}

/** There is no such schedule. */
export class ScheduleNotFoundError extends NotFoundError {}

/** There is no such delivery to the webhook. */
export class DeliveryNotFoundError extends NotFoundError {}

/** The product has no such webhook. */
export class WebhookNotFoundError extends NotFoundError {}

/** There is no such rollout. */
export class RolloutNotFoundError extends NotFoundError {}

/** There is no such approval request in this task. */
export class ApprovalNotFoundError extends NotFoundError {}

/** There is no such skill. */
export class SkillNotFoundError extends NotFoundError {}

/** There is no such tool server, neither in the catalog nor of the user. */
export class ServerNotFoundError extends NotFoundError {}

/** There is no such connection to a tool server. */
export class ConnectionNotFoundError extends NotFoundError {}

/** There is no such file or folder. */
export class FileNotFoundError extends NotFoundError {}

/** There is no such upload: it was completed or cancelled, or is too old. */
export class UploadNotFoundError extends NotFoundError {}

/** The system does not permit access to the file, or it is neither a file nor a folder. */
export class FileNotAccessibleError extends ForbiddenError {}

/** `POST /rpc` has no such method or operation. */
export class MethodNotFoundError extends NotFoundError {}

/** The path does not support this method; `Allow` lists the supported ones. */
export class MethodNotAllowedError extends ApiError {}

/** The body of the request did not arrive in time. */
export class RequestTimeoutError extends ApiError {}

/** The slug is already in use. */
export class ProductSlugExistsError extends ConflictError {}

/** Only a disabled product can be deleted. */
export class ProductNotDisabledError extends ConflictError {}

/** The product is being deleted, which cannot be undone. */
export class ProductDeletingError extends ConflictError {}

/** The confirmation is of another product, has expired, or the product was enabled since. Ask for another one. */
export class ConfirmationInvalidError extends ConflictError {}

/** Another rollout is under way. */
export class RolloutUnderWayError extends ConflictError {}

/** The rollout is over, or a later one has begun. */
export class RolloutOverError extends ConflictError {}

/** The user already has an engine. */
export class EngineAlreadyExistsError extends ConflictError {}

/** The action needs a running engine. */
export class EngineNotRunningError extends ConflictError {}

/** The engine is already running. */
export class EngineAlreadyRunningError extends ConflictError {}

/** The approval request was answered, or its turn has ended. */
export class ApprovalAnsweredError extends ConflictError {}

/** Another turn is running on this task. */
export class TaskBusyError extends ConflictError {}

/** A task of this id exists already. */
export class TaskExistsError extends ConflictError {}

/** A schedule of this id exists already. */
export class ScheduleExistsError extends ConflictError {}

/** A skill of this name exists already. */
export class SkillExistsError extends ConflictError {}

/** A tool server of this name exists already, in the catalog or with another address. */
export class ServerExistsError extends ConflictError {}

/** The server's tools are no longer those that the user was shown. Show them again. */
export class ToolsChangedError extends ConflictError {}

/** The fact is no longer in force; the message names the one that is. */
export class FactReplacedError extends ConflictError {}

/** What is in the file's place does not permit the change: a folder that is not empty, for example. */
export class FileConflictError extends ConflictError {}

/** The upload has another number of bytes than the request assumes; `Upload-Offset` says how many. */
export class UploadConflictError extends ConflictError {}

/** The catalog names no webhook. */
export class WebhookNotConfiguredError extends ConflictError {}

/**
 * The call with this `Idempotency-Key` is still under way, or the caller has too many of them. Repeat it after
 * `Retry-After`.
 */
export class IdempotencyKeyInUseError extends ConflictError {}

/** Another request was made with this `Idempotency-Key`. Each call needs a key of its own. */
export class IdempotencyKeyReusedError extends ApiError {}

/** A condition of the request (`If-Match`, `If-None-Match`) does not hold. */
export class PreconditionFailedError extends ApiError {}

/** The file is shorter than the requested range. */
export class RangeNotSatisfiableError extends ApiError {}

/** The body exceeds the size limit. */
export class PayloadTooLargeError extends ApiError {}

/** The product has as many engines as its policy allows. Do not retry. */
export class QuotaExceededError extends TooManyRequestsError {}

/** The product's request rate is exceeded. Retry with back-off, honouring `Retry-After`. */
export class RateLimitedError extends TooManyRequestsError {}

/** The queue of the task, or all queues of the engine, are full; the message names the limit. */
export class QueueFullError extends TooManyRequestsError {}

/** The engine has as many schedules as it may have. Delete one first. */
export class ScheduleLimitError extends TooManyRequestsError {}

/** The engine has as many browser tokens in force as it may have. `Retry-After` says when one expires. */
export class TokenLimitError extends TooManyRequestsError {}

/** The product has as many platform keys in force as it may have. Revoke one first. */
export class KeyLimitError extends TooManyRequestsError {}

/** The product has as many webhooks as it may have. Delete one first. */
export class WebhookLimitError extends TooManyRequestsError {}

/** The user has as many tool servers as the catalog permits. Delete one first. */
export class ServerLimitError extends TooManyRequestsError {}

/** A cap on the usage of the day or of the task is reached. `Retry-After` says when a day's cap begins again. */
export class UsageCapReachedError extends TooManyRequestsError {}

/** An unexpected failure. */
export class InternalError extends ServerError {}

/** The backend that runs the engines failed. Retry at most once. */
export class BackendError extends ServerError {}

/** The model's answer does not match the schema of the request, even after one correction; the message says where. */
export class OutputInvalidError extends ServerError {}

/** A tool server or its authorization server cannot be reached, or refuses; the message says why. */
export class ServerFailedError extends ServerError {}

/** Credentials cannot be stored: the engine has no key to seal them with. */
export class AssetsNotConfiguredError extends UnavailableError {}

/** The service is starting or is the standby. Retry with back-off. */
export class StartingUpError extends UnavailableError {}

/** There is no free port in the engine port range. */
export class PortExhaustionError extends UnavailableError {}

/** The host or its network is full. */
export class CapacityExhaustedError extends UnavailableError {}

/** The operator keeps the deployment under maintenance; the message is theirs. Engines that run are admitted. */
export class MaintenanceError extends UnavailableError {}

/** The service is stopping. */
export class ShuttingDownError extends UnavailableError {}

/** The engine is about to be put to sleep. Retry with an admit, which wakes it. */
export class QuiescedError extends UnavailableError {}

/** Too many turns are running. */
export class OverloadedError extends UnavailableError {}

/** The engine was not healthy within the boot timeout. Do not retry. */
export class BootTimeoutError extends ServerError {}

/** The engine's quota of files is used up, or its disk is full. Retry once files have been deleted. */
export class StorageFullError extends ServerError {}

/** The class of each code. That none is missing is checked by its type. */
const CLASSES = {
  INVALID_REQUEST: InvalidRequestError,
  MODEL_NOT_PERMITTED: ModelNotPermittedError,
  TOOL_DENIED: ToolDeniedError,
  TOOL_FAILED: ToolFailedError,
  INVALID_STATE: InvalidStateError,
  INVALID_ISSUER: InvalidIssuerError,
  OAUTH_DENIED: OauthDeniedError,
  INVALID_PLATFORM_KEY: InvalidPlatformKeyError,
  INVALID_ADMIN_KEY: InvalidAdminKeyError,
  INVALID_ENGINE_KEY: InvalidEngineKeyError,
  INVALID_TOKEN: InvalidTokenError,
  TOKEN_EXPIRED: TokenExpiredError,
  TOKEN_REVOKED: TokenRevokedError,
  TOKEN_SCOPE: TokenScopeError,
  POLICY_DENIED: PolicyDeniedError,
  PRODUCT_DISABLED: ProductDisabledError,
  PLATFORM_SKILL: PlatformSkillError,
  USER_SERVERS_NOT_PERMITTED: UserServersNotPermittedError,
  NOT_FOUND: PathNotFoundError,
  PRODUCT_NOT_FOUND: ProductNotFoundError,
  ENGINE_NOT_FOUND: EngineNotFoundError,
  TASK_NOT_FOUND: TaskNotFoundError,
  TASK_NOT_RUNNING: TaskNotRunningError,
  MESSAGE_NOT_FOUND: MessageNotFoundError,
  TURN_NOT_FOUND: TurnNotFoundError,
  HITL_NOT_PENDING: HitlNotPendingError,
  TOKEN_NOT_FOUND: TokenNotFoundError,
  KEY_NOT_FOUND: KeyNotFoundError,
  SCHEDULE_NOT_FOUND: ScheduleNotFoundError,
  DELIVERY_NOT_FOUND: DeliveryNotFoundError,
  WEBHOOK_NOT_FOUND: WebhookNotFoundError,
  ROLLOUT_NOT_FOUND: RolloutNotFoundError,
  APPROVAL_NOT_FOUND: ApprovalNotFoundError,
  SKILL_NOT_FOUND: SkillNotFoundError,
  SERVER_NOT_FOUND: ServerNotFoundError,
  CONNECTION_NOT_FOUND: ConnectionNotFoundError,
  FILE_NOT_FOUND: FileNotFoundError,
  UPLOAD_NOT_FOUND: UploadNotFoundError,
  FILE_NOT_ACCESSIBLE: FileNotAccessibleError,
  METHOD_NOT_FOUND: MethodNotFoundError,
  METHOD_NOT_ALLOWED: MethodNotAllowedError,
  REQUEST_TIMEOUT: RequestTimeoutError,
  PRODUCT_SLUG_EXISTS: ProductSlugExistsError,
  PRODUCT_NOT_DISABLED: ProductNotDisabledError,
  PRODUCT_DELETING: ProductDeletingError,
  CONFIRMATION_INVALID: ConfirmationInvalidError,
  ROLLOUT_UNDER_WAY: RolloutUnderWayError,
  ROLLOUT_OVER: RolloutOverError,
  ENGINE_ALREADY_EXISTS: EngineAlreadyExistsError,
  ENGINE_NOT_RUNNING: EngineNotRunningError,
  ENGINE_ALREADY_RUNNING: EngineAlreadyRunningError,
  APPROVAL_ANSWERED: ApprovalAnsweredError,
  TASK_BUSY: TaskBusyError,
  TASK_EXISTS: TaskExistsError,
  SCHEDULE_EXISTS: ScheduleExistsError,
  SKILL_EXISTS: SkillExistsError,
  SERVER_EXISTS: ServerExistsError,
  TOOLS_CHANGED: ToolsChangedError,
  FACT_REPLACED: FactReplacedError,
  FILE_CONFLICT: FileConflictError,
  UPLOAD_CONFLICT: UploadConflictError,
  WEBHOOK_NOT_CONFIGURED: WebhookNotConfiguredError,
  IDEMPOTENCY_KEY_IN_USE: IdempotencyKeyInUseError,
  IDEMPOTENCY_KEY_REUSED: IdempotencyKeyReusedError,
  PRECONDITION_FAILED: PreconditionFailedError,
  RANGE_NOT_SATISFIABLE: RangeNotSatisfiableError,
  PAYLOAD_TOO_LARGE: PayloadTooLargeError,
  QUOTA_EXCEEDED: QuotaExceededError,
  RATE_LIMITED: RateLimitedError,
  QUEUE_FULL: QueueFullError,
  SCHEDULE_LIMIT: ScheduleLimitError,
  TOKEN_LIMIT: TokenLimitError,
  KEY_LIMIT: KeyLimitError,
  WEBHOOK_LIMIT: WebhookLimitError,
  SERVER_LIMIT: ServerLimitError,
  USAGE_CAP_REACHED: UsageCapReachedError,
  INTERNAL_ERROR: InternalError,
  BACKEND_ERROR: BackendError,
  OUTPUT_INVALID: OutputInvalidError,
  SERVER_FAILED: ServerFailedError,
  ASSETS_NOT_CONFIGURED: AssetsNotConfiguredError,
  STARTING_UP: StartingUpError,
  PORT_EXHAUSTION: PortExhaustionError,
  CAPACITY_EXHAUSTED: CapacityExhaustedError,
  MAINTENANCE: MaintenanceError,
  SHUTTING_DOWN: ShuttingDownError,
  QUIESCED: QuiescedError,
  OVERLOADED: OverloadedError,
  BOOT_TIMEOUT: BootTimeoutError,
  STORAGE_FULL: StorageFullError,
} satisfies Record<ErrorCode, new (message: string, details: ErrorDetails) => ApiError>;

const BY_STATUS: Readonly<Record<number, new (message: string, details: ErrorDetails) => ApiError>> = {
  400: BadRequestError,
  401: AuthenticationError,
  403: ForbiddenError,
  404: NotFoundError,
  409: ConflictError,
  429: TooManyRequestsError,
  503: UnavailableError,
};

/** The error of a refused request. A code that this version does not know has the class of its status. */
export function apiError(status: number, message: string, details: Omit<ErrorDetails, "status">): ApiError {
  const known = details.code !== undefined && Object.hasOwn(CLASSES, details.code);
  const byStatus = BY_STATUS[status] ?? (status >= 500 ? ServerError : ApiError);
  const Class = known ? CLASSES[details.code as ErrorCode] : byStatus;
  return new Class(message, { ...details, status });
}
