/** What can go wrong with a call, in words for whoever made it. */

/** The service refused a call, or failed at it. */
export class ApiError extends Error {
  /** @param {{status: number, code: string, message: string, requestId?: string, retryAfter?: number}} fields */
  constructor({ status, code, message, requestId, retryAfter }) {
    super(message);
    this.name = "ApiError";
    this.status = status;
    this.code = code;
    this.requestId = requestId;
    this.retryAfter = retryAfter;
  }
}

/** There is no answer. */
export class NetworkError extends Error {
  constructor(message, options) {
    super(message, options);
    this.name = "NetworkError";
  }
}

/** Reads the error of a response that is no success. */
export async function errorOf(response) {
  const text = await response.text().catch(() => "");
  let body;
  try {
    body = JSON.parse(text);
  } catch {
    body = undefined;
  }
  const fields = typeof body?.error === "object" && body.error !== null ? body.error : {};
  return new ApiError({
    status: response.status,
    code: typeof fields.code === "string" ? fields.code : `HTTP ${response.status}`,
    message:
      typeof fields.message === "string" ? fields.message : "The answer is not one of Roundhouse; look at the proxy.",
    requestId: response.headers.get("x-request-id") ?? undefined,
    retryAfter: Number(response.headers.get("retry-after")) || undefined,
  });
}

/** What to do about an error, if its own message does not say. */
const ADVICE = {
  BOOT_TIMEOUT: "Look at the engine's log, then start it again.",
  QUOTA_EXCEEDED: "Destroy an engine that nobody needs, or ask the operator for a larger policy.",
  RATE_LIMITED: "Wait a moment and try again.",
  PORT_EXHAUSTION: "The operator can widen ORCH_PORT_MIN to ORCH_PORT_MAX.",
  STARTING_UP: "This orchestrator is starting or a standby: go to the active one, or try again in a moment.",
  ENGINE_NOT_RUNNING: "Start the engine first.",
  PRODUCT_DISABLED: "The operator has disabled this product.",
  POLICY_DENIED: "The product's policy forbids it; the operator can change that.",
  OAUTH_DENIED: "Connect again if the access is to be allowed after all.",
  INVALID_STATE: "Connect again, and finish within ten minutes.",
  INVALID_ISSUER: "The answer came from another server than the one that was asked: connect again, and enter nothing there.",
  ASSETS_NOT_CONFIGURED: "The operator sets AD_ENCRYPTION_KEY and OAUTH_REDIRECT_BASE_URL for engines.",
  SERVER_FAILED: "Try again in a moment. If it stays so, whoever runs the server can help.",
  INTERNAL_ERROR: "The orchestrator's log has the details under the request's id.",
};

/** The sentences to show for an error. */
export function describe(error) {
  if (error instanceof ApiError) {
    return { title: error.code, text: error.message, advice: ADVICE[error.code], requestId: error.requestId };
  }
  if (error instanceof NetworkError) {
    return { title: "No answer", text: error.message, advice: "Check that the orchestrator runs and can be reached." };
  }
  return { title: "Unexpected failure", text: String(error?.message ?? error) };
}
