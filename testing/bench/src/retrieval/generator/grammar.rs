//! The grammar of the generated conversations: texts with alternatives and slots.

use super::super::rng::SeededRng;
use super::words::LISTS;

/// The lines of a text by their key. A line that begins with a space continues the one before it.
pub(super) struct Lines(Vec<(String, Vec<String>)>);

impl Lines {
    /// Parses `key: one; another` and `key one; another`, one line each.
    pub(super) fn parse(text: &str) -> Self {
        let mut lines: Vec<(String, Vec<String>)> = Vec::new();
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            let (key, rest) = if line.starts_with(' ') {
                (None, line)
            } else {
                let (key, rest) = line.split_once(' ').unwrap_or((line, ""));
                (Some(key.trim_end_matches(':')), rest)
            };
            if let Some(key) = key {
                lines.push((key.to_owned(), Vec::new()));
            }
            if let Some((_, alternatives)) = lines.last_mut() {
                let all = rest.split(';').map(str::trim).filter(|one| !one.is_empty());
                alternatives.extend(all.map(str::to_owned));
            }
        }
        Self(lines)
    }

    /// The lines from each one with the key `key` to the next.
    pub(super) fn sections(&self, key: &str) -> Vec<Self> {
        let starts = (0..self.0.len()).filter(|index| self.0.get(*index).is_some_and(|line| line.0 == key));
        let starts: Vec<usize> = starts.collect();
        let ends = starts.iter().skip(1).copied().chain([self.0.len()]);
        let section = |(start, end)| Self(self.0.get(start..end).unwrap_or_default().to_vec());
        starts.iter().copied().zip(ends).map(section).collect()
    }

    /// The alternatives of the first line with a key; none if there is no such line.
    pub(super) fn get(&self, key: &str) -> &[String] {
        self.0.iter().find(|line| line.0 == key).map(|line| line.1.as_slice()).unwrap_or_default()
    }
}

/// The texts of slots. A slot that is not among them is a word list.
pub(super) type Slots<'a> = &'a [(&'static str, String)];

/// One of the alternatives, with all its choices made and all its slots filled; it begins with a capital.
pub(super) fn sentence(alternatives: &[String], slots: Slots<'_>, rng: &mut SeededRng) -> String {
    capitalize(&phrase(alternatives, slots, rng))
}

/// The same as part of a sentence.
pub(super) fn phrase(alternatives: &[String], slots: Slots<'_>, rng: &mut SeededRng) -> String {
    let Some(template) = alternatives.get(rng.below(alternatives.len())) else { return String::new() };
    expand(template, slots, rng)
}

fn expand(template: &str, slots: Slots<'_>, rng: &mut SeededRng) -> String {
    let mut text = String::new();
    let mut rest = template;
    while let Some(start) = rest.find(['{', '[']) {
        let (before, from) = rest.split_at(start);
        text.push_str(before);
        let Some(end) = from.find(['}', ']']) else { break };
        let (inner, after) = (from.get(1..end).unwrap_or_default(), from.get(end + 1..).unwrap_or_default());
        if from.starts_with('[') {
            let choices: Vec<&str> = inner.split('|').collect();
            text.push_str(rng.pick(&choices));
        } else {
            text.push_str(&fill(inner, slots, rng));
        }
        rest = after;
    }
    text + rest
}

fn fill(slot: &str, slots: Slots<'_>, rng: &mut SeededRng) -> String {
    let name = slot.to_lowercase();
    let (name, has_article) = name.strip_prefix("a ").map_or((name.as_str(), false), |name| (name, true));
    let given = slots.iter().find(|(key, _)| *key == name).map(|(_, text)| text.clone());
    let text = given.unwrap_or_else(|| {
        let list = LISTS.iter().find(|(key, _)| *key == name).map(|(_, list)| *list);
        rng.pick_from_list(list.unwrap_or_default()).to_owned()
    });
    let text = if has_article { with_article(&text) } else { text };
    if slot.starts_with(char::is_uppercase) { capitalize(&text) } else { text }
}

fn with_article(text: &str) -> String {
    let article = if text.to_lowercase().starts_with(['a', 'e', 'i', 'o']) { "an" } else { "a" };
    if text.ends_with("twins") { text.to_owned() } else { format!("{article} {text}") }
}

pub(super) fn capitalize(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// Ends a sentence that has no end yet.
pub(super) fn ended(sentence: &str) -> String {
    if sentence.ends_with(['?', '!', '.', ':']) { sentence.to_owned() } else { format!("{sentence}.") }
}

#[cfg(test)]
mod tests {
    use super::super::{small_talk, topics};
    use super::*;

    #[test]
    fn choices_are_made_and_slots_filled() {
        let lines = Lines::parse("one: {A thing} [is|is] {verb};\n  {A thing} is {verb}\ntwo x");
        assert_eq!(
            (lines.get("one").len(), lines.get("two"), lines.get("three").len()),
            (2, &["x".into()][..], 0)
        );
        let slots = [("thing", "owl".to_owned()), ("verb", "here".to_owned())];
        let mut rng = SeededRng::new(1);
        for _ in 0..9 {
            assert_eq!(sentence(lines.get("one"), &slots, &mut rng), "An owl is here");
        }
    }

    #[test]
    fn every_slot_of_the_texts_is_known() {
        let of_topics = "thing who whose whom they their them theirs when value stranger";
        for text in [topics::TOPICS, topics::MORE_TOPICS, topics::ADVICE, small_talk::SMALL_TALK] {
            for slot in text.split('{').skip(1).filter_map(|rest| rest.split_once('}')) {
                let name = slot.0.to_lowercase();
                let name = name.strip_prefix("a ").unwrap_or(&name);
                let is_list = LISTS.iter().any(|(key, list)| *key == name && list.contains(", "));
                assert!(is_list || of_topics.split(' ').any(|known| known == name), "{name}");
            }
        }
    }
}
