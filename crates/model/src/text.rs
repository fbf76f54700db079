//! Types that are one string in JSON: read by their `FromStr`, written by their `Display`.
//!
//! Whatever cannot be parsed cannot be deserialised, so a value of such a type is always good.

use core::fmt;
use core::marker::PhantomData;
use core::str::FromStr;

use serde::Deserializer;
use serde::de::{Error, Visitor};

/// Implements serde for types that are written as one string, and with the feature `schema` their
/// schema: `"key": "value"` add to it.
macro_rules! as_text {
    ($type:ty $(, $key:literal: $value:literal)*) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                $crate::text::parse(from)
            }
        }

        #[cfg(feature = "schema")]
        impl schemars::JsonSchema for $type {
            fn schema_name() -> alloc::borrow::Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({ "type": "string" $(, $key: $value)* })
            }
        }
    };
}
pub(crate) use as_text;

/// Reads a string and parses it.
pub(crate) fn parse<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: FromStr<Err: fmt::Display>,
    D: Deserializer<'de>,
{
    deserializer.deserialize_str(Text(PhantomData))
}

struct Text<T>(PhantomData<T>);

impl<T: FromStr<Err: fmt::Display>> Visitor<'_> for Text<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }
}
