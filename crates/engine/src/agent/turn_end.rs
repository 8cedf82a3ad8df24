//! Abnormal ends of turns, and what clients receive about them.

use api::MessageId;
use api::event::{Event, Failure, FailureCode, Lifecycle};
use llm::{ModelError, ModelErrorKind};
use store::WriteError;
use store::event_log::{Commit, Recorder};
use store::steps::{PartialAnswer, Step, TurnOutcome};

/// Ends a turn with `failure`. After `commit`, the last two events report that it errored and why.
pub(super) async fn commit_failure(
    recorder: &Recorder,
    message_id: MessageId,
    commit: Commit,
    failure: Failure,
) -> Result<(), WriteError> {
    // The provider's message is in the journal only; it may quote the user.
    tracing::warn!(turn_id = %recorder.turn_id(), code = ?failure.code, "A turn failed.");
    let outcome = TurnOutcome::Errored { failure: failure.clone() };
    let errored = Event::ThreadLifecycle(Lifecycle::Errored { message_id });
    recorder.commit(commit.step(Step::Ended { outcome }).event(errored).event(Event::Error(failure))).await
}

/// The partial answer of a cancelled turn, as a message of its own.
pub(super) fn partial_answer(text: String) -> PartialAnswer {
    PartialAnswer { message_id: MessageId::new(), text }
}

/// The failure that clients receive for a provider's error.
pub(super) fn provider_failure(error: &ModelError) -> Failure {
    let (code, retryable) = match error.kind {
        ModelErrorKind::NotConfigured => (FailureCode::ProviderNotConfigured, false),
        ModelErrorKind::Auth => (FailureCode::ProviderAuth, false),
        ModelErrorKind::NoSuchModel
        | ModelErrorKind::Refused
        | ModelErrorKind::TooLong
        | ModelErrorKind::BrokenHistory => (FailureCode::ProviderRefused, false),
        ModelErrorKind::Quota => (FailureCode::ProviderUnavailable, false),
        ModelErrorKind::Empty | ModelErrorKind::Busy | ModelErrorKind::Broken => {
            (FailureCode::ProviderUnavailable, true)
        }
    };
    Failure { code, message: error.message.clone(), retryable }
}

/// The failure that clients receive for an error of the engine itself.
pub(super) fn internal_failure() -> Failure {
    let message = "unexpected failure; the engine's log has the details".into();
    Failure { code: FailureCode::InternalError, message, retryable: false }
}
