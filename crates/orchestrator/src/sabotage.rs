//! Saboteurs: each breaks one guarantee on purpose, to show that whoever checks that guarantee sees it.
//!
//! They exist only in a build with the feature `sabotage`, which no release has, and act only where
//! `ROUNDHOUSE_SABOTEUR` names one. The kill harness (`crates/chaos`) must catch each of them.

/// Who breaks what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Saboteur {
    /// Leaves a provision as it is that failed or was cut off.
    ForgetRollBack,
    /// Commits that an engine is gone before anything of it is.
    CommitBeforeAct,
    /// Leases ports that running engines have.
    SharePorts,
    /// Keeps the old key when an engine has taken a new one.
    ReturnOldKey,
    /// Changes the registry without a row in the ledger, every few times.
    SkipAudit,
}

/// Whether `saboteur` is at work.
#[cfg(feature = "sabotage")]
pub(crate) fn by(saboteur: Saboteur) -> bool {
    static AT_WORK: std::sync::LazyLock<Option<String>> =
        std::sync::LazyLock::new(|| std::env::var("ROUNDHOUSE_SABOTEUR").ok());
    AT_WORK.as_deref().is_some_and(|name| name == saboteur.name())
}

/// No saboteur is ever at work in this build.
#[cfg(not(feature = "sabotage"))]
pub(crate) const fn by(_: Saboteur) -> bool {
    false
}

/// Whether `saboteur` is at work this time: every fifth.
pub(crate) fn at_times(saboteur: Saboteur) -> bool {
    static TIMES: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(1);
    by(saboteur) && TIMES.fetch_add(1, std::sync::atomic::Ordering::Relaxed).is_multiple_of(5)
}

/// Gives what `saboteur` does a moment in which a kill can show it.
pub(crate) fn linger(saboteur: Saboteur) {
    if by(saboteur) {
        std::thread::park_timeout(std::time::Duration::from_millis(20));
    }
}

#[cfg(feature = "sabotage")]
impl Saboteur {
    /// The name by which `ROUNDHOUSE_SABOTEUR` calls it: the variant's, in snake case.
    fn name(self) -> String {
        let mut name = String::new();
        for letter in format!("{self:?}").chars() {
            if letter.is_ascii_uppercase() && !name.is_empty() {
                name.push('_');
            }
            name.push(letter.to_ascii_lowercase());
        }
        name
    }
}
