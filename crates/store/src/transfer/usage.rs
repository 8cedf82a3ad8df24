//! Usage in the document: a record for each quarter of an hour, task, model, agent, purpose and tool.

use api::{TaskId, Timestamp};
use rusqlite::params;
use serde::{Deserialize, Serialize};

use super::apply::ImportCopier;
use super::export::{DocumentWriter, ExportError};
use super::staging::{Staging, StagingError};
use super::validate::{StageRecord, validate_name, validate_text};
use crate::StoreError;
use crate::queries::timestamp;
use crate::usage_rows::{KEY_COLUMNS, QUARTER_MS, SUM_COLUMNS, quarter_of};

/// The longest name of a model, an agent or a tool, in bytes.
const MAX_NAME_BYTES: usize = 1024;
/// The highest figure: sums of them do not overflow.
const MAX_FIGURE: i64 = 1 << 44;

/// What was used.
#[derive(Serialize, Deserialize)]
pub(super) struct UsageRecord {
    /// The beginning of the quarter.
    at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    task_id: Option<TaskId>,
    model: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    agent: String,
    purpose: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    tool: String,
    /// The figures in the order of [`SUM_COLUMNS`].
    figures: [i64; 10],
}

impl DocumentWriter<'_> {
    /// Writes the usage, if there is any.
    pub(super) fn usage(&mut self) -> Result<(), ExportError> {
        if !self.has_rows("usage")? {
            return Ok(());
        }
        let sql = format!(
            "SELECT quarter * {QUARTER_MS}, task_id, model, agent, purpose, tool, {SUM_COLUMNS}
             FROM usage LEFT JOIN tasks USING (task) ORDER BY {KEY_COLUMNS}"
        );
        self.section("usage", &sql, |row, _| {
            let task_id: Option<String> = row.get(1)?;
            let mut figures = [0; 10];
            for (column, figure) in (6..).zip(&mut figures) {
                *figure = row.get(column)?;
            }
            Ok(UsageRecord {
                at: timestamp(row, 0)?,
                task_id: task_id.and_then(|id| TaskId::new(id).ok()),
                model: row.get(2)?,
                agent: row.get(3)?,
                purpose: row.get(4)?,
                tool: row.get(5)?,
                figures,
            })
        })
    }
}

impl StageRecord for UsageRecord {
    fn stage(self, n: u32, staging: &Staging) -> Result<(), StagingError> {
        let Self { at, task_id, model, agent, purpose, tool, figures } = self;
        validate_text("model", &model, MAX_NAME_BYTES)?;
        validate_name("purpose", &purpose)?;
        for (field, name) in [("agent", &agent), ("tool", &tool)] {
            if !name.is_empty() {
                validate_text(field, name, MAX_NAME_BYTES)?;
            }
        }
        if figures.iter().any(|figure| !(0..=MAX_FIGURE).contains(figure)) {
            return Err(StagingError::Invalid(format!("`figures`: must be from 0 to {MAX_FIGURE}")));
        }
        let [calls, failed, input, output, cache_read, cache_write, reasoning, cost, unpriced, time_ms] =
            figures;
        staging.insert(
            "INSERT INTO usage VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17)",
            params![
                n,
                quarter_of(at),
                task_id.as_ref().map(TaskId::as_str),
                model,
                agent,
                purpose,
                tool,
                calls,
                failed,
                input,
                output,
                cache_read,
                cache_write,
                reasoning,
                cost,
                unpriced,
                time_ms,
            ],
        )
    }
}

impl ImportCopier<'_> {
    /// Copies the usage of the imported tasks, and of none. Of two counts of the same, the higher one stays: a document
    /// that is imported again counts nothing twice.
    pub(super) fn copy_usage(&self) -> Result<(), StoreError> {
        let highest =
            SUM_COLUMNS.split(", ").map(|column| format!("{column} = MAX({column}, excluded.{column})"));
        let highest = highest.collect::<Vec<_>>().join(", ");
        self.copy(
            &format!(
                "SELECT quarter, COALESCE(task, 0), model, agent, purpose, tool, {SUM_COLUMNS}
                 FROM usage LEFT JOIN tasks USING (task_id)
                 WHERE task_id IS NULL OR task IS NOT NULL ORDER BY usage.n"
            ),
            &format!(
                "INSERT INTO usage ({KEY_COLUMNS}, {SUM_COLUMNS})
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)
                 ON CONFLICT DO UPDATE SET {highest}"
            ),
        )?;
        self.copy_cap_use()
    }

    /// An imported task counts what it has used before. Days count what this engine has spent, so an import changes
    /// nothing of them.
    fn copy_cap_use(&self) -> Result<(), StoreError> {
        self.tx.execute(
            "INSERT OR IGNORE INTO cap_use (day, task, tokens, cost)
             SELECT 0, task, SUM(input + output), SUM(cost) FROM usage WHERE task <> 0 GROUP BY task",
            [],
        )
    }
}
