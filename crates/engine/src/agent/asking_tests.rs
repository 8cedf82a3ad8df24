use super::*;
use crate::models::{ChatModel, Parts, Request};
use contract::content::MediaKind;

struct Mute;

impl ChatModel for Mute {
    fn name(&self) -> &'static str {
        "mute"
    }

    fn takes(&self, _: MediaKind, _: &str) -> Result<(), String> {
        Ok(())
    }

    fn ask(&self, _: &Request<'_>) -> Parts {
        Box::pin(futures::stream::empty())
    }
}

fn route(name: &str) -> Arc<Route> {
    let model = Arc::new(Mute);
    Arc::new(Route { name: name.into(), model, context_window: 1_000, max_output: 100, prices: None })
}

fn asking(models: &[&str]) -> Asking {
    let chain = models.iter().map(|name| route(name)).collect();
    Asking::new(chain, RetryPolicy::default(), true).unwrap()
}

fn error(kind: ModelErrorKind) -> ModelError {
    ModelError::new(kind, "no")
}

fn after(asking: &mut Asking, kind: ModelErrorKind) -> Remedy {
    asking.after(&error(kind), Duration::ZERO, 0.5)
}

#[test]
fn what_may_pass_is_tried_again_and_then_another_model_is_asked() {
    let mut asking = asking(&["a", "b"]);
    for delay in [500, 1_000, 2_000, 4_000] {
        assert_eq!(after(&mut asking, ModelErrorKind::Busy), Remedy::Wait(Duration::from_millis(delay)));
    }
    assert_eq!(after(&mut asking, ModelErrorKind::Broken), Remedy::StandIn);
    assert_eq!(asking.route().name, "b");
    // The other model has all its attempts before it.
    assert_eq!(after(&mut asking, ModelErrorKind::Broken), Remedy::Wait(Duration::from_millis(500)));
}

#[test]
fn what_waiting_does_not_mend_goes_straight_to_the_next_model() {
    use ModelErrorKind::{Auth, NoSuchModel, Quota};
    let mut asking = asking(&["a", "b", "c"]);
    assert_eq!([after(&mut asking, Auth), after(&mut asking, Quota)], [Remedy::StandIn; 2]);
    assert_eq!(after(&mut asking, NoSuchModel), Remedy::GiveUp);
    let last = asking.gave_up(error(NoSuchModel));
    assert_eq!(last.message, "no model answers: a: no; b: no; c: no");
}

#[test]
fn a_refusal_is_nobody_elses_business() {
    let mut asking = asking(&["a", "b"]);
    assert_eq!(after(&mut asking, ModelErrorKind::Refused), Remedy::GiveUp);
}

#[test]
fn a_broken_history_is_mended_once() {
    let mut asking = asking(&["a", "b"]);
    assert_eq!(after(&mut asking, ModelErrorKind::BrokenHistory), Remedy::DropReasoning);
    assert_eq!(after(&mut asking, ModelErrorKind::BrokenHistory), Remedy::GiveUp);
}

#[test]
fn a_conversation_is_shortened_twice_and_then_reset_and_then_never_again() {
    let mut asking = asking(&["a"]);
    let stages: Vec<_> = std::iter::from_fn(|| {
        (after(&mut asking, ModelErrorKind::TooLong) == Remedy::Shorten)
            .then(|| asking.shorten(true).unwrap())
    })
    .collect();
    let expected = [Shortening::Summary { time: 1 }, Shortening::Summary { time: 2 }, Shortening::Reset];
    assert_eq!(stages, expected);
    // Nothing is thrown away for a threshold alone.
    let mut asking = self::asking(&["a"]);
    assert_eq!(std::iter::from_fn(|| asking.shorten(false)).count(), 2);
}
