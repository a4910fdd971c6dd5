//! Field types of requests that are more lenient than JSON, and small helpers to read them.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, Visitor};

/// An integer that may also come as a string of digits, which some clients send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, utoipa::ToSchema)]
#[schema(value_type = i64)]
pub struct Int(pub i64);

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
                i64::try_from(value)
                    .map(Int)
                    .map_err(|_| E::custom("the integer is too large"))
            }

            fn visit_str<E: de::Error>(self, value: &str) -> Result<Int, E> {
                value
                    .parse()
                    .map(Int)
                    .map_err(|_| E::custom("must be an integer"))
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
