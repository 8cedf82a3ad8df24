//! Schedules: messages that an engine sends itself at given times.

use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

use crate::engine::MaxTurns;
use crate::response_format::ResponseFormat;
use crate::serde_helpers::{BoundedInt, null_as_default};
use crate::text::{TextRule, ValidatedText};
use crate::turn_options::{
    AllowedTools, Effort, Instructions, MaxCost, MaxOutputTokens, MaxTokens, Metadata, TurnOverrides,
};
use crate::turns::TurnState;
use crate::{TaskId, Timestamp, TurnId};

/// The most schedules of an engine.
pub const MAX_SCHEDULES: u32 = 100;
/// The most bytes of a definition in JSON.
pub const MAX_DEFINITION_BYTES: usize = 128 * 1024;

/// The rules of the texts of a schedule.
pub mod rule {
    use super::TextRule;

    /// A caller's name for a schedule.
    pub enum Schedule {}
    /// The message that a schedule sends.
    pub enum Message {}

    impl TextRule for Schedule {
        const NAME: &'static str = "ScheduleId";
        const EXPECTED: &'static str = "1 to 64 letters, digits, hyphens and underscores";
        const MAX_BYTES: usize = 64;
        fn is_valid(text: &str) -> bool {
            text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
        }
    }

    impl TextRule for Message {
        const NAME: &'static str = "ScheduledMessage";
        const EXPECTED: &'static str = "1 to 32,768 bytes of UTF-8, not all of them blank";
        const MAX_BYTES: usize = 32 * 1024;
        fn is_valid(text: &str) -> bool {
            !text.trim().is_empty()
        }
    }
}

/// A caller's name for a schedule: 1 to 64 letters, digits, hyphens and underscores.
pub type ScheduleId = ValidatedText<rule::Schedule>;
/// The message that a schedule sends: 1 to 32,768 bytes, not blank.
pub type ScheduledMessage = ValidatedText<rule::Message>;
/// The name of a schedule for people.
pub type ScheduleName = crate::DisplayName;
/// The seconds between two runs: a minute to ten years.
pub type EverySeconds = BoundedInt<60, 315_360_000>;

/// When a schedule is due: exactly one of `cron`, `at` and `every_seconds`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScheduleTime {
    /// A cron expression of five fields: minute, hour, day of the month, month, day of the week.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cron: Option<String>,
    /// The time zone of `cron`, such as `Europe/Berlin`; `UTC` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<String>,
    /// The only due time, in the future.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
    /// The seconds between two due times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every_seconds: Option<EverySeconds>,
    /// The first due time of `every_seconds`; by default one interval after the schedule is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<Timestamp>,
}

/// What becomes of due times that passed while the engine could not run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum MissedPolicy {
    /// One run makes up for all of them.
    #[default]
    RunOnce,
    /// They are left out.
    Skip,
}

/// The options of a schedule's turns, as in `POST /execute`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(from = "FlatOptions")]
pub struct ScheduleOptions {
    /// Skip planning and run the loop directly.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "std::ops::Not::not")]
    pub direct: bool,
    /// Let the model think before it answers.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "std::ops::Not::not")]
    pub super_thinking: bool,
    /// The maximum number of model calls of a run; 50 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_turns: Option<MaxTurns>,
    /// What is set for its turns only.
    #[serde(flatten)]
    pub overrides: TurnOverrides,
}

/// [`ScheduleOptions`] as they are parsed: a parser of a flattened part takes every field, so it cannot say which ones
/// nothing knows.
#[derive(Deserialize)]
struct FlatOptions {
    #[serde(default, deserialize_with = "null_as_default")]
    direct: bool,
    #[serde(default, deserialize_with = "null_as_default")]
    super_thinking: bool,
    max_turns: Option<MaxTurns>,
    model: Option<String>,
    effort: Option<Effort>,
    instructions: Option<Instructions>,
    allowed_tools: Option<AllowedTools>,
    max_output_tokens: Option<MaxOutputTokens>,
    max_tokens: Option<MaxTokens>,
    max_cost_usd: Option<MaxCost>,
    metadata: Option<Metadata>,
    response_format: Option<ResponseFormat>,
}

impl From<FlatOptions> for ScheduleOptions {
    fn from(options: FlatOptions) -> Self {
        let FlatOptions { direct, super_thinking, max_turns, .. } = options;
        Self {
            direct,
            super_thinking,
            max_turns,
            overrides: TurnOverrides {
                model: options.model,
                effort: options.effort,
                instructions: options.instructions,
                allowed_tools: options.allowed_tools,
                max_output_tokens: options.max_output_tokens,
                max_tokens: options.max_tokens,
                max_cost_usd: options.max_cost_usd,
                metadata: options.metadata,
                response_format: options.response_format,
            },
        }
    }
}

/// What a schedule does, and when.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ScheduleDefinition {
    /// The name for people.
    pub name: ScheduleName,
    /// When it is due.
    pub when: ScheduleTime,
    /// The message that begins each run's turn.
    pub message: ScheduledMessage,
    /// The task of all runs; by default each run has a task of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<TaskId>,
    /// What becomes of missed runs; `run_once` by default.
    #[serde(default, deserialize_with = "null_as_default")]
    pub missed: MissedPolicy,
    /// The options of its turns.
    #[serde(default, deserialize_with = "null_as_default")]
    pub options: ScheduleOptions,
}

/// Body of `POST /schedules`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CreateSchedule {
    /// The id of the schedule, which makes the request safe to repeat; by default a new one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<ScheduleId>,
    /// The name for people.
    pub name: ScheduleName,
    /// When it is due.
    pub when: ScheduleTime,
    /// The message that begins each run's turn.
    pub message: ScheduledMessage,
    /// The task of all runs; by default each run has a task of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<TaskId>,
    /// What becomes of missed runs; `run_once` by default.
    #[serde(default, deserialize_with = "null_as_default")]
    pub missed: MissedPolicy,
    /// The options of its turns.
    #[serde(default, deserialize_with = "null_as_default")]
    pub options: ScheduleOptions,
    /// Whether it is paused.
    #[serde(default, deserialize_with = "null_as_default")]
    pub paused: bool,
}

/// Body of `PATCH /schedules/{id}`. What is left out stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UpdateSchedule {
    /// The name for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<ScheduleName>,
    /// When it is due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<ScheduleTime>,
    /// The message that begins each run's turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<ScheduledMessage>,
    /// The task of all runs. With null each run has a task of its own.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<TaskId>)]
    pub task_id: Option<Option<TaskId>>,
    /// What becomes of missed runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missed: Option<MissedPolicy>,
    /// The options of its turns, all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub options: Option<ScheduleOptions>,
    /// Whether it is paused. What is due while it is paused is not missed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
}

/// Distinguishes null from a field that is left out.
#[expect(clippy::option_option, reason = "null removes what a field that is left out keeps")]
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Option<TaskId>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

/// Whether a schedule runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ScheduleState {
    /// It runs when it is due.
    Active,
    /// It does not run until it is resumed.
    Paused,
    /// It is never due again.
    Finished,
}

/// A schedule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Schedule {
    /// The id.
    pub id: ScheduleId,
    /// What it does, and when.
    #[serde(flatten)]
    pub definition: ScheduleDefinition,
    /// Whether it runs.
    pub state: ScheduleState,
    /// When it is due next; null if it is paused or finished.
    pub next_due_at: Option<Timestamp>,
    /// The last due time that was decided about; null if there was none.
    pub last_due_at: Option<Timestamp>,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it was last changed.
    pub updated_at: Timestamp,
    /// Its newest runs, at most 50, the newest first. Lists leave them out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runs: Option<Vec<ScheduleRun>>,
}

/// What became of a due time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScheduleRun {
    /// The due time; of several missed ones, the first; of a requested run, the time of the request.
    pub due_at: Timestamp,
    /// When it was decided about.
    pub at: Timestamp,
    /// What became of it.
    pub outcome: RunOutcome,
    /// The task of its turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<TaskId>,
    /// Its turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_id: Option<TurnId>,
    /// The state of its turn; absent if the turn has been deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_state: Option<TurnState>,
    /// How many due times were missed, counted up to 1,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// The last one of those that were missed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_due_at: Option<Timestamp>,
}

/// What became of a due time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RunOutcome {
    /// A turn was queued for it.
    Run,
    /// A turn was queued because someone requested it.
    Requested,
    /// The engine could not run at that time.
    Missed,
    /// The message of the run before it still waited for its turn.
    PreviousWaiting,
    /// The queue was full.
    QueueFull,
}

/// Response of `GET /schedules`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ScheduleList {
    /// The schedules, the oldest first.
    pub schedules: Vec<Schedule>,
    /// The maximum number of schedules.
    pub limit: u64,
}
