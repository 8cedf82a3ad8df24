//! Validates the records one by one and stores them in the staging file.

use std::fmt::{self, Display};
use std::str::FromStr;

use api::conversations::{
    MAX_METADATA_ENTRIES, MAX_METADATA_KEY_BYTES, MAX_METADATA_VALUE_BYTES, MAX_TITLE_CHARS, TitleSource,
    trim_title,
};
use api::learning::Evidence;
use api::memory::{MAX_CONTENT, MAX_TAG, MAX_TAGS};
use api::schedules::{MAX_DEFINITION_BYTES, MAX_SCHEDULES, ScheduleDefinition, ScheduleId};
use api::skills::SkillDefinition;
use api::{BatchId, FeedbackId, MessageId, SkillName, Timestamp};
use http_service::clock::{Clock as _, SystemClock};
use rusqlite::params;
use serde::de::{Deserialize, DeserializeOwned, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};

use super::records::{
    Base64Bytes, BatchRecord, ConversationRecord, EpisodeRecord, EventRecord, FeedbackRecord,
    KnowledgeRecord, LessonRecord, MediaRecord, MessageRecord, RecalledRecord, ScheduleRecord, SkillRecord,
    StepRecord, TaskRecord, TrajectoryRecord, TurnRecord,
};
use super::staging::{Staging, StagingError};
use crate::steps::Step;
use crate::{FeedbackContent, memory_ingest, schedules, to_json};

/// The longest name or id that is stored without being parsed, in bytes.
const MAX_NAME_BYTES: usize = 128;
/// The longest content of an episode in bytes; it is a short summary of what was said.
const MAX_EPISODE_BYTES: usize = 16 * 1024;
/// How far another machine's clock may have been ahead of this one's, in milliseconds. A task continues from its
/// newest event, and an export of the result must be importable again.
const MAX_CLOCK_SKEW_MS: i64 = 366 * 24 * 60 * 60 * 1000;

/// A record of the document that can be staged.
pub(super) trait StageRecord: DeserializeOwned {
    /// Validates the record by itself and stores it.
    fn stage(self, n: u32, staging: &Staging) -> Result<(), StagingError>;
}

impl StageRecord for TaskRecord {
    fn stage(self, n: u32, staging: &Staging) -> Result<(), StagingError> {
        let sql = "INSERT INTO tasks (n, task_id, created_at, updated_at, message_count, covered, covered_at)
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
        let (created_at, updated_at) = (unix_ms(self.created_at), unix_ms(self.updated_at));
        let (count, covered, covered_at) = (self.message_count, self.covered, self.covered_at);
        let values = params![n, self.task_id.as_str(), created_at, updated_at, count, covered, covered_at];
        staging.insert(sql, values)?;
        for (key, value) in self.working_memory {
            let value = validate_json("working_memory", &value)?;
            staging.insert("INSERT INTO working_memory VALUES (?1, ?2, ?3)", params![n, key, value])?;
        }
        Ok(())
    }
}

impl StageRecord for ConversationRecord {
    fn stage(self, n: u32, staging: &Staging) -> Result<(), StagingError> {
        let title = self.title.as_deref().map(|title| {
            let reason = format!("must be 1 to {MAX_TITLE_CHARS} characters in one line");
            trim_title(title).ok_or_else(|| invalid_field("title", &reason))
        });
        let title = title.transpose()?;
        let source = title.map(|_| match self.title_source {
            Some(TitleSource::Model) => TitleSource::Model.as_str(),
            _ => TitleSource::User.as_str(),
        });
        if self.metadata.len() > MAX_METADATA_ENTRIES {
            return Err(invalid_field(
                "metadata",
                &format!("must be at most {MAX_METADATA_ENTRIES} entries"),
            ));
        }
        for (key, value) in &self.metadata {
            validate_text("metadata", key, MAX_METADATA_KEY_BYTES)?;
            if value.len() > MAX_METADATA_VALUE_BYTES {
                let reason = format!("a value must be at most {MAX_METADATA_VALUE_BYTES} bytes long");
                return Err(invalid_field("metadata", &reason));
            }
        }
        self.family.as_deref().map_or(Ok(()), |family| validate_name("family", family))?;
        let (origin, after) = self.forked_from.map(|from| (from.task_id, from.message_id)).unzip();
        staging.insert(
            "INSERT INTO conversations VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
            params![
                n,
                self.task_id.as_str(),
                title,
                source,
                self.title_asked,
                to_json(&self.metadata)?,
                self.pinned,
                self.archived,
                origin.as_ref().map(api::TaskId::as_str),
                after.map(|id| id.to_string()),
                self.family,
                self.tainted,
            ],
        )
    }
}

impl StageRecord for TurnRecord {
    fn stage(self, n: u32, staging: &Staging) -> Result<(), StagingError> {
        self.opened_ts.map_or(Ok(()), |ts| validate_ts("opened_ts", ts))?;
        self.request_hash.as_deref().map_or(Ok(()), |hash| validate_name("request_hash", hash))?;
        staging.insert(
            "INSERT INTO turns VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
            params![
                n,
                self.turn_id.to_string(),
                self.task_id.as_str(),
                self.message_id.to_string(),
                unix_ms(self.opened_at),
                unix_ms(self.ended_at),
                self.opened_ts,
                self.client_request_id.as_ref().map(api::ClientRequestId::as_str),
                self.request_hash,
                self.taken_in,
                self.queued_at.map(unix_ms),
            ],
        )
    }
}

impl StageRecord for StepRecord {
    fn stage(self, n: u32, staging: &Staging) -> Result<(), StagingError> {
        validate_ts("ts", self.ts)?;
        let body = compact_json(&self.step);
        let step: Step =
            serde_json::from_str(&body).map_err(|error| invalid_field("step", &error.to_string()))?;
        let (message_id, length, has_text) = memory_ingest::message_of_step(&step).map_or(
            (None, 0, false),
            |(message_id, length, has_text): (MessageId, i64, bool)| {
                (Some(message_id.to_string()), length, has_text)
            },
        );
        let opens_turn = matches!(step, Step::Opened(_));
        let (turn_id, at) = (self.turn_id.to_string(), unix_ms(self.at));
        staging.insert(
            "INSERT INTO steps VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
            params![n, turn_id, at, self.ts, opens_turn, message_id, length, has_text, body],
        )
    }
}

impl StageRecord for MessageRecord {
    fn stage(self, n: u32, staging: &Staging) -> Result<(), StagingError> {
        staging.insert("INSERT INTO said VALUES (?1, ?2)", params![n, self.0])
    }
}

impl StageRecord for RecalledRecord {
    fn stage(self, n: u32, staging: &Staging) -> Result<(), StagingError> {
        validate_name("kind", &self.kind)?;
        validate_name("id", &self.id)?;
        staging
            .insert("INSERT INTO recalled VALUES (?1, ?2, ?3, ?4)", params![n, self.step, self.kind, self.id])
    }
}

impl StageRecord for EventRecord {
    fn stage(self, n: u32, staging: &Staging) -> Result<(), StagingError> {
        validate_ts("ts", self.ts)?;
        // The type becomes a line of its own on the wire.
        let is_type = |kind: &str| kind.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
        if self.event.is_empty() || self.event.len() > MAX_NAME_BYTES || !is_type(&self.event) {
            return Err(invalid_field(
                "event",
                "must be the type of an event, in lower-case letters and `_`",
            ));
        }
        // Fields that only a later version knows are sent unchanged.
        let data = validate_object("data", &self.data)?;
        let (task_id, turn_id) = (self.task_id.as_str(), self.turn_id.to_string());
        staging.insert(
            "INSERT INTO events VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            params![n, task_id, turn_id, self.ts, self.event, data],
        )
    }
}

impl StageRecord for EpisodeRecord {
    fn stage(self, n: u32, staging: &Staging) -> Result<(), StagingError> {
        validate_text("content", &self.content, MAX_EPISODE_BYTES)?;
        let (id, turn_id, at) = (self.id.to_string(), self.turn_id.to_string(), unix_ms(self.created_at));
        staging.insert(
            "INSERT INTO episodes VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
            params![n, id, turn_id, self.step, self.content, self.source.as_str(), at],
        )
    }
}

impl StageRecord for TrajectoryRecord {
    fn stage(self, n: u32, staging: &Staging) -> Result<(), StagingError> {
        validate_name("outcome", &self.outcome)?;
        let did = validate_object("did", &self.did)?;
        let (turn_id, at) = (self.turn_id.to_string(), unix_ms(self.at));
        staging.insert(
            "INSERT INTO trajectories VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            params![n, turn_id, self.step, self.outcome, did, at],
        )
    }
}

impl StageRecord for KnowledgeRecord {
    fn stage(self, n: u32, staging: &Staging) -> Result<(), StagingError> {
        validate_text("content", &self.content, MAX_CONTENT)?;
        if self.tags.len() > MAX_TAGS {
            return Err(invalid_field("tags", &format!("must be at most {MAX_TAGS} tags")));
        }
        self.tags.iter().try_for_each(|tag| validate_text("tags", tag, MAX_TAG))?;
        staging.insert(
            "INSERT INTO knowledge VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
            params![
                n,
                self.id.to_string(),
                self.content,
                to_json(&self.tags)?,
                self.source.as_str(),
                unix_ms(self.created_at),
                self.valid_until.map(unix_ms),
                self.supersedes.map(|id| id.to_string()),
                self.step,
            ],
        )
    }
}

impl StageRecord for SkillRecord {
    fn stage(self, n: u32, staging: &Staging) -> Result<(), StagingError> {
        let name = SkillName::new(self.name).map_err(|error| invalid_field("name", &error.to_string()))?;
        let skill: SkillDefinition = parse_json("skill", &self.skill)?;
        let skill = skill.validate().map_err(|error| invalid_field("skill", &error.to_string()))?;
        let (created_at, updated_at) = (unix_ms(self.created_at), unix_ms(self.updated_at));
        let values = params![n, name.as_str(), to_json(&skill)?, created_at, updated_at];
        staging.insert("INSERT INTO skills VALUES (?1, ?2, ?3, ?4, ?5)", values)
    }
}

impl StageRecord for ScheduleRecord {
    fn stage(self, n: u32, staging: &Staging) -> Result<(), StagingError> {
        let id = ScheduleId::new(self.id).map_err(|error| invalid_field("id", &error.to_string()))?;
        let definition: ScheduleDefinition = parse_json("definition", &self.definition)?;
        let json = to_json(&definition)?;
        if json.len() > MAX_DEFINITION_BYTES {
            let error = format!("must be at most {} KiB long", MAX_DEFINITION_BYTES / 1024);
            return Err(invalid_field("definition", &error));
        }
        let state = schedules::parse_state(&self.state)
            .ok_or_else(|| invalid_field("state", "must be `active`, `paused` or `finished`"))?;
        if n >= MAX_SCHEDULES {
            // An engine has no place for it.
            return Ok(());
        }
        staging.insert(
            "INSERT INTO schedules VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
            params![
                n,
                id.as_str(),
                definition.task_id.as_ref().map(api::TaskId::as_str),
                json,
                schedules::state_name(state),
                unix_ms(self.created_at),
                unix_ms(self.updated_at),
                self.last_due_at.map(unix_ms),
            ],
        )
    }
}

impl StageRecord for BatchRecord {
    fn stage(self, n: u32, staging: &Staging) -> Result<(), StagingError> {
        validate_id::<BatchId>(&self.id)?;
        let state = validate_object("state", &self.state)?;
        let values = params![n, self.id, state, unix_ms(self.started_at), unix_ms(self.ended_at)];
        staging.insert("INSERT INTO batches VALUES (?1, ?2, ?3, ?4, ?5)", values)
    }
}

impl StageRecord for FeedbackRecord {
    fn stage(self, n: u32, staging: &Staging) -> Result<(), StagingError> {
        validate_id::<FeedbackId>(&self.id)?;
        parse_json::<FeedbackContent>("said", &self.said)?;
        let said = compact_json(&self.said);
        staging.insert(
            "INSERT INTO feedback VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
            params![
                n,
                self.id,
                self.task_id.as_ref().map(api::TaskId::as_str),
                self.turn_id.map(|id| id.to_string()),
                self.step,
                said,
                unix_ms(self.created_at),
                self.batch,
            ],
        )
    }
}

impl StageRecord for LessonRecord {
    fn stage(self, n: u32, staging: &Staging) -> Result<(), StagingError> {
        parse_json::<Evidence>("evidence", &self.evidence)?;
        let evidence = compact_json(&self.evidence);
        let values = params![n, self.id.to_string(), evidence, self.batch];
        staging.insert("INSERT INTO lessons VALUES (?1, ?2, ?3, ?4)", values)
    }
}

impl StageRecord for MediaRecord {
    fn stage(self, n: u32, staging: &Staging) -> Result<(), StagingError> {
        let Self { hash, data: Base64Bytes(data), task_ids } = self;
        if hash != hex::encode(Sha256::digest(&data)) {
            return Err(invalid_field("hash", "must be the SHA-256 of `data`, in lower-case hex"));
        }
        staging.insert("INSERT INTO media VALUES (?1, ?2, ?3)", params![n, hash, data])?;
        for task_id in task_ids {
            let sql = "INSERT INTO media_uses VALUES (?1, ?2)";
            staging.insert(sql, params![n, task_id.as_str()])?;
        }
        Ok(())
    }
}

pub(super) fn invalid_field(field: &str, reason: &str) -> StagingError {
    StagingError::Invalid(format!("`{field}`: {reason}"))
}

fn unix_ms(at: Timestamp) -> i64 {
    at.unix_ms()
}

fn validate_ts(field: &str, ts: i64) -> Result<(), StagingError> {
    let reason = "must be a time in Unix milliseconds";
    let latest = SystemClock::new().now().unix_ms().saturating_add(MAX_CLOCK_SKEW_MS);
    if (0..=latest).contains(&ts) { Ok(()) } else { Err(invalid_field(field, reason)) }
}

pub(super) fn validate_name(field: &str, name: &str) -> Result<(), StagingError> {
    validate_text(field, name, MAX_NAME_BYTES)
}

pub(super) fn validate_text(field: &str, text: &str, max_bytes: usize) -> Result<(), StagingError> {
    let fits = !text.trim().is_empty() && text.len() <= max_bytes;
    if fits {
        Ok(())
    } else {
        Err(invalid_field(field, &format!("must be 1 to {max_bytes} bytes of text, not all of it blank")))
    }
}

/// JSON in the form in which the engine stores it, on one line without whitespace; a client may have
/// pretty-printed it.
pub(super) fn compact_json(json: &RawValue) -> String {
    let mut compact = String::with_capacity(json.get().len());
    let (mut in_text, mut escaped) = (false, false);
    for letter in json.get().chars() {
        if in_text {
            in_text = escaped || letter != '"';
            escaped = !escaped && letter == '\\';
        } else if letter.is_ascii_whitespace() {
            continue;
        } else {
            in_text = letter == '"';
        }
        compact.push(letter);
    }
    compact
}

fn validate_id<T: FromStr<Err: Display>>(id: &str) -> Result<(), StagingError> {
    id.parse::<T>().map(drop).map_err(|error| invalid_field("id", &error.to_string()))
}

/// Parses JSON of a form that all readers know.
pub(super) fn parse_json<T: DeserializeOwned>(field: &str, json: &RawValue) -> Result<T, StagingError> {
    serde_json::from_str(json.get()).map_err(|error| invalid_field(field, &error.to_string()))
}

/// Any well-formed JSON, which is scanned without being kept because it may be large.
struct WellFormed;

impl<'de> Deserialize<'de> for WellFormed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct WellFormedVisitor;

        impl<'de> Visitor<'de> for WellFormedVisitor {
            type Value = WellFormed;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("JSON")
            }

            fn visit_unit<E>(self) -> Result<WellFormed, E> {
                Ok(WellFormed)
            }

            fn visit_bool<E>(self, _: bool) -> Result<WellFormed, E> {
                Ok(WellFormed)
            }

            fn visit_i64<E>(self, _: i64) -> Result<WellFormed, E> {
                Ok(WellFormed)
            }

            fn visit_u64<E>(self, _: u64) -> Result<WellFormed, E> {
                Ok(WellFormed)
            }

            fn visit_f64<E>(self, _: f64) -> Result<WellFormed, E> {
                Ok(WellFormed)
            }

            fn visit_str<E>(self, _: &str) -> Result<WellFormed, E> {
                Ok(WellFormed)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<WellFormed, A::Error> {
                while values.next_element::<WellFormed>()?.is_some() {}
                Ok(WellFormed)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<WellFormed, A::Error> {
                while entries.next_entry::<WellFormed, WellFormed>()?.is_some() {}
                Ok(WellFormed)
            }
        }

        deserializer.deserialize_any(WellFormedVisitor)
    }
}

/// Validates JSON whose form is checked only when it is used. All readers must accept it, so JSON that is too deep
/// or has numbers too large for some of them is rejected.
fn validate_json(field: &str, json: &RawValue) -> Result<String, StagingError> {
    match serde_json::from_str::<WellFormed>(json.get()) {
        Ok(WellFormed) => Ok(compact_json(json)),
        Err(error) => Err(invalid_field(field, &error.to_string())),
    }
}

/// Validates that the JSON is an object.
fn validate_object(field: &str, json: &RawValue) -> Result<String, StagingError> {
    let compact = validate_json(field, json)?;
    if compact.starts_with('{') { Ok(compact) } else { Err(invalid_field(field, "must be an object")) }
}
