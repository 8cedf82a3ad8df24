//! Interprets a line typed at the terminal as the answer to a request of the agent.

use api::engine::{GrantScope, HitlRespond};
use api::event::{HitlKind, HitlRequest};

/// Parses `line` as an answer to `request`.
///
/// # Errors
///
/// Returns a hint for the person: what to type instead.
pub(super) fn parse_answer(request: &HitlRequest, line: &str) -> Result<HitlRespond, String> {
    let line = line.trim();
    let parsed = match request.kind {
        HitlKind::Permission => parse_permission(line)?,
        HitlKind::Question => {
            ParsedAnswer::plain(parse_question(request.options.as_deref().unwrap_or_default(), line)?)
        }
    };
    Ok(HitlRespond {
        task_id: request.task_id.clone(),
        answer: parsed.answer.to_owned(),
        feedback: parsed.feedback.map(str::to_owned),
        content_blocks: Vec::new(),
        request_id: Some(request.request_id.to_string()),
        scope: parsed.scope,
    })
}

struct ParsedAnswer<'a> {
    answer: &'a str,
    feedback: Option<&'a str>,
    scope: Option<GrantScope>,
}

impl<'a> ParsedAnswer<'a> {
    fn plain(answer: &'a str) -> Self {
        Self { answer, feedback: None, scope: None }
    }
}

/// Only a plain `yes` grants permission: of `yes, but …` the agent might receive no more than the first word.
fn parse_permission(line: &str) -> Result<ParsedAnswer<'_>, String> {
    let end = line.find(|character: char| !character.is_alphanumeric()).unwrap_or(line.len());
    let (word, rest) = line.split_at(end);
    let rest = rest.trim_start_matches(|character: char| {
        character.is_whitespace() || matches!(character, ',' | '.' | ':' | ';' | '-' | '–' | '—')
    });
    let always = |scope| ParsedAnswer { scope: Some(scope), ..ParsedAnswer::plain("always") };
    match (word.to_lowercase().as_str(), rest) {
        ("y" | "yes", "") => Ok(ParsedAnswer::plain("yes")),
        ("n" | "no", "") => Ok(ParsedAnswer::plain("no")),
        ("n" | "no", why) => Ok(ParsedAnswer { feedback: Some(why), ..ParsedAnswer::plain("no") }),
        ("a" | "always", "") => Ok(always(GrantScope::Task)),
        ("a" | "always", range) if range.eq_ignore_ascii_case("everywhere") => Ok(always(GrantScope::Engine)),
        _ => Err("Please answer `y`, `n`, `n` with a reason, `a`, or `a everywhere`.".into()),
    }
}

/// Accepts the text of an option, its number, or a free answer.
fn parse_question<'a>(options: &'a [String], line: &'a str) -> Result<&'a str, String> {
    if line.is_empty() {
        return Err("Please answer the question.".into());
    }
    // An option whose text is a number takes precedence over the option at that number.
    if options.is_empty() || options.iter().any(|option| option == line) {
        return Ok(line);
    }
    match line.parse::<usize>() {
        Err(_) => Ok(line),
        Ok(number) => number
            .checked_sub(1)
            .and_then(|index| options.get(index))
            .map(String::as_str)
            .ok_or_else(|| format!("There is no option {line}: please choose one, or answer in words.")),
    }
}

#[cfg(test)]
mod tests {
    use api::{HitlId, TaskId, Timestamp};

    use super::*;

    fn request(kind: HitlKind, options: &[&str]) -> HitlRequest {
        let options = options.iter().map(|option| (*option).to_owned()).collect::<Vec<_>>();
        HitlRequest {
            request_id: HitlId::new(),
            task_id: TaskId::new("task").unwrap(),
            kind,
            question: "?".into(),
            created_at: Timestamp::from_unix_ms(0),
            options: (!options.is_empty()).then_some(options),
        }
    }

    #[test]
    fn a_permission_takes_what_it_offers() {
        let request = request(HitlKind::Permission, &[]);
        let (task, engine) = (Some(GrantScope::Task), Some(GrantScope::Engine));
        for (line, answer, feedback, scope) in [
            ("y", "yes", None, None),
            (" Yes. ", "yes", None, None),
            ("n", "no", None, None),
            ("NO", "no", None, None),
            ("n use the other file", "no", Some("use the other file"), None),
            ("no, use the other — please", "no", Some("use the other — please"), None),
            ("nö", "", None, None),
            ("a", "always", None, task),
            ("always", "always", None, task),
            ("a everywhere", "always", None, engine),
            ("always Everywhere", "always", None, engine),
            ("", "", None, None),
            ("yes, but only this one", "", None, None),
            ("always here", "", None, None),
            ("yesterday", "", None, None),
            ("none", "", None, None),
            ("?", "", None, None),
        ] {
            match parse_answer(&request, line) {
                Ok(parsed) => {
                    let found = (parsed.answer.as_str(), parsed.feedback.as_deref(), parsed.scope);
                    assert_eq!(found, (answer, feedback, scope), "{line:?}");
                    assert_eq!(parsed.request_id, Some(request.request_id.to_string()));
                }
                Err(why) => assert!(answer.is_empty() && why.contains("`y`"), "{line:?}: {why}"),
            }
        }
    }

    #[test]
    fn a_question_takes_an_option_by_its_number_and_any_words() {
        let colours = request(HitlKind::Question, &["red", "green"]);
        let numbers = request(HitlKind::Question, &["2", "1"]);
        let free = request(HitlKind::Question, &[]);
        for (request, line, answer) in [
            (&colours, "2", Ok("green")),
            (&colours, " blue, rather ", Ok("blue, rather")),
            (&colours, "red", Ok("red")),
            (&colours, "0", Err("There is no option 0")),
            (&colours, "3", Err("There is no option 3")),
            (&colours, " ", Err("Please answer")),
            (&numbers, "2", Ok("2")),
            (&free, "7", Ok("7")),
            (&free, "", Err("Please answer")),
        ] {
            match (parse_answer(request, line), answer) {
                (Ok(parsed), Ok(answer)) => assert_eq!(parsed.answer, answer, "{line:?}"),
                (Err(found), Err(why)) => assert!(found.contains(why), "{line:?}: {found}"),
                (found, _) => panic!("{line:?}: {found:?}"),
            }
        }
    }
}
