//! The parameters of an attempt, from its command line.

use std::path::PathBuf;

use crate::AttemptError;

/// The target of an attempt: named values, from arguments of the form `name=value`.
#[derive(Clone, Debug, Default)]
pub struct Target {
    values: Vec<(String, String)>,
}

impl Target {
    /// Reads the values from arguments. Arguments without `=` are ignored.
    pub fn new(arguments: impl IntoIterator<Item = String>) -> Self {
        let values = arguments
            .into_iter()
            .filter_map(|argument| {
                argument.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()))
            })
            .collect();
        Self { values }
    }

    /// Returns the value with this name.
    ///
    /// # Errors
    /// [`AttemptError::NotApplicable`] if the value was not given.
    pub fn text(&self, name: &str) -> Result<&str, AttemptError> {
        self.values
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
            .ok_or_else(|| AttemptError::NotApplicable(format!("`{name}=…` is not given")))
    }

    /// Returns the path with this name.
    ///
    /// # Errors
    /// As [`Self::text`].
    pub fn path(&self, name: &str) -> Result<PathBuf, AttemptError> {
        self.text(name).map(PathBuf::from)
    }

    /// Returns the number with this name.
    ///
    /// # Errors
    /// As [`Self::text`], or if the value is not a number.
    pub fn number(&self, name: &str) -> Result<i32, AttemptError> {
        self.text(name)?.parse().map_err(|_| AttemptError::NotApplicable(format!("`{name}` is not a number")))
    }

    /// Returns the amount with this name, in MiB, or `default` if it was not given.
    ///
    /// # Errors
    /// [`AttemptError::NotApplicable`] if the value is not a number.
    pub fn mebibytes(&self, name: &str, default: usize) -> Result<usize, AttemptError> {
        match self.text(name) {
            Ok(value) => {
                value.parse().map_err(|_| AttemptError::NotApplicable(format!("`{name}` is not a number")))
            }
            Err(_) => Ok(default),
        }
    }
}
