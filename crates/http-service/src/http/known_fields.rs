//! The fields that a type has, as its own `Deserialize` names them: for the refusal of a field that it does not have.

use std::fmt;

use serde::de::value::StrDeserializer;
use serde::de::{self, DeserializeOwned, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::forward_to_deserialize_any;

/// Returns the fields of the object at `path` in a `T`; `None` if its type does not list them.
pub(super) fn known_fields<T: DeserializeOwned>(path: &[String]) -> Option<&'static [&'static str]> {
    T::deserialize(Guide { path }).err().and_then(|Answer(fields)| fields)
}

/// What the guide brings back, as an error: the rest of the type is not of interest.
#[derive(Debug)]
struct Answer(Option<&'static [&'static str]>);

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the fields of a type")
    }
}

impl std::error::Error for Answer {}

impl de::Error for Answer {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self(None)
    }
}

/// A deserializer of no data. It leads a type's `Deserialize` along a path to the object at its end, which has to say
/// which fields it expects.
struct Guide<'a> {
    path: &'a [String],
}

impl<'de> Deserializer<'de> for Guide<'_> {
    type Error = Answer;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Answer> {
        Err(Answer(None))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Answer> {
        if self.path.is_empty() { Err(Answer(Some(fields))) } else { self.deserialize_map(visitor) }
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Answer> {
        visitor.visit_map(Steps { path: self.path })
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Answer> {
        visitor.visit_seq(Steps { path: self.path })
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Answer> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Answer> {
        visitor.visit_newtype_struct(self)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct tuple
        tuple_struct enum identifier ignored_any
    }
}

/// An object or an array with the one part to which the path leads.
struct Steps<'a> {
    path: &'a [String],
}

impl<'de> MapAccess<'de> for Steps<'_> {
    type Error = Answer;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Answer> {
        let name = self.path.first().ok_or(Answer(None))?;
        seed.deserialize(StrDeserializer::new(name)).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Answer> {
        self.next_element_seed(seed)?.ok_or(Answer(None))
    }
}

impl<'de> SeqAccess<'de> for Steps<'_> {
    type Error = Answer;

    fn next_element_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<Option<V::Value>, Answer> {
        let (_, path) = self.path.split_first().ok_or(Answer(None))?;
        seed.deserialize(Guide { path }).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use api::engine::Execute;
    use api::schedules::CreateSchedule;
    use api::user_servers::ConnectUserServer;

    use super::*;

    fn fields<T: DeserializeOwned>(path: &str) -> Option<String> {
        let path: Vec<String> = path.split_terminator('.').map(str::to_owned).collect();
        known_fields::<T>(&path).map(|fields| fields.join(" "))
    }

    #[test]
    fn the_fields_of_a_type_and_of_its_parts_are_those_that_it_takes() {
        let whole = "id name when message task_id missed options paused";
        assert_eq!(fields::<CreateSchedule>("").unwrap(), whole);
        assert_eq!(fields::<CreateSchedule>("when").unwrap(), "cron time_zone at every_seconds start");
        assert!(
            fields::<CreateSchedule>("options")
                .unwrap()
                .starts_with("direct super_thinking max_turns model ")
        );
        assert_eq!(fields::<ConnectUserServer>("credentials").unwrap(), "api_key");
        assert_eq!(fields::<Execute>("media.0.source").unwrap(), "type media_type data url");
    }

    #[test]
    fn where_no_object_is_nothing_is_listed() {
        for path in ["message", "metadata", "metadata.a", "media", "no_such_field"] {
            assert_eq!(fields::<Execute>(path), None, "{path}");
        }
    }
}
