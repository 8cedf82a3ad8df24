//! How reports of what an engine has used add up.
//!
//! An engine reports what it has used on a day in all, so a report that is lost, comes late or comes twice changes
//! nothing in the end. Only if the engine was set back to an earlier state, by a backup or the copy of its brain before an
//! upgrade, does a count become lower; what was used before stays used.

use api::usage_days::UsageCounts;

/// What is known of an engine and a day.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DayUsage {
    /// What was used.
    pub(crate) total: UsageCounts,
    /// What the engine reported last.
    pub(crate) reported: UsageCounts,
}

impl DayUsage {
    /// Applies a report of the engine. Returns what it adds.
    pub(crate) fn apply(&mut self, report: UsageCounts) -> UsageCounts {
        let added = report.zip_with(self.reported, u64::saturating_sub);
        self.total = self.total.plus(added);
        self.reported = report;
        added
    }
}

#[cfg(test)]
#[path = "../../tests/unit/domain/usage.rs"]
mod tests;
