use super::{active, active_every_fifth_time, bust_prompt_cache};

#[test]
fn without_a_choice_nothing_is_broken() {
    assert!(!active("skip_intent"));
    assert!(!(0..10).any(|_| active_every_fifth_time("skip_audit")));
    assert_eq!(bust_prompt_cache("You are Ada."), "You are Ada.");
}
