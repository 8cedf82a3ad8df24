//! Reads usage in groups: any combination of day, task, model, agent and purpose, page by page.

use api::TaskId;
use api::usage::{Day, MAX_TOOLS_PER_ROW, ToolFigures, UsageDimension, UsageFigures, UsageReport, UsageRow};
use rusqlite::types::Value;
use rusqlite::{Connection, Error, OptionalExtension as _, Row, params_from_iter};

use super::usage_rows::{QUARTERS_PER_DAY, usd};
use super::{Brain, StoreError, TaskRow};

/// What to read.
#[derive(Clone, Debug, Default)]
pub struct UsageQuery {
    /// The first day.
    pub from: Option<Day>,
    /// The last day.
    pub to: Option<Day>,
    /// How far the days are ahead of UTC, in quarters of an hour.
    pub offset_quarters: i64,
    /// What the rows are grouped by.
    pub group_by: Vec<UsageDimension>,
    /// Only the usage of this task.
    pub task: Option<TaskRow>,
    /// The last row of the page before.
    pub after: Option<UsageCursor>,
    /// The most rows.
    pub limit: usize,
}

/// The place of a row: its day, task, model, agent and purpose. What it is not grouped by is 0 or empty.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UsageCursor {
    day: i64,
    task: i64,
    texts: [String; 3],
}

impl UsageCursor {
    /// Reads the form of [`UsageCursor::encode`].
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = hex::decode(text).ok()?;
        let (day, task, texts) = serde_json::from_slice(&bytes).ok()?;
        Some(Self { day, task, texts })
    }

    /// The cursor as clients send it back; they know nothing of its form.
    pub fn encode(&self) -> String {
        // Numbers and texts can always be serialized.
        hex::encode(serde_json::to_vec(&(self.day, self.task, &self.texts)).unwrap_or_default())
    }

    fn from_row(row: &Row<'_>) -> Result<Self, Error> {
        Ok(Self { day: row.get(0)?, task: row.get(1)?, texts: [row.get(2)?, row.get(3)?, row.get(4)?] })
    }
}

impl Brain {
    /// A page of the usage in groups, and the sum of all pages. Blocks.
    pub fn usage_report(&self, query: &UsageQuery) -> Result<UsageReport, StoreError> {
        self.read_long(|reader| {
            // All reads see the same usage.
            let snapshot = reader.unchecked_transaction()?;
            report(&snapshot, query)
        })
    }
}

/// The select statement of a query, without what limits it to a page.
struct GroupSql {
    /// The expressions of the group: day, task, model, agent, purpose.
    keys: String,
    condition: String,
    values: Vec<Value>,
}

impl GroupSql {
    fn new(query: &UsageQuery, group_by: &[UsageDimension]) -> Self {
        let offset = query.offset_quarters;
        let key = |dimension: UsageDimension| match dimension {
            _ if !group_by.contains(&dimension) => {
                let is_number = matches!(dimension, UsageDimension::Day | UsageDimension::Task);
                if is_number { "0".to_owned() } else { "''".to_owned() }
            }
            UsageDimension::Day => format!("((quarter + {offset}) / {QUARTERS_PER_DAY})"),
            other => other.as_str().to_owned(),
        };
        let keys = UsageDimension::ALL.map(key).join(", ");
        let first = |day: Day| day.unix_days() * QUARTERS_PER_DAY - offset;
        let mut sql = Self { keys, condition: "1".to_owned(), values: Vec::new() };
        if let Some(from) = query.from {
            sql.and("quarter >= ?", [Value::from(first(from))]);
        }
        if let Some(to) = query.to {
            sql.and("quarter < ?", [Value::from(first(to) + QUARTERS_PER_DAY)]);
        }
        if let Some(TaskRow(task)) = query.task {
            sql.and("task = ? AND task <> 0", [Value::from(task)]);
        }
        sql
    }

    fn and(&mut self, condition: &str, values: impl IntoIterator<Item = Value>) {
        self.condition.push_str(" AND ");
        self.condition.push_str(condition);
        self.values.extend(values);
    }

    /// Limits the rows by their place.
    fn and_place(&mut self, comparison: &str, place: &UsageCursor) {
        let condition = format!("({}) {comparison} (?, ?, ?, ?, ?)", self.keys);
        let UsageCursor { day, task, texts } = place.clone();
        let numbers = [day, task].map(Value::from);
        self.and(&condition, numbers.into_iter().chain(texts.map(Value::from)));
    }
}

const FIGURES: &str = "
    SUM(iif(tool = '', calls, 0)), SUM(iif(tool = '', failed, 0)), SUM(input), SUM(output), SUM(cache_read),
    SUM(cache_write), SUM(reasoning), SUM(cost), SUM(unpriced), SUM(iif(tool = '', 0, calls)), SUM(time_ms)";

fn report(reader: &Connection, query: &UsageQuery) -> Result<UsageReport, Error> {
    let mut sql = GroupSql::new(query, &query.group_by);
    if let Some(after) = &query.after {
        sql.and_place(">", after);
    }
    let limit = i64::try_from(query.limit).unwrap_or(i64::MAX);
    let select = format!(
        "SELECT {keys}, {FIGURES} FROM usage WHERE {condition}
         GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3, 4, 5 LIMIT {limit} + 1",
        keys = sql.keys,
        condition = sql.condition
    );
    let mut statement = reader.prepare(&select)?;
    let groups = statement.query_map(params_from_iter(&sql.values), |row| {
        Ok((UsageCursor::from_row(row)?, figures(row, 5)?))
    })?;
    let mut groups: Vec<(UsageCursor, UsageFigures)> = groups.collect::<Result<_, _>>()?;
    let has_more = groups.len() > query.limit;
    groups.truncate(query.limit);
    let next = groups.last().filter(|_| has_more).map(|(place, _)| place.encode());
    add_tools(reader, query, &query.group_by, &mut groups)?;
    let rows = groups.into_iter().map(|(place, usage)| named_row(reader, query, place, usage));
    Ok(UsageReport { rows: rows.collect::<Result<_, _>>()?, total: total(reader, query)?, next })
}

/// The sum of all groups.
fn total(reader: &Connection, query: &UsageQuery) -> Result<UsageFigures, Error> {
    let sql = GroupSql::new(query, &[]);
    let select =
        format!("SELECT {}, {FIGURES} FROM usage WHERE {} GROUP BY 1, 2, 3, 4, 5", sql.keys, sql.condition);
    let found = reader
        .prepare(&select)?
        .query_row(params_from_iter(&sql.values), |row| Ok((UsageCursor::from_row(row)?, figures(row, 5)?)))
        .optional()?;
    let mut groups: Vec<_> = found.into_iter().collect();
    add_tools(reader, query, &[], &mut groups)?;
    Ok(groups.pop().map(|(_, usage)| usage).unwrap_or_default())
}

/// Adds to groups, which are in order, the tools that they have used.
fn add_tools(
    reader: &Connection,
    query: &UsageQuery,
    group_by: &[UsageDimension],
    groups: &mut [(UsageCursor, UsageFigures)],
) -> Result<(), Error> {
    let (Some((first, _)), Some((last, _))) = (groups.first(), groups.last()) else { return Ok(()) };
    let mut sql = GroupSql::new(query, group_by);
    sql.and("tool <> ''", []);
    sql.and_place(">=", first);
    sql.and_place("<=", last);
    let select = format!(
        "SELECT {keys}, tool, SUM(calls), SUM(failed), SUM(time_ms) FROM usage WHERE {condition}
         GROUP BY 1, 2, 3, 4, 5, 6 ORDER BY 1, 2, 3, 4, 5, 9 DESC, 7 DESC, 6",
        keys = sql.keys,
        condition = sql.condition
    );
    let mut statement = reader.prepare(&select)?;
    let mut rows = statement.query(params_from_iter(&sql.values))?;
    let mut groups = groups.iter_mut();
    let mut current = groups.next();
    while let Some(row) = rows.next()? {
        let place = UsageCursor::from_row(row)?;
        while current.as_ref().is_some_and(|(group, _)| *group < place) {
            current = groups.next();
        }
        let Some((_, usage)) = &mut current else { break };
        if usage.tools.len() < MAX_TOOLS_PER_ROW {
            usage.tools.push(ToolFigures {
                tool: row.get(5)?,
                calls: count(row, 6)?,
                failed_calls: count(row, 7)?,
                time_ms: count(row, 8)?,
            });
        }
    }
    Ok(())
}

/// A row with the members by which it is grouped.
fn named_row(
    reader: &Connection,
    query: &UsageQuery,
    place: UsageCursor,
    usage: UsageFigures,
) -> Result<UsageRow, Error> {
    let has = |dimension| query.group_by.contains(&dimension);
    let [model, agent, purpose] = place.texts;
    let task_id = if has(UsageDimension::Task) {
        let mut task = reader.prepare_cached("SELECT task_id FROM tasks WHERE task = ?1")?;
        let task: Option<String> = task.query_row([place.task], |row| row.get(0)).optional()?;
        Some(task.and_then(|id| TaskId::new(id).ok()))
    } else {
        None
    };
    Ok(UsageRow {
        day: has(UsageDimension::Day).then(|| Day::from_unix_days(place.day)),
        task_id,
        model: has(UsageDimension::Model).then_some(model),
        agent: has(UsageDimension::Agent).then(|| Some(agent).filter(|agent| !agent.is_empty())),
        purpose: has(UsageDimension::Purpose).then_some(purpose),
        usage,
    })
}

/// Reads the columns of [`FIGURES`] from the column `first` on.
#[expect(clippy::cast_precision_loss, reason = "a share needs no more digits")]
fn figures(row: &Row<'_>, first: usize) -> Result<UsageFigures, Error> {
    let number = |column: usize| count(row, first + column);
    let (calls, input, cache_read, unpriced) = (number(0)?, number(2)?, number(4)?, number(8)?);
    let cost = row.get::<_, i64>(first + 7)?;
    Ok(UsageFigures {
        calls,
        failed_calls: number(1)?,
        input_tokens: input,
        output_tokens: number(3)?,
        cache_read_tokens: cache_read,
        cache_write_tokens: number(5)?,
        reasoning_tokens: number(6)?,
        cache_share: (input > 0).then(|| (cache_read as f64 / input as f64).min(1.0)),
        cost_usd: (cost > 0 || unpriced < calls || calls == 0).then(|| usd(cost)),
        unpriced_calls: unpriced,
        tool_calls: number(9)?,
        tool_time_ms: number(10)?,
        tools: Vec::new(),
    })
}

fn count(row: &Row<'_>, column: usize) -> Result<u64, Error> {
    row.get::<_, i64>(column).map(|count| u64::try_from(count).unwrap_or(0))
}
