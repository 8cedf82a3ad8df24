//! Configuration from environment variables: values are typed, and all errors are reported at once.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// A source of environment variables.
pub trait Env {
    /// Returns the value of `name`, if it is set.
    fn get(&self, name: &str) -> Option<String>;

    /// Returns the names of all variables that are set.
    fn names(&self) -> Vec<String>;
}

/// The environment of this process. A value that is not UTF-8 counts as not set.
#[derive(Clone, Copy, Debug)]
pub struct ProcessEnv;

impl Env for ProcessEnv {
    fn get(&self, name: &str) -> Option<String> {
        std::env::var(name).ok()
    }

    fn names(&self) -> Vec<String> {
        std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()).collect()
    }
}

/// Variables from a map, for tests.
impl Env for BTreeMap<String, String> {
    fn get(&self, name: &str) -> Option<String> {
        BTreeMap::get(self, name).cloned()
    }

    fn names(&self) -> Vec<String> {
        self.keys().cloned().collect()
    }
}

/// A variable with a missing or invalid value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The variable.
    pub name: String,
    /// The variable's value, masked if it is a secret; `None` if it is not set.
    pub value: Option<String>,
    /// The expected value, as the end of the sentence "it must be ...".
    pub expected: String,
}

/// All errors of a configuration. The text is for the person who wrote it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ConfigErrors(Vec<ConfigError>);

impl ConfigErrors {
    /// Returns the errors in the order in which they were found.
    pub fn iter(&self) -> impl Iterator<Item = &ConfigError> {
        self.0.iter()
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, value, expected } = self;
        match value {
            Some(value) => write!(f, "{name} is `{value}`: it must be {expected}"),
            None => write!(f, "{name} is not set: it must be {expected}"),
        }
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the configuration has {} error(s):", self.0.len())?;
        self.0.iter().try_for_each(|error| write!(f, "\n  {error}"))
    }
}

/// Reads variables and collects their errors. An empty variable counts as not set.
pub struct EnvReader<'a> {
    env: &'a dyn Env,
    errors: Vec<ConfigError>,
}

impl<'a> EnvReader<'a> {
    /// Creates a reader of `env` without errors.
    pub fn new(env: &'a dyn Env) -> Self {
        Self { env, errors: Vec::new() }
    }

    /// Returns the variable, if it is set and not empty.
    pub fn text(&self, name: &str) -> Option<String> {
        self.env.get(name).filter(|value| !value.is_empty())
    }

    /// Returns the parsed variable, or `default` if it is not set. If `parse` returns `None`, an error is recorded
    /// and `default` is returned.
    pub fn parse_or<T>(
        &mut self,
        name: &str,
        expected: &str,
        default: T,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> T {
        let Some(value) = self.text(name) else { return default };
        if let Some(parsed) = parse(&value) {
            return parsed;
        }
        self.add_error(name, Some(value), expected);
        default
    }

    /// Returns the parsed variable. If it is not set or `parse` returns `None`, an error is recorded.
    pub fn required<T>(
        &mut self,
        name: &str,
        expected: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Option<T> {
        let value = self.text(name);
        let parsed = value.as_deref().and_then(parse);
        if parsed.is_none() {
            self.add_error(name, value, expected);
        }
        parsed
    }

    /// Returns the parsed secret, if it is set. If `parse` returns `None`, an error is recorded that shows only
    /// the secret's length.
    pub fn optional_secret<T>(
        &mut self,
        name: &str,
        expected: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Option<T> {
        self.text(name)?;
        self.required_secret(name, expected, parse)
    }

    /// Like [`EnvReader::required`], for a secret: an error shows only its length.
    pub fn required_secret<T>(
        &mut self,
        name: &str,
        expected: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Option<T> {
        let value = self.text(name);
        let parsed = value.as_deref().and_then(parse);
        if parsed.is_none() {
            let masked = value.map(|value| format!("*** ({} characters)", value.chars().count()));
            self.add_error(name, masked, expected);
        }
        parsed
    }

    /// Records an error that no single parser detects.
    pub fn add_error(&mut self, name: &str, value: Option<String>, expected: &str) {
        self.errors.push(ConfigError { name: name.to_owned(), value, expected: expected.to_owned() });
    }

    /// Adds errors that were found elsewhere.
    pub fn extend(&mut self, errors: &ConfigErrors) {
        self.errors.extend(errors.iter().cloned());
    }

    /// Returns `value`, or all errors if there are any. A `value` of `None` implies an error.
    pub fn finish<T>(self, value: Option<T>) -> Result<T, ConfigErrors> {
        match value {
            Some(value) if self.errors.is_empty() => Ok(value),
            _ => Err(ConfigErrors(self.errors)),
        }
    }
}

/// Parses a number of seconds, with decimals (`0.2`): 0 to about 31,000 years.
pub fn parse_seconds(text: &str) -> Option<Duration> {
    let seconds: f64 = text.trim().parse().ok()?;
    if seconds > 1e12 { None } else { Duration::try_from_secs_f64(seconds).ok() }
}

/// Parses a lifetime above zero: seconds, or a number with a unit (`90s`, `90m`, `3h`, `2d`).
pub fn parse_lifetime(text: &str) -> Option<Duration> {
    let text = text.trim();
    let (number, unit) = match text.char_indices().last()? {
        (at, 's') => (text.get(..at)?, 1.0),
        (at, 'm') => (text.get(..at)?, 60.0),
        (at, 'h') => (text.get(..at)?, 3_600.0),
        (at, 'd') => (text.get(..at)?, 86_400.0),
        _ => (text, 1.0),
    };
    let time = parse_seconds(number)?.mul_f64(unit);
    (!time.is_zero()).then_some(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn lifetimes_are_seconds_or_have_a_unit() {
        for (text, seconds) in [
            ("90", 90.0),
            ("0.5", 0.5),
            ("90s", 90.0),
            ("90m", 5_400.0),
            (" 3h ", 10_800.0),
            ("2d", 172_800.0),
        ] {
            assert_eq!(parse_lifetime(text), Some(Duration::from_secs_f64(seconds)), "{text}");
        }
        for text in ["", "0", "h", "-1", "3 weeks", "0h", "1e99d", "NaN"] {
            assert_eq!(parse_lifetime(text), None, "{text}");
        }
    }

    #[test]
    fn all_faults_are_reported_at_once_and_secrets_are_masked() {
        let env = env(&[("PORT", "many"), ("KEY", "hunter2"), ("EMPTY", "")]);
        let mut reader = EnvReader::new(&env);
        let port = reader.parse_or("PORT", "a port", 8_000_u16, |text| text.parse().ok());
        let key = reader.required_secret("KEY", "43 characters", |_| None::<String>);
        let empty = reader.required("EMPTY", "a folder", |text| Some(text.to_owned()));
        assert_eq!(port, 8_000);
        let errors = reader.finish(key.zip(empty)).unwrap_err().to_string();
        assert_eq!(
            errors,
            "the configuration has 3 error(s):\n  PORT is `many`: it must be a port\n  \
             KEY is `*** (7 characters)`: it must be 43 characters\n  \
             EMPTY is not set: it must be a folder"
        );
    }

    #[test]
    fn durations_are_read_in_their_forms() {
        assert_eq!(parse_seconds("0.2"), Some(Duration::from_millis(200)));
        for wrong in ["-1", "NaN", "inf", "1e13", "x", ""] {
            assert_eq!(parse_seconds(wrong), None, "{wrong}");
        }
    }
}
