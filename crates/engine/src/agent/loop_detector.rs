//! The loop detector: finds turns that repeat the same call without learning anything new from it. Pure.
//!
//! A call whose result changes is no loop: a poll may continue as long as it sees changes.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::LazyLock;

use llm::{Content, ToolOutcome, ToolUse};
use regex_lite::Regex;
use sha2::{Digest as _, Sha256};

/// The number of recent calls among which repetitions are counted.
const WINDOW_CALLS: usize = 20;
/// The number of repetitions from which the model is warned.
const WARN_AT_COUNT: usize = 3;
/// The number of repetitions at which the turn ends.
const END_AT_COUNT: usize = 5;

/// An id that differs in each call, in the name of an output file or of a saved record.
static GENERATED_ID: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new("(call_|mem_)[0-9a-f]{32}").ok());

/// The prefixes of such ids.
const GENERATED_ID_PREFIXES: [&str; 2] = ["call_", "mem_"];

/// Hashes of a turn's latest completed calls, each with its result.
#[derive(Debug, Default)]
pub(super) struct LoopDetector {
    recent: VecDeque<[u8; 32]>,
    is_looping: bool,
}

/// How often a call had the same result within the window that ends with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RepeatCount(usize);

impl LoopDetector {
    /// Records a completed call with its result.
    pub(super) fn record(&mut self, call: &ToolUse, outcome: &ToolOutcome) -> RepeatCount {
        let digest = fingerprint(call, outcome);
        if self.recent.len() == WINDOW_CALLS {
            self.recent.pop_front();
        }
        self.recent.push_back(digest);
        let count = RepeatCount(self.recent.iter().filter(|other| **other == digest).count());
        self.is_looping |= count.is_loop();
        count
    }

    /// Returns whether the turn has repeated itself so often that it must end.
    pub(super) fn is_looping(&self) -> bool {
        self.is_looping
    }
}

impl RepeatCount {
    fn is_loop(self) -> bool {
        self.0 >= END_AT_COUNT
    }

    /// The warning that is added to the call's result for the model, if any.
    pub(super) fn warning(self) -> Option<String> {
        (self.0 >= WARN_AT_COUNT).then(|| {
            format!(
                "[You have made this call {} times with this same result. Do not repeat it: try another way, or \
                 say what is missing. After {END_AT_COUNT} times the turn is ended.]",
                self.0
            )
        })
    }
}

/// Hashes a call with its result. How long the call took is not part of it.
fn fingerprint(call: &ToolUse, outcome: &ToolOutcome) -> [u8; 32] {
    let input = call.input.to_string();
    // Checking for the prefixes first is many times as fast, and few results contain one.
    let id_pattern = |text: &str| {
        GENERATED_ID.as_ref().filter(|_| GENERATED_ID_PREFIXES.iter().any(|start| text.contains(start)))
    };
    let normalized =
        |text| id_pattern(text).map_or(Cow::Borrowed(text), |id_pattern| id_pattern.replace_all(text, "$1"));
    let [output, error] =
        [Some(outcome.output.as_str()), outcome.error.as_deref()].map(|text| text.map(normalized));
    let parts = [Some(call.name.as_str()), Some(&input), output.as_deref(), error.as_deref()];
    // The text of a result is the same whatever its pictures show.
    let media = outcome.media.iter().filter_map(|content| match content {
        Content::Media(media) => Some(media.hash.as_str()),
        Content::Text { .. } | Content::Note { .. } => None,
    });
    let mut all = Sha256::new();
    for part in parts.into_iter().flatten().chain(media) {
        // Each part is hashed separately, so that different splits of the same text differ.
        all.update(Sha256::digest(part));
    }
    all.finalize().into()
}

#[cfg(test)]
mod tests {
    use api::CallId;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn call(name: &str, input: serde_json::Value) -> ToolUse {
        let (call_id, provider_id) = (CallId::new(), "toolu_1".into());
        ToolUse { call_id, provider_id, name: name.into(), input, signature: None, broken: None }
    }

    fn outcome(output: &str) -> ToolOutcome {
        ToolOutcome::new(output.into(), None, 0)
    }

    #[test]
    fn it_is_told_from_the_third_time_on_and_ends_with_the_fifth() {
        let mut detector = LoopDetector::default();
        let mut record = || detector.record(&call("poll", json!({"job": 1, "of": 2})), &outcome("running"));
        let reported: Vec<_> =
            (0..5).map(|_| record()).map(|count| (count.warning().is_some(), count.is_loop())).collect();
        assert_eq!(reported, [(false, false), (false, false), (true, false), (true, false), (true, true)]);
    }

    #[test]
    fn another_input_result_tool_or_error_is_another_call() {
        let mut detector = LoopDetector::default();
        let failed = ToolOutcome::new(String::new(), Some("running".into()), 0);
        for _ in 0..4 {
            for (name, input, outcome) in [
                ("poll", json!({"job": 1}), outcome("running")),
                ("poll", json!({"job": 2}), outcome("running")),
                ("poll", json!({"job": 1}), outcome("done")),
                ("poll", json!({"job": 1}), failed.clone()),
                ("wait", json!({"job": 1}), outcome("running")),
            ] {
                assert!(!detector.record(&call(name, input), &outcome).is_loop());
            }
        }
    }

    #[test]
    fn another_picture_is_another_result() {
        let mut detector = LoopDetector::default();
        let shown = |picture: usize| {
            let media = llm::Media {
                kind: api::content::MediaKind::Image,
                media_type: "image/png".into(),
                name: None,
                hash: picture.to_string(),
                tokens: None,
                text: None,
                data: None,
            };
            ToolOutcome {
                media: vec![Content::Media(media)],
                ..outcome("[picture 1, shown with this result]")
            }
        };
        let mut looks = |picture| detector.record(&call("screenshot", json!({})), &shown(picture)).is_loop();
        assert!(!(0..9).any(&mut looks));
        // The picture of the last look again.
        assert_eq!([8; 4].map(looks), [false, false, false, true]);
    }

    #[test]
    fn what_each_call_names_anew_makes_no_difference() {
        let mut detector = LoopDetector::default();
        let ends = (0..5).map(|_| {
            let saved = format!("saved as mem_{}", uuid::Uuid::now_v7().simple());
            detector.record(&call("memory_save", json!({"content": "x"})), &outcome(&saved)).is_loop()
        });
        assert_eq!(ends.collect::<Vec<_>>(), [false, false, false, false, true]);
    }

    proptest! {
        /// Recounts over the last twenty calls, whichever they were.
        #[test]
        fn it_counts_what_is_in_the_window(calls in proptest::collection::vec((0..3_u8, 0..2_u8), 0..60)) {
            let mut detector = LoopDetector::default();
            for (at, (input, output)) in calls.iter().enumerate() {
                let count = detector.record(&call("t", json!({"n": input})), &outcome(&output.to_string()));
                let window = &calls[(at + 1).saturating_sub(WINDOW_CALLS)..=at];
                let same = window.iter().filter(|other| *other == &(*input, *output)).count();
                prop_assert_eq!(count, RepeatCount(same));
            }
        }
    }
}
