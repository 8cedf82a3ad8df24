//! Validated texts chosen by callers: user, task and request ids, slugs, display names, skill names.

use std::borrow::Cow;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use utoipa::openapi::{ObjectBuilder, RefOr, Schema, Type};

/// The rule that a [`ValidatedText`] obeys.
pub trait TextRule {
    /// The name of the type in the OpenAPI document.
    const NAME: &'static str;
    /// The rule as the end of the sentence "the field must be …".
    const EXPECTED: &'static str;
    /// The maximum length, in bytes.
    const MAX_BYTES: usize;
    /// Whether `text` obeys the rule. It is not empty and at most [`TextRule::MAX_BYTES`] long.
    fn is_valid(text: &str) -> bool;
}

/// The rules of the texts that callers choose.
pub mod rule {
    use super::TextRule;

    /// A product's name for its user.
    pub enum User {}
    /// A caller's name for a conversation thread.
    pub enum Task {}
    /// A caller's name for a request that it may repeat.
    pub enum ClientRequest {}
    /// A product's short name.
    pub enum Slug {}
    /// A product's name for people.
    pub enum DisplayName {}
    /// A skill's name.
    pub enum Skill {}
    /// What an operator tells whoever is refused during a maintenance.
    pub enum Maintenance {}

    impl TextRule for User {
        const NAME: &'static str = "UserId";
        const EXPECTED: &'static str = "1 to 256 bytes of UTF-8 without control characters";
        const MAX_BYTES: usize = 256;
        fn is_valid(text: &str) -> bool {
            !text.chars().any(char::is_control)
        }
    }

    impl TextRule for Task {
        const NAME: &'static str = "TaskId";
        const EXPECTED: &'static str = "1 to 1,024 bytes of UTF-8";
        const MAX_BYTES: usize = 1_024;
        fn is_valid(_: &str) -> bool {
            true
        }
    }

    impl TextRule for ClientRequest {
        const NAME: &'static str = "ClientRequestId";
        const EXPECTED: &'static str = "1 to 256 bytes of UTF-8";
        const MAX_BYTES: usize = 256;
        fn is_valid(_: &str) -> bool {
            true
        }
    }

    impl TextRule for Slug {
        const NAME: &'static str = "Slug";
        const EXPECTED: &'static str =
            "1 to 63 lower-case letters, digits and hyphens, with no hyphen at either end";
        const MAX_BYTES: usize = 63;
        fn is_valid(text: &str) -> bool {
            text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
                && !text.starts_with('-')
                && !text.ends_with('-')
        }
    }

    impl TextRule for DisplayName {
        const NAME: &'static str = "DisplayName";
        const EXPECTED: &'static str = "1 to 200 characters, not all of them blank, none of them NUL";
        const MAX_BYTES: usize = 800;
        fn is_valid(text: &str) -> bool {
            // PostgreSQL cannot store NUL.
            text.chars().count() <= 200 && !text.trim().is_empty() && !text.contains('\0')
        }
    }

    impl TextRule for Maintenance {
        const NAME: &'static str = "MaintenanceMessage";
        const EXPECTED: &'static str =
            "1 to 500 characters without control characters, not all of them blank";
        const MAX_BYTES: usize = 2_000;
        fn is_valid(text: &str) -> bool {
            text.chars().count() <= 500 && !text.trim().is_empty() && !text.chars().any(char::is_control)
        }
    }

    impl TextRule for Skill {
        const NAME: &'static str = "SkillName";
        const EXPECTED: &'static str =
            "1 to 64 lower-case letters, digits and single hyphens, with no hyphen at either end";
        const MAX_BYTES: usize = 64;
        fn is_valid(text: &str) -> bool {
            let is_part = |part: &str| {
                !part.is_empty()
                    && part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
            };
            text.split('-').all(is_part)
        }
    }
}

/// A product's own name for its user: 1 to 256 bytes of UTF-8 without control characters.
pub type UserId = ValidatedText<rule::User>;
/// A caller's name for a conversation thread: 1 to 1,024 bytes of UTF-8.
pub type TaskId = ValidatedText<rule::Task>;
/// A caller's name for a request that it may repeat: 1 to 256 bytes of UTF-8.
pub type ClientRequestId = ValidatedText<rule::ClientRequest>;
/// What an operator tells whoever is refused during a maintenance: 1 to 500 characters on one line.
pub type MaintenanceMessage = ValidatedText<rule::Maintenance>;
/// A product's unique short name: `^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`.
pub type Slug = ValidatedText<rule::Slug>;
/// A product's name for people: 1 to 200 characters, not blank.
pub type DisplayName = ValidatedText<rule::DisplayName>;
/// A skill's name: `^[a-z0-9]+(-[a-z0-9]+)*$`, at most 64 characters.
pub type SkillName = ValidatedText<rule::Skill>;

/// A text that obeys its [`TextRule`].
pub struct ValidatedText<R> {
    text: Box<str>,
    rule: PhantomData<fn() -> R>,
}

/// The error for a text that violates its rule.
#[derive(Debug, thiserror::Error)]
#[error("must be {expected}")]
pub struct InvalidText {
    expected: &'static str,
}

impl<R: TextRule> ValidatedText<R> {
    /// Validates `text` against the rule.
    pub fn new(text: impl Into<Box<str>>) -> Result<Self, InvalidText> {
        let text = text.into();
        if text.is_empty() || text.len() > R::MAX_BYTES || !R::is_valid(&text) {
            return Err(InvalidText { expected: R::EXPECTED });
        }
        Ok(Self { text, rule: PhantomData })
    }
}

impl<R> ValidatedText<R> {
    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl<R> AsRef<str> for ValidatedText<R> {
    fn as_ref(&self) -> &str {
        &self.text
    }
}
impl<R> fmt::Display for ValidatedText<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
impl<R> fmt::Debug for ValidatedText<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.text, f)
    }
}
impl<R> Clone for ValidatedText<R> {
    fn clone(&self) -> Self {
        Self { text: self.text.clone(), rule: PhantomData }
    }
}
impl<R> PartialEq for ValidatedText<R> {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}
impl<R> Eq for ValidatedText<R> {}
impl<R> Hash for ValidatedText<R> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

impl<R> Serialize for ValidatedText<R> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de, R: TextRule> Deserialize<'de> for ValidatedText<R> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(String::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

impl<R: TextRule> utoipa::PartialSchema for ValidatedText<R> {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new()
            .schema_type(Type::String)
            .description(Some(R::EXPECTED))
            .min_length(Some(1))
            .into()
    }
}

impl<R: TextRule> utoipa::ToSchema for ValidatedText<R> {
    fn name() -> Cow<'static, str> {
        R::NAME.into()
    }
}

/// Returns the name of a type for a name on the wire, such as `TextDelta` for `text_delta`.
pub fn pascal_case(name: &str) -> String {
    let capitalize = |word: &str| {
        let mut characters = word.chars();
        let first = characters.next().map(|first| first.to_ascii_uppercase());
        first.into_iter().chain(characters).collect::<String>()
    };
    name.split(|c: char| !c.is_ascii_alphanumeric()).map(capitalize).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn user_ids_are_bounded_utf8_without_control_characters() {
        for good in ["a", "a/b", ".", "..", "register", "Ünïcödé 🦀", &"x".repeat(256)] {
            assert!(UserId::new(good).is_ok(), "{good:?}");
        }
        for bad in ["", "a\0b", "line\nbreak", "\u{85}", &"x".repeat(257), &"é".repeat(129)] {
            assert!(UserId::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn slugs_follow_the_pattern() {
        for good in ["a", "0", "a-b", "a--b", &"x".repeat(63)] {
            assert!(Slug::new(good).is_ok(), "{good:?}");
        }
        for bad in ["", "-", "-a", "a-", "A", "a_b", "a b", "ä", &"x".repeat(64)] {
            assert!(Slug::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn display_names_count_characters() {
        assert!(DisplayName::new("🦀".repeat(200)).is_ok());
        assert!(DisplayName::new("🦀".repeat(201)).is_err());
        assert!(DisplayName::new(" \t ").is_err());
    }

    #[test]
    fn names_of_skills_have_no_hyphen_at_an_end_or_beside_another() {
        for good in ["a", "0", "create", "a-b", "a-1-b", &"x".repeat(64)] {
            assert!(SkillName::new(good).is_ok(), "{good:?}");
        }
        for bad in ["", "-", "-a", "a-", "a--b", "A", "a_b", "a b", "ä", "a\n", "a/b", "..", &"x".repeat(65)]
        {
            assert!(SkillName::new(bad).is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn a_name_of_a_skill_is_words_with_a_hyphen_between_each_two(text in "[a-c01A_ .-]{0,8}", length in 60usize..70) {
            let long: String = text.chars().cycle().take(length).collect();
            for text in [text.as_str(), long.as_str()] {
                let has_odd_characters =
                    text.chars().any(|character| !matches!(character, 'a'..='z' | '0'..='9' | '-'));
                let is_bad = text.is_empty()
                    || text.len() > 64
                    || has_odd_characters
                    || text.starts_with('-')
                    || text.ends_with('-')
                    || text.contains("--");
                prop_assert_eq!(SkillName::new(text).is_ok(), !is_bad, "{:?}", text);
            }
        }
    }

    #[test]
    fn task_ids_are_bounded() {
        assert!(TaskId::new("x".repeat(1_024)).is_ok());
        assert!(TaskId::new("x".repeat(1_025)).is_err());
        assert!(TaskId::new("").is_err());
    }
}
