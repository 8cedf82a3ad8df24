//! What is different in the run of a cassette.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::{CassetteGap, CassetteUsage, Expectation};
use crate::event::StopReason;
use crate::{TaskId, TurnId};

/// Response of `POST /cassettes/run`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CassetteReport {
    /// The task of the recorded turn.
    pub task_id: TaskId,
    /// The recorded turn.
    pub turn_id: TurnId,
    /// What of the cassette is not as it was in the turn.
    pub incomplete: Vec<CassetteGap>,
    /// The vendors' names of the models that answered in the turn, each once.
    pub recorded_models: Vec<String>,
    /// The name of the model of the run in the configuration.
    pub model: String,
    /// How the run ended.
    pub end: ReplayEnd,
    /// The model's answers in the run, in order.
    pub steps: Vec<ReplayedStep>,
    /// The recorded calls that the run did not make.
    pub missing_calls: Vec<MissingCall>,
    /// The number of calls by what became of them.
    pub calls: CallDifference,
    /// The number of model calls.
    pub step_counts: StepCounts,
    /// The final texts.
    pub text: TextReport,
    /// Tokens and costs.
    pub usage: UsageComparison,
    /// Each rule of the cassette, and whether the run keeps it.
    pub expectations: Vec<ExpectationResult>,
    /// How well the run did.
    pub scores: CassetteScores,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReplayEnd {
    /// Whether there is a final answer.
    pub state: ReplayState,
    /// Why a completed run ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<StopReason>,
    /// Why the run failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The states in which a run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReplayState {
    /// It has ended like a turn that completes.
    Completed,
    /// The model gave no answer.
    Failed,
}

/// An answer of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ReplayedStep {
    /// The vendor's name of the model.
    pub model: String,
    /// The text.
    pub text: String,
    /// The calls.
    pub calls: Vec<ReplayedCall>,
    /// The tokens that it used.
    pub usage: CassetteUsage,
}

/// A call of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ReplayedCall {
    /// The tool's name.
    pub tool: String,
    /// The input.
    pub input: Value,
    /// The recorded call whose result it was given.
    pub pairing: CallPairing,
    /// The input of the recorded call, if that is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recorded_input: Option<Value>,
}

/// How a call is paired with a recorded one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CallPairing {
    /// The same tool with the same input.
    Same,
    /// The same as one that was made already; it was given the same result again.
    Repeated,
    /// The same tool with another input: it was given the result of the next recorded call of the tool.
    Approximate,
    /// None is recorded: the model was told that the call cannot be made.
    NotRecorded,
}

/// A recorded call that a run did not make.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MissingCall {
    /// The tool's name.
    pub tool: String,
    /// The recorded input.
    pub input: Value,
}

/// The number of calls by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CallDifference {
    /// Made again alike.
    pub same: u64,
    /// Made again with another input.
    pub changed: u64,
    /// Recorded, but not made.
    pub missing: u64,
    /// Made, but not recorded, or more often than recorded.
    pub extra: u64,
}

/// The number of model calls of a turn and of its run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StepCounts {
    /// In the turn.
    pub recorded: u64,
    /// In the run.
    pub run: u64,
}

/// The final text of a turn and of its run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TextReport {
    /// Whether they are equal.
    pub equal: bool,
    /// How similar they are, from 0 to 1, in words.
    pub similarity: f64,
    /// The text of the turn.
    pub recorded: String,
    /// The text of the run.
    pub run: String,
    /// What was deleted and inserted; empty if the texts are equal.
    pub diff: Vec<DiffPart>,
}

/// A part of a comparison of two texts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DiffPart {
    /// In which of the texts it is.
    pub op: DiffOp,
    /// The text.
    pub text: String,
}

/// In which text a part is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DiffOp {
    /// In both.
    Equal,
    /// Only in that of the turn.
    Delete,
    /// Only in that of the run.
    Insert,
}

/// The tokens and costs of a turn and of its run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UsageComparison {
    /// The answers of the turn; sub-agents, plans and failed calls are not included.
    pub recorded: CassetteUsage,
    /// The answers of the run.
    pub run: CassetteUsage,
}

/// A rule, and whether the run keeps it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ExpectationResult {
    /// The rule.
    pub expect: Expectation,
    /// Whether the run keeps it.
    pub passed: bool,
    /// Why not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Scores from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CassetteScores {
    /// The share of calls that are the same in turn and run.
    pub tools: f64,
    /// How similar the final texts are.
    pub text: f64,
    /// The share of rules that are kept; null without rules.
    pub expectations: Option<f64>,
    /// The mean of `tools` and `expectations`, or of `tools` and `text` without rules; 0 if the run failed.
    pub total: f64,
}
