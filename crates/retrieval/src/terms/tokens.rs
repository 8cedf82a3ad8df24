//! Cuts a text into tokens: words, runs of scripts without spaces, pictograms, and chains of words such as
//! `foo_bar`.

use super::script::{Class, Script, Unspaced, classify, is_regional_indicator};

/// A part of a text; ignored characters may be in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Token<'text> {
    Word(&'text str, Script),
    Hangul(&'text str),
    Unspaced(&'text str, Unspaced),
    Symbol(&'text str),
    /// Words that single connectors join, written as one: `foo_bar` as `foobar`, `3.14` as `3·14`. They
    /// follow as tokens of their own before it.
    Chain(String, Script),
}

/// A chain longer than this, in bytes, is an address or an encoded value that nobody types again.
const MAX_CHAIN_BYTES: usize = 64;

/// What a chain of words has been up to the current place.
struct Chain {
    joined: String,
    words: usize,
    script: Script,
    /// Where its last word ends in the text.
    end: usize,
}

/// Cuts a text, which must be in NFKC.
pub(super) fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut found = Vec::new();
    let mut chain: Option<Chain> = None;
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let start = text.len() - rest.len();
        let class = classify(first);
        let (token, after) = match class {
            Class::Gap | Class::Mark => (None, rest.get(first.len_utf8()..).unwrap_or_default()),
            Class::Symbol => {
                let (symbol, after) = split_symbol(rest, first);
                (Some(Token::Symbol(symbol)), after)
            }
            Class::Hangul => {
                let (word, after) = split_while(rest, |class| class == Class::Hangul);
                (Some(Token::Hangul(word)), after)
            }
            Class::Unspaced(script) => {
                let (run, after) = split_while(rest, |class| class == Class::Unspaced(script));
                (Some(Token::Unspaced(run, script)), after)
            }
            Class::Word(_) => {
                let (word, after) = split_while(rest, |class| matches!(class, Class::Word(_)));
                let script = script_of(word);
                let gap = chain.as_ref().and_then(|chain| text.get(chain.end..start)).unwrap_or_default();
                let next = Chain { joined: word.to_owned(), words: 1, script, end: text.len() - after.len() };
                let longer = chain.as_ref().and_then(|chain| chain.extended(gap, &next));
                if longer.is_none() {
                    found.extend(chain.take().and_then(Chain::into_token));
                }
                chain = Some(longer.unwrap_or(next));
                (Some(Token::Word(word, script)), after)
            }
        };
        found.extend(token);
        rest = after;
    }
    found.extend(chain.and_then(Chain::into_token));
    found
}

impl Chain {
    /// The chain with the next word if one connector stands between.
    fn extended(&self, gap: &str, next: &Self) -> Option<Self> {
        let is_digit = |letter: char| letter.is_ascii_digit();
        let between_digits = self.joined.ends_with(is_digit) && next.joined.starts_with(is_digit);
        let joined = [&self.joined, joint(gap, between_digits)?, &next.joined].concat();
        let script = if self.script == Script::Digit { next.script } else { self.script };
        (joined.len() <= MAX_CHAIN_BYTES).then_some(Self {
            joined,
            words: self.words + 1,
            script,
            end: next.end,
        })
    }

    /// The chain as a token; none if it is a single word.
    fn into_token<'text>(self) -> Option<Token<'text>> {
        (self.words > 1).then_some(Token::Chain(self.joined, self.script))
    }
}

/// What a connector becomes in a chain; `None` if the characters between two words separate them.
fn joint(gap: &str, between_digits: bool) -> Option<&'static str> {
    match gap {
        "." if between_digits => Some("·"),
        "," if between_digits => Some(""),
        "_" | "-" | "\u{2010}" | "\u{2011}" | "." | "@" | "/" | ":" => Some(""),
        _ => None,
    }
}

/// The script of a word's first letter.
fn script_of(word: &str) -> Script {
    let scripts = word.chars().filter_map(|letter| match classify(letter) {
        Class::Word(script) => Some(script),
        _ => None,
    });
    scripts.into_iter().find(|script| *script != Script::Digit).unwrap_or(Script::Digit)
}

/// Splits a text behind the characters of a class and the marks that belong to them.
fn split_while(text: &str, belongs: impl Fn(Class) -> bool) -> (&str, &str) {
    let end = text.find(|letter| {
        let class = classify(letter);
        class != Class::Mark && !belongs(class)
    });
    text.split_at_checked(end.unwrap_or(text.len())).unwrap_or((text, ""))
}

/// Splits a pictogram from the beginning of a text: one character, or the two of a flag.
fn split_symbol(text: &str, first: char) -> (&str, &str) {
    let second = text.get(first.len_utf8()..).and_then(|rest| rest.chars().next());
    let second = second.filter(|second| is_regional_indicator(first) && is_regional_indicator(*second));
    text.split_at_checked(first.len_utf8() + second.map_or(0, char::len_utf8)).unwrap_or((text, ""))
}
