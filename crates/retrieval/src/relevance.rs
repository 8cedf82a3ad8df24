//! Whether an excerpt is worth telling a model at the beginning of a turn, which did not ask for it.
//!
//! A turn that is told nothing is better than one that is told noise. So an excerpt, which is what a turn is
//! told, has to have much of what the question says, and more than chance gives.

use crate::word_postings::{AskedWords, WordSet};

/// The most messages of an excerpt: the question that names the subject, the answer, and one more.
pub(crate) const MAX_EXCERPT_MESSAGES: u32 = 3;
/// The share of the question's mass that an excerpt must have. A word that nobody ever said is the heaviest
/// of all, so a question about something never said falls below it, unless its other words stand together by
/// chance. It is no more than this, because what a question asks for is often a word that the answer does not
/// have: the town in `In which town is the office?`.
const MIN_SHARE: f64 = 0.4;
/// The mass beyond which a question does not ask for more: a long message is about several things, and three
/// or four rare words together are one of them.
const MAX_ASKED_MASS: f64 = 20.0;
/// The most words that are needed. A shorter question needs half of its words.
const MAX_NEEDED_WORDS: u32 = 3;

/// Whether an excerpt with these words of the question is worth telling unasked.
pub(crate) fn is_relevant(asked: &AskedWords<'_>, words: WordSet) -> bool {
    let needed_mass = (MIN_SHARE * asked.asked_mass.min(MAX_ASKED_MASS)).max(mass_by_chance(asked, words));
    let needed_words = asked.asked_count.div_ceil(2).min(MAX_NEEDED_WORDS);
    asked.mass_of(words) >= needed_mass && words.count() >= needed_words
}

/// Whether an excerpt with some of the words that have these masses can be relevant at all. A word with less mass
/// than each further one needs does not help.
pub(crate) fn can_be_relevant(masses: impl Iterator<Item = f64>, rare_mass: f64) -> bool {
    let further = f64::from(MAX_EXCERPT_MESSAGES).ln();
    further + masses.map(|mass| (mass - further).max(0.0)).sum::<f64>() >= rare_mass
}

/// The mass that words must have so that chance hardly brings them together in one excerpt of the whole
/// store: that of a word which two messages have, a remark and its answer, and `ln 3` for each further word,
/// which may be in any of the three messages. Courtesies and common words are told by it, in a store of any
/// size.
fn mass_by_chance(asked: &AskedWords<'_>, words: WordSet) -> f64 {
    let further_words = words.count().saturating_sub(1);
    asked.rare_mass + f64::from(further_words) * f64::from(MAX_EXCERPT_MESSAGES).ln()
}
