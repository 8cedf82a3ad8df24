//! Requests and responses of the orchestrator: products and engines.

use serde::{Deserialize, Deserializer, Serialize, de};
use utoipa::ToSchema;

use crate::product_state::ProductState;
use crate::serde_helpers::{BoundedInt, null_as_default};
use crate::text::{DisplayName, Slug, UserId};
use crate::{EngineId, EngineImage, EngineKey, ErrorDetail, PlatformKey, ProductId, Timestamp};

pub use crate::policy::Policy;

/// The header with a product's key, which identifies the product.
pub const PLATFORM_KEY_HEADER: &str = "x-platform-key";
/// The header with the operator's admin key.
pub const ADMIN_KEY_HEADER: &str = "x-admin-key";

/// The header of `GET /health` that tells what an orchestrator is at the moment: `active`, `standby` or `starting`.
pub const ROLE_HEADER: &str = "x-roundhouse-role";

/// The header in which an operator, beside the admin key, names the product that a call is about.
pub const PRODUCT_ID_HEADER: &str = "x-product-id";

/// Response of `GET /health`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// Whether the service is ready.
    pub status: HealthStatus,
    /// Why the service is not ready, in the form of the error envelope; only while it is starting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorDetail>,
}

/// Whether the orchestrator is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum HealthStatus {
    /// Ready.
    Ok,
    /// Not yet.
    Starting,
    /// It takes over when the active orchestrator of its registry ends or falls silent.
    Standby,
}

/// Body of `POST /products/register`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct RegisterProduct {
    /// Unique short name.
    pub slug: Slug,
    /// Name for people.
    pub display_name: DisplayName,
    /// The product's policy; no limits by default.
    #[serde(default, deserialize_with = "null_as_default")]
    pub policy: Policy,
    /// A key chosen by the caller, in the form of issued keys. It makes the call repeatable: if a product with
    /// this slug and this key exists already, the response describes that product.
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

/// Response of `POST /products/register`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct RegisteredProduct {
    /// The product's id.
    pub product_id: ProductId,
    /// Unique short name.
    pub slug: Slug,
    /// Name for people.
    pub display_name: DisplayName,
    /// The policy in force.
    pub policy: Policy,
    /// When it was registered.
    pub created_at: Timestamp,
    /// The product's key. It is shown only once: the orchestrator stores only its hash.
    pub platform_api_key: PlatformKey,
}

/// Body of `PUT /products/{product_id}/policy`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ReplacePolicy {
    /// The new policy, which replaces the previous one entirely.
    pub policy: Policy,
}

/// Response of `PUT /products/{product_id}/policy`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ReplacedPolicy {
    /// The product's id.
    pub product_id: ProductId,
    /// Unique short name.
    pub slug: Slug,
    /// Name for people.
    pub display_name: DisplayName,
    /// The policy in force.
    pub policy: Policy,
    /// When the policy came into force.
    pub updated_at: Timestamp,
}

/// A product in a listing.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ProductSummary {
    /// The product's id.
    pub product_id: ProductId,
    /// Unique short name.
    pub slug: Slug,
    /// Name for people.
    pub display_name: DisplayName,
    /// The policy in force.
    pub policy: Policy,
    /// When it was registered.
    pub created_at: Timestamp,
    /// When its policy was last replaced; null if never.
    #[schema(required)]
    pub updated_at: Option<Timestamp>,
    /// Whether it is in use. Answers of earlier versions have none.
    #[serde(default)]
    #[schema(required)]
    pub state: ProductState,
}

/// Query of `GET /products`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct ListProducts {
    /// Page size; 100 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<PageLimit>,
    /// The number of products to skip; 0 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<PageOffset>,
}

/// Response of `GET /products`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ProductList {
    /// The page, oldest product first.
    pub products: Vec<ProductSummary>,
    /// The total number of products.
    pub total: u64,
}

/// The state of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EngineStatus {
    /// The first boot is under way.
    Provisioning,
    /// Running.
    Running,
    /// Stopped because it was idle; an admit may wake it.
    Sleeping,
    /// Stopped by the product.
    Stopped,
    /// It exited or was unhealthy.
    Failed,
    /// Being removed.
    Destroying,
}

impl EngineStatus {
    /// All states, in the order of the API description.
    pub const ALL: [Self; 6] =
        [Self::Provisioning, Self::Running, Self::Sleeping, Self::Stopped, Self::Failed, Self::Destroying];

    /// Returns the state's name on the wire and in the registry.
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

    /// Parses the result of [`EngineStatus::as_str`].
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == name)
    }
}

/// An engine in a listing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EngineSummary {
    /// The engine's id.
    pub engine_id: EngineId,
    /// The user that it belongs to.
    pub user_id: UserId,
    /// The engine's state.
    pub status: EngineStatus,
    /// The engine's address; null if unknown. May still be set when the engine is stopped or sleeping.
    #[schema(required)]
    pub url: Option<String>,
    /// The image that it runs, or last ran.
    pub engine_version: EngineImage,
    /// When it was provisioned.
    pub created_at: Timestamp,
    /// When it last passed a health check; null if never.
    #[schema(required)]
    pub last_health_at: Option<Timestamp>,
}

/// An engine with its key, as returned by provision, admit and the look-up of a single engine.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct EngineRecord {
    /// The fields of a listing.
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
    /// The image to run, to which the engine is pinned. By default the deployment's, which the engine then
    /// follows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine_version: Option<EngineImage>,
}

/// Response of `POST /engines/provision`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ProvisionedEngine {
    /// The engine's id.
    pub engine_id: EngineId,
    /// The user that it belongs to.
    pub user_id: UserId,
    /// The engine's state.
    pub status: EngineStatus,
    /// The engine's address.
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

/// Response of `POST /engines/{user_id}/admit`: an engine, or the reason why there is none.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Admission {
    /// Whether the user may use the engine now.
    pub admitted: bool,
    /// The engine; null if not admitted.
    #[schema(required)]
    pub engine: Option<EngineRecord>,
    /// Why the user was not admitted; absent if admitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<DenialReason>,
}

impl Admission {
    /// Creates an admission to `engine`.
    pub const fn admitted(engine: EngineRecord) -> Self {
        Self { admitted: true, engine: Some(engine), reason: None }
    }

    /// Creates a denial with its reason.
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
    /// The product stopped the engine; only a start reverses that.
    EngineStopped,
}

/// Response of `POST /engines/{user_id}/start`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct StartedEngine {
    /// `running`.
    pub status: EngineStatus,
    /// The engine's address.
    pub url: String,
}

/// Response of `POST /engines/{user_id}/stop`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct StoppedEngine {
    /// `stopped`.
    pub status: EngineStatus,
}

/// Response of `POST /engines/{user_id}/rotate-key`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct RotatedKey {
    /// The engine's new key. The previous one is invalid.
    pub new_api_key: EngineKey,
}

/// Response of `DELETE /engines/{user_id}`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct DestroyedEngine {
    /// `destroyed`.
    pub status: Destroyed,
    /// The id of the destroyed engine.
    pub engine_id: EngineId,
}

/// Response of `GET /engines/{user_id}/explain`: why an engine is in its state, and what happens next. Fields that
/// do not apply are null.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Explanation {
    /// The engine's id.
    pub engine_id: EngineId,
    /// The engine's state.
    pub status: EngineStatus,
    /// The engine's last state transition in the audit log.
    #[schema(required)]
    pub last_transition: Option<Transition>,
    /// What happens next without a call.
    pub next_action: NextAction,
    /// Why it runs, as sentences for people.
    #[schema(required)]
    pub awake_because: Option<Vec<String>>,
    /// The automatic restarts since it was last healthy for long.
    #[schema(required)]
    pub restart_attempt: Option<RestartAttempt>,
    /// The resource limits set by the product's policy.
    #[schema(required)]
    pub caps: Option<Caps>,
}

/// A transition from one state to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Transition {
    /// When it happened.
    pub at: Timestamp,
    /// The event of the audit log.
    pub event: String,
    /// The previous state; null if there was no engine.
    #[schema(required)]
    pub from: Option<EngineStatus>,
    /// The next state; null if the engine no longer exists.
    #[schema(required)]
    pub to: Option<EngineStatus>,
    /// The reason.
    #[schema(required)]
    pub reason: Option<String>,
}

/// What happens to an engine next without a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NextAction {
    /// The action.
    pub action: Action,
    /// The earliest time; null if nothing happens.
    #[schema(required)]
    pub at: Option<Timestamp>,
}

/// An action on an engine without a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// It is put to sleep, unless its user is admitted or it is working by then.
    Sleep,
    /// It is restarted.
    Restart,
    /// Nothing happens.
    None,
}

/// The number of automatic restarts attempted, and the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RestartAttempt {
    /// The number of attempts made.
    pub n: u32,
    /// The maximum number of attempts.
    pub max: u32,
}

/// The resource limits of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Caps {
    /// The memory, in MiB.
    #[schema(required)]
    pub memory_mb: Option<u64>,
    /// The number of processors, which may be a fraction.
    #[schema(required)]
    pub cpus: Option<f64>,
    /// The number of processes and threads.
    #[schema(required)]
    pub pids: Option<u64>,
    /// Whether they are in force for the engine as it runs now.
    pub applied: bool,
}

/// The state of an engine that no longer exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Destroyed {
    /// Process or container, data, port and row are gone.
    Destroyed,
}

/// The maximum number of rows of a page: 1 to 1,000.
pub type PageLimit = BoundedInt<1, 1_000>;
/// The number of rows to skip.
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
    /// The number of engines to skip; 0 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<PageOffset>,
}

/// Response of `GET /engines`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct EngineList {
    /// The page, oldest engine first.
    pub engines: Vec<EngineSummary>,
    /// The number of engines that match.
    pub total: u64,
}

/// The number of a log's last lines to return: 1 to 10,000.
pub type TailLines = BoundedInt<1, 10_000>;

/// Query of `GET /engines/{user_id}/logs`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct ReadLogs {
    /// The number of lines; 200 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tail: Option<TailLines>,
}

/// Response of `GET /engines/{user_id}/logs`.
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
