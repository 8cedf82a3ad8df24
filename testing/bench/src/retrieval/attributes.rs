//! The attributes of subjects: statements, knowledge records and questions, as templates.
//!
//! [`Attribute::paraphrased_questions`] are worded differently from all statements, as by people who no longer
//! remember the wording; [`Attribute::literal_questions`] use the same words. Whether a question really shares no
//! word with its evidence is determined by comparing the texts.

mod dates_and_preferences;
mod facts;

use self::dates_and_preferences::DATES_AND_PREFERENCES;
use self::facts::FACTS;

/// The kind of question that an attribute is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttributeKind {
    /// A plain fact.
    Fact,
    /// An event on a day.
    Day,
    /// A preference of a person.
    Preference,
    /// A preference of the user at a place.
    PlacePreference,
}

/// The templates of an attribute. `{who}` is the subject, `{0}` and `{1}` are drawn from the values, `{date}` is a
/// day.
pub(crate) struct Attribute {
    pub(crate) kind: AttributeKind,
    pub(crate) statements: &'static [&'static str],
    pub(crate) records: &'static [&'static str],
    pub(crate) paraphrased_questions: &'static [&'static str],
    pub(crate) literal_questions: &'static [&'static str],
    /// The values of `{0}` and `{1}`, each a comma-separated list.
    pub(crate) values: &'static [&'static str],
}

/// A relation between two people: its statements, and the label of the second person in a question.
pub(crate) struct Relation {
    pub(crate) statements: &'static [&'static str],
    pub(crate) label: &'static str,
}

pub(crate) const RELATIONS: &[Relation] = &[
    Relation {
        statements: &[
            "{who} is going out with {other}.",
            "{who} got engaged to {other}.",
            "{who} has fallen for {other}.",
        ],
        label: "the partner of",
    },
    Relation {
        statements: &["{who} now reports to {other} at work.", "{who} got {other} as the new boss."],
        label: "the manager of",
    },
    Relation {
        statements: &[
            "{who} shares the rent with {other}.",
            "{who} found {other} to split an apartment with.",
        ],
        label: "the flatmate of",
    },
    Relation {
        statements: &[
            "{who} grew up with {other}, two years apart, same parents.",
            "{who} and {other} have one mother.",
        ],
        label: "the sibling of",
    },
];

/// Returns all attributes.
pub(crate) fn attributes() -> impl Iterator<Item = &'static Attribute> {
    FACTS.iter().chain(DATES_AND_PREFERENCES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_attribute_can_be_told_kept_and_asked_in_both_ways() {
        for attribute in attributes() {
            for texts in [
                attribute.statements,
                attribute.records,
                attribute.paraphrased_questions,
                attribute.literal_questions,
            ] {
                assert!(texts.len() >= 2 && texts.iter().all(|text| text.contains("{who}")), "{texts:?}");
            }
            let stored_texts = attribute.statements.iter().chain(attribute.records);
            for text in stored_texts {
                assert_eq!(text.contains("{date}"), attribute.kind == AttributeKind::Day, "{text}");
                assert!(!text.contains("{1}") || attribute.values.len() > 1, "{text}");
                // A pronoun can replace the name.
                assert!(attribute.kind == AttributeKind::PlacePreference || text.contains("{who}"), "{text}");
            }
            for text in
                attribute.statements.iter().filter(|_| attribute.kind != AttributeKind::PlacePreference)
            {
                assert!(text.starts_with("{who} "), "{text}");
            }
        }
    }
}
