//! One attempt to deliver a row: the signed request, and what its answer means.

use std::time::Duration;

use api::audit::AuditRow;
use api::audit_webhooks::AuditDelivery;
use api::webhooks::{WebhookSecret, signed_headers};
use api::{AuditWebhookId, Timestamp};
use fetch::{ApiClient, ApiRequest, ApiServer, FetchError, Target};
use parking_lot::Mutex;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue, USER_AGENT};
use reqwest::{Method, StatusCode};

use crate::domain::WebhookRules;
use crate::domain::webhook_progress::Failure;

/// How long the addresses of a receiver are used before its name is resolved again.
const CLIENT_LIFETIME: Duration = Duration::from_secs(30);
/// The longest reason that is stored, in characters.
const MAX_REASON_CHARS: usize = 300;

const AGENT: &str = concat!("Roundhouse/", env!("CARGO_PKG_VERSION"));

/// Where the rows of a webhook are sent, and how they are signed.
pub(super) struct Receiver {
    pub(super) webhook_id: AuditWebhookId,
    pub(super) target: Target,
    /// The newest first, with the time until which it signs.
    pub(super) secrets: Vec<(WebhookSecret, Option<Timestamp>)>,
    /// The client, and when it was made, by the monotonic clock.
    pub(super) client: Mutex<Option<(ApiClient, Duration)>>,
}

/// What an attempt has come to.
pub(super) enum Answer {
    /// The receiver has accepted the row.
    Accepted,
    /// It has not, or there was none.
    Failed(Failure),
    /// It wants no more rows at all.
    Gone,
}

/// The time of an attempt, by both clocks.
#[derive(Clone, Copy)]
pub(super) struct AttemptTime {
    pub(super) wall: Timestamp,
    pub(super) monotonic: Duration,
}

impl Receiver {
    /// Sends a row. `attempt` counts from 1.
    pub(super) async fn send(
        &self,
        row: AuditRow,
        attempt: u32,
        at: AttemptTime,
        rules: &WebhookRules,
    ) -> Answer {
        let sending = self.send_without_limit(row, attempt, at, rules);
        let answer = match tokio::time::timeout(rules.timeout, sending).await {
            Ok(Ok((status, retry_after))) => judge(status, retry_after),
            Ok(Err(reason)) => failed(&reason, None),
            Err(_) => failed(&format!("there was no answer within {} s", rules.timeout.as_secs_f32()), None),
        };
        if !matches!(answer, Answer::Accepted) {
            // Its name may lead elsewhere by now.
            self.forget_client();
        }
        answer
    }

    /// Forgets the client: the next attempt makes another one.
    pub(super) fn forget_client(&self) {
        *self.client.lock() = None;
    }

    async fn send_without_limit(
        &self,
        row: AuditRow,
        attempt: u32,
        at: AttemptTime,
        rules: &WebhookRules,
    ) -> Result<(StatusCode, Option<Duration>), String> {
        let request = self.request(row, attempt, at.wall)?;
        let client = self.client(at.monotonic, rules).await.map_err(|error| reason(&error))?;
        client.status(request).await.map_err(|error| reason(&error))
    }

    fn request(&self, row: AuditRow, attempt: u32, now: Timestamp) -> Result<ApiRequest, String> {
        let delivery = AuditDelivery::new(self.webhook_id, row, attempt);
        let body = serde_json::to_string(&delivery).map_err(|error| error.to_string())?;
        let in_force = self.secrets.iter().filter(|(_, until)| until.is_none_or(|until| now < until));
        let secrets: Vec<_> = in_force.map(|(secret, _)| secret.clone()).collect();
        let seconds = now.unix_ms().div_euclid(1_000);
        let mut headers = HeaderMap::from_iter([(USER_AGENT, HeaderValue::from_static(AGENT))]);
        for (name, value) in signed_headers(&delivery.delivery_id, seconds, &body, &secrets) {
            let value = HeaderValue::from_str(&value).map_err(|error| error.to_string())?;
            headers.insert(HeaderName::from_static(name), value);
        }
        Ok(ApiRequest { method: Method::POST, url: self.target.url().clone(), headers, body: Some(body) })
    }

    async fn client(&self, now: Duration, rules: &WebhookRules) -> Result<ApiClient, FetchError> {
        let kept = self.client.lock().clone();
        if let Some((client, _)) = kept.filter(|(_, made)| now.saturating_sub(*made) < CLIENT_LIFETIME) {
            return Ok(client);
        }
        let server = ApiServer::for_outsider(self.target.clone(), rules.allow.clone());
        let client = server.connect(rules.timeout).await?;
        *self.client.lock() = Some((client.clone(), now));
        Ok(client)
    }
}

/// The reason why an address is refused that is not on the public internet.
pub(super) fn not_public(what: &str) -> String {
    format!(
        "it is not on the public internet ({what}); only the operator can allow it, with ORCH_WEBHOOK_ALLOW"
    )
}

fn reason(error: &FetchError) -> String {
    match error {
        FetchError::NotPublic { what, .. } => not_public(what),
        error => error.to_string(),
    }
}

/// Only the status of an answer counts.
fn judge(status: StatusCode, retry_after: Option<Duration>) -> Answer {
    let hint = if status.is_redirection() { "; redirects are not followed" } else { "" };
    match status {
        _ if status.is_success() => Answer::Accepted,
        StatusCode::GONE => Answer::Gone,
        _ => failed(&format!("the receiver answered {}{hint}", status.as_u16()), retry_after),
    }
}

fn failed(reason: &str, retry_after: Option<Duration>) -> Answer {
    // PostgreSQL's texts cannot contain NUL.
    let error = reason.chars().filter(|character| *character != '\0').take(MAX_REASON_CHARS).collect();
    Answer::Failed(Failure { error, retry_after })
}
