/** The errors that do not belong to one code: their common base, the groups by status, and local failures. */

/** What is known about an error beside its message. */
export interface ErrorDetails {
  readonly code?: string | undefined;
  readonly status?: number | undefined;
  readonly retryAfter?: number | undefined;
  readonly requestId?: string | undefined;
  readonly cause?: unknown;
}

/**
 * The base of every error of this package.
 *
 * `code` is the stable code by which programs decide, `message` is for people and is not to be matched.
 */
export class RoundhouseError extends Error {
  /** The code of the service's error; undefined for what did not come from a service. */
  readonly code: string | undefined;
  /** The status of the response, if there was one. */
  readonly status: number | undefined;
  /** After how many seconds the service suggests to try again. */
  readonly retryAfter: number | undefined;
  /** The id under which the service logged the request. */
  readonly requestId: string | undefined;

  constructor(message: string, details: ErrorDetails = {}) {
    super(message, details.cause === undefined ? {} : { cause: details.cause });
    this.name = new.target.name;
    this.code = details.code;
    this.status = details.status;
    this.retryAfter = details.retryAfter;
    this.requestId = details.requestId;
  }
}

/** The service could not be reached, or the connection broke. */
export class NetworkError extends RoundhouseError {
  /** False: the request certainly did not reach the service. True: its outcome is unknown. */
  readonly sent: boolean;

  constructor(message: string, details: { readonly sent: boolean; readonly cause?: unknown }) {
    super(message, { cause: details.cause });
    this.sent = details.sent;
  }
}

/** The time that the caller allows was over. `cause` is the last failure before that, if there was one. */
export class DeadlineError extends RoundhouseError {}

/** A response is not what the service is documented to send: another service may be at the address. */
export class ProtocolError extends RoundhouseError {}

/** The user was not admitted. */
export class NotAdmittedError extends RoundhouseError {
  readonly userId: string;
  /** `engine_not_found`, `engine_sleeping`, `engine_stopped`, `engine_unhealthy`, or a later one. */
  readonly reason: string;

  constructor(userId: string, reason: string) {
    super(`the user \`${userId}\` was not admitted: ${reason}`, { code: reason.toUpperCase() });
    this.userId = userId;
    this.reason = reason;
  }
}

/** The turn ended with an `error` event, whose `code` this has, or its message could not begin one. */
export class TurnFailedError extends RoundhouseError {
  readonly turnId: string | undefined;
  /** Whether the same message may succeed later without a change of configuration. */
  readonly retryable: boolean;

  constructor(
    message: string,
    details: { readonly code?: string; readonly turnId: string | undefined; readonly retryable: boolean },
  ) {
    super(message, { code: details.code });
    this.turnId = details.turnId;
    this.retryable = details.retryable;
  }
}

/** The turn was cancelled, while it ran or before it began. */
export class TurnCancelledError extends RoundhouseError {
  readonly turnId: string | undefined;

  constructor(turnId: string | undefined) {
    super("the turn was cancelled");
    this.turnId = turnId;
  }
}

/** The rest of the turn's events cannot be read any more: its message was edited, or its task deleted. */
export class TurnLostError extends RoundhouseError {
  readonly turnId: string | undefined;

  constructor(message: string, details: { readonly turnId: string | undefined; readonly cause?: unknown }) {
    super(message, { cause: details.cause });
    this.turnId = details.turnId;
  }
}

/** The service refused the request. A code that this version does not know has the class of its status. */
export class ApiError extends RoundhouseError {}

/** Status 400: the request is malformed or has an invalid value. */
export class BadRequestError extends ApiError {}

/** Status 401: the key is missing or wrong. */
export class AuthenticationError extends ApiError {}

/** Status 403: a policy or a permission forbids it. */
export class ForbiddenError extends ApiError {}

/** Status 404: there is no such thing. */
export class NotFoundError extends ApiError {}

/** Status 409: the state of the thing does not allow it now. */
export class ConflictError extends ApiError {}

/** Status 429: a quota or a rate is exceeded. */
export class TooManyRequestsError extends ApiError {}

/** Status 5xx: the service failed. */
export class ServerError extends ApiError {}

/** Status 503: the service cannot take the request now. */
export class UnavailableError extends ServerError {}
