//! Identifiers created by Roundhouse: a prefix for the kind, and a sortable part.
//!
//! The sortable part is a `UUIDv7` in simple form (32 lower-case hexadecimal digits). Ids created later sort
//! later, so a listing by id is a listing by age.

use std::borrow::Cow;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use utoipa::openapi::{ObjectBuilder, RefOr, Schema, Type};
use uuid::Uuid;

/// The kind of thing that an [`Id`] identifies.
pub trait Kind {
    /// The text before the sortable part, such as `eng_`.
    const PREFIX: &'static str;
    /// The name of the id type in the OpenAPI document.
    const NAME: &'static str;
}

/// The kinds of things that have an [`Id`].
pub mod kind {
    use super::Kind;

    /// A product (tenant).
    pub enum Product {}
    /// An engine.
    pub enum Engine {}
    /// One turn of a task.
    pub enum Turn {}
    /// A message of a task.
    pub enum Message {}
    /// A tool call.
    pub enum Call {}
    /// A human-in-the-loop request.
    pub enum Hitl {}
    /// A lasting approval by a person.
    pub enum Grant {}
    /// A record of knowledge.
    pub enum Memory {}
    /// The summary of a turn that is remembered.
    pub enum Episode {}
    /// A person's feedback on a turn.
    pub enum Feedback {}
    /// A learning batch.
    pub enum Batch {}
    /// A connection to a tool server.
    pub enum Connection {}
    /// A browser token.
    pub enum Token {}
    /// A platform key of a product.
    pub enum PlatformKey {}
    /// A webhook that gets the rows of a product's audit log.
    pub enum AuditWebhook {}
    /// A rollout of another engine image.
    pub enum Rollout {}

    impl Kind for Product {
        const PREFIX: &'static str = "prod_";
        const NAME: &'static str = "ProductId";
    }
    impl Kind for Engine {
        const PREFIX: &'static str = "eng_";
        const NAME: &'static str = "EngineId";
    }
    impl Kind for Turn {
        const PREFIX: &'static str = "turn_";
        const NAME: &'static str = "TurnId";
    }
    impl Kind for Message {
        const PREFIX: &'static str = "msg_";
        const NAME: &'static str = "MessageId";
    }
    impl Kind for Call {
        const PREFIX: &'static str = "call_";
        const NAME: &'static str = "CallId";
    }
    impl Kind for Hitl {
        const PREFIX: &'static str = "hitl-";
        const NAME: &'static str = "HitlId";
    }
    impl Kind for Grant {
        const PREFIX: &'static str = "grant_";
        const NAME: &'static str = "GrantId";
    }
    impl Kind for Memory {
        const PREFIX: &'static str = "mem_";
        const NAME: &'static str = "MemoryId";
    }
    impl Kind for Episode {
        const PREFIX: &'static str = "ep_";
        const NAME: &'static str = "EpisodeId";
    }
    impl Kind for Feedback {
        const PREFIX: &'static str = "fb-";
        const NAME: &'static str = "FeedbackId";
    }
    impl Kind for Batch {
        const PREFIX: &'static str = "lc-";
        const NAME: &'static str = "BatchId";
    }
    impl Kind for Connection {
        const PREFIX: &'static str = "conn_";
        const NAME: &'static str = "ConnectionId";
    }
    impl Kind for Token {
        const PREFIX: &'static str = "tok_";
        const NAME: &'static str = "TokenId";
    }
    impl Kind for PlatformKey {
        const PREFIX: &'static str = "key_";
        const NAME: &'static str = "PlatformKeyId";
    }
    impl Kind for AuditWebhook {
        const PREFIX: &'static str = "whk_";
        const NAME: &'static str = "AuditWebhookId";
    }
    impl Kind for Rollout {
        const PREFIX: &'static str = "roll_";
        const NAME: &'static str = "RolloutId";
    }
}

/// `prod_…`: identifies a product.
pub type ProductId = Id<kind::Product>;
/// `eng_…`: identifies an engine; the names of its folder and container derive from it alone.
pub type EngineId = Id<kind::Engine>;
/// `turn_…`: identifies one turn of a task.
pub type TurnId = Id<kind::Turn>;
/// `msg_…`: identifies a message of a task.
pub type MessageId = Id<kind::Message>;
/// `call_…`: identifies a tool call.
pub type CallId = Id<kind::Call>;
/// `hitl-…`: identifies a human-in-the-loop request.
pub type HitlId = Id<kind::Hitl>;
/// `grant_…`: identifies a lasting approval by a person.
pub type GrantId = Id<kind::Grant>;
/// `mem_…`: identifies a record of knowledge.
pub type MemoryId = Id<kind::Memory>;
/// `ep_…`: identifies the summary of a turn that is remembered.
pub type EpisodeId = Id<kind::Episode>;
/// `fb-…`: identifies a person's feedback on a turn.
pub type FeedbackId = Id<kind::Feedback>;
/// `lc-…`: identifies a learning batch.
pub type BatchId = Id<kind::Batch>;
/// `conn_…`: identifies a connection to a tool server.
pub type ConnectionId = Id<kind::Connection>;
/// `tok_…`: identifies a browser token.
pub type TokenId = Id<kind::Token>;
/// `key_…`: identifies a platform key of a product.
pub type PlatformKeyId = Id<kind::PlatformKey>;
/// `whk_…`: identifies a webhook that gets the rows of a product's audit log.
pub type AuditWebhookId = Id<kind::AuditWebhook>;
/// `roll_…`: identifies a rollout of another engine image.
pub type RolloutId = Id<kind::Rollout>;

/// An identifier of one [`Kind`] of thing.
pub struct Id<K> {
    uuid: Uuid,
    kind: PhantomData<fn() -> K>,
}

impl<K: Kind> Id<K> {
    /// Creates a new id. Within this process, ids created later sort after earlier ones.
    #[expect(clippy::new_without_default, reason = "a default id would hide that each one is new")]
    pub fn new() -> Self {
        Self { uuid: Uuid::now_v7(), kind: PhantomData }
    }
}

impl PlatformKeyId {
    /// The id of the key that a product was registered with. The registry stores none: it has the product's number.
    pub const fn of_registration(product_id: ProductId) -> Self {
        Self { uuid: product_id.uuid, kind: PhantomData }
    }
}

/// The error for a text that is not an id of the expected kind.
#[derive(Debug, thiserror::Error)]
#[error("must be {prefix} followed by 32 lower-case hexadecimal digits")]
pub struct InvalidId {
    prefix: &'static str,
}

impl<K: Kind> FromStr for Id<K> {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let invalid = InvalidId { prefix: K::PREFIX };
        let Some(simple) = text.strip_prefix(K::PREFIX) else { return Err(invalid) };
        // `Uuid` accepts several formats; only the one that `Display` writes is an id.
        if simple.len() != 32 || simple.bytes().any(|byte| byte.is_ascii_uppercase()) {
            return Err(invalid);
        }
        match Uuid::try_parse(simple) {
            Ok(uuid) => Ok(Self { uuid, kind: PhantomData }),
            Err(_) => Err(invalid),
        }
    }
}

impl<K: Kind> fmt::Display for Id<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", K::PREFIX, self.uuid.simple())
    }
}

impl<K: Kind> fmt::Debug for Id<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<K> Clone for Id<K> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<K> Copy for Id<K> {}
impl<K> PartialEq for Id<K> {
    fn eq(&self, other: &Self) -> bool {
        self.uuid == other.uuid
    }
}
impl<K> Eq for Id<K> {}
impl<K> PartialOrd for Id<K> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<K> Ord for Id<K> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.uuid.cmp(&other.uuid)
    }
}
impl<K> Hash for Id<K> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.uuid.hash(state);
    }
}

impl<K: Kind> Serialize for Id<K> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de, K: Kind> Deserialize<'de> for Id<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Cow::<str>::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl<K: Kind> utoipa::PartialSchema for Id<K> {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new()
            .schema_type(Type::String)
            .pattern(Some(format!("^{}[0-9a-f]{{32}}$", K::PREFIX)))
            .into()
    }
}

impl<K: Kind> utoipa::ToSchema for Id<K> {
    fn name() -> Cow<'static, str> {
        K::NAME.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_read_back_and_sort_by_age() {
        let ids: Vec<EngineId> = (0..1_000).map(|_| EngineId::new()).collect();
        assert!(ids.is_sorted());
        for id in ids {
            assert_eq!(id.to_string().parse::<EngineId>().unwrap(), id);
        }
    }

    #[test]
    fn other_forms_are_refused() {
        let id = EngineId::new().to_string();
        let simple = id.strip_prefix("eng_").unwrap();
        let hyphenated = format!("eng_{}", Uuid::nil().hyphenated());
        for wrong in [simple, &id[..id.len() - 1], &id.to_uppercase(), &hyphenated, "eng_", "prod_0", ""] {
            assert!(wrong.parse::<EngineId>().is_err(), "{wrong} was accepted as an engine id");
        }
        assert!(id.parse::<ProductId>().is_err());
    }
}
