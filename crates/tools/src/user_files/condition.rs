//! Conditions on the version of a file: `If-Match` and `If-None-Match` (RFC 9110, section 13).

use serde::{Deserialize, Serialize};

use super::FileError;

/// The conditions under which a change is made. Each is the value of its header.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condition {
    /// The file must have one of these tags.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub if_match: Option<String>,
    /// The file must have none of these tags.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub if_none_match: Option<String>,
}

impl Condition {
    /// Checks the condition of a change; `etag` is that of the existing file, if there is one.
    pub(super) fn check(&self, etag: Option<&str>) -> Result<(), FileError> {
        let lists = |list: &String, comparison| etag.is_some_and(|etag| contains(list, etag, comparison));
        let is_refused = self.if_match.as_ref().is_some_and(|list| !lists(list, Comparison::Strong))
            || self.if_none_match.as_ref().is_some_and(|list| lists(list, Comparison::Weak));
        if is_refused { Err(FileError::PreconditionFailed) } else { Ok(()) }
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
            let condition = Condition { if_match, if_none_match };
            assert_eq!(condition.check(existing).is_ok(), allowed, "{condition:?} of {existing:?}");
        }
    }
}
