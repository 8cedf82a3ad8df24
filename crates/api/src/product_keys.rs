//! Platform keys of a product, which an operator rotates with an overlap: a new key works beside the old ones until
//! these are revoked or expire.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::serde_helpers::BoundedInt;
use crate::{PlatformKey, PlatformKeyId, Timestamp};

/// The most platform keys of a product that are in force: a rotation needs two, and one may be under way in several
/// places.
pub const MAX_PLATFORM_KEYS: usize = 5;

/// For how long old keys still work, in seconds: not at all to a year.
pub type KeyOverlap = BoundedInt<0, 31_536_000>;

/// Body of `POST /products/{product_id}/keys`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct CreatePlatformKey {
    /// After how many seconds the keys that the product has by now stop working: 0 to 31,536,000. By default they work
    /// until they are revoked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old_keys_expire_in_s: Option<KeyOverlap>,
}

/// A platform key without the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PlatformKeySummary {
    /// The key's id, by which it can be revoked.
    pub key_id: PlatformKeyId,
    /// Whether it is the key that the product was registered with.
    pub registration: bool,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it stops working; null if it works until it is revoked.
    #[schema(required)]
    pub expires_at: Option<Timestamp>,
}

/// Response of `POST /products/{product_id}/keys`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct CreatedPlatformKey {
    /// The key, for `X-Platform-Key`. It is returned only here.
    pub platform_api_key: PlatformKey,
    /// What is known about it.
    #[serde(flatten)]
    pub summary: PlatformKeySummary,
}

/// Response of `GET /products/{product_id}/keys`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PlatformKeyList {
    /// The keys in force, oldest first.
    pub keys: Vec<PlatformKeySummary>,
}

/// Response of `DELETE /products/{product_id}/keys/{key_id}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RevokedPlatformKey {
    /// The key's id.
    pub key_id: PlatformKeyId,
    /// When it was revoked. It has not worked since.
    pub revoked_at: Timestamp,
}
