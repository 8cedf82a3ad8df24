//! Webhooks: an engine reports to its product what happens while nobody watches. Requests have the form of Standard
//! Webhooks (<https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md>), so existing
//! libraries verify them.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::Sha256;
use utoipa::ToSchema;
use utoipa::openapi::{ObjectBuilder, RefOr, Schema, Type};
use zeroize::Zeroizing;

use crate::engine::PendingRequest;
use crate::keys::NoRandomness;
use crate::turns::TurnRecord;
use crate::{TaskId, Timestamp, TurnId};

/// The header with the id of an event: the same in each request for it.
pub const ID_HEADER: &str = "webhook-id";
/// The header with the time of a request, in seconds since 1970.
pub const TIMESTAMP_HEADER: &str = "webhook-timestamp";
/// The header with the signatures of a request.
pub const SIGNATURE_HEADER: &str = "webhook-signature";

/// The prefix of a secret.
const SECRET_PREFIX: &str = "whsec_";
/// The length of a secret in bytes, as Standard Webhooks recommends it.
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 24..=HMAC_BLOCK_BYTES;

/// The length of a generated secret in bytes.
const GENERATED_BYTES: usize = 32;

/// The block size of SHA-256, which is the key size of its HMAC.
const HMAC_BLOCK_BYTES: usize = 64;

/// A secret that requests are signed with: `whsec_` and 24 to 64 bytes in base64. HMAC pads a shorter key with zeros.
#[derive(Clone, PartialEq, Eq)]
pub struct WebhookSecret(Arc<Zeroizing<[u8; HMAC_BLOCK_BYTES]>>);

impl fmt::Debug for WebhookSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WebhookSecret")
    }
}

impl WebhookSecret {
    /// The form of a secret, for messages.
    pub const EXPECTED: &str = "`whsec_` and 24 to 64 bytes in base64";

    /// Parses a secret; `None` if it has not the form [`Self::EXPECTED`].
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = Zeroizing::new(STANDARD.decode(text.strip_prefix(SECRET_PREFIX)?).ok()?);
        if !SECRET_BYTES.contains(&bytes.len()) {
            return None;
        }
        let mut key = Zeroizing::new([0; HMAC_BLOCK_BYTES]);
        for (to, from) in key.iter_mut().zip(bytes.iter()) {
            *to = *from;
        }
        Some(Self(Arc::new(key)))
    }

    /// Signs a request for an event at a time in seconds since 1970.
    pub fn sign(&self, id: &str, timestamp: i64, body: &str) -> String {
        let mut mac = Hmac::<Sha256>::new(&(**self.0).into());
        mac.update(format!("{id}.{timestamp}.").as_bytes());
        mac.update(body.as_bytes());
        format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
    }
}

/// The headers of a request for the event `id` at a time in seconds since 1970, signed with each of the secrets.
pub fn signed_headers(
    id: &str,
    timestamp: i64,
    body: &str,
    secrets: &[WebhookSecret],
) -> [(&'static str, String); 3] {
    let signatures: Vec<_> = secrets.iter().map(|secret| secret.sign(id, timestamp, body)).collect();
    [
        (ID_HEADER, id.to_owned()),
        (TIMESTAMP_HEADER, timestamp.to_string()),
        (SIGNATURE_HEADER, signatures.join(" ")),
    ]
}

/// A generated secret as its text, for the one who verifies the requests. Neither `Debug` nor `Display` shows it.
pub struct WebhookSecretText(Zeroizing<String>);

impl WebhookSecretText {
    /// Generates a secret from the operating system's random source.
    pub fn generate() -> Result<Self, NoRandomness> {
        let mut random = Zeroizing::new([0_u8; GENERATED_BYTES]);
        getrandom::fill(random.as_mut_slice()).map_err(NoRandomness)?;
        let encoded = Zeroizing::new(STANDARD.encode(random.as_slice()));
        Ok(Self(Zeroizing::new(format!("{SECRET_PREFIX}{}", *encoded))))
    }

    /// Returns the text. Only for the response and for the store that the secret is meant for.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for WebhookSecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SECRET_PREFIX}…")
    }
}

/// Serializes the secret in the clear: only responses that hand over a secret have a field of this type.
impl Serialize for WebhookSecretText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for WebhookSecretText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|text| Self(Zeroizing::new(text)))
    }
}

impl utoipa::PartialSchema for WebhookSecretText {
    fn schema() -> RefOr<Schema> {
        let pattern = format!("^{SECRET_PREFIX}[A-Za-z0-9+/]{{43}}=$");
        ObjectBuilder::new().schema_type(Type::String).pattern(Some(pattern)).into()
    }
}

impl ToSchema for WebhookSecretText {
    fn name() -> Cow<'static, str> {
        "WebhookSecret".into()
    }
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
pub enum WebhookEvent {
    /// A turn has ended, or its message has left the queue without a turn.
    #[serde(rename = "turn.ended")]
    TurnEnded,
    /// A turn waits for a person.
    #[serde(rename = "turn.waiting")]
    TurnWaiting,
}

impl WebhookEvent {
    /// All events.
    pub const ALL: [Self; 2] = [Self::TurnEnded, Self::TurnWaiting];

    /// The name of the event.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::TurnEnded => "turn.ended",
            Self::TurnWaiting => "turn.waiting",
        }
    }

    /// Parses what [`Self::as_str`] returns.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|event| event.as_str() == name)
    }
}

/// The body of a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WebhookPayload {
    /// What happened; `test` for `POST /webhook/test`.
    #[serde(rename = "type")]
    pub kind: String,
    /// When it happened.
    pub timestamp: Timestamp,
    /// What it happened to.
    pub data: WebhookData,
}

/// What an event is about.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WebhookData {
    /// The engine, as its orchestrator calls it; absent for one that no orchestrator has started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine_id: Option<String>,
    /// The task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<TaskId>,
    /// With `turn.ended`: the turn, as `GET /tasks/{task_id}/turns/{turn_id}` returns it. Without its text if that is
    /// longer than 256 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<TurnRecord>,
    /// With `turn.waiting`: the turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_id: Option<TurnId>,
    /// With `turn.waiting`: the request to the person, as `GET /hitl/pending` returns it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<PendingRequest>,
}

/// What becomes of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryState {
    /// It is sent at its next attempt.
    Pending,
    /// The receiver has accepted it.
    Delivered,
    /// It was given up.
    Failed,
    /// There is nothing to report any more: the person has answered, or the turn is gone.
    Obsolete,
}

impl DeliveryState {
    /// All states.
    pub const ALL: [Self; 4] = [Self::Pending, Self::Delivered, Self::Failed, Self::Obsolete];

    /// The name of the state.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Delivered => "delivered",
            Self::Failed => "failed",
            Self::Obsolete => "obsolete",
        }
    }
}

/// The delivery of an event to the product.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WebhookDelivery {
    /// The id of the event, which its requests carry in the header `webhook-id`.
    pub id: String,
    /// What happened.
    #[serde(rename = "type")]
    pub event: WebhookEvent,
    /// What becomes of it.
    pub state: DeliveryState,
    /// The task.
    pub task_id: TaskId,
    /// The turn.
    pub turn_id: TurnId,
    /// When it happened.
    pub created_at: Timestamp,
    /// How often it was sent.
    pub attempts: u32,
    /// When it is sent next; null unless it is pending.
    pub next_attempt_at: Option<Timestamp>,
    /// When it was last sent; null if it was not.
    pub last_attempt_at: Option<Timestamp>,
    /// Why it is not delivered, for a person; null if there is no reason.
    pub error: Option<String>,
}

/// Response of `GET /webhook/deliveries`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WebhookDeliveries {
    /// The deliveries, the newest first: all that are pending, and the newest 200 others.
    pub deliveries: Vec<WebhookDelivery>,
}

/// Response of `GET /webhook`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WebhookStatus {
    /// The receiver: scheme, host and port. Null if there is none.
    pub receiver: Option<String>,
    /// The events that are reported.
    pub events: Vec<WebhookEvent>,
    /// How many deliveries are pending.
    pub pending: u64,
    /// How many of those that are kept have failed.
    pub failed: u64,
}

/// Response of `POST /webhook/test`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WebhookTest {
    /// Whether the receiver has accepted the request.
    pub delivered: bool,
    /// Why it was not delivered, for a person; null if it was.
    pub error: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the reference implementations
    /// (<https://github.com/standard-webhooks/standard-webhooks/blob/main/libraries/javascript/src/index.test.ts>).
    #[test]
    fn requests_are_signed_as_the_standard_says() {
        let secret = WebhookSecret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let signature = secret.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, r#"{"test": 2432232314}"#);
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
        assert_eq!(format!("{secret:?}"), "WebhookSecret");
    }

    #[test]
    fn a_generated_secret_is_one_and_is_shown_to_nobody_else() {
        let (one, other) = (WebhookSecretText::generate().unwrap(), WebhookSecretText::generate().unwrap());
        assert!(WebhookSecret::parse(one.expose()).is_some() && one.expose() != other.expose());
        assert_eq!(format!("{one:?}"), "whsec_…");
        let headers = signed_headers(
            "whk_1_2",
            7,
            "{}",
            &[&one, &other].map(|secret| WebhookSecret::parse(secret.expose()).unwrap()),
        );
        assert_eq!(headers[..2], [(ID_HEADER, "whk_1_2".to_owned()), (TIMESTAMP_HEADER, "7".to_owned())]);
        assert_eq!(headers[2].1.split(' ').filter(|signature| signature.starts_with("v1,")).count(), 2);
    }

    #[test]
    fn what_is_no_secret_is_refused() {
        let of_bytes = |count| format!("whsec_{}", STANDARD.encode(vec![7; count]));
        for (text, is_secret) in [
            (of_bytes(23), false),
            (of_bytes(24), true),
            (of_bytes(64), true),
            (of_bytes(65), false),
            ("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".to_owned(), false),
            ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2La LaSw".to_owned(), false),
            (String::new(), false),
        ] {
            assert_eq!(WebhookSecret::parse(&text).is_some(), is_secret, "{text}");
        }
    }
}
