//! What a search finds: checked against a plain implementation, in memory and in SQLite, and on
//! conversations.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::fixture::{Memory, Sqlite, Tasks, tasks};
use crate::numbers::{float, inverse_frequency, saturate};
use crate::postings::Place;

const PAGE: Request<'_> = Request { offset: 0, limit: 10, hidden: &[], filter: RunFilter::Near };

fn hits(memory: &Memory, question: &str) -> Vec<Hit> {
    search(memory, &Query::parse(question), &PAGE).unwrap()
}

/// The text of the best run.
fn best(memory: &Memory, question: &str) -> String {
    let hits = hits(memory, question);
    let Some(hit) = hits.first() else { return String::new() };
    (hit.first..=hit.last).map(|index| memory.text(hit.task, index)).collect::<Vec<_>>().join("\n")
}

/// Messages about nothing, so that words are rare and places far apart.
fn small_talk(count: usize) -> Vec<String> {
    let subjects = ["weather", "traffic", "lunch", "football", "laundry", "garden", "neighbours"];
    let remarks = ["was fine", "took long", "is over", "could be better", "starts early"];
    (0..count)
        .map(|n| format!("The {} {} number{n}", subjects[n % subjects.len()], remarks[n % remarks.len()]))
        .collect()
}

/// A conversation with some messages among others.
fn conversation(messages: &[&str]) -> Memory {
    let before = small_talk(60);
    let mut middle = small_talk(30);
    middle.extend(messages.iter().map(|&message| message.to_owned()));
    middle.extend(small_talk(30));
    Memory::new(tasks(&[&before, &middle, &small_talk(40)]))
}

#[test]
fn the_answer_is_found_beside_the_question_that_names_its_subject() {
    let memory = conversation(&["What is your dog called?", "Rex.", "How old is he?", "Four."]);
    assert!(best(&memory, "What is the name of the dog, is it called Rex?").contains("Rex."));
    let hits = hits(&memory, "called dog");
    assert_eq!((hits[0].task, hits[0].matched.as_slice()), (1, [30].as_slice()));
    assert_eq!(hits[0].last - hits[0].first + 1, 5);
    assert!(hits[0].is_relevant);
}

#[test]
fn an_answer_after_a_remark_follows_the_run_that_ended_before_it() {
    let memory = conversation(&[
        "I see.",
        "Tell me more.",
        "We are back from Sicily.",
        "Any souvenirs?",
        "Hold on, the soup.",
        "Of course.",
        "Sorry. A carved spoon.",
        "How nice.",
    ]);
    let query = Query::parse("What was bought in Sicily?");
    let ranges = |filter| -> Vec<_> {
        let found = search(&memory, &query, &Request { filter, ..PAGE }).unwrap();
        found.iter().filter(|hit| hit.task == 1).map(|hit| (hit.first - 30 + 1, hit.last - 30 + 1)).collect()
    };
    assert_eq!(ranges(RunFilter::Near), [(1, 5), (6, 10)]);
    assert_eq!(ranges(RunFilter::Matched), [(1, 5)]);
}

#[test]
fn every_script_is_found() {
    let cases = [
        ("我的猫叫什么名字？", "我养了一只猫，它叫咪咪"),
        ("圖書館幾點開門？", "圖書館早上九點開門"),
        ("猫の名前は何ですか", "うちの猫の名前はタマです"),
        ("고양이 이름이 뭐예요?", "우리 고양이의 이름은 나비예요"),
        ("แมวชื่ออะไร", "แมวของฉันชื่อมะลิ"),
        ("أين السيارة؟", "تركت سيارتي في المرآب"),
        ("איפה הכלב?", "הכלבים נמצאים בגינה"),
        ("मेरी बिल्ली का नाम क्या है", "बिल्लियाँ सो रही हैं"),
        ("Как зовут мою собаку?", "Собаки зовут Рекс"),
        ("Wann kommt die Verwaltung?", "Die Hausverwaltung kommt am Montag und wir sind da"),
        ("ISPARTA'DA NE VAR", "ısparta çok güzel bir yer"),
        ("🐶", "Look at him 🐶"),
        ("iPhone多少钱", "新的iPhone要八千块"),
    ];
    for (question, answer) in cases {
        assert!(best(&conversation(&[answer]), question).contains(answer), "{question}");
    }
}

#[test]
fn runs_are_whole_short_and_disjoint() {
    let memory = Memory::new(tasks(&[
        &["zebra", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "zebra"],
        &["zebra"],
    ]));
    let ranges: Vec<_> = hits(&memory, "zebra").iter().map(|hit| (hit.task, hit.first, hit.last)).collect();
    assert_eq!(ranges.len(), 3);
    assert!([(1, 0, 0), (0, 0, 4), (0, 7, 11)].iter().all(|range| ranges.contains(range)), "{ranges:?}");

    let long = "x".repeat(700);
    let memory = Memory::new(tasks(&[&[&long, &format!("zebra {long}"), &long, &"y".repeat(4000)]]));
    let hit = &hits(&memory, "zebra")[0];
    assert_eq!(hit.last - hit.first + 1, 2);
    let memory = Memory::new(tasks(&[&["a b", &format!("zebra {}", "y".repeat(4000)), "c d"]]));
    let hit = &hits(&memory, "zebra")[0];
    assert_eq!((hit.first, hit.last), (1, 1));
}

#[test]
fn pages_follow_each_other_and_what_the_reader_sees_is_not_shown() {
    let messages: Vec<String> =
        (0..2000).map(|n| if n % 12 == 0 { "zebra".into() } else { format!("w{n}") }).collect();
    let memory = Memory::new(tasks(&[&messages]));
    let query = Query::parse("zebra");
    let page = |offset, limit| search(&memory, &query, &Request { offset, limit, ..PAGE }).unwrap();
    let all = page(0, 100);
    assert_eq!(all.len(), 100);
    assert_eq!([page(0, 30), page(30, 30), page(60, 40)].concat(), all);
    assert_eq!(page(0, 1000).len(), MAX_LIMIT);
    // 167 runs with the word, and what follows each but the first, which is long enough.
    assert_eq!(page(300, 100).len(), 33);

    let hidden = [Place::new(0, 0)..Place::new(0, 1900), Place::new(0, 1950)..Place::new(1, 0)];
    let shown = search(&memory, &query, &Request { limit: 100, hidden: &hidden, ..PAGE }).unwrap();
    assert!(!shown.is_empty() && shown.iter().all(|hit| hit.first >= 1900 && hit.last < 1950));
}

#[test]
fn a_date_in_the_question_prefers_messages_of_that_time() {
    let mut conversations: Tasks = Vec::new();
    for day in 1..=28 {
        let date = format!("2024-{:02}-{day:02}", day % 3 + 1).parse().ok();
        conversations.push(vec![("Dinner with Anna".to_owned(), date), ("It was good".to_owned(), date)]);
    }
    let memory = Memory::new(conversations.clone());
    let found = hits(&memory, "What did I eat with Anna on 13 February 2024?");
    assert_eq!(found[0].task, 12);
    let sqlite = Sqlite::new(&conversations);
    let query = Query::parse("What did I eat with Anna on 13 February 2024?");
    assert_eq!(search(&sqlite, &query, &PAGE).unwrap(), found);
    // Without a date age breaks the tie.
    assert_eq!(hits(&memory, "Anna")[0].task, 27);
}

/// Whether a turn is told something. A search for that alone finds what the search for all calls relevant.
fn is_told(memory: &Memory, question: &str) -> bool {
    let told = Request { filter: RunFilter::Relevant, ..PAGE };
    let told = search(memory, &Query::parse(question), &told).unwrap();
    let relevant = hits(memory, question).into_iter().filter(|hit| hit.is_relevant);
    assert_eq!(told, relevant.collect::<Vec<_>>(), "{question}");
    !told.is_empty()
}

#[test]
fn what_was_never_said_is_not_relevant() {
    let memory = conversation(&[
        "My sister Clara bought a red bicycle in Utrecht",
        "I am allergic to peanuts",
        "我的猫叫咪咪，这名字是朋友起的",
    ]);
    let relevant = |question| is_told(&memory, question);
    for question in [
        "What colour is Clara's bicycle?",
        "Where did my sister buy her bicycle?",
        "Am I allergic to peanuts?",
        "我的猫叫什么名字？",
    ] {
        assert!(relevant(question), "{question}");
    }
    for question in [
        "What is my brother's phone number?",
        "Which restaurant did we go to in Lisbon?",
        "How much did the red car cost in the end?",
        "Thanks, that was fine!",
        "Hello, how are you?",
        "The weather is fine",
        "我的大象住在哪里？",
        "你好，谢谢",
        "",
    ] {
        assert!(!relevant(question), "{question} {:?}", hits(&memory, question).first());
    }
}

#[test]
fn what_chance_brings_together_is_not_relevant() {
    let mut messages: Vec<String> = (0..2000).map(|n| format!("w{n}")).collect();
    for (n, message) in messages.iter_mut().enumerate() {
        let (is_one, is_other) = (n % 20 == 0, n % 21 == 0);
        message.push_str(if is_one { " sleepy" } else { "" });
        message.push_str(if is_other { " Tuesday" } else { "" });
    }
    messages[7].push_str(" zebra");
    let memory = Memory::new(tasks(&[&messages]));
    let relevant = |question| is_told(&memory, question);
    assert!(!relevant("sleepy Tuesday") && !relevant("Tuesday"));
    assert!(relevant("zebra") && relevant("sleepy zebra"));
}

#[test]
fn a_question_without_content_searches_all_its_words() {
    let memory = conversation(&["To be or not to be"]);
    assert!(best(&memory, "to be or not to be").contains("To be or not to be"));
    assert!(hits(&memory, "").is_empty() && hits(&memory, "?!").is_empty());
}

#[test]
fn common_words_are_left_out_unless_there_are_no_others() {
    let count = crate::word_postings::POSTING_BUDGET + 1000;
    let mut messages = vec!["common"; count];
    messages[5] = "common rare";
    let memory = Memory::new(tasks(&[&messages]));
    assert_eq!(hits(&memory, "common rare")[0].matched, [5]);
    // The newest are read.
    assert!(hits(&memory, "common").iter().all(|hit| usize::try_from(hit.first).unwrap() > 1000 - 8));
}

#[test]
fn the_budget_is_for_the_rarest_words_in_whatever_order_they_are_asked() {
    let count = crate::word_postings::POSTING_BUDGET / 2;
    let mut messages = vec!["otter badger"; count];
    messages.extend(vec!["badger heron"; count / 4]);
    messages[5] = "otter zebra";
    messages[7] = "heron zebra";
    let memory = Memory::new(tasks(&[&messages]));
    // There is no room for the badgers beside the others.
    let expected = hits(&memory, "otter heron zebra");
    assert!(!expected.is_empty());
    for question in ["otter badger heron zebra", "badger otter zebra heron", "zebra heron badger otter"] {
        assert_eq!(hits(&memory, question), expected, "{question}");
    }
}

#[test]
fn an_erased_message_is_a_gap() {
    let long = "y".repeat(1000);
    let conversation = tasks(&[&["zebra", &long, "b", "zebra stripes", &long, "c"]]);
    let store = Sqlite::new(&conversation);
    let found = |question| search(&store, &Query::parse(question), &PAGE).unwrap();
    store.erase(Place::new(0, 1));
    let hits = found("zebra stripes");
    // The erased message has no characters any more.
    assert_eq!((hits[0].first, hits[0].last, hits[0].matched.as_slice()), (0, 4, [0, 3].as_slice()));
    store.erase(Place::new(0, 3));
    assert_eq!(found("zebra stripes")[0].matched, [0]);
    assert!(found("stripes").is_empty());
}

#[test]
fn the_best_of_more_candidates_than_are_scored_is_found() {
    let mut messages: Vec<String> =
        (0..20_000).map(|n| if n % 16 == 0 { "zebra".into() } else { format!("w{n}") }).collect();
    messages[4_007] = "a crossing".into();
    messages[12_003] = "a stripe".into();
    let memory = Memory::new(tasks(&[&messages]));
    let found = hits(&memory, "zebra crossing with a stripe");
    assert_eq!(found.len(), 10);
    let mut best: Vec<u32> = found[..2].iter().map(|hit| hit.first).collect();
    best.sort_unstable();
    assert!((4_001..=4_007).contains(&best[0]) && (11_997..=12_003).contains(&best[1]), "{best:?}");
    // Among equals the newest.
    assert!(found[9].first > 19_000, "{found:?}");
}

/// The score of a message, and whether it has a word.
type ReferenceScore = (f64, bool);

/// A number of items.
fn count<T>(items: impl IntoIterator<Item = T>) -> u64 {
    items.into_iter().fold(0, |count, _| count + 1)
}

/// The score of every message, by its definition.
fn reference_scores(memory: &Memory, query: &Query) -> Option<Vec<Vec<ReferenceScore>>> {
    let (messages, tasks) = (memory.message_count().unwrap(), memory.task_count().unwrap());
    let mut words = Vec::new();
    for word in &query.words {
        let places: BTreeSet<Place> = word.terms.iter().flat_map(|term| memory.places(term)).collect();
        if !places.is_empty() {
            let in_tasks: BTreeSet<u64> = places.iter().map(|place| place.task()).collect();
            let idf = inverse_frequency(messages, count(&places));
            let task_idf = inverse_frequency(tasks, count(&in_tasks));
            words.push((places, idf, task_idf));
        }
    }
    if words.is_empty() {
        return None;
    }
    // In the order in which the search adds, so that equal scores are equal to the last bit.
    words.sort_by_key(|(places, ..)| places.len());
    let all: f64 = words.iter().map(|word| word.1).sum();
    let all_tasks: f64 = words.iter().map(|word| word.2).sum();
    let mean = float(messages) / float(tasks);
    let mut scores = Vec::new();
    for (task, messages) in (0_u64..).zip(&memory.tasks) {
        let norm = 0.25 + 0.75 * (float(count(messages)) / mean);
        let of_task: f64 = words
            .iter()
            .map(|(places, _, idf)| {
                let in_task = count(places.iter().filter(|place| place.task() == task));
                6.0 * (idf / all_tasks) * saturate(float(in_task) / norm)
            })
            .sum();
        let mut of_messages: Vec<ReferenceScore> = Vec::new();
        for (index, (_, date)) in (0_u32..).zip(messages) {
            let mut score = of_task;
            let mut is_matched = false;
            for (places, idf, _) in &words {
                let share = idf / all;
                let mut around = 0.0;
                for other in index.saturating_sub(8)..=index + 8 {
                    if places.contains(&Place::new(task, other)) {
                        around += (-f64::from(index.abs_diff(other)) / 2.0).exp();
                    }
                }
                if places.contains(&Place::new(task, index)) {
                    score += 2.0 * share;
                    is_matched = true;
                }
                score += 8.0 * share * saturate(around);
            }
            score += date.map_or(0.0, |date| crate::dates::date_score(&query.dates, date));
            of_messages.push((score, is_matched));
        }
        scores.push(of_messages);
    }
    Some(scores)
}

/// A run: its task, its first and its last message, its score.
type ReferenceRun = (u64, u32, u32, f64);

/// All runs, taken one after the other from all messages.
fn reference(memory: &Memory, query: &Query, filter: RunFilter) -> Vec<ReferenceRun> {
    let Some(scores) = reference_scores(memory, query) else { return Vec::new() };
    let followers = if filter == RunFilter::Near { 4 } else { 0 };
    let is_anchor = |task: usize, index: usize| {
        (index.saturating_sub(followers)..=index).any(|before| scores[task][before].1)
    };
    let mut taken = BTreeSet::new();
    let mut runs = Vec::new();
    loop {
        let mut best: Option<ReferenceRun> = None;
        for (task, scores) in (0_u64..).zip(&scores) {
            for (first, _) in (0_u32..).zip(scores) {
                let (mut mass, mut characters, mut has_anchor) = (0.0, 0, false);
                let messages = (0_u32..).zip(scores).filter(|(index, _)| (first..first + 5).contains(index));
                for (index, (score, _)) in messages {
                    characters += memory.text(task, index).chars().count();
                    if taken.contains(&(task, index)) || (index > first && characters > 1500) {
                        break;
                    }
                    mass += score.exp();
                    has_anchor |= is_anchor(usize::try_from(task).unwrap(), usize::try_from(index).unwrap());
                    if has_anchor && best.is_none_or(|best| mass >= best.3) {
                        best = Some((task, first, index, mass));
                    }
                }
            }
        }
        let Some((task, first, last, mass)) = best else { return runs };
        taken.extend((first..=last).map(|index| (task, index)));
        runs.push((task, first, last, mass.ln()));
    }
}

fn some_conversations() -> impl Strategy<Value = Tasks> {
    let word = prop::sample::select(vec![
        "dog",
        "cat",
        "rex",
        "lisbon",
        "trip",
        "bike",
        "猫咪",
        "собака",
        "2024",
        "x",
        "y",
        "z",
        "w",
        "v",
    ]);
    let text = (prop::collection::vec(word, 1..4), prop::option::weighted(0.1, 300..900_usize)).prop_map(
        |(words, filler)| format!("{} {}", words.join(" "), "q".repeat(filler.unwrap_or_default())),
    );
    let date = prop::option::of((1_i8..=3, 1_i8..=28))
        .prop_map(|date| date.and_then(|(month, day)| jiff::civil::Date::new(2024, month, day).ok()));
    prop::collection::vec(prop::collection::vec((text, date), 1..40), 1..6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn the_search_finds_what_its_definition_says_in_memory_and_in_sqlite(
        conversations in some_conversations(),
        question in prop::sample::select(vec![
            "dog",
            "rex the dog",
            "trip to lisbon with the bike",
            "猫咪",
            "my dog and cat on 3 February 2024",
            "собаки unheard",
        ]),
        filter in prop::sample::select(vec![RunFilter::Near, RunFilter::Matched]),
    ) {
        let memory = Memory::new(conversations);
        let query = Query::parse(question);
        let request = Request { limit: 100, filter, ..PAGE };
        let found = search(&memory, &query, &request).unwrap();
        let expected = reference(&memory, &query, filter);
        prop_assert_eq!(found.len(), expected.len().min(100));
        for (hit, (task, first, last, score)) in found.iter().zip(&expected) {
            prop_assert!((hit.score - score).abs() < 1e-9, "{hit:?} {expected:?}");
            prop_assert_eq!((hit.task, hit.first, hit.last), (*task, *first, *last), "{:?}", expected);
            prop_assert!(filter == RunFilter::Near || !hit.matched.is_empty());
        }
        let sqlite = Sqlite::new(&memory.tasks);
        prop_assert_eq!(search(&sqlite, &query, &request).unwrap(), found);
    }

    #[test]
    fn any_text_is_a_question(text in "[\\x00-\\u{10ffff}]{0,60}") {
        let memory = Memory::new(tasks(&[&[text.as_str(), "dog"]]));
        let query = Query::parse(&text);
        let found = search(&memory, &query, &PAGE).unwrap();
        prop_assert_eq!(found.is_empty(), query.words.is_empty());
        prop_assert_eq!(search(&Sqlite::new(&memory.tasks), &query, &PAGE).unwrap(), found);
    }
}
