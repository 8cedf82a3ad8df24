//! One attempt to report an event: the request, and what follows from its answer.

use std::time::Duration;

use api::Timestamp;
use api::webhooks::{WebhookPayload, signed_headers};
use catalog::WebhookSpec;
use fetch::{ApiRequest, ApiServer};
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{Method, StatusCode};
use store::{AttemptOutcome, DELIVERY_LIFETIME_MS, DueDelivery};

use super::super::Services;

/// How long a request may take, as Standard Webhooks recommends it.
const TIMEOUT: Duration = Duration::from_secs(20);
/// The delays after each failed attempt; the last one is repeated. Those of Standard Webhooks.
const RETRY_DELAYS: [Duration; 9] = [
    Duration::from_secs(5),
    Duration::from_mins(5),
    Duration::from_mins(30),
    Duration::from_hours(2),
    Duration::from_hours(5),
    Duration::from_hours(10),
    Duration::from_hours(14),
    Duration::from_hours(20),
    Duration::from_hours(24),
];
/// The longest delay that a receiver can ask for.
const MAX_RETRY_AFTER: Duration = Duration::from_hours(24);
/// How long other events wait at most after a fault of the receiver.
const MAX_DELAY_OF_OTHERS: Duration = Duration::from_mins(5);

/// Why an attempt failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SendError {
    /// The reason, for a person.
    pub(super) reason: String,
    fault: Fault,
}

/// What is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// The receiver: other events would fail too. It may have asked for a delay.
    Receiver(Option<Duration>),
    /// The event, which the receiver does not take.
    Event,
    /// The event, which the receiver never wants to see again.
    Gone,
}

/// Sends a payload. Any status from 200 to 299 accepts it.
pub(super) async fn send(
    services: &Services,
    receiver: &WebhookSpec,
    id: &str,
    payload: &WebhookPayload,
) -> Result<(), SendError> {
    let unreachable = |reason: String| SendError { reason, fault: Fault::Receiver(None) };
    let request = request(receiver, id, payload, services.clock.now()).map_err(unreachable)?;
    // The operator has named the address, so it may be a private one.
    let memory = services.memory_budget.clone();
    let server = ApiServer::new(&receiver.call.url, true, 0, memory);
    let server = server.map_err(|error| unreachable(error.to_string()))?;
    // The status decides; what else is in the answer is not read.
    match tokio::time::timeout(TIMEOUT, server.status(request, TIMEOUT)).await {
        Err(_) => Err(unreachable(format!("there was no answer within {} s", TIMEOUT.as_secs()))),
        Ok(Err(error)) => Err(unreachable(error.to_string())),
        Ok(Ok((status, retry_after))) => judge(status, retry_after),
    }
}

/// The signed request.
fn request(
    receiver: &WebhookSpec,
    id: &str,
    payload: &WebhookPayload,
    now: Timestamp,
) -> Result<ApiRequest, String> {
    let body = serde_json::to_string(payload).map_err(|error| error.to_string())?;
    let seconds = now.unix_ms().div_euclid(1_000);
    let mut headers: HeaderMap = receiver.call.headers.clone();
    headers.remove(CONTENT_TYPE);
    for (name, value) in signed_headers(id, seconds, &body, &receiver.secrets) {
        headers.insert(name, HeaderValue::from_str(&value).map_err(|error| error.to_string())?);
    }
    Ok(ApiRequest { method: Method::POST, url: receiver.call.url.clone(), headers, body: Some(body) })
}

fn judge(status: StatusCode, retry_after: Option<Duration>) -> Result<(), SendError> {
    let fault = match status {
        _ if status.is_success() => return Ok(()),
        StatusCode::GONE => Fault::Gone,
        StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS => Fault::Receiver(retry_after),
        // Who is sent elsewhere, or not let in, is at the wrong address or has the wrong key.
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::NOT_FOUND => Fault::Receiver(None),
        _ if status.is_client_error() => Fault::Event,
        _ => Fault::Receiver(retry_after),
    };
    let hint = if status.is_redirection() { "; redirects are not followed" } else { "" };
    Err(SendError { reason: format!("the receiver answered {}{hint}", status.as_u16()), fault })
}

/// Decides what becomes of a delivery after an attempt.
pub(super) fn decide(due: &DueDelivery, sent: Result<(), SendError>, now: Timestamp) -> AttemptOutcome {
    let Err(SendError { reason: error, fault }) = sent else { return AttemptOutcome::Delivered };
    let index = usize::try_from(due.failures).unwrap_or(usize::MAX).min(RETRY_DELAYS.len() - 1);
    let delay = RETRY_DELAYS.get(index).copied().unwrap_or(MAX_RETRY_AFTER);
    let delay = delay.saturating_add(spread(&due.id, delay));
    let asked = match fault {
        Fault::Gone => return AttemptOutcome::Failed { error },
        Fault::Receiver(asked) => asked.unwrap_or_default().min(MAX_RETRY_AFTER),
        Fault::Event => Duration::ZERO,
    };
    // The time begins with the first attempt: the engine may have been stopped before it.
    let from_now = Timestamp::from_unix_ms(now.unix_ms().saturating_add(DELIVERY_LIFETIME_MS));
    let give_up_at = if due.failures == 0 { due.give_up_at.max(from_now) } else { due.give_up_at };
    if now >= give_up_at {
        return AttemptOutcome::Failed { error: format!("{error}; it was tried for long enough") };
    }
    let at = after(now, delay.max(asked)).min(give_up_at);
    let is_receiver = matches!(fault, Fault::Receiver(_));
    let others_at = is_receiver.then(|| at.min(after(now, MAX_DELAY_OF_OTHERS.max(asked))));
    AttemptOutcome::Retry { at, others_at, give_up_at, error }
}

/// Up to a tenth of the delay, so that engines do not all come at once when a receiver is back.
fn spread(id: &str, delay: Duration) -> Duration {
    let sum: u32 = id.bytes().map(u32::from).sum();
    delay / 160 * (sum % 16)
}

fn after(now: Timestamp, delay: Duration) -> Timestamp {
    let ms = i64::try_from(delay.as_millis()).unwrap_or(i64::MAX);
    Timestamp::from_unix_ms(now.unix_ms().saturating_add(ms))
}

#[cfg(test)]
#[path = "../../../tests/unit/agent/webhook/attempt.rs"]
mod tests;
