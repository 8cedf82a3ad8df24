//! Points in time in the format of the API: ISO 8601, UTC, milliseconds.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use utoipa::openapi::{KnownFormat, ObjectBuilder, RefOr, Schema, SchemaFormat, Type};

/// A point in time with a resolution of one millisecond, written as `2026-11-20T11:30:31.042Z`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    /// Creates the time `unix_ms` milliseconds after the Unix epoch.
    pub const fn from_unix_ms(unix_ms: i64) -> Self {
        Self(unix_ms)
    }

    /// The last time that is written as a date, with every offset from UTC still in the year 9999.
    pub const MAX: Self = Self(253_402_207_200_000);

    /// Returns the milliseconds since the Unix epoch.
    pub const fn unix_ms(self) -> i64 {
        self.0
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Outside jiff's range (years −9999 to 9999) there is no ISO format; the plain number says more than a
        // made-up date.
        match jiff::Timestamp::from_millisecond(self.0) {
            Ok(time) => write!(f, "{time:.3}"),
            Err(_) => write!(f, "{}ms", self.0),
        }
    }
}

impl FromStr for Timestamp {
    type Err = jiff::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse::<jiff::Timestamp>().map(|time| Self(time.as_millisecond()))
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Cow::<str>::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl utoipa::PartialSchema for Timestamp {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new()
            .schema_type(Type::String)
            .format(Some(SchemaFormat::KnownFormat(KnownFormat::DateTime)))
            .description(Some("ISO 8601, UTC, with milliseconds"))
            .examples(["2026-11-20T11:30:31.042Z"])
            .into()
    }
}

impl utoipa::ToSchema for Timestamp {
    fn name() -> Cow<'static, str> {
        "Timestamp".into()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn is_written_with_exactly_three_decimals_and_z() {
        assert_eq!(Timestamp::from_unix_ms(1_795_174_231_000).to_string(), "2026-11-20T11:30:31.000Z");
        assert_eq!(Timestamp::from_unix_ms(1_795_174_231_042).to_string(), "2026-11-20T11:30:31.042Z");
        assert_eq!(Timestamp::from_unix_ms(0).to_string(), "1970-01-01T00:00:00.000Z");
        assert_eq!(Timestamp::MAX.to_string(), "9999-12-30T22:00:00.000Z");
        assert_eq!(Timestamp::from_unix_ms(Timestamp::MAX.unix_ms() + 1).to_string(), "253402207200001ms");
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(ms in -62_000_000_000_000_i64..250_000_000_000_000) {
            let time = Timestamp::from_unix_ms(ms);
            let json = serde_json::to_string(&time).unwrap();
            prop_assert_eq!(serde_json::from_str::<Timestamp>(&json).unwrap(), time);
        }
    }
}
