//! Conditions on the version of a file (RFC 9110, section 13).

use serde::{Deserialize, Serialize};

use api::Timestamp;

use super::{FileError, FileInfo};

/// The conditions under which a change is made. Each is the value of its header.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condition {
    /// The file must have one of these tags.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub if_match: Option<String>,
    /// The file must have none of these tags.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub if_none_match: Option<String>,
    /// The file must not have been changed after this time. It counts only without `if_match`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub if_unmodified_since: Option<Timestamp>,
}

impl Condition {
    /// Checks the condition of a change of the existing file, if there is one.
    pub(super) fn check(&self, existing: Option<&FileInfo>) -> Result<(), FileError> {
        let lists =
            |list: &str, comparison| existing.is_some_and(|file| contains(list, &file.etag, comparison));
        // The header has whole seconds.
        let seconds = |time: Timestamp| time.unix_ms().div_euclid(1_000);
        let is_as_expected = match (&self.if_match, self.if_unmodified_since) {
            (Some(list), _) => lists(list, Comparison::Strong),
            (None, Some(since)) => existing.is_none_or(|file| seconds(file.modified) <= seconds(since)),
            (None, None) => true,
        };
        let is_excluded = self.if_none_match.as_ref().is_some_and(|list| lists(list, Comparison::Weak));
        if is_as_expected && !is_excluded { Ok(()) } else { Err(FileError::PreconditionFailed) }
    }

    /// Whether there must be no file.
    pub(super) fn is_for_new_file(&self) -> bool {
        self.if_none_match.as_deref().is_some_and(|list| list.trim() == "*")
    }
}

/// How two tags are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// A tag that is marked as weak equals no other.
    Strong,
    /// The mark is ignored.
    Weak,
}

/// Whether a list of tags, as in a header, contains `etag`. The list `*` contains every tag.
pub fn contains(list: &str, etag: &str, comparison: Comparison) -> bool {
    if list.trim() == "*" {
        return true;
    }
    // The engine's own tags contain no comma.
    list.split(',').map(str::trim).any(|tag| {
        let tag = match tag.strip_prefix("W/") {
            Some(_) if comparison == Comparison::Strong => return false,
            Some(tag) => tag,
            None => tag,
        };
        tag.strip_prefix('"').and_then(|tag| tag.strip_suffix('"')) == Some(etag)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_contains_its_tags() {
        for (list, strong, weak) in [
            (r#""a""#, true, true),
            ("*", true, true),
            (r#""b", "a""#, true, true),
            (r#"W/"a""#, false, true),
            (r#""b",W/"c""#, false, false),
            ("a", false, false),
            ("", false, false),
        ] {
            let found = [Comparison::Strong, Comparison::Weak].map(|how| contains(list, "a", how));
            assert_eq!(found, [strong, weak], "{list}");
        }
    }

    #[test]
    fn a_change_is_made_only_where_its_condition_holds() {
        let tag = |text: &str| Some(text.to_owned());
        for (if_match, if_none_match, existing, allowed) in [
            (None, None, None, true),
            (tag("*"), None, None, false),
            (tag("*"), None, Some("a"), true),
            (tag(r#""a""#), None, Some("b"), false),
            (None, tag("*"), None, true),
            (None, tag("*"), Some("a"), false),
            (None, tag(r#""b""#), Some("a"), true),
        ] {
            let condition = Condition { if_match, if_none_match, if_unmodified_since: None };
            let file = existing.map(|etag| file(etag, 0));
            assert_eq!(condition.check(file.as_ref()).is_ok(), allowed, "{condition:?} of {existing:?}");
        }
    }

    #[test]
    fn a_date_counts_in_seconds_and_without_tags() {
        let since =
            |ms| Condition { if_unmodified_since: Some(Timestamp::from_unix_ms(ms)), ..Condition::default() };
        for (since_ms, modified_ms, allowed) in
            [(5_000, 5_999, true), (5_000, 6_000, false), (5_000, 1, true)]
        {
            assert_eq!(
                since(since_ms).check(Some(&file("a", modified_ms))).is_ok(),
                allowed,
                "{modified_ms}"
            );
        }
        since(5_000).check(None).unwrap();
        let condition = Condition { if_match: Some(r#""a""#.into()), ..since(0) };
        condition.check(Some(&file("a", 9_000))).unwrap();
    }

    fn file(etag: &str, modified_ms: i64) -> FileInfo {
        FileInfo {
            kind: crate::user_files::EntryKind::File,
            size: 1,
            modified: Timestamp::from_unix_ms(modified_ms),
            etag: etag.to_owned(),
        }
    }
}
