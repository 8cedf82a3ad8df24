//! What a generated conversation looks like.

use std::collections::BTreeSet;

use super::*;

#[test]
fn a_conversation_is_the_same_for_the_same_seed_only() {
    let one = generate(1, 1_000);
    assert_eq!(one, generate(1, 1_000));
    assert_ne!(one.messages, generate(2, 1_000).messages);
}

#[test]
fn sessions_are_of_ten_to_forty_messages_by_turns_and_months_apart() {
    let conversation = generate(3, 2_000);
    let mut end = 0;
    for session in &conversation.sessions {
        assert_eq!(session.messages.start, end);
        end = session.messages.end;
        assert!((10..=50).contains(&session.messages.len()), "{:?}", session.messages);
        let speakers = conversation.messages[session.messages.clone()].iter().map(|one| one.speaker);
        let by_turns = [Speaker::User, Speaker::Agent].into_iter().cycle().take(session.messages.len());
        assert!(speakers.eq(by_turns));
    }
    assert_eq!(end, conversation.messages.len());
    let mut days = conversation.sessions.iter().map(|session| session.began_ms / MS_PER_DAY);
    assert!(days.clone().is_sorted());
    assert!(days.next().map(|first| first + 180) < days.next_back());
}

#[test]
fn there_are_questions_of_every_kind_and_the_answers_are_messages() {
    let conversation = generate(4, 4_000);
    let kinds: BTreeSet<&str> = conversation.questions.iter().map(|one| one.kind.as_str()).collect();
    assert_eq!(kinds.len(), 8, "{kinds:?}");
    for question in &conversation.questions {
        let has_answer = ![asking::UNANSWERABLE, asking::SMALL_TALK].contains(&question.kind.as_str());
        assert_eq!(!question.evidence.is_empty(), has_answer, "{question:?}");
        assert!(question.evidence.is_sorted() && question.evidence.iter().all(|one| *one < 4_050));
        assert!(!question.text.contains(['{', '[']), "{question:?}");
    }
    assert!(conversation.messages.iter().all(|message| !message.text.contains(['{', '[', ';'])));
}

#[test]
fn most_answers_have_few_of_the_words_of_their_questions() {
    let conversation = generate(5, 4_000);
    let words = |text: &str| -> BTreeSet<String> {
        let words = text.split(|letter: char| !letter.is_alphanumeric()).filter(|word| word.len() > 3);
        words.map(str::to_lowercase).collect()
    };
    let singles = conversation.questions.iter().filter(|one| one.kind == asking::SINGLE);
    let shared = singles.clone().filter(|one| {
        let message = &conversation.messages[one.evidence[0]];
        words(&one.text).intersection(&words(&message.text)).count() > 1
    });
    assert!(shared.count() * 2 < singles.count());
}

#[test]
fn days_are_named_as_they_are_in_conversations() {
    assert_eq!(unix_ms(Date::constant(1970, 1, 2)), MS_PER_DAY);
    assert_eq!(unix_ms(FIRST_DAY), 1_673_222_400_000);
    assert_eq!(month_name(FIRST_DAY), "January");
}
