//! Switchable faults: each mutation breaks one guarantee on purpose, to prove that the guarantee's test can fail.
//!
//! They exist only in a build with the feature `sabotage`, which no release has, and one is active only if
//! `ROUNDHOUSE_SABOTEUR` names it. The kill harness (`testing/chaos`) catches the first five; the regression tests
//! catch those that `docs/regressions.md` pairs with them.

/// A guarantee that can be switched off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutation {
    /// Leaves a failed or interrupted provision as it is, without a rollback.
    ForgetRollBack,
    /// Commits the deletion of an engine before the backend has removed anything.
    CommitBeforeAct,
    /// Leases ports that running engines use.
    SharePorts,
    /// Keeps the old key in the registry after an engine has accepted a new one.
    ReturnOldKey,
    /// Settles every fifth change without an audit row.
    SkipAudit,
    /// Waits for the backend without a deadline.
    ForgetDeadline,
    /// Refuses the second caller, who should share the operation that the first one started.
    RefuseToShare,
    /// Counts one engine too few against a product's quota.
    QuotaOffByOne,
    /// Adopts running engines without their recorded activity and health.
    ForgetStamps,
    /// Treats running engines of an earlier orchestrator as dead.
    RestartAdopted,
    /// Treats a backend that does not answer as one that runs no engines.
    TakeSilenceForDeath,
    /// Counts reads of an engine as activity.
    LooksAreActivity,
    /// Puts idle engines to sleep even if they report that they are busy.
    SleepThoughBusy,
    /// Does not kill an engine that ignores SIGTERM.
    ForgiveTerm,
    /// Lets a read of an engine provision or wake it.
    WakeOnLook,
    /// Starts each launch with an empty folder.
    EmptyFolder,
    /// Performs due actions one after another.
    OneByOne,
    /// Removes the limit on concurrent boots.
    NoGate,
    /// Restarts engines that failed together at the same instant.
    NoJitter,
    /// Retries a permanent failure as if it were transient.
    RetryForEver,
    /// Queries the registry twice where one query is enough.
    AskTwice,
    /// Drops an index.
    ForgetIndex,
    /// Reports a host without capacity as a backend failure.
    HideFullness,
    /// Leaves the folder of a destroyed engine behind.
    KeepFolder,
    /// Follows a symbolic link in place of an engine's folder.
    FollowLink,
    /// Treats user ids that differ only in case as one user.
    FoldCase,
    /// Refuses requests without `Retry-After`.
    NoRetryAfter,
    /// Does not count refusals.
    ForgetRefusals,
    /// Restarts engines strictly in the order in which they are due, even if a caller waits for a later one.
    NoHurry,
    /// Measures intervals by the wall clock.
    ReckonByWall,
    /// Acknowledges a change that the registry did not store.
    AckUnwritten,
    /// Launches an engine before the registry has a claim for it.
    LaunchBeforeClaim,
    /// Labels engines differently from earlier versions.
    ForgetLabel,
    /// Treats another deployment's engines as its own.
    TakeStrangers,
    /// Lets pinned engines follow the deployment's image.
    FollowPinned,
    /// Accepts any folder as the engines' data root.
    TrustAnyRoot,
    /// Ignores a shutdown until the fleet is ready.
    AwaitReadiness,
    /// Lets one product take all boot and stream permits.
    NoShares,
    /// Reads stored values as strictly as values from the wire.
    ReadStrictly,
    /// Forgets a stop that the backend did not complete in time.
    ForgetStop,
    /// Acts on instances that were launched for a later change, too.
    IgnoreGenerations,
    /// Assumes, without checking, that engines accept the registry's keys.
    TrustKeys,
    /// Sends the key even to engines that have proven that they hold it.
    SendKeys,
    /// Shares the engines' data root with another registry's orchestrator.
    ShareRoot,
    /// Reverts a move to another version without restoring the copy of the brain.
    ForgetCopy,
}

/// Whether `mutation` is active.
#[cfg(feature = "sabotage")]
pub(crate) fn active(mutation: Mutation) -> bool {
    static ACTIVE_NAME: std::sync::LazyLock<Option<String>> =
        std::sync::LazyLock::new(|| std::env::var("ROUNDHOUSE_SABOTEUR").ok());
    ACTIVE_NAME.as_deref().is_some_and(|name| name == mutation.name())
}

/// Always `false`: this build has no mutations.
#[cfg(not(feature = "sabotage"))]
pub(crate) const fn active(_: Mutation) -> bool {
    false
}

/// Whether `mutation` is active for this call; an active one applies to every fifth call.
pub(crate) fn active_every_fifth_time(mutation: Mutation) -> bool {
    static CALLS: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(1);
    active(mutation) && CALLS.fetch_add(1, std::sync::atomic::Ordering::Relaxed).is_multiple_of(5)
}

/// Returns `user_id`, in lower case if [`Mutation::FoldCase`] is active.
pub(crate) fn fold_case(user_id: api::UserId) -> api::UserId {
    if active(Mutation::FoldCase) {
        return api::UserId::new(user_id.as_str().to_lowercase()).unwrap_or(user_id);
    }
    user_id
}

/// Blocks for 20 ms if `mutation` is active, so that a kill is likely to hit the faulty state.
pub(crate) fn pause_for_kill(mutation: Mutation) {
    if active(mutation) {
        std::thread::park_timeout(std::time::Duration::from_millis(20));
    }
}

#[cfg(feature = "sabotage")]
impl Mutation {
    /// The value of `ROUNDHOUSE_SABOTEUR` that activates it: the variant's name in snake case.
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
