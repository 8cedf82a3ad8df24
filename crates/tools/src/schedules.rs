//! `schedule_create`, `schedule_list` and `schedule_delete`: messages that the agent sends itself at given times, with
//! the user's leave.

use api::approvals::{ApprovalPreview, ApprovalRisk};
use api::schedules::{
    MAX_DEFINITION_BYTES, MAX_SCHEDULES, MissedPolicy, Schedule, ScheduleDefinition, ScheduleId,
    ScheduleName, ScheduleOptions, ScheduleState, ScheduleTime, ScheduledMessage,
};
use api::{CallId, Timestamp, tool_names};
use catalog::Permission;
use futures::future::BoxFuture;
use llm::ToolSpec;
use schedule::definition;
use serde::Deserialize;
use serde_json::{Value, json};
use store::{Brain, ScheduleChange, StoreError};

use super::{Invocation, Tool, ToolError, ToolOutput, ToolStep, approval, parse_input};

/// The maximum length of a message that the agent schedules and that the approval prompt shows, and in the list,
/// in characters.
const MAX_SHOWN_CHARS: usize = 8_000;
const MAX_LISTED_CHARS: usize = 200;

pub(super) struct ScheduleCreate(pub(super) Brain);
pub(super) struct ScheduleList(pub(super) Brain);
pub(super) struct ScheduleDelete(pub(super) Brain);

#[derive(Deserialize)]
struct CreateInput {
    name: String,
    message: String,
    #[serde(default)]
    cron: Option<String>,
    #[serde(default)]
    time_zone: Option<String>,
    #[serde(default)]
    at: Option<String>,
    #[serde(default)]
    every_seconds: Option<i64>,
    #[serde(default)]
    in_new_task: bool,
}

#[derive(Deserialize)]
struct DeleteInput {
    id: String,
}

impl CreateInput {
    /// What is to be set. Whether it is ever due depends on the time of the call.
    fn definition(self) -> Result<ScheduleDefinition, ToolError> {
        let invalid = |field: &str, error: String| ToolError(format!("`{field}`: {error}"));
        let Self { name, message, cron, time_zone, at, every_seconds, in_new_task: _ } = self;
        if is_cut(&message) {
            return Err(invalid("message", format!("must be at most {MAX_SHOWN_CHARS} characters long")));
        }
        let at = at.map(|at| at.parse::<Timestamp>()).transpose();
        let every_seconds = every_seconds.map(|seconds| serde_json::from_value(json!(seconds))).transpose();
        let when = ScheduleTime {
            cron,
            time_zone,
            at: at
                .map_err(|_| invalid("at", "must be a time such as 2026-12-24T18:00:00+01:00".to_owned()))?,
            every_seconds: every_seconds.map_err(|error| invalid("every_seconds", error.to_string()))?,
            start: None,
        };
        definition::timing(&when, Timestamp::from_unix_ms(0)).map_err(|error| in_this_tools_words(&error))?;
        Ok(ScheduleDefinition {
            name: ScheduleName::new(name).map_err(|error| invalid("name", error.to_string()))?,
            message: ScheduledMessage::new(message).map_err(|error| invalid("message", error.to_string()))?,
            when,
            // That of the call is set when it is committed.
            task_id: None,
            missed: MissedPolicy::default(),
            options: ScheduleOptions::default(),
        })
    }
}

/// Whether a message is longer than what is shown of it.
fn is_cut(message: &str) -> bool {
    message.chars().nth(MAX_SHOWN_CHARS).is_some()
}

/// The times are fields of their own here.
fn in_this_tools_words(error: &str) -> ToolError {
    ToolError(error.replace("`when.", "`").replace("`when`: ", ""))
}

impl Tool for ScheduleCreate {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: tool_names::SCHEDULE_CREATE.into(),
            description: "Schedules a message to yourself, for reminders and work that the user wants done later or \
                          again and again: at each due time you get it as a message of the user, even if nobody is \
                          there. Give exactly one of `cron`, `at` and `every_seconds`. The user is asked first."
                .into(),
            input_schema: json!({
                "type": "object",
                "properties": {
                    "name": {"type": "string", "description": "A short name for the user, up to 200 characters."},
                    "message": {
                        "type": "string",
                        "description": "What you are to do then, with all that you have to know for it. Up to \
                                        8,000 characters.",
                    },
                    "cron": {
                        "type": "string",
                        "description": "Five fields: minute, hour, day of the month, month, day of the week. \
                                        `0 8 * * mon-fri` is 8:00 on weekdays.",
                    },
                    "time_zone": {
                        "type": "string",
                        "description": "The time zone of `cron`, such as `Europe/Berlin`; ask if you do not know \
                                        the user's. UTC by default.",
                    },
                    "at": {"type": "string", "description": "Once, at this time: 2026-12-24T18:00:00+01:00."},
                    "every_seconds": {"type": "integer", "description": "At this interval, 60 or more."},
                    "in_new_task": {
                        "type": "boolean",
                        "description": "true: each run is a conversation of its own. Default: this one goes on.",
                    },
                },
                "required": ["name", "message"],
                "additionalProperties": false,
            }),
        }
    }

    /// It is set in the commit of the result, so a run without a result has set nothing.
    fn idempotent(&self) -> bool {
        true
    }

    fn permission(&self) -> Permission {
        Permission::Ask
    }

    /// The message would come back as the user's.
    fn asks_after_untrusted_content(&self) -> bool {
        true
    }

    fn approval_prompt(&self, input: &Value) -> String {
        let default = || approval::default_prompt(tool_names::SCHEDULE_CREATE, input);
        let Ok(input) = parse_input::<CreateInput>(input.clone()) else { return default() };
        let place =
            if input.in_new_task { "each time in a new conversation" } else { "in this conversation" };
        match input.definition() {
            Ok(definition) => format!(
                "Schedule “{}”, {}, {place}? The agent then gets this message as if you had sent it:\n\n{}",
                approval::excerpt(definition.name.as_str(), "", MAX_LISTED_CHARS),
                describe_time(&definition.when),
                approval::excerpt(definition.message.as_str(), "> ", MAX_SHOWN_CHARS)
            ),
            Err(ToolError(reason)) => format!("{}\n\n{reason}", default()),
        }
    }

    fn approval_preview(&self, input: &Value) -> ApprovalPreview {
        approval::text_preview(&self.approval_prompt(input))
    }

    /// It acts again and again, while nobody watches.
    fn risk(&self) -> ApprovalRisk {
        ApprovalRisk::High
    }

    fn check_input(&self, input: &Value) -> Result<(), ToolError> {
        parse_input::<CreateInput>(input.clone())?.definition().map(drop)
    }

    // It is committed together with the call's result. Outside a turn there is `POST /schedules`.
    fn needs_turn(&self) -> bool {
        true
    }

    fn run(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolStep, ToolError>> {
        Box::pin(async move {
            let Invocation { call_id, at: now, input, .. } = invocation;
            let input: CreateInput = parse_input(input)?;
            let in_task = !input.in_new_task;
            let mut definition = input.definition()?;
            definition::set_start(&mut definition.when, now);
            let timing =
                definition::timing(&definition.when, now).map_err(|error| in_this_tools_words(&error))?;
            let Some(next) = timing.next_after(now) else {
                return Err(ToolError(format!("it would never be due: it is {now} now")));
            };
            // Texts and numbers can always be serialized.
            if serde_json::to_vec(&definition).map_or(usize::MAX, |json| json.len()) > MAX_DEFINITION_BYTES {
                let kib = MAX_DEFINITION_BYTES / 1024;
                return Err(ToolError(format!(
                    "`message`: with the times, it must be at most {kib} KiB long"
                )));
            }
            if !read(&self.0, Brain::has_schedule_place).await? {
                return Err(no_schedule_place());
            }
            let schedule = Schedule {
                id: id_of(call_id)?,
                definition,
                state: ScheduleState::Active,
                next_due_at: Some(next),
                last_due_at: None,
                created_at: now,
                updated_at: now,
                runs: None,
            };
            let text = format!("scheduled as `{}`; due first at {next}", schedule.id);
            let change = Some(ScheduleChange::Set { schedule: Box::new(schedule), in_task });
            Ok(ToolStep::Done(ToolOutput { text, schedule: change, ..ToolOutput::default() }))
        })
    }
}

impl Tool for ScheduleList {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: tool_names::SCHEDULE_LIST.into(),
            description: "Lists the scheduled messages, with their ids and next due times.".into(),
            input_schema: json!({"type": "object", "properties": {}, "additionalProperties": false}),
        }
    }

    fn idempotent(&self) -> bool {
        true
    }

    fn permission(&self) -> Permission {
        Permission::Allow
    }

    fn run(&self, _invocation: Invocation) -> BoxFuture<'_, Result<ToolStep, ToolError>> {
        Box::pin(async move {
            let schedules = read(&self.0, Brain::schedules).await?;
            let lines: Vec<String> = schedules.iter().map(describe).collect();
            let text = if lines.is_empty() { "There are no schedules.".to_owned() } else { lines.join("\n") };
            Ok(ToolStep::Done(ToolOutput { text, ..ToolOutput::default() }))
        })
    }
}

impl Tool for ScheduleDelete {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: tool_names::SCHEDULE_DELETE.into(),
            description:
                "Deletes a scheduled message, so that it does not come any more. schedule_list tells the \
                          ids. The user is asked first."
                    .into(),
            input_schema: json!({
                "type": "object",
                "properties": {"id": {"type": "string", "description": "The id of the schedule."}},
                "required": ["id"],
                "additionalProperties": false,
            }),
        }
    }

    /// It is deleted in the commit of the result.
    fn idempotent(&self) -> bool {
        true
    }

    fn permission(&self) -> Permission {
        Permission::Ask
    }

    fn asks_after_untrusted_content(&self) -> bool {
        true
    }

    fn approval_prompt(&self, input: &Value) -> String {
        self.prompt(input).0
    }

    fn approval_preview(&self, input: &Value) -> ApprovalPreview {
        let (prompt, is_message_cut) = self.prompt(input);
        match approval::text_preview(&prompt) {
            ApprovalPreview::Text { text, truncated } => {
                ApprovalPreview::Text { text, truncated: truncated || is_message_cut }
            }
            other => other,
        }
    }

    fn needs_turn(&self) -> bool {
        true
    }

    fn run(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolStep, ToolError>> {
        Box::pin(async move {
            let DeleteInput { id } = parse_input(invocation.input)?;
            let unknown =
                || ToolError("`id`: there is no such schedule; schedule_list tells the ids".to_owned());
            let id = ScheduleId::new(id).map_err(|_| unknown())?;
            let wanted = id.clone();
            let found = read(&self.0, move |brain| brain.schedule(&wanted)).await?;
            let schedule = Some(ScheduleChange::Delete(found.ok_or_else(unknown)?.id));
            let text = format!("deleted `{id}`");
            Ok(ToolStep::Done(ToolOutput { text, schedule, ..ToolOutput::default() }))
        })
    }
}

impl ScheduleDelete {
    /// Returns the approval prompt, and whether it shows only a part of the message.
    fn prompt(&self, input: &Value) -> (String, bool) {
        let id = input.get("id").and_then(Value::as_str).and_then(|id| ScheduleId::new(id).ok());
        let Some(Ok(Some(schedule))) = id.map(|id| self.0.schedule(&id)) else {
            return (approval::default_prompt(tool_names::SCHEDULE_DELETE, input), false);
        };
        let message = schedule.definition.message.as_str();
        let shown = approval::excerpt(message, "> ", MAX_SHOWN_CHARS);
        (format!("Delete this schedule?\n\n{}\n{shown}", head(&schedule)), is_cut(message))
    }
}

/// The error of a call that would set one schedule too many.
pub fn no_schedule_place() -> ToolError {
    ToolError(format!("there are {MAX_SCHEDULES} schedules already; delete one with schedule_delete"))
}

/// Reads from the brain on a thread that may block.
async fn read<T: Send + 'static>(
    brain: &Brain,
    read: impl FnOnce(&Brain) -> Result<T, StoreError> + Send + 'static,
) -> Result<T, ToolError> {
    let found = brain.run_blocking(read).await.ok_or_else(|| ToolError("the engine is stopping".into()))?;
    found.map_err(|error| ToolError(format!("the schedules cannot be read: {error}")))
}

/// The id of the schedule that a call sets: that of the call, so that each call sets one.
fn id_of(call: CallId) -> Result<ScheduleId, ToolError> {
    let id = call.to_string().replacen("call_", "sched_", 1);
    ScheduleId::new(id).map_err(|error| ToolError(error.to_string()))
}

/// A time in words for a person.
fn describe_time(when: &ScheduleTime) -> String {
    let ScheduleTime { cron, time_zone, at, every_seconds, start: _ } = when;
    match (cron, at, every_seconds) {
        (Some(cron), ..) => {
            let zone = time_zone.as_deref().unwrap_or("UTC");
            format!("at the times `{}` ({zone})", approval::excerpt(cron, "", MAX_LISTED_CHARS))
        }
        (_, Some(at), _) => format!("once, at {at}"),
        (_, _, Some(seconds)) => format!("every {} seconds", seconds.get()),
        (None, None, None) => "never".to_owned(),
    }
}

/// A schedule without its message.
fn head(schedule: &Schedule) -> String {
    let Schedule { id, definition, state, next_due_at, .. } = schedule;
    let due = match (state, next_due_at) {
        (ScheduleState::Paused, _) => "paused".to_owned(),
        (ScheduleState::Finished, _) => "never due again".to_owned(),
        (ScheduleState::Active, Some(next)) => format!("due next at {next}"),
        (ScheduleState::Active, None) => "due soon".to_owned(),
    };
    let name = approval::excerpt(definition.name.as_str(), "", MAX_LISTED_CHARS);
    format!("`{id}` “{name}”, {}, {due}", describe_time(&definition.when))
}

/// A line of the list.
fn describe(schedule: &Schedule) -> String {
    let message: String = schedule.definition.message.as_str().chars().take(MAX_LISTED_CHARS).collect();
    format!("- {}: {}", head(schedule), message.replace('\n', " "))
}

#[cfg(test)]
#[path = "../tests/unit/schedules.rs"]
mod tests;
