//! Tests that a corpus is reproducible, its questions have the evidence that they name, and most do not repeat its
//! words.

use std::collections::BTreeSet;

use super::*;

const SEEDS: [u64; 4] = [1, 11, 12, 13];

fn corpora() -> impl Iterator<Item = Corpus> {
    SEEDS.into_iter().map(|seed| Corpus::generate(seed, 1_000).unwrap())
}

#[test]
fn the_same_seed_tells_the_same_life_and_another_one_another() {
    let one = Corpus::generate(7, 1_000).unwrap();
    assert_eq!(one, Corpus::generate(7, 1_000).unwrap());
    let other = Corpus::generate(8, 1_000).unwrap();
    let texts = |corpus: &Corpus| -> BTreeSet<String> {
        corpus.questions.iter().map(|question| question.text.clone()).collect()
    };
    assert_eq!(texts(&one).intersection(&texts(&other)).count(), 0);
    let user_texts = |corpus: &Corpus| -> BTreeSet<String> {
        corpus.sessions.iter().flat_map(|session| &session.turns).map(|turn| turn.user.clone()).collect()
    };
    assert!(user_texts(&one).intersection(&user_texts(&other)).count() < 5);
}

#[test]
fn a_life_has_as_many_records_as_were_asked_for() {
    for records in [1_000, 10_000] {
        let corpus = Corpus::generate(1, records).unwrap();
        assert!((records..records + 10).contains(&corpus.record_count()), "{}", corpus.record_count());
        assert!(corpus.sessions.is_sorted_by_key(|session| session.started_ms));
        assert!(corpus.knowledge.len() * 50 > records, "{}", corpus.knowledge.len());
        for kind in QuestionKind::ALL {
            let questions = corpus.questions.iter().filter(|question| question.kind == kind).count();
            assert_eq!(questions, (records / 80).min(50));
        }
    }
    assert!(Corpus::generate(1, 10).is_err());
}

#[test]
fn at_least_half_of_the_questions_share_no_content_word_with_their_evidence() {
    let stemmer = Stemmer::new().unwrap();
    for corpus in corpora() {
        let answerable = || corpus.questions.iter().filter(|question| !question.evidence.is_empty());
        let paraphrases = answerable().filter(|question| question.is_paraphrase);
        assert!(paraphrases.clone().count() * 100 >= answerable().count() * MIN_PARAPHRASE_PERCENT);
        for question in paraphrases {
            // Except for the first word, names and dates, every word begins with a lowercase letter.
            let words: Vec<&str> = question.text.split_whitespace().skip(1).collect();
            let small = |word: &&&str| word.starts_with(char::is_lowercase);
            let words: Vec<&str> = words.iter().filter(small).copied().collect();
            for source in question.evidence.iter().flatten() {
                let text = corpus.text(*source).unwrap();
                let shared = stemmer.shared_words(&words.join(" "), text, "").unwrap();
                assert!(shared.is_empty(), "{} / {text}: {shared:?}", question.text);
            }
        }
    }
}

#[test]
fn questions_have_their_evidence_and_those_without_an_answer_none() {
    for corpus in corpora() {
        let user_texts: String = corpus
            .sessions
            .iter()
            .flat_map(|session| &session.turns)
            .map(|turn| turn.user.as_str())
            .collect();
        for question in &corpus.questions {
            let facts = match question.kind {
                QuestionKind::Joined => 2,
                QuestionKind::Unanswerable => 0,
                _ => 1,
            };
            assert_eq!(question.evidence.len(), facts, "{}", question.text);
            for source in question.evidence.iter().flatten() {
                assert!(!corpus.text(*source).unwrap().is_empty());
            }
            assert!(!question.is_paraphrase || facts > 0, "{}", question.text);
            assert!(!question.text.contains('{') && question.text.ends_with('?'), "{}", question.text);
        }
        assert!(!user_texts.contains('{'), "a placeholder was left in a message");
    }
}

#[test]
fn what_is_told_of_a_fact_has_its_value() {
    let (mut rng, mut values) = (SeededRng::new(3), 0);
    let plan = CorpusPlan::new(12, &mut rng).unwrap();
    for fact in &plan.facts {
        let texts = [fact.statement(&fact.subject.name, &mut rng), fact.record(&mut rng)];
        assert!(texts.iter().all(|text| text.contains(&fact.subject.name)), "{texts:?}");
        if let FactContent::Value { attribute, values: [value, _], .. } = &fact.content
            && attribute.statements.iter().chain(attribute.records).all(|text| text.contains("{0}"))
        {
            values += 1;
            let value = value.to_lowercase();
            assert!(texts.iter().all(|text| text.to_lowercase().contains(&value)), "{texts:?}");
        }
    }
    assert!(values > 12, "only {values} facts have a value");
}

#[test]
fn nothing_answers_a_question_about_what_was_never_told() {
    for seed in SEEDS {
        let corpus = Corpus::generate(seed, 1_000).unwrap();
        let plan = CorpusPlan::new(12, &mut SeededRng::new(seed)).unwrap();
        for (planned, question) in plan.questions.iter().zip(&corpus.questions) {
            let QuestionForm::Unanswerable { who, attribute } = &planned.form else { continue };
            assert!(question.text.contains(&who.name));
            let states_it = |fact: &&Fact| {
                let same = matches!(&fact.content, FactContent::Value { attribute: other, .. }
                    if std::ptr::eq(*other, *attribute));
                fact.subject == *who && same
            };
            assert!(!plan.facts.iter().any(|fact| states_it(&fact)), "{}", question.text);
            if !plan.people.contains(who) {
                let turns = corpus.sessions.iter().flat_map(|session| &session.turns);
                let mut user_texts = turns.flat_map(|turn| [&turn.user, &turn.agent]);
                assert!(!user_texts.any(|text| text.contains(&who.name)), "{}", question.text);
            }
        }
    }
}

#[test]
fn what_was_superseded_has_an_older_look_alike() {
    for corpus in corpora() {
        let at = |source: &SourceRef| match *source {
            SourceRef::Message { session, turn, .. } => corpus.sessions[session].turn_time_ms(turn),
            SourceRef::Knowledge(number) => corpus.knowledge[number].at_ms,
        };
        for question in &corpus.questions {
            assert_eq!(
                question.superseded_evidence.is_empty(),
                question.kind != QuestionKind::Superseded,
                "{}",
                question.text
            );
            let newest = question.superseded_evidence.iter().map(at).max();
            for source in question.evidence.iter().flatten() {
                assert!(newest.is_none_or(|older| older < at(source)), "{}", question.text);
            }
        }
        for (number, record) in corpus.knowledge.iter().enumerate() {
            assert!(record.supersedes.is_none_or(|older| older < number));
        }
    }
    // Most replacing records are saved with a link to the record they replace.
    assert!(corpora().flat_map(|corpus| corpus.knowledge).any(|record| record.supersedes.is_some()));
}
