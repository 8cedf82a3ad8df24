//! Saboteurs: each breaks one guarantee on purpose, to show that whoever checks that guarantee sees it.
//!
//! They exist only in a build with the feature `sabotage`, which no release has, and act only where
//! `ROUNDHOUSE_SABOTEUR` names one. The kill harness (`testing/chaos`) catches the first five; the lessons' tests
//! catch all that `docs/lessons.md` pairs them with.

/// Who breaks what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutation {
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
    /// Waits for the backend for ever.
    ForgetDeadline,
    /// Refuses whoever comes second, where they should share what the first one began.
    RefuseToShare,
    /// Counts one engine too few against a product's quota.
    QuotaOffByOne,
    /// Takes over running engines, and nothing that was known of them.
    ForgetStamps,
    /// Takes running engines of an earlier orchestrator for dead.
    RestartAdopted,
    /// Takes a backend that says nothing for one that runs nothing.
    TakeSilenceForDeath,
    /// Takes a look at an engine for activity.
    LooksAreActivity,
    /// Puts idle engines to sleep whatever they say.
    SleepThoughBusy,
    /// Leaves an engine alone that does not obey.
    ForgiveTerm,
    /// Brings up the engine that somebody merely looks at.
    WakeOnLook,
    /// Begins each launch with an empty folder.
    EmptyFolder,
    /// Does what is due one after the other.
    OneByOne,
    /// Restarts as many engines at once as there are.
    NoGate,
    /// Lets all that failed together come back together.
    NoJitter,
    /// Takes a permanent fault for one that passes.
    RetryForEver,
    /// Asks the registry twice where once is enough.
    AskTwice,
    /// Drops an index.
    ForgetIndex,
    /// Says that the backend failed where the host is full.
    HideFullness,
    /// Leaves the folder of an engine that is destroyed.
    KeepFolder,
    /// Follows a link in the place of an engine's folder.
    FollowLink,
    /// Takes two users for one whose ids differ in case alone.
    FoldCase,
    /// Refuses without saying when to come back.
    NoRetryAfter,
    /// Refuses without counting it.
    ForgetRefusals,
    /// Restarts engines in the order in which they are due, whoever waits.
    NoHurry,
    /// Reckons by the wall clock.
    ReckonByWall,
    /// Acknowledges what the registry did not take.
    AckUnwritten,
    /// Launches before the registry knows of it.
    LaunchBeforeClaim,
    /// Labels engines otherwise than earlier versions did.
    ForgetLabel,
    /// Takes another deployment's engines for its own.
    TakeStrangers,
    /// Lets engines follow the deployment's image that are pinned to theirs.
    FollowPinned,
    /// Takes whatever folder is there for the engines' data.
    TrustAnyRoot,
    /// Waits until the fleet is ready before it hears that it is to end.
    AwaitReadiness,
    /// Lets one product have all permits to boot.
    NoShares,
    /// Reads what is stored as strictly as what comes over the wire.
    ReadStrictly,
    /// Forgets a stop that the backend did not carry out in time.
    ForgetStop,
    /// Acts on what was launched for a later change too.
    IgnoreGenerations,
    /// Takes it for granted that engines take the registry's keys.
    TrustKeys,
    /// Sends keys to engines that have proven that they have them.
    SendKeys,
    /// Shares the root of the engines' data with another registry's orchestrator.
    ShareRoot,
    /// Takes a move to another version back without the copy of the brain.
    ForgetCopy,
}

/// Whether `saboteur` is at work.
#[cfg(feature = "sabotage")]
pub(crate) fn active(saboteur: Mutation) -> bool {
    static AT_WORK: std::sync::LazyLock<Option<String>> =
        std::sync::LazyLock::new(|| std::env::var("ROUNDHOUSE_SABOTEUR").ok());
    AT_WORK.as_deref().is_some_and(|name| name == saboteur.name())
}

/// No saboteur is ever at work in this build.
#[cfg(not(feature = "sabotage"))]
pub(crate) const fn active(_: Mutation) -> bool {
    false
}

/// Whether `saboteur` is at work this time: every fifth.
pub(crate) fn active_every_fifth_time(saboteur: Mutation) -> bool {
    static TIMES: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(1);
    active(saboteur) && TIMES.fetch_add(1, std::sync::atomic::Ordering::Relaxed).is_multiple_of(5)
}

/// A user's id, as [`Mutation::FoldCase`] sees it if it is at work.
pub(crate) fn fold_case(user_id: api::UserId) -> api::UserId {
    if active(Mutation::FoldCase) {
        return api::UserId::new(user_id.as_str().to_lowercase()).unwrap_or(user_id);
    }
    user_id
}

/// Gives what `saboteur` does a moment in which a kill can show it.
pub(crate) fn pause_for_kill(saboteur: Mutation) {
    if active(saboteur) {
        std::thread::park_timeout(std::time::Duration::from_millis(20));
    }
}

#[cfg(feature = "sabotage")]
impl Mutation {
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
