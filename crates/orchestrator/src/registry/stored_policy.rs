//! A product's policy as the registry stores it, which another version may have written.
//!
//! On the wire an unknown field is refused, so that a typo cannot drop a limit. In the registry, an unknown field
//! comes from a later version: it is ignored and logged. A known field with an unreadable value may be a limit:
//! the product is suspended until the value can be read, so that no limit is dropped.

use api::orchestrator::Policy;
use serde_json::{Map, Value};

/// A policy as far as this version can read it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct StoredPolicy {
    pub(super) policy: Policy,
    /// Fields that this version does not know.
    pub(super) unknown: Vec<String>,
    /// Fields that it knows, with values that it cannot read; `policy` stands for the entire policy. If there are
    /// any, `policy` is suspended.
    pub(super) unreadable: Vec<String>,
}

impl StoredPolicy {
    pub(super) fn read(text: &str) -> Self {
        if let Ok(policy) = serde_json::from_str(text) {
            return Self { policy, unknown: Vec::new(), unreadable: Vec::new() };
        }
        let Ok(stored) = serde_json::from_str::<Map<String, Value>>(text) else {
            return Self::suspended(Map::new(), Vec::new(), vec!["policy".to_owned()]);
        };
        let (mut readable, mut unknown, mut unreadable) = (Map::new(), Vec::new(), Vec::new());
        for (name, value) in stored {
            if parse_field(&name, value.clone()).is_some() {
                readable.insert(name, value);
            } else if parse_field(&name, Value::Null).is_some() {
                unreadable.push(name);
            } else {
                unknown.push(name);
            }
        }
        if !unreadable.is_empty() {
            return Self::suspended(readable, unknown, unreadable);
        }
        match serde_json::from_value(Value::Object(readable)) {
            Ok(policy) => Self { policy, unknown, unreadable },
            Err(_) => Self::suspended(Map::new(), unknown, vec!["policy".to_owned()]),
        }
    }

    fn suspended(readable: Map<String, Value>, unknown: Vec<String>, unreadable: Vec<String>) -> Self {
        let policy: Policy = serde_json::from_value(Value::Object(readable)).unwrap_or_default();
        Self { policy: Policy { suspended: Some(true), ..policy }, unknown, unreadable }
    }
}

/// Parses a policy of this one field; `None` if it is refused. Every known field accepts `null` for absent.
fn parse_field(name: &str, value: Value) -> Option<Policy> {
    serde_json::from_value(Value::Object(Map::from_iter([(name.to_owned(), value)]))).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_this_version_writes_is_read_whole() {
        let stored = json!({"max_engines": 5, "rate_limit_rpm": 60, "engine_cpus": 0.5});
        let expected: Policy = serde_json::from_value(stored.clone()).unwrap();
        let read = StoredPolicy::read(&stored.to_string());
        assert_eq!(read, StoredPolicy { policy: expected, unknown: vec![], unreadable: vec![] });
    }

    #[test]
    fn fields_of_a_later_version_are_named_and_the_rest_holds() {
        let read = StoredPolicy::read(r#"{"engine_disk_mb": 100, "max_engines": 5}"#);
        assert_eq!((read.policy.max_engines, read.policy.suspended), (Some(5), None));
        assert_eq!((read.unknown, read.unreadable), (vec!["engine_disk_mb".to_owned()], vec![]));
    }

    #[test]
    fn a_limit_that_cannot_be_read_suspends() {
        let read = StoredPolicy::read(r#"{"max_engines": {"soft": 5}, "rate_limit_rpm": 7, "later": 1}"#);
        assert_eq!((read.policy.suspended, read.policy.rate_limit_rpm), (Some(true), Some(7)));
        assert_eq!(
            (read.unknown, read.unreadable),
            (vec!["later".to_owned()], vec!["max_engines".to_owned()])
        );
        for text in ["[]", "null", "", "{"] {
            let read = StoredPolicy::read(text);
            assert_eq!((read.policy.suspended, &*read.unreadable), (Some(true), &["policy".to_owned()][..]));
        }
    }
}
