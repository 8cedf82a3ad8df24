use api::content::MediaKind;
use llm::{ChatModel, EventStream, Request};

use super::*;

struct SilentModel;

impl ChatModel for SilentModel {
    fn supports_effort(&self) -> Result<(), String> {
        Ok(())
    }

    fn name(&self) -> &'static str {
        "silent"
    }

    fn supports_media(&self, _: MediaKind, _: &str) -> Result<(), String> {
        Ok(())
    }

    fn stream(&self, _: &Request<'_>) -> EventStream {
        Box::pin(futures::stream::empty())
    }
}

fn route(name: &str) -> Arc<Route> {
    let model = Arc::new(SilentModel);
    // All models but `a` have small windows.
    let context_window = if name == "a" { 100_000 } else { 10_000 };
    Arc::new(Route {
        name: name.into(),
        model,
        provider: "scripted",
        context_window,
        max_output: 100,
        prices: None,
    })
}

fn step_attempts(models: &[&str]) -> StepAttempts {
    let chain = models.iter().map(|name| route(name)).collect();
    StepAttempts::new(chain, "a".into(), RetryPolicy::default(), true).unwrap()
}

fn error(kind: ModelErrorKind) -> ModelError {
    ModelError::new(kind, "no")
}

fn remedy_after(attempts: &mut StepAttempts, kind: ModelErrorKind) -> Remedy {
    attempts.remedy_for(&error(kind), Duration::ZERO, 0.5)
}

#[test]
fn what_may_pass_is_tried_again_and_then_another_model_is_asked() {
    let mut attempts = step_attempts(&["a", "b"]);
    for delay in [500, 1_000, 2_000, 4_000] {
        assert_eq!(
            remedy_after(&mut attempts, ModelErrorKind::Busy),
            Remedy::Wait(Duration::from_millis(delay))
        );
    }
    assert_eq!(remedy_after(&mut attempts, ModelErrorKind::Broken), Remedy::Fallback);
    assert_eq!(attempts.route().name, "b");
    // The other model has all its attempts left.
    assert_eq!(remedy_after(&mut attempts, ModelErrorKind::Broken), Remedy::Wait(Duration::from_millis(500)));
}

#[test]
fn what_waiting_does_not_mend_goes_straight_to_the_next_model() {
    use ModelErrorKind::{Auth, NoSuchModel, Quota};
    let mut attempts = step_attempts(&["a", "b", "c"]);
    assert_eq!(
        [remedy_after(&mut attempts, Auth), remedy_after(&mut attempts, Quota)],
        [Remedy::Fallback; 2]
    );
    assert_eq!(remedy_after(&mut attempts, NoSuchModel), Remedy::GiveUp);
    let last = attempts.into_error(Some(error(NoSuchModel)));
    assert_eq!(last.message, "no model answers: a: no; b: no; c: no");
}

#[test]
fn a_refusal_is_nobody_elses_business() {
    let mut attempts = step_attempts(&["a", "b"]);
    assert_eq!(remedy_after(&mut attempts, ModelErrorKind::Refused), Remedy::GiveUp);
}

#[test]
fn a_broken_history_is_mended_once() {
    let mut attempts = step_attempts(&["a", "b"]);
    assert_eq!(remedy_after(&mut attempts, ModelErrorKind::BrokenHistory), Remedy::DropReasoning);
    assert_eq!(remedy_after(&mut attempts, ModelErrorKind::BrokenHistory), Remedy::GiveUp);
}

#[test]
fn what_is_refused_with_files_is_sent_once_more_without_them() {
    let mut attempts = step_attempts(&["a", "b"]);
    attempts.set_has_files(true);
    let remedies = [(); 2].map(|()| remedy_after(&mut attempts, ModelErrorKind::Refused));
    assert_eq!(remedies, [Remedy::DropMedia, Remedy::GiveUp]);
    assert!(attempts.is_media_dropped());
}

#[test]
fn a_conversation_is_shortened_twice_and_then_reset_and_then_never_again() {
    let mut attempts = step_attempts(&["a"]);
    let stages: Vec<_> = std::iter::from_fn(|| {
        (remedy_after(&mut attempts, ModelErrorKind::TooLong) == Remedy::Compact)
            .then(|| attempts.next_compaction(true).unwrap())
    })
    .collect();
    let expected =
        [CompactionStage::Summary { pass: 1 }, CompactionStage::Summary { pass: 2 }, CompactionStage::Reset];
    assert_eq!(stages, expected);
    // Reaching the threshold alone never causes a reset.
    let mut attempts = self::step_attempts(&["a"]);
    assert_eq!(std::iter::from_fn(|| attempts.next_compaction(false)).count(), 2);
}

#[test]
fn nothing_is_shortened_for_a_small_stand_in_while_the_usual_model_may_return() {
    let mut attempts = step_attempts(&["a", "b", "c"]);
    assert_eq!(attempts.fit_window(90_000), WindowDecision::Compact, "it is the primary model");
    while remedy_after(&mut attempts, ModelErrorKind::Busy) != Remedy::Fallback {}
    // A conversation that fits with room for an answer is sent as it is.
    assert_eq!((attempts.fit_window(5_000), attempts.route().name.as_str()), (WindowDecision::SendAsIs, "b"));
    assert_eq!(
        (attempts.fit_window(50_000), attempts.route().name.as_str()),
        (WindowDecision::SkipModel, "c")
    );
    // The provider's token count may differ from the estimate.
    assert_eq!(remedy_after(&mut attempts, ModelErrorKind::TooLong), Remedy::GiveUp);
    let error = attempts.into_error(Some(error(ModelErrorKind::TooLong)));
    let expected = "no model answers: a: no; b: its context window of 10000 tokens is too small; c: no";
    assert_eq!((error.kind, error.message.as_str()), (ModelErrorKind::Busy, expected));
}

#[test]
fn what_a_stand_in_says_that_was_asked_ends_the_step_after_one_that_was_too_small() {
    let mut attempts = step_attempts(&["a", "b", "c"]);
    while remedy_after(&mut attempts, ModelErrorKind::Busy) != Remedy::Fallback {}
    assert_eq!(attempts.fit_window(50_000), WindowDecision::SkipModel);
    assert_eq!(remedy_after(&mut attempts, ModelErrorKind::Refused), Remedy::GiveUp);
    assert_eq!(attempts.into_error(Some(error(ModelErrorKind::Refused))).kind, ModelErrorKind::Refused);
}

#[test]
fn a_usual_model_that_rests_is_asked_before_anything_is_shortened() {
    let mut attempts = step_attempts(&["b", "a"]);
    assert_eq!((attempts.fit_window(5_000), attempts.route().name.as_str()), (WindowDecision::SendAsIs, "b"));
    // Even if it is too long for the primary model as well: then it is compacted for that model's window.
    assert_eq!(
        (attempts.fit_window(99_000), attempts.route().name.as_str()),
        (WindowDecision::SkipModel, "a")
    );
    assert_eq!(attempts.fit_window(99_000), WindowDecision::Compact);
    // A model with an authentication error does not recover by itself.
    assert_eq!(remedy_after(&mut attempts, ModelErrorKind::Auth), Remedy::Fallback);
    assert_eq!(
        (attempts.route().name.clone().as_str(), attempts.fit_window(50_000)),
        ("b", WindowDecision::Compact)
    );
}
