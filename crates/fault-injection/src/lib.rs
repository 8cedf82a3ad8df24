//! Fault injection for mutation tests: each mutation breaks one guarantee on purpose, to prove that the test of
//! that guarantee can fail.
//!
//! Mutations exist only in a build with the feature `sabotage`, which no release has, and are active only if
//! `ROUNDHOUSE_SABOTEUR` names one. `docs/regressions.md` pairs them with their tests. One more, `let_go`, is in the
//! crate `sandbox`: it does not kill the processes that a program leaves behind.

/// The mutations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// Runs a tool without recording the intent.
    SkipIntent,
    /// Gives two events the same `ts`.
    RepeatTs,
    /// Publishes events before they are stored.
    PublishBeforeCommit,
    /// Runs a tool again although its outcome is unknown.
    RerunTool,
    /// Discards pending HITL requests at a start.
    ForgetPending,
    /// Accepts a second answer to one request.
    AnswerTwice,
    /// Leaves tool calls without results in the history.
    LeaveCallsOpen,
    /// Sends thinking without its signature.
    DropSignatures,
    /// Keeps everything of an ended turn in memory.
    LeakTurns,
    /// Stores the whole thread again with each turn.
    StoreThread,
    /// Forgets what was already sent to clients when a model step is repeated.
    ForgetTold,
    /// Reports a turn as cancelled but lets it run.
    IgnoreCancel,
    /// Does not count the starts that resume a turn.
    ForgetStarts,
    /// Compacts a conversation without end.
    CompactForever,
    /// Changes the beginning of each request.
    BustCache,
    /// Lets a turn repeat itself.
    IgnoreLoops,
    /// Declares all tools to a model, however many there are.
    TellAllTools,
    /// Treats what the agent has from tools as the user's words.
    RaiseTrust,
    /// Refreshes a token once for each caller that needs it.
    RefreshEach,
    /// Requests a token again after it was refused for good.
    RefreshForever,
    /// Drops a refresh token if the response contains no new one.
    DropRefreshToken,
    /// Lets an MCP server continue a call that nobody waits for.
    KeepCalling,
}

/// Whether the mutation is active.
#[cfg(feature = "sabotage")]
pub fn active(mutation: Mutation) -> bool {
    static ACTIVE: std::sync::LazyLock<Option<String>> =
        std::sync::LazyLock::new(|| std::env::var("ROUNDHOUSE_SABOTEUR").ok());
    ACTIVE.as_deref().is_some_and(|name| name == mutation.name())
}

/// Always `false`: this build has no mutations.
#[cfg(not(feature = "sabotage"))]
pub const fn active(_: Mutation) -> bool {
    false
}

/// Returns the system prompt, changed each time if [`Mutation::BustCache`] is active.
pub fn bust_prompt_cache(system: &str) -> std::borrow::Cow<'_, str> {
    static TIMES: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    if !active(Mutation::BustCache) {
        return system.into();
    }
    let times = TIMES.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    format!("{system} It is {times} o'clock.").into()
}

/// Pauses if the mutation is active, so that a kill can expose its effect.
pub fn pause_for_kill(mutation: Mutation) {
    if active(mutation) {
        std::thread::park_timeout(std::time::Duration::from_millis(20));
    }
}

#[cfg(feature = "sabotage")]
impl Mutation {
    /// Returns its name in `ROUNDHOUSE_SABOTEUR`: the variant's, in snake case.
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

#[cfg(test)]
mod tests {
    use super::{Mutation, active, bust_prompt_cache};

    #[test]
    fn without_a_choice_nothing_is_broken() {
        assert!(!active(Mutation::SkipIntent));
        assert_eq!(bust_prompt_cache("You are Ada."), "You are Ada.");
    }
}
