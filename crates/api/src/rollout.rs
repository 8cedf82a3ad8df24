//! Rollouts: all engines that follow the deployment's image are moved to another one, step by step, and back again if
//! that fails.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::image::EngineImage;
use crate::orchestrator::PageLimit;
use crate::serde_helpers::BoundedInt;
use crate::text::UserId;
use crate::{EngineId, ErrorDetail, ProductId, RolloutId, Timestamp};

/// A share in percent.
pub type Percent = BoundedInt<0, 100>;
/// A number of seconds: at most 30 days.
pub type RolloutSeconds = BoundedInt<0, 2_592_000>;
/// How many engines of a rollout may fail.
pub type MaxFailures = BoundedInt<0, 1_000_000>;
/// How many engines are moved at the same time.
pub type RolloutConcurrency = BoundedInt<1, 64>;

/// What a rollout does when too many of its engines fail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    /// The engines that were moved go back.
    #[default]
    RollBack,
    /// The rollout pauses until an operator decides.
    Pause,
}

/// Body of `POST /fleet/rollouts`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct StartRollout {
    /// The image that all engines are moved to, and that is the deployment's afterwards.
    pub engine_version: EngineImage,
    /// How many engines are moved first, in percent of those to be moved: at least one. 5 by default; 0 to move all at
    /// once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary_percent: Option<Percent>,
    /// How long the first ones are watched before the others follow, in seconds; 600 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bake_s: Option<RolloutSeconds>,
    /// Engines that run are moved when they sleep next, or after this time at the latest, in seconds: 86,400 by default;
    /// 0 to move them at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_s: Option<RolloutSeconds>,
    /// How many engines may fail before the rollout ends; none by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_failures: Option<MaxFailures>,
    /// The share of proxied calls to engines that were moved that may fail, in percent; 5 by default. It counts from 20
    /// calls on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_error_percent: Option<Percent>,
    /// How many engines are moved at the same time; 4 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<RolloutConcurrency>,
    /// What happens when too many fail; `roll_back` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_failure: Option<OnFailure>,
}

/// What was decided for a rollout when it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RolloutPlan {
    /// How many engines are moved first.
    pub canaries: u64,
    /// How long these are watched before the others follow, in seconds.
    pub bake_s: u64,
    /// After this time, engines that run are moved, too, in seconds.
    pub window_s: u64,
    /// How many engines may fail.
    pub max_failures: u64,
    /// The share of proxied calls to engines that were moved that may fail, in percent.
    pub max_error_percent: u64,
    /// How many engines are moved at the same time.
    pub concurrency: u64,
    /// What happens when too many fail.
    pub on_failure: OnFailure,
}

/// How far a rollout is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RolloutPhase {
    /// The first engines are moved.
    Canary,
    /// The first engines are watched.
    Baking,
    /// The others are moved.
    Rolling,
    /// All engines are moved, and its image is the deployment's.
    Completed,
    /// Engines go back to the image that they had.
    RollingBack,
    /// All engines that could go back have done so.
    RolledBack,
}

impl RolloutPhase {
    /// All phases.
    pub const ALL: [Self; 6] =
        [Self::Canary, Self::Baking, Self::Rolling, Self::Completed, Self::RollingBack, Self::RolledBack];

    /// The name of the phase.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Canary => "canary",
            Self::Baking => "baking",
            Self::Rolling => "rolling",
            Self::Completed => "completed",
            Self::RollingBack => "rolling_back",
            Self::RolledBack => "rolled_back",
        }
    }

    /// Parses what [`RolloutPhase::as_str`] returns.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|phase| phase.as_str() == name)
    }

    /// Whether nothing follows by itself.
    pub const fn is_over(self) -> bool {
        matches!(self, Self::Completed | Self::RolledBack)
    }
}

/// What became of an engine in a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RolloutEngineState {
    /// It is being moved.
    Moving,
    /// It is on the rollout's image.
    Moved,
    /// It did not become healthy on the rollout's image, and is on its former one again.
    Failed,
    /// It was moved, and failed later.
    Unhealthy,
    /// Its product may not use the rollout's image.
    Skipped,
    /// It went back to its former image.
    RolledBack,
    /// It could not go back, and is pinned to the rollout's image.
    Stuck,
}

impl RolloutEngineState {
    /// All states.
    pub const ALL: [Self; 7] = [
        Self::Moving,
        Self::Moved,
        Self::Failed,
        Self::Unhealthy,
        Self::Skipped,
        Self::RolledBack,
        Self::Stuck,
    ];

    /// The name of the state.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Moving => "moving",
            Self::Moved => "moved",
            Self::Failed => "failed",
            Self::Unhealthy => "unhealthy",
            Self::Skipped => "skipped",
            Self::RolledBack => "rolled_back",
            Self::Stuck => "stuck",
        }
    }

    /// Parses what [`RolloutEngineState::as_str`] returns.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == name)
    }
}

/// The number of a rollout's engines in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RolloutCounts {
    /// Engines that are still to be moved; 0 when the rollout is over.
    pub waiting: u64,
    /// Engines that are being moved.
    pub moving: u64,
    /// Engines that are on the rollout's image.
    pub moved: u64,
    /// Engines that did not become healthy, and are on their former image again.
    pub failed: u64,
    /// Engines that were moved, and failed later.
    pub unhealthy: u64,
    /// Engines whose product may not use the image.
    pub skipped: u64,
    /// Engines that went back.
    pub rolled_back: u64,
    /// Engines that could not go back.
    pub stuck: u64,
}

/// A rollout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Rollout {
    /// Its id.
    pub rollout_id: RolloutId,
    /// The image that engines are moved to.
    pub engine_version: EngineImage,
    /// The deployment's image when it began.
    pub previous_version: EngineImage,
    /// What was decided when it began.
    pub plan: RolloutPlan,
    /// How far it is.
    pub phase: RolloutPhase,
    /// Since when it has been in this phase.
    pub phase_since: Timestamp,
    /// Whether it is paused.
    pub paused: bool,
    /// Why it is paused or goes back, for a person; null if it does neither.
    #[schema(required)]
    pub reason: Option<String>,
    /// When it began.
    pub started_at: Timestamp,
    /// When it ended; null if it has not.
    #[schema(required)]
    pub ended_at: Option<Timestamp>,
    /// How many engines are in which state.
    pub engines: RolloutCounts,
}

/// Response of `GET /fleet/rollouts`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RolloutList {
    /// The last 50 rollouts, newest first.
    pub rollouts: Vec<Rollout>,
}

/// An engine of a rollout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RolloutEngine {
    /// The engine's id.
    pub engine_id: EngineId,
    /// The engine's product.
    pub product_id: ProductId,
    /// The engine's user.
    pub user_id: UserId,
    /// The image that it had before.
    pub previous_version: EngineImage,
    /// What became of it.
    pub state: RolloutEngineState,
    /// Since when.
    pub since: Timestamp,
    /// Why it failed, is skipped or is stuck; null if it is not.
    #[schema(required)]
    pub error: Option<ErrorDetail>,
}

/// Query of `GET /fleet/rollouts/{rollout_id}/engines`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct ListRolloutEngines {
    /// Only engines in this state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<RolloutEngineState>,
    /// Page size; 100 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<PageLimit>,
    /// Only engines after this id: `next` of the previous response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<EngineId>,
}

/// Response of `GET /fleet/rollouts/{rollout_id}/engines`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RolloutEngineList {
    /// The page, sorted by engine id.
    pub engines: Vec<RolloutEngine>,
    /// Where to continue; null if there are no more.
    #[schema(required)]
    pub next: Option<EngineId>,
}

/// Body of `POST /fleet/rollouts/{rollout_id}/rollback`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct RollBackRollout {
    /// Whether an engine whose data the newer version has migrated gets the copy of before back even if it was used
    /// since: what its user has said meanwhile is lost. Otherwise it stays on the newer version.
    #[serde(default)]
    pub discard_new_turns: bool,
}
