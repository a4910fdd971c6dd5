//! Field types of requests that are more lenient than JSON, and small helpers to read them.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, Visitor};
use utoipa::openapi::{ObjectBuilder, RefOr, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

/// An integer that may also come as a string of digits, which some clients send.
///
/// The contract bounds no integer to 64 bits: one beyond is read as the nearest that they hold, so that
/// it meets the bound of its field, which may cut it or refuse it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Int(pub i64);

impl PartialSchema for Int {
    fn schema() -> RefOr<Schema> {
        let schema = ObjectBuilder::new().schema_type(Type::Integer);
        let described =
            "An integer that may also come as a string of digits, which some clients send.";
        schema.description(Some(described)).into()
    }
}

impl ToSchema for Int {}

/// Numbers from here on are no integers of 64 bits.
const BEYOND: f64 = 9.22e18;

/// A text that is an integer of any size.
fn read(text: &str) -> Option<Int> {
    let (sign, digits) = match text.as_bytes().first()? {
        b'-' => (i64::MIN, &text[1..]),
        b'+' => (i64::MAX, &text[1..]),
        _ => (i64::MAX, text),
    };
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    Some(Int(text.parse().unwrap_or(sign)))
}

impl<'de> Deserialize<'de> for Int {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;

        impl Visitor<'_> for Reader {
            type Value = Int;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an integer")
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Int, E> {
                Ok(Int(value))
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Int, E> {
                Ok(Int(i64::try_from(value).unwrap_or(i64::MAX)))
            }

            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Int, E> {
                // Readers of JSON give integers beyond 64 bits in this form.
                if value.abs() < BEYOND {
                    return Err(E::invalid_type(de::Unexpected::Float(value), &self));
                }
                Ok(Int(if value < 0.0 { i64::MIN } else { i64::MAX }))
            }

            fn visit_str<E: de::Error>(self, value: &str) -> Result<Int, E> {
                read(value).ok_or_else(|| E::custom("must be an integer"))
            }
        }

        deserializer.deserialize_any(Reader)
    }
}

/// A boolean of a query string: `1`, `0`, `true` or `false`.
///
/// # Errors
/// It is none of these.
pub fn query_bool(text: &str) -> Result<bool, &'static str> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" => Ok(true),
        "0" | "false" | "" => Ok(false),
        _ => Err("must be true or false"),
    }
}

/// A number of a query string.
///
/// # Errors
/// It is none.
pub fn query_int(text: &str) -> Result<i64, &'static str> {
    text.parse().map_err(|_| "must be an integer")
}

/// The parameters of a query string, the last of each name, percent-decoded.
pub fn query(request: &actix_web::HttpRequest) -> std::collections::BTreeMap<String, String> {
    actix_web::web::Query::from_query(request.query_string())
        .map(actix_web::web::Query::into_inner)
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn int(json: &str) -> Option<i64> {
        serde_json::from_str::<Int>(json).ok().map(|Int(n)| n)
    }

    #[test]
    fn integers_of_any_size_are_read() {
        for (json, expected) in [
            ("7", 7),
            ("-7", -7),
            (r#""7""#, 7),
            (r#""+7""#, 7),
            ("9223372036854775807", i64::MAX),
            ("9223372036854775808", i64::MAX),
            ("-9223372036854775809", i64::MIN),
            ("100000000000000000000000", i64::MAX),
            (r#""100000000000000000000000""#, i64::MAX),
            (r#""-100000000000000000000000""#, i64::MIN),
        ] {
            assert_eq!(int(json), Some(expected), "{json}");
        }
        for json in [
            "1.5", "1.0", "1e3", r#""1.5""#, r#""""#, r#""-""#, r#"" 7""#, "true", "[]",
        ] {
            assert_eq!(int(json), None, "{json}");
        }
    }
}
