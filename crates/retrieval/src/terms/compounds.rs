//! The parts of a compound noun, as German and its relatives write them in one word.
//!
//! No dictionary is needed to find `Verwaltung` under `Hausverwaltung`: every cut is taken at which the first
//! part can end and the second can begin as words of these languages do. A cut that is none leaves a term
//! that nobody asks for, which costs a few bytes.

/// The shortest compound that is cut, in letters, and the shortest part of one.
const MIN_COMPOUND: usize = 9;
const MIN_PART: usize = 4;
/// The most cuts of a word. The parts at its end are taken first: the last noun is what the thing is.
const MAX_CUTS: usize = 4;

/// Endings that take an `s` before another noun, so that a cut behind it is sure.
const JOINED_BY_S: &[&str] =
    &["heit", "heits", "ion", "ions", "keit", "keits", "ling", "schaft", "tat", "tum", "ung", "het", "ing"];
/// The pairs of consonants with which a word ends.
const ENDINGS: &[&str] = &[
    "bs", "ch", "ck", "ff", "fs", "ft", "gs", "hl", "hm", "hn", "hr", "ht", "ks", "ld", "lf", "lg", "lk",
    "ll", "lm", "ls", "lt", "lz", "mm", "mp", "ms", "mt", "nd", "nf", "ng", "nk", "nn", "ns", "nt", "nz",
    "pf", "pp", "ps", "pt", "rb", "rd", "rf", "rg", "rk", "rl", "rm", "rn", "rr", "rs", "rt", "rz", "ss",
    "st", "tt", "ts", "tz", "zt",
];
/// The groups of consonants with which a word begins.
const BEGINNINGS: &[&str] = &[
    "bl", "br", "ch", "chr", "dr", "fl", "fr", "gl", "gn", "gr", "kl", "kn", "kr", "kv", "ph", "pf", "pfl",
    "pl", "pr", "sch", "schl", "schm", "schn", "schr", "schw", "sj", "sk", "skr", "sl", "sm", "sn", "sp",
    "spr", "st", "str", "sv", "th", "tr", "tv", "vl", "vr", "wr", "zw",
];

/// The parts that a folded word may be made of; none if it is no compound.
pub(super) fn parts(word: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    if word.len() < MIN_COMPOUND || !word.bytes().all(|letter| letter.is_ascii_lowercase()) {
        return parts;
    }
    let mut cuts = 0;
    for cut in (MIN_PART..=word.len() - MIN_PART).rev() {
        let Some((first, second)) = word.split_at_checked(cut) else { continue };
        let Some(first) = first_part(first) else { continue };
        if begins_a_word(second) && first.len() >= MIN_PART {
            parts.extend([second, first]);
            cuts += 1;
            if cuts == MAX_CUTS {
                break;
            }
        }
    }
    parts
}

/// The first part without the `s` that joins it to the second, or `None` if no word ends so.
fn first_part(part: &str) -> Option<&str> {
    if let Some(word) = part.strip_suffix('s')
        && JOINED_BY_S.iter().any(|ending| word.ends_with(ending))
    {
        return Some(word);
    }
    let word = part.trim_end_matches(is_consonant);
    let consonants = part.get(word.len()..)?;
    let last = consonants.get(consonants.len().saturating_sub(2)..)?;
    let ends = match consonants.len() {
        0 => !part.ends_with(['i', 'u', 'y']),
        1 => !matches!(consonants, "c" | "j" | "q" | "v" | "w"),
        _ => ENDINGS.contains(&last),
    };
    (ends && !word.is_empty()).then_some(part)
}

/// Whether a word can begin like that, and is one: it has a vowel.
fn begins_a_word(part: &str) -> bool {
    let rest = part.trim_start_matches(is_consonant);
    let Some(consonants) = part.get(..part.len() - rest.len()) else { return false };
    !rest.is_empty()
        && match consonants.len() {
            0 => true,
            1 => !matches!(consonants, "c" | "x" | "y"),
            _ => BEGINNINGS.contains(&consonants) || part.starts_with("qu"),
        }
}

const fn is_consonant(letter: char) -> bool {
    !matches!(letter, 'a' | 'e' | 'i' | 'o' | 'u' | 'y')
}
