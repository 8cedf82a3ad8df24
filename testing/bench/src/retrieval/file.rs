//! Reads conversations that whoever measures brings along. The format is in the README of the bench.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, bail, ensure};
use jiff::civil::{Date, DateTime, Time};
use jiff::tz::TimeZone;
use serde::Deserialize;

use super::conversations::{Conversation, Message, MessageNumber, Question, Session, Speaker};

/// The speakers whose messages are stored as they are. Others are named in theirs, as in a transcript.
const USER: &str = "user";
const ASSISTANT: &str = "assistant";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileJson {
    conversations: Vec<ConversationJson>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ConversationJson {
    name: String,
    sessions: Vec<SessionJson>,
    questions: Vec<QuestionJson>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SessionJson {
    date: String,
    utterances: Vec<UtteranceJson>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UtteranceJson {
    id: String,
    speaker: String,
    text: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct QuestionJson {
    question: String,
    kind: String,
    evidence: Vec<String>,
}

/// Reads the conversations of a file.
///
/// # Errors
/// The file cannot be read, or is not of the format; the error says where.
pub(crate) fn read(file: &Path) -> anyhow::Result<Vec<Conversation>> {
    let text = fs::read_to_string(file).with_context(|| format!("{} cannot be read", file.display()))?;
    parse(&text).with_context(|| format!("{} has no conversations to measure", file.display()))
}

fn parse(text: &str) -> anyhow::Result<Vec<Conversation>> {
    let file: FileJson = serde_json::from_str(text)?;
    ensure!(!file.conversations.is_empty(), "`conversations` is empty");
    let conversation = |json: &ConversationJson| {
        to_conversation(json).with_context(|| format!("in the conversation `{}`", json.name))
    };
    file.conversations.iter().map(conversation).collect()
}

fn to_conversation(json: &ConversationJson) -> anyhow::Result<Conversation> {
    let mut conversation = Conversation::default();
    let mut numbers: HashMap<&str, MessageNumber> = HashMap::new();
    let first_speaker = json.sessions.iter().flat_map(|session| &session.utterances).next();
    let first_speaker = first_speaker.map(|utterance| utterance.speaker.as_str());
    for (number, session) in (1..).zip(&json.sessions) {
        let place = || format!("in session {number}");
        let began_ms = unix_ms(&session.date).with_context(place)?;
        let is_later = conversation.sessions.last().is_none_or(|before| before.began_ms <= began_ms);
        ensure!(is_later, "session {number} is earlier than the one before it");
        let first = conversation.messages.len();
        for utterance in &session.utterances {
            let UtteranceJson { id, speaker, text } = utterance;
            ensure!(!text.trim().is_empty(), "the utterance `{id}` {} is empty", place());
            if numbers.insert(id, conversation.messages.len()).is_some() {
                bail!("the id `{id}` {} is not unique", place());
            }
            conversation.messages.push(to_message(speaker, text, first_speaker));
        }
        let messages = first..conversation.messages.len();
        ensure!(!messages.is_empty(), "session {number} has no utterances");
        conversation.sessions.push(Session { began_ms, messages });
    }
    for (number, QuestionJson { question, kind, evidence }) in (1..).zip(&json.questions) {
        let mut found = Vec::new();
        for id in evidence {
            let message = numbers.get(id.as_str());
            let message =
                message.with_context(|| format!("question {number}: no utterance has the id `{id}`"))?;
            found.push(*message);
        }
        found.sort_unstable();
        found.dedup();
        let (kind, text) = (kind.clone(), question.clone());
        conversation.questions.push(Question { kind, text, evidence: found });
    }
    Ok(conversation)
}

/// A message of a speaker. Whoever is neither the user nor the assistant by name is the user if they speak
/// first.
fn to_message(speaker: &str, text: &str, first_speaker: Option<&str>) -> Message {
    match speaker {
        USER => Message { speaker: Speaker::User, text: text.to_owned() },
        ASSISTANT => Message { speaker: Speaker::Agent, text: text.to_owned() },
        name => {
            let speaker = if first_speaker == Some(name) { Speaker::User } else { Speaker::Agent };
            Message { speaker, text: format!("{name}: {text}") }
        }
    }
}

/// The time of `2025-03-14` or `2025-03-14T09:30`, taken as UTC.
fn unix_ms(date: &str) -> anyhow::Result<i64> {
    let at = date
        .parse::<DateTime>()
        .or_else(|_| date.parse::<Date>().map(|date| DateTime::from_parts(date, Time::midnight())));
    let at = at.with_context(|| format!("`{date}` is no date such as 2025-03-14 or 2025-03-14T09:30"))?;
    Ok(TimeZone::UTC.to_timestamp(at)?.as_millisecond())
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = include_str!("../../conversations.example.json");

    #[test]
    fn the_example_is_read_with_its_evidence() {
        let conversations = parse(EXAMPLE).unwrap();
        let [one, other] = conversations.as_slice() else { panic!("{conversations:?}") };
        assert_eq!((one.sessions.len(), one.messages.len(), one.questions.len()), (2, 8, 4));
        assert_eq!(one.messages[0].text, "We adopted a dog last Saturday.");
        assert_eq!(one.sessions[0].began_ms, 1_741_944_600_000);
        let answer = |conversation: &Conversation, question: usize| {
            let evidence = &conversation.questions[question].evidence;
            evidence.iter().map(|one| conversation.messages[*one].text.clone()).collect::<Vec<_>>().join("|")
        };
        assert_eq!(answer(one, 0), "Biscuit, because of the colour.");
        assert_eq!(answer(one, 3), "");
        assert_eq!(answer(other, 0), "Ola: At the pottery course in Leeds.");
        assert_eq!(other.messages[0].speaker, Speaker::User);
        assert_eq!(other.messages[1].speaker, Speaker::Agent);
    }

    #[test]
    fn errors_say_where() {
        for (wrong, right, expected) in [
            ("\"Biscuit", "Biscuit", "line 11"),
            ("\"D2:9\"]", "\"D2:2\"]", "question 2: no utterance has the id `D2:9`"),
            ("\"D1:1\", \"speaker\"", "\"D1:2\", \"speaker\"", "the id `D1:1` in session 1 is not unique"),
            ("\"yesterday\"", "\"2025-03-14T09:30\"", "in session 1: `yesterday` is no date"),
            ("\"2024-01-01\"", "\"2025-05-02\"", "session 2 is earlier"),
            ("\"utterance\"", "\"text\"", "unknown field `utterance`"),
            ("\"  \"", "\"Biscuit, because of the colour.\"", "the utterance `D1:3` in session 1 is empty"),
        ] {
            let text = EXAMPLE.replacen(right, wrong, 1);
            assert_ne!(text, EXAMPLE, "{right}");
            let error = format!("{:#}", parse(&text).unwrap_err());
            assert!(error.contains(expected), "{error}");
        }
        assert!(format!("{:#}", read(Path::new("/nowhere")).unwrap_err()).contains("/nowhere"));
    }
}
