//! What an attempt aims at.

use std::path::PathBuf;

use crate::AttemptError;

/// What an attempt aims at: names and values, given as arguments `name=value`.
#[derive(Clone, Debug, Default)]
pub struct Target {
    values: Vec<(String, String)>,
}

impl Target {
    /// Out of arguments.
    pub fn new(arguments: impl IntoIterator<Item = String>) -> Self {
        let values = arguments
            .into_iter()
            .filter_map(|argument| {
                argument.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()))
            })
            .collect();
        Self { values }
    }

    /// A value.
    ///
    /// # Errors
    /// It was not given, and the attempt cannot be tried.
    pub fn text(&self, name: &str) -> Result<&str, AttemptError> {
        self.values
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
            .ok_or_else(|| AttemptError::NotApplicable(format!("`{name}=…` is not given")))
    }

    /// A path.
    ///
    /// # Errors
    /// As [`Self::text`].
    pub fn path(&self, name: &str) -> Result<PathBuf, AttemptError> {
        self.text(name).map(PathBuf::from)
    }

    /// A number.
    ///
    /// # Errors
    /// As [`Self::text`], or it is none.
    pub fn number(&self, name: &str) -> Result<i32, AttemptError> {
        self.text(name)?.parse().map_err(|_| AttemptError::NotApplicable(format!("`{name}` is no number")))
    }

    /// How much to take, in MiB, or else so much.
    ///
    /// # Errors
    /// It is no number.
    pub fn mebibytes(&self, name: &str, otherwise: usize) -> Result<usize, AttemptError> {
        match self.text(name) {
            Ok(value) => {
                value.parse().map_err(|_| AttemptError::NotApplicable(format!("`{name}` is no number")))
            }
            Err(_) => Ok(otherwise),
        }
    }
}
