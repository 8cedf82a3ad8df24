//! The tool calls that a person was asked about, and the lasting approvals with what they came from.

use api::approvals::{ApprovalDecision, ApprovalGrant, ApprovalRequest, ApprovalScope};
use api::{CallId, HitlId, TurnId};
use rusqlite::{Connection, Error, OptionalExtension as _, params};

use super::queries::{parse_column, task_id, timestamp};
use super::write_tx::to_json;
use super::{Brain, StoreError, TaskRow, WriteTx};

/// What became of a request for an approval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApprovalState {
    /// It waits for the user.
    Open,
    /// It was decided, with this decision.
    Decided(String),
    /// Its turn has ended without a decision.
    Ended,
}

impl Brain {
    /// The requests for approvals of a task that wait for the user, oldest first. Blocks.
    pub fn open_approvals(&self, task: TaskRow) -> Result<Vec<ApprovalRequest>, StoreError> {
        let texts = self.read_long(|reader| open_approvals(reader, task))?;
        // A request that only a later version can read is left out.
        Ok(texts.iter().filter_map(|text| serde_json::from_str(text).ok()).collect())
    }

    /// What became of a request for an approval; `None` if the task has none of this id. Blocks.
    pub fn approval_state(
        &self,
        task: TaskRow,
        request_id: HitlId,
    ) -> Result<Option<ApprovalState>, StoreError> {
        self.read(|reader| approval_state(reader, task, request_id))
    }

    /// The calls of a turn that wait for an approval. Blocks.
    pub fn calls_awaiting_approval(&self, turn_id: TurnId) -> Result<Vec<CallId>, StoreError> {
        self.read(|reader| {
            let mut query = reader.prepare_cached(
                "SELECT call_id FROM approvals JOIN turns USING (turn) WHERE turn_id = ?1 AND data IS NOT NULL",
            )?;
            let rows = query.query_map([turn_id.to_string()], |row| parse_column(row, 0))?;
            rows.collect()
        })
    }

    /// The lasting approvals of the user, oldest first. Blocks.
    pub fn approval_grants(&self) -> Result<Vec<ApprovalGrant>, StoreError> {
        self.read_long(approval_grants)
    }
}

fn open_approvals(reader: &Connection, TaskRow(task): TaskRow) -> Result<Vec<String>, Error> {
    // Version 7 UUIDs: by their id is by their age.
    let mut query = reader.prepare_cached(
        "SELECT data FROM approvals WHERE task = ?1 AND data IS NOT NULL ORDER BY request_id",
    )?;
    let rows = query.query_map([task], |row| row.get(0))?;
    rows.collect()
}

fn approval_state(
    reader: &Connection,
    TaskRow(task): TaskRow,
    request_id: HitlId,
) -> Result<Option<ApprovalState>, Error> {
    let mut query = reader
        .prepare_cached("SELECT decision, data IS NULL FROM approvals WHERE task = ?1 AND request_id = ?2")?;
    let row = query.query_row(params![task, request_id.to_string()], |row| {
        Ok(match (row.get::<_, Option<String>>(0)?, row.get(1)?) {
            (Some(decision), _) => ApprovalState::Decided(decision),
            (None, true) => ApprovalState::Ended,
            (None, false) => ApprovalState::Open,
        })
    });
    row.optional()
}

fn approval_grants(reader: &Connection) -> Result<Vec<ApprovalGrant>, Error> {
    let mut query = reader.prepare_cached(
        "SELECT grant_id, tool, task_id, prefix, request_id, grants.created_at
         FROM grants LEFT JOIN tasks USING (task) ORDER BY grants.created_at, grant_id",
    )?;
    let rows = query.query_map([], |row| {
        let task_id = match row.get_ref(2)? {
            rusqlite::types::ValueRef::Null => None,
            _ => Some(task_id(row, 2)?),
        };
        Ok(ApprovalGrant {
            id: parse_column(row, 0)?,
            tool: row.get(1)?,
            scope: if task_id.is_some() { ApprovalScope::Task } else { ApprovalScope::Always },
            task_id,
            pattern: row.get(3)?,
            request_id: row.get::<_, Option<String>>(4)?.and_then(|id| id.parse().ok()),
            created_at: timestamp(row, 5)?,
        })
    })?;
    rows.collect()
}

impl WriteTx<'_> {
    /// Inserts a request for the approval of a call.
    pub fn insert_approval(
        &self,
        TaskRow(task): TaskRow,
        turn_id: TurnId,
        request: &ApprovalRequest,
    ) -> Result<(), StoreError> {
        let data = to_json(request)?;
        self.insert(
            "INSERT INTO approvals (request_id, task, turn, call_id, data)
             SELECT ?1, ?2, turn, ?4, ?5 FROM turns WHERE turn_id = ?3",
            params![
                request.request_id.to_string(),
                task,
                turn_id.to_string(),
                request.tool_call_id.to_string(),
                data
            ],
        )
    }

    /// Closes a request for an approval that the user has decided about. What was asked is deleted.
    pub fn close_approval(&self, request_id: HitlId, decision: ApprovalDecision) -> Result<(), StoreError> {
        self.execute(
            "UPDATE approvals SET data = NULL, decision = ?2 WHERE request_id = ?1",
            params![request_id.to_string(), decision.as_str()],
        )
    }
}
