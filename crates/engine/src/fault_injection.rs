//! Saboteurs: each breaks one guarantee on purpose, to show that the test of that guarantee goes red.
//!
//! They exist only in a build with the feature `sabotage`, which no release has, and act only where
//! `ROUNDHOUSE_SABOTEUR` names one. `docs/lessons.md` pairs them with their tests. One more, `let_go`, is in the crate
//! `leash`: it does not end what a program leaves behind.

/// Who breaks what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutation {
    /// Runs a tool without its intent on record.
    SkipIntent,
    /// Gives two events one `ts`.
    RepeatTs,
    /// Shows events before they are stored.
    PublishBeforeCommit,
    /// Runs a tool again whose outcome is unknown.
    RerunTool,
    /// Forgets, at a start, what waits for a person.
    ForgetPending,
    /// Takes a second answer to one request.
    AnswerTwice,
    /// Leaves calls without results in the history.
    LeaveCallsOpen,
    /// Sends thinking without its signature.
    DropSignatures,
    /// Keeps everything of a turn in memory when it has ended.
    LeakTurns,
    /// Stores the whole thread again with each turn.
    StoreThread,
    /// Forgets what clients were told of a model step that is repeated.
    ForgetTold,
    /// Says that a turn is cancelled and lets it run.
    IgnoreCancel,
    /// Does not count the starts that take a turn up.
    ForgetStarts,
    /// Shortens a conversation for ever.
    CompactForever,
    /// Says something else at the beginning of each request.
    BustCache,
    /// Lets a turn repeat itself.
    IgnoreLoops,
    /// Tells a model of all tools, however many there are.
    TellAllTools,
    /// Takes what the agent has from tools for the user's words.
    RaiseTrust,
    /// Refreshes a token for each who needs it.
    RefreshEach,
    /// Asks again for a token that was refused for good.
    RefreshForever,
    /// Forgets a refresh token when no other comes.
    DropRefreshToken,
    /// Lets a tool server work on after nobody waits for it.
    KeepCalling,
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

/// The beginning of a prompt, unless a saboteur has it otherwise each time.
pub(crate) fn bust_prompt_cache(system: &str) -> std::borrow::Cow<'_, str> {
    static TIMES: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    if !active(Mutation::BustCache) {
        return system.into();
    }
    let times = TIMES.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    format!("{system} It is {times} o'clock.").into()
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
