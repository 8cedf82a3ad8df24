//! Small helpers for parsing fields.

use serde::{Deserialize, Deserializer, Serialize};
use utoipa::openapi::{ObjectBuilder, RefOr, Schema, Type};

/// An integer from `MIN` to `MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "i64", into = "i64")]
pub struct Bounded<const MIN: i64, const MAX: i64>(i64);

impl<const MIN: i64, const MAX: i64> Bounded<MIN, MAX> {
    /// The number.
    pub const fn get(self) -> i64 {
        self.0
    }
}

/// A number out of bounds.
#[derive(Debug, thiserror::Error)]
pub enum OutOfBounds {
    /// Both bounds matter.
    #[error("must be an integer from {min} to {max}")]
    Range {
        /// The least number taken.
        min: i64,
        /// The greatest number taken.
        max: i64,
    },
    /// Only the lower bound matters.
    #[error("must be an integer of at least {min}")]
    Least {
        /// The least number taken.
        min: i64,
    },
}

impl<const MIN: i64, const MAX: i64> TryFrom<i64> for Bounded<MIN, MAX> {
    type Error = OutOfBounds;

    fn try_from(number: i64) -> Result<Self, OutOfBounds> {
        match number {
            _ if (MIN..=MAX).contains(&number) => Ok(Self(number)),
            _ if MAX == i64::MAX => Err(OutOfBounds::Least { min: MIN }),
            _ => Err(OutOfBounds::Range { min: MIN, max: MAX }),
        }
    }
}

impl<const MIN: i64, const MAX: i64> From<Bounded<MIN, MAX>> for i64 {
    fn from(number: Bounded<MIN, MAX>) -> Self {
        number.0
    }
}

impl<const MIN: i64, const MAX: i64> utoipa::PartialSchema for Bounded<MIN, MAX> {
    fn schema() -> RefOr<Schema> {
        let integer = ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(MIN));
        if MAX == i64::MAX { integer.into() } else { integer.maximum(Some(MAX)).into() }
    }
}

impl<const MIN: i64, const MAX: i64> utoipa::ToSchema for Bounded<MIN, MAX> {
    fn name() -> std::borrow::Cow<'static, str> {
        if MAX == i64::MAX {
            format!("IntegerFrom{MIN}").into()
        } else {
            format!("IntegerFrom{MIN}To{MAX}").into()
        }
    }
}

/// Reads `null` as the field's default, so that it means the same as leaving the field out.
pub(crate) fn null_as_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}
