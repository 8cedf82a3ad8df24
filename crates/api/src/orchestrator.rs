//! Requests and answers of the orchestrator: products and engines.

use serde::{Deserialize, Deserializer, Serialize, de};
use utoipa::ToSchema;

use crate::serde_helpers::{BoundedInt, null_as_default};
use crate::text::{DisplayName, Slug, UserId};
use crate::{EngineId, EngineImage, EngineKey, ErrorDetail, PlatformKey, ProductId, Timestamp};

pub use crate::policy::Policy;

/// The header that identifies the calling product.
pub const PLATFORM_KEY_HEADER: &str = "x-platform-key";
/// The header of the deployment's operator.
pub const ADMIN_KEY_HEADER: &str = "x-admin-key";

/// Answer of `GET /health`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// Whether the service is ready.
    pub status: HealthStatus,
    /// Why it is not ready, in the envelope's form; only while starting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorDetail>,
}

/// Whether the orchestrator is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum HealthStatus {
    /// Ready.
    Ok,
    /// Not yet: starting, or the standby of another orchestrator.
    Starting,
}

/// Body of `POST /products/register`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct RegisterProduct {
    /// Unique short name.
    pub slug: Slug,
    /// Name for people.
    pub display_name: DisplayName,
    /// Limits; none by default.
    #[serde(default, deserialize_with = "null_as_default")]
    pub policy: Policy,
    /// A key that the caller made, of the form of those that are issued. With it the call may be repeated: a product that
    /// is there with this slug and this key is answered as it is.
    #[serde(default, deserialize_with = "well_formed_key", skip_serializing_if = "Option::is_none")]
    pub platform_api_key: Option<PlatformKey>,
}

fn well_formed_key<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PlatformKey>, D::Error> {
    let key = Option::<PlatformKey>::deserialize(deserializer)?;
    match &key {
        Some(key) if !key.is_well_formed() => Err(de::Error::custom(format!(
            "must be {} and at least 43 characters from A-Z a-z 0-9 _ -, chosen at random",
            PlatformKey::PREFIX
        ))),
        _ => Ok(key),
    }
}

/// Answer of `POST /products/register`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct RegisteredProduct {
    /// The product's id.
    pub product_id: ProductId,
    /// Unique short name.
    pub slug: Slug,
    /// Name for people.
    pub display_name: DisplayName,
    /// Limits in force.
    pub policy: Policy,
    /// When it was registered.
    pub created_at: Timestamp,
    /// The product's key. Shown this once: only its hash is kept.
    pub platform_api_key: PlatformKey,
}

/// Body of `PUT /products/{product_id}/policy`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ReplacePolicy {
    /// Takes the place of the whole policy before.
    pub policy: Policy,
}

/// Answer of `PUT /products/{product_id}/policy`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ReplacedPolicy {
    /// The product's id.
    pub product_id: ProductId,
    /// Unique short name.
    pub slug: Slug,
    /// Name for people.
    pub display_name: DisplayName,
    /// Limits in force.
    pub policy: Policy,
    /// When they came into force.
    pub updated_at: Timestamp,
}

/// One product, as the listing shows it.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ProductSummary {
    /// The product's id.
    pub product_id: ProductId,
    /// Unique short name.
    pub slug: Slug,
    /// Name for people.
    pub display_name: DisplayName,
    /// Limits in force.
    pub policy: Policy,
    /// When it was registered.
    pub created_at: Timestamp,
    /// When its policy was last replaced; null if never.
    #[schema(required)]
    pub updated_at: Option<Timestamp>,
}

/// Query of `GET /products`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct ListProducts {
    /// Page size; 100 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<PageLimit>,
    /// Rows to skip; 0 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<PageOffset>,
}

/// Answer of `GET /products`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ProductList {
    /// The page, oldest product first.
    pub products: Vec<ProductSummary>,
    /// How many products there are in all.
    pub total: u64,
}

/// The state of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EngineStatus {
    /// Its first boot is under way.
    Provisioning,
    /// Running.
    Running,
    /// Stopped because it was idle; an admit may wake it.
    Sleeping,
    /// Stopped by the product.
    Stopped,
    /// It died or was not healthy.
    Failed,
    /// Being removed.
    Destroying,
}

impl EngineStatus {
    /// Every state, in the contract's order.
    pub const ALL: [Self; 6] =
        [Self::Provisioning, Self::Running, Self::Sleeping, Self::Stopped, Self::Failed, Self::Destroying];

    /// The state as it is written on the wire and in the registry.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Provisioning => "provisioning",
            Self::Running => "running",
            Self::Sleeping => "sleeping",
            Self::Stopped => "stopped",
            Self::Failed => "failed",
            Self::Destroying => "destroying",
        }
    }

    /// Reads what [`EngineStatus::as_str`] writes.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == name)
    }
}

/// One engine, as the listing shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EngineSummary {
    /// The engine's id.
    pub engine_id: EngineId,
    /// The product's user.
    pub user_id: UserId,
    /// Its state.
    pub status: EngineStatus,
    /// Its address; null where unknown. May still be set when the engine is stopped or sleeping.
    #[schema(required)]
    pub url: Option<String>,
    /// The image that it runs, or ran last.
    pub engine_version: EngineImage,
    /// When it was provisioned.
    pub created_at: Timestamp,
    /// When it last answered a health check; null if never.
    #[schema(required)]
    pub last_health_at: Option<Timestamp>,
}

/// One engine with its key, as provision's caller, admit and the single look-up see it.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct EngineRecord {
    /// All that the listing shows.
    #[serde(flatten)]
    pub summary: EngineSummary,
    /// The key to the engine.
    pub api_key: EngineKey,
}

/// Body of `POST /engines/provision`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ProvisionEngine {
    /// The user who gets the engine.
    pub user_id: UserId,
    /// The image to run and stay with. By default the deployment's, which the engine then follows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine_version: Option<EngineImage>,
}

/// Answer of `POST /engines/provision`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ProvisionedEngine {
    /// The engine's id.
    pub engine_id: EngineId,
    /// The product's user.
    pub user_id: UserId,
    /// Its state.
    pub status: EngineStatus,
    /// Its address.
    pub url: String,
    /// The key to the engine.
    pub api_key: EngineKey,
}

/// Body of `POST /engines/{user_id}/admit`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct Admit {
    /// Provision an engine if the user has none.
    #[serde(default, deserialize_with = "null_as_default")]
    pub auto_provision: bool,
    /// Wake the engine if it sleeps.
    #[serde(default, deserialize_with = "null_as_default")]
    pub auto_wake: bool,
}

/// Answer of `POST /engines/{user_id}/admit`: an engine, or the reason why there is none.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Admission {
    /// Whether the user may use the engine now.
    pub admitted: bool,
    /// The engine; null if not admitted.
    #[schema(required)]
    pub engine: Option<EngineRecord>,
    /// Why not; absent if admitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<DenialReason>,
}

impl Admission {
    /// Admitted to `engine`.
    pub const fn admitted(engine: EngineRecord) -> Self {
        Self { admitted: true, engine: Some(engine), reason: None }
    }

    /// Not admitted, because of `reason`.
    pub const fn denied(reason: DenialReason) -> Self {
        Self { admitted: false, engine: None, reason: Some(reason) }
    }
}

/// Why a user was not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DenialReason {
    /// The user has no engine, and `auto_provision` was false.
    EngineNotFound,
    /// The engine sleeps, and `auto_wake` was false.
    EngineSleeping,
    /// The engine failed and is not being restarted in time.
    EngineUnhealthy,
    /// The product stopped the engine; only start undoes that.
    EngineStopped,
}

/// Answer of `POST /engines/{user_id}/start`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct StartedEngine {
    /// `running`.
    pub status: EngineStatus,
    /// Its address.
    pub url: String,
}

/// Answer of `POST /engines/{user_id}/stop`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct StoppedEngine {
    /// `stopped`.
    pub status: EngineStatus,
}

/// Answer of `POST /engines/{user_id}/rotate-key`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct RotatedKey {
    /// The engine's key from now on. The one before is invalid.
    pub new_api_key: EngineKey,
}

/// Answer of `DELETE /engines/{user_id}`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct DestroyedEngine {
    /// `destroyed`.
    pub status: Destroyed,
    /// The engine that was.
    pub engine_id: EngineId,
}

/// Answer of `GET /engines/{user_id}/explain`: why an engine is as it is, and what comes next. What does not
/// apply is null.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Explanation {
    /// The engine's id.
    pub engine_id: EngineId,
    /// Its state.
    pub status: EngineStatus,
    /// The last move of the engine that the ledger has.
    #[schema(required)]
    pub last_transition: Option<Transition>,
    /// What happens by itself next.
    pub next_action: NextAction,
    /// Why it runs, in sentences.
    #[schema(required)]
    pub awake_because: Option<Vec<String>>,
    /// Automatic restarts since it was last well for long.
    #[schema(required)]
    pub restart_attempt: Option<RestartAttempt>,
    /// The caps that the product's policy sets.
    #[schema(required)]
    pub caps: Option<Caps>,
}

/// A move from one state to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Transition {
    /// When it was made.
    pub at: Timestamp,
    /// The ledger's event.
    pub event: String,
    /// The state before; null if there was no engine.
    #[schema(required)]
    pub from: Option<EngineStatus>,
    /// The state after; null if there is no engine any more.
    #[schema(required)]
    pub to: Option<EngineStatus>,
    /// Why.
    #[schema(required)]
    pub reason: Option<String>,
}

/// What happens to an engine by itself next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NextAction {
    /// What.
    pub action: Action,
    /// When, at the earliest; null if nothing happens.
    #[schema(required)]
    pub at: Option<Timestamp>,
}

/// What may happen to an engine by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// It is put to sleep, unless its user is admitted or it works then.
    Sleep,
    /// It is restarted.
    Restart,
    /// Nothing.
    None,
}

/// How many automatic restarts were attempted, and how many may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RestartAttempt {
    /// Attempts made.
    pub n: u32,
    /// Attempts allowed.
    pub max: u32,
}

/// The caps of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Caps {
    /// Memory, in MiB.
    #[schema(required)]
    pub memory_mb: Option<u64>,
    /// Processors; may be a fraction.
    #[schema(required)]
    pub cpus: Option<f64>,
    /// Processes.
    #[schema(required)]
    pub pids: Option<u64>,
    /// Whether they hold for the engine as it runs now.
    pub applied: bool,
}

/// The state of an engine that is no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Destroyed {
    /// Process or container, data, port and row are gone.
    Destroyed,
}

/// How many rows a page has: 1 to 1,000.
pub type PageLimit = BoundedInt<1, 1_000>;
/// How many rows to skip.
pub type PageOffset = BoundedInt<0, { i64::MAX }>;

/// Query of `GET /engines`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct ListEngines {
    /// Only engines in this state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<EngineStatus>,
    /// Page size; 100 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<PageLimit>,
    /// Rows to skip; 0 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<PageOffset>,
}

/// Answer of `GET /engines`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct EngineList {
    /// The page, oldest engine first.
    pub engines: Vec<EngineSummary>,
    /// How many engines match in all.
    pub total: u64,
}

/// How many of a log's last lines to show: 1 to 10,000.
pub type TailLines = BoundedInt<1, 10_000>;

/// Query of `GET /engines/{user_id}/logs`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct ReadLogs {
    /// How many lines; 200 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tail: Option<TailLines>,
}

/// Answer of `GET /engines/{user_id}/logs`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EngineLogs {
    /// The last lines of the engine's log, oldest first.
    pub lines: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_written_as_the_contract_names_them() {
        for status in EngineStatus::ALL {
            assert_eq!(serde_json::to_value(status).unwrap(), status.as_str());
            assert_eq!(EngineStatus::from_name(status.as_str()), Some(status));
        }
        assert_eq!(EngineStatus::from_name("gone"), None);
    }

    #[test]
    fn page_limits_are_bounded() {
        for (limit, good) in [("0", false), ("1", true), ("1000", true), ("1001", false), ("-1", false)] {
            assert_eq!(serde_json::from_str::<PageLimit>(limit).is_ok(), good, "{limit}");
        }
    }
}
