//! The last lines of the logs of Pods that are gone: a cluster keeps no log of a Pod that was deleted.
//!
//! They are kept in memory, so that they are lost with this orchestrator.

use std::collections::{HashMap, VecDeque};

use api::EngineId;
use parking_lot::Mutex;

/// The lines that are kept of each log, and their size in bytes.
pub(super) const MAX_SAVED_LINES: usize = 500;
const MAX_SAVED_BYTES: usize = 64 * 1024;

/// The engines whose lines are kept.
const MAX_LOGS: usize = 1_000;

/// The last lines of the engines whose Pods went last.
#[derive(Default)]
pub(super) struct SavedLogs {
    logs: Mutex<Logs>,
}

#[derive(Default)]
struct Logs {
    by_engine: HashMap<EngineId, Vec<String>>,
    /// The engines in the order in which their logs were saved.
    order: VecDeque<EngineId>,
}

impl SavedLogs {
    /// Keeps the last of these lines in place of any earlier ones of the engine. No lines change nothing.
    pub(super) fn save(&self, engine_id: EngineId, mut lines: Vec<String>) {
        let mut bytes = 0;
        let newest = lines.iter().rev().take(MAX_SAVED_LINES).take_while(|line| {
            bytes += line.len() + 1;
            bytes <= MAX_SAVED_BYTES
        });
        let kept = newest.count();
        lines.drain(..lines.len() - kept);
        if lines.is_empty() {
            return;
        }
        let mut logs = self.logs.lock();
        if logs.by_engine.insert(engine_id, lines).is_some() {
            logs.order.retain(|other| *other != engine_id);
        }
        logs.order.push_back(engine_id);
        if logs.order.len() > MAX_LOGS
            && let Some(oldest) = logs.order.pop_front()
        {
            logs.by_engine.remove(&oldest);
        }
    }

    /// Keeps the end of a log that came with a Pod's status, unless there is more: what a request returned.
    pub(super) fn save_output(&self, engine_id: EngineId, output: &str) {
        if !self.logs.lock().by_engine.contains_key(&engine_id) {
            self.save(engine_id, output.lines().map(str::to_owned).collect());
        }
    }

    /// Returns the last lines that are kept of the engine's log, at most `lines`.
    pub(super) fn tail(&self, engine_id: EngineId, lines: usize) -> Vec<String> {
        let logs = self.logs.lock();
        let Some(saved) = logs.by_engine.get(&engine_id) else { return Vec::new() };
        saved.iter().skip(saved.len().saturating_sub(lines)).cloned().collect()
    }

    /// Forgets the engine's lines, as at its next launch.
    pub(super) fn forget(&self, engine_id: EngineId) {
        let mut logs = self.logs.lock();
        if logs.by_engine.remove(&engine_id).is_some() {
            logs.order.retain(|other| *other != engine_id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_of_the_last_engines_are_kept() {
        let logs = SavedLogs::default();
        let first = EngineId::new();
        logs.save_output(first, "one\ntwo\n");
        logs.save(first, Vec::new());
        assert_eq!(logs.tail(first, 1), ["two"]);
        logs.save(first, (0..10_000).map(|line| line.to_string()).collect());
        assert_eq!(logs.tail(first, 10_000).len(), MAX_SAVED_LINES);
        logs.save(first, vec!["x".repeat(MAX_SAVED_BYTES / 2); 5]);
        assert_eq!(logs.tail(first, 10_000).len(), 1);
        for _ in 0..MAX_LOGS {
            logs.save_output(EngineId::new(), "line");
        }
        assert!(logs.tail(first, 1).is_empty());
        assert_eq!(logs.logs.lock().by_engine.len(), MAX_LOGS);
    }
}
