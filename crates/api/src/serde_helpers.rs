//! Helpers for parsing fields: bounded integers, and `null` for absent fields.

use std::fmt;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::openapi::{ObjectBuilder, RefOr, Schema, Type};

/// An integer from `MIN` to `MAX`. As in JSON Schema, `85.0` counts as an integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(into = "i64")]
pub struct BoundedInt<const MIN: i64, const MAX: i64>(i64);

impl<const MIN: i64, const MAX: i64> BoundedInt<MIN, MAX> {
    /// Returns the number.
    pub const fn get(self) -> i64 {
        self.0
    }
}

/// The error for a number out of bounds.
#[derive(Debug, thiserror::Error)]
pub enum OutOfBounds {
    /// The type has both bounds.
    #[error("must be an integer from {min} to {max}")]
    Range {
        /// The least number accepted.
        min: i64,
        /// The greatest number accepted.
        max: i64,
    },
    /// The type has only a lower bound.
    #[error("must be an integer of at least {min}")]
    AtLeast {
        /// The least number accepted.
        min: i64,
    },
}

impl OutOfBounds {
    const fn of(min: i64, max: i64) -> Self {
        if max == i64::MAX { Self::AtLeast { min } } else { Self::Range { min, max } }
    }
}

impl<const MIN: i64, const MAX: i64> TryFrom<i64> for BoundedInt<MIN, MAX> {
    type Error = OutOfBounds;

    fn try_from(number: i64) -> Result<Self, OutOfBounds> {
        if (MIN..=MAX).contains(&number) { Ok(Self(number)) } else { Err(OutOfBounds::of(MIN, MAX)) }
    }
}

impl<const MIN: i64, const MAX: i64> From<BoundedInt<MIN, MAX>> for i64 {
    fn from(number: BoundedInt<MIN, MAX>) -> Self {
        number.0
    }
}

impl<'de, const MIN: i64, const MAX: i64> Deserialize<'de> for BoundedInt<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // The same message for every invalid value: what the field must be.
        let refused = || de::Error::custom(OutOfBounds::of(MIN, MAX));
        let number = deserializer.deserialize_i64(Integer).map_err(|_: D::Error| refused())?;
        i64::try_from(number).ok().and_then(|number| Self::try_from(number).ok()).ok_or_else(refused)
    }
}

/// A visitor that reads an integer in any notation.
struct Integer;

impl Visitor<'_> for Integer {
    type Value = i128;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an integer")
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<i128, E> {
        Ok(number.into())
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<i128, E> {
        Ok(number.into())
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<i128, E> {
        // `Display` writes the shortest exact decimal notation, which has no decimal point for a whole number.
        format!("{number}").parse().map_err(E::custom)
    }
}

/// Whether a value is the default, and may be left out.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Deserializes an optional integer of at least 0.
pub(crate) fn count<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    struct Count(u64);

    impl<'de> Deserialize<'de> for Count {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            let refused = || de::Error::custom(OutOfBounds::AtLeast { min: 0 });
            let number = deserializer.deserialize_u64(Integer).map_err(|_: D::Error| refused())?;
            u64::try_from(number).map(Self).map_err(|_| refused())
        }
    }
    Ok(Option::<Count>::deserialize(deserializer)?.map(|Count(count)| count))
}

impl<const MIN: i64, const MAX: i64> utoipa::PartialSchema for BoundedInt<MIN, MAX> {
    fn schema() -> RefOr<Schema> {
        let integer = ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(MIN));
        if MAX == i64::MAX { integer.into() } else { integer.maximum(Some(MAX)).into() }
    }
}

impl<const MIN: i64, const MAX: i64> utoipa::ToSchema for BoundedInt<MIN, MAX> {
    fn name() -> std::borrow::Cow<'static, str> {
        if MAX == i64::MAX {
            format!("IntegerFrom{MIN}").into()
        } else {
            format!("IntegerFrom{MIN}To{MAX}").into()
        }
    }
}

/// Deserializes `null` as the field's default, as if the field were left out.
pub(crate) fn null_as_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_number_is_an_integer_in_any_notation() {
        for (text, expected) in [
            ("85", Some(85)),
            ("85.0", Some(85)),
            ("8.5e1", Some(85)),
            ("1e2", Some(100)),
            ("0.0", Some(0)),
            ("-0.0", Some(0)),
            ("85.5", None),
            ("101", None),
            ("-1", None),
            ("1e300", None),
            ("\"85\"", None),
            ("true", None),
            ("null", None),
        ] {
            let read = serde_json::from_str::<BoundedInt<0, 100>>(text);
            assert_eq!(read.as_ref().ok().map(|number| number.get()), expected, "{text}");
            if let Err(error) = read {
                assert!(error.to_string().starts_with("must be an integer from 0 to 100"), "{error}");
            }
        }
    }
}
