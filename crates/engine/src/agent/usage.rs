//! What the agent has used, as API callers read it.

use api::proof::usage_tag;
use api::usage::{Day, ReadUsage, TaskUsage, UsageDimension, UsageReport};
use api::usage_days::{MAX_DAYS_PER_REPORT, UsageDays};
use api::{KeyHash, TaskId};
use store::{UsageCursor, UsageQuery};

use super::{Agent, AgentError};

/// The size of a page unless the request sets it.
const DEFAULT_PAGE: usize = 100;
/// Time zones differ by multiples of this.
const OFFSET_STEP_MINUTES: i64 = 15;

impl Agent {
    /// A page of the usage in groups, and the sum of all pages.
    pub async fn usage(&self, request: ReadUsage) -> Result<UsageReport, AgentError> {
        let task = match &request.task_id {
            Some(task_id) => Some(self.brain.task(task_id)?.ok_or(AgentError::UnknownTask)?.row),
            None => None,
        };
        let query = UsageQuery { task, ..parse(&request)? };
        self.read(move |brain| brain.usage_report(&query)).await
    }

    /// What a task has used.
    pub async fn task_usage(&self, task_id: TaskId) -> Result<TaskUsage, AgentError> {
        let task = self.brain.task(&task_id)?.ok_or(AgentError::UnknownTask)?.row;
        let query = UsageQuery { task: Some(task), ..UsageQuery::default() };
        let report = self.read(move |brain| brain.usage_report(&query)).await?;
        Ok(TaskUsage { task_id, usage: report.total })
    }

    /// What the engine itself has used by day in UTC, from the day `from` on.
    pub async fn usage_days(&self, from: Option<Day>) -> Result<UsageDays, AgentError> {
        let days = self.read(move |brain| brain.usage_days(from, MAX_DAYS_PER_REPORT)).await?;
        Ok(UsageDays { days })
    }

    /// The tag of what the engine has used, for who has the key with this hash.
    pub fn usage_tag(&self, hash: KeyHash) -> Result<String, AgentError> {
        Ok(usage_tag(hash, self.brain.usage_mark()?))
    }

    /// Counts what is used from now on for this engine.
    pub(crate) async fn own_usage_days(&self) {
        let engine_id = self.services.engine_id.clone().unwrap_or_default();
        if let Err(error) = self.brain.write(move |tx| tx.set_usage_owner(&engine_id)).await {
            let error: &dyn std::error::Error = &error;
            tracing::warn!(error, "Whose usage is counted could not be stored; it is as before.");
        }
    }
}

/// Validates a request, except for its task.
fn parse(request: &ReadUsage) -> Result<UsageQuery, AgentError> {
    let invalid = |message: &str| Err(AgentError::Invalid(message.to_owned()));
    let offset = request.utc_offset_minutes.map_or(0, api::serde_helpers::BoundedInt::get);
    if offset % OFFSET_STEP_MINUTES != 0 {
        return invalid("`utc_offset_minutes`: must be a multiple of 15");
    }
    if let (Some(from), Some(to)) = (request.from, request.to)
        && from > to
    {
        return invalid("`from`: must not be after `to`");
    }
    let after = match request.after.as_deref().map(UsageCursor::parse) {
        Some(None) => return invalid("`after`: must be the `next` of a page"),
        after => after.flatten(),
    };
    Ok(UsageQuery {
        from: request.from,
        to: request.to,
        offset_quarters: offset / OFFSET_STEP_MINUTES,
        group_by: parse_group_by(request.group_by.as_deref())?,
        task: None,
        after,
        limit: request.limit.and_then(|limit| usize::try_from(limit.get()).ok()).unwrap_or(DEFAULT_PAGE),
    })
}

fn parse_group_by(names: Option<&str>) -> Result<Vec<UsageDimension>, AgentError> {
    let Some(names) = names else { return Ok(vec![UsageDimension::Day]) };
    let mut dimensions = Vec::new();
    for name in names.split(',') {
        let found = UsageDimension::ALL.into_iter().find(|dimension| dimension.as_str() == name);
        let Some(dimension) = found.filter(|dimension| !dimensions.contains(dimension)) else {
            let all = UsageDimension::ALL.map(UsageDimension::as_str).join(", ");
            let message = format!("`group_by`: must be one or more of {all}, each once, separated by commas");
            return Err(AgentError::Invalid(message));
        };
        dimensions.push(dimension);
    }
    Ok(dimensions)
}

#[cfg(test)]
#[path = "../../tests/unit/agent/usage.rs"]
mod tests;
