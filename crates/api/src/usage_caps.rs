//! Caps: the most that an agent may use, per day and per task, in tokens and in US dollars.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{TaskId, Timestamp};

/// What a cap counts over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CapScope {
    /// All that the agent uses in a day in UTC.
    Day,
    /// All that a task uses as long as it exists, its sub-agents included.
    Task,
}

/// What a cap counts in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CapUnit {
    /// Tokens of prompts and of answers.
    Tokens,
    /// US dollars.
    Usd,
}

/// How much of a cap is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CapLevel {
    /// Four fifths.
    Warning,
    /// All of it, or what is left pays for no further call.
    Reached,
}

/// The data of `usage_cap`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UsageCapEvent {
    /// How much is used.
    pub level: CapLevel,
    /// What the cap counts over.
    pub scope: CapScope,
    /// What it counts in.
    pub unit: CapUnit,
    /// The cap.
    pub limit: f64,
    /// What is used of it.
    pub used: f64,
    /// When a day's cap begins again; null for a task's.
    pub resets_at: Option<Timestamp>,
}

/// A cap and what is used of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UsageCap {
    /// What the cap counts over.
    pub scope: CapScope,
    /// What it counts in.
    pub unit: CapUnit,
    /// The cap.
    pub limit: f64,
    /// What is used of it; null for a task's cap unless the request names a task.
    pub used: Option<f64>,
    /// What is left of it; null like `used`.
    pub remaining: Option<f64>,
    /// When a day's cap begins again; null for a task's.
    pub resets_at: Option<Timestamp>,
}

/// The response of `GET /usage/caps`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UsageCaps {
    /// The caps that are set.
    pub caps: Vec<UsageCap>,
}

/// The parameters of `GET /usage/caps`.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct ReadUsageCaps {
    /// The task whose use is read.
    #[serde(default)]
    pub task_id: Option<TaskId>,
}
