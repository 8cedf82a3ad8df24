//! What can be told of somebody: sentences that tell it, records that keep it, and questions that ask for it.
//!
//! The questions of [`Attribute::paraphrased_questions`] are worded apart from all that tells the same, as people ask who no longer
//! remember how it was put; those of [`Attribute::literal_questions`] use its words. Whether a question really shares no
//! word with its evidence is not taken from here but found out by comparing the two.

mod dates_and_preferences;
mod facts;

use self::dates_and_preferences::DATES_AND_PREFERENCES;
use self::facts::FACTS;

/// Which kind of question an attribute is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttributeKind {
    /// Something that is so.
    Fact,
    /// A day.
    Day,
    /// What somebody wants.
    Preference,
    /// What the user wants at a place.
    PlacePreference,
}

/// See the module. `{who}` is the subject, `{0}` and `{1}` are drawn from the values, `{date}` is a day.
pub(crate) struct Attribute {
    pub(crate) kind: AttributeKind,
    pub(crate) statements: &'static [&'static str],
    pub(crate) records: &'static [&'static str],
    pub(crate) paraphrased_questions: &'static [&'static str],
    pub(crate) literal_questions: &'static [&'static str],
    /// For `{0}` and `{1}`, each a list with commas.
    pub(crate) values: &'static [&'static str],
}

/// How somebody is close to somebody else: sentences that tell it, and what the other one is called in a question.
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

/// All of them.
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
            let told = attribute.statements.iter().chain(attribute.records);
            for text in told {
                assert_eq!(text.contains("{date}"), attribute.kind == AttributeKind::Day, "{text}");
                assert!(!text.contains("{1}") || attribute.values.len() > 1, "{text}");
                // A pronoun can take the place of somebody's name.
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
