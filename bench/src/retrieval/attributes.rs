//! What can be told of somebody: sentences that tell it, records that keep it, and questions that ask for it.
//!
//! The questions of [`Attribute::asked`] are worded apart from all that tells the same, as people ask who no longer
//! remember how it was put; those of [`Attribute::asked_alike`] use its words. Whether a question really shares no
//! word with its evidence is not taken from here but found out by comparing the two.

mod days_and_tastes;
mod facts;

use self::days_and_tastes::DAYS_AND_TASTES;
use self::facts::FACTS;

/// Which kind of question an attribute is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum About {
    /// Something that is so.
    Fact,
    /// A day.
    Day,
    /// What somebody wants.
    Taste,
    /// What the user wants at a place.
    PlaceTaste,
}

/// See the module. `{who}` is the subject, `{0}` and `{1}` are drawn from the values, `{date}` is a day.
pub(crate) struct Attribute {
    pub(crate) about: About,
    pub(crate) told: &'static [&'static str],
    pub(crate) recorded: &'static [&'static str],
    pub(crate) asked: &'static [&'static str],
    pub(crate) asked_alike: &'static [&'static str],
    /// For `{0}` and `{1}`, each a list with commas.
    pub(crate) values: &'static [&'static str],
}

/// How somebody is close to somebody else: sentences that tell it, and what the other one is called in a question.
pub(crate) struct Tie {
    pub(crate) told: &'static [&'static str],
    pub(crate) called: &'static str,
}

pub(crate) const TIES: &[Tie] = &[
    Tie {
        told: &[
            "{who} is going out with {other}.",
            "{who} got engaged to {other}.",
            "{who} has fallen for {other}.",
        ],
        called: "the partner of",
    },
    Tie {
        told: &["{who} now reports to {other} at work.", "{who} got {other} as the new boss."],
        called: "the manager of",
    },
    Tie {
        told: &["{who} shares the rent with {other}.", "{who} found {other} to split an apartment with."],
        called: "the flatmate of",
    },
    Tie {
        told: &[
            "{who} grew up with {other}, two years apart, same parents.",
            "{who} and {other} have one mother.",
        ],
        called: "the sibling of",
    },
];

/// All of them.
pub(crate) fn attributes() -> impl Iterator<Item = &'static Attribute> {
    FACTS.iter().chain(DAYS_AND_TASTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_attribute_can_be_told_kept_and_asked_in_both_ways() {
        for attribute in attributes() {
            for texts in [attribute.told, attribute.recorded, attribute.asked, attribute.asked_alike] {
                assert!(texts.len() >= 2 && texts.iter().all(|text| text.contains("{who}")), "{texts:?}");
            }
            let told = attribute.told.iter().chain(attribute.recorded);
            for text in told {
                assert_eq!(text.contains("{date}"), attribute.about == About::Day, "{text}");
                assert!(!text.contains("{1}") || attribute.values.len() > 1, "{text}");
                // A pronoun can take the place of somebody's name.
                assert!(attribute.about == About::PlaceTaste || text.contains("{who}"), "{text}");
            }
            for text in attribute.told.iter().filter(|_| attribute.about != About::PlaceTaste) {
                assert!(text.starts_with("{who} "), "{text}");
            }
        }
    }
}
