//! Request bodies: read with a bound, checked for their media type, parsed once with field paths.

use actix_web::HttpRequest;
use actix_web::http::header;
use actix_web::web::{Bytes, BytesMut, Payload};
use futures_util::StreamExt;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::error::Category;
use sha2::{Digest as _, Sha256};

use crate::domain::run::Digest;

use super::problems::Problems;

/// Why a body was not read, before anything else is looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BadBody {
    /// It is larger than allowed.
    TooLarge {
        /// Bytes that are allowed.
        limit: usize,
    },
    /// It is not JSON by its media type, or it is encoded.
    NotJson,
    /// It is not JSON by its syntax.
    Malformed(String),
}

/// Media types that are read, as refusals list them.
pub const ACCEPTED: [&str; 2] = ["application/json", "application/*+json"];

/// Reads a body of at most `limit` bytes. The bound holds while reading, since nobody has been
/// authenticated yet.
///
/// # Errors
/// [`BadBody`].
pub async fn read(
    request: &HttpRequest,
    payload: &mut Payload,
    limit: usize,
) -> Result<Bytes, BadBody> {
    let announced = request
        .headers()
        .get(header::CONTENT_LENGTH)
        .and_then(|length| length.to_str().ok())
        .and_then(|length| length.parse::<usize>().ok());
    if announced.is_some_and(|length| length > limit) {
        return Err(BadBody::TooLarge { limit });
    }
    let mut body = BytesMut::with_capacity(announced.unwrap_or(0).min(limit));
    while let Some(chunk) = payload.next().await {
        let chunk = chunk.map_err(|error| BadBody::Malformed(error.to_string()))?;
        if body.len() + chunk.len() > limit {
            return Err(BadBody::TooLarge { limit });
        }
        body.extend_from_slice(&chunk);
    }
    if !body.is_empty() && !is_json(request) {
        return Err(BadBody::NotJson);
    }
    Ok(body.freeze())
}

fn is_json(request: &HttpRequest) -> bool {
    let header = |name| {
        request
            .headers()
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or("")
            .trim()
            .to_ascii_lowercase()
    };
    let encoding = header(header::CONTENT_ENCODING);
    let media = header(header::CONTENT_TYPE);
    let essence = media.split(';').next().unwrap_or("").trim();
    let json = essence == "application/json"
        || (essence.starts_with("application/") && essence.ends_with("+json"));
    json && (encoding.is_empty() || encoding == "identity")
}

/// Digest of a body, to tell a repeated report from another one under the same fence.
pub fn digest(body: &[u8]) -> Digest {
    let hash = Sha256::digest(body);
    let mut first = [0; 8];
    first.copy_from_slice(&hash[..8]);
    Digest(u64::from_be_bytes(first))
}

/// Parses a body. An empty one is an empty object.
///
/// # Errors
/// `Err` when it is no JSON; `Ok(Err)` when it is, but a field has the wrong type.
pub fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<Result<T, Problems>, BadBody> {
    let body = if body.trim_ascii().is_empty() {
        b"{}"
    } else {
        body
    };
    let mut reader = serde_json::Deserializer::from_slice(body);
    let parsed: Result<T, _> = serde_path_to_error::deserialize(&mut reader);
    let error = match parsed {
        Ok(value) => {
            return match reader.end() {
                Ok(()) => Ok(nul_free(body).map(|()| value)),
                Err(error) => Err(BadBody::Malformed(error.to_string())),
            };
        }
        Err(error) => error,
    };
    if !matches!(error.inner().classify(), Category::Data) {
        return Err(BadBody::Malformed(error.inner().to_string()));
    }
    // A type was wrong; the rest has not been looked at, and broken JSON comes first.
    if let Err(syntax) = serde_json::from_slice::<IgnoredAny>(body) {
        return Err(BadBody::Malformed(syntax.to_string()));
    }
    let path = error.path().to_string().replace('[', ".").replace(']', "");
    let field = match path.as_str() {
        "." | "" | "?" => "body",
        path => path,
    };
    let mut problems = Problems::default();
    problems.add(field, without_position(&error.inner().to_string()));
    Ok(Err(problems))
}

/// The part of a parser's message that speaks of the value, not of the place in the text.
fn without_position(message: &str) -> String {
    message
        .rsplit_once(" at line ")
        .map_or(message, |(what, _)| what)
        .to_owned()
}

/// Refuses U+0000 anywhere in a string: the database cannot hold it.
fn nul_free(body: &[u8]) -> Result<(), Problems> {
    const ESCAPED: &[u8] = b"\\u0000";
    if !body.windows(ESCAPED.len()).any(|window| window == ESCAPED) {
        return Ok(());
    }
    let Ok(value) = serde_json::from_slice::<serde_json::Value>(body) else {
        return Ok(());
    };
    let mut problems = Problems::default();
    find_nul(&value, &mut String::new(), &mut problems);
    problems.into_result()
}

fn find_nul(value: &serde_json::Value, path: &mut String, problems: &mut Problems) {
    let mut visit = |key: &str, child: &serde_json::Value, problems: &mut Problems| {
        let length = path.len();
        if !path.is_empty() {
            path.push('.');
        }
        path.push_str(key);
        find_nul(child, path, problems);
        path.truncate(length);
    };
    match value {
        serde_json::Value::String(text) if text.contains('\0') => {
            problems.add(
                if path.is_empty() { "body" } else { path },
                "must not contain U+0000",
            );
        }
        serde_json::Value::Array(items) => {
            for (place, item) in items.iter().enumerate() {
                visit(&place.to_string(), item, problems);
            }
        }
        serde_json::Value::Object(fields) => {
            for (key, item) in fields {
                if key.contains('\0') {
                    problems.add("body", "must not contain U+0000 in a name");
                }
                visit(key, item, problems);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, serde::Deserialize)]
    struct Form {
        #[serde(default)]
        #[allow(dead_code, reason = "only its type matters here")]
        items: Vec<Item>,
    }

    #[derive(Debug, serde::Deserialize)]
    struct Item {
        #[allow(dead_code, reason = "only its type matters here")]
        n: Option<u32>,
    }

    fn fields(body: &str) -> Result<Vec<String>, BadBody> {
        Ok(match parse::<Form>(body.as_bytes())? {
            Ok(_) => Vec::new(),
            Err(problems) => problems.fields().map(str::to_owned).collect(),
        })
    }

    #[test]
    fn wrong_types_are_found_by_their_path() {
        assert_eq!(
            fields(r#"{"items":[{"n":1},{"n":"x"}]}"#),
            Ok(vec!["items.1.n".to_owned()])
        );
        assert_eq!(fields("[]").map(|fields| fields.len()), Ok(1));
        assert_eq!(fields(r#"{"items":[],"other":{"deep":[1]}}"#), Ok(vec![]));
        assert_eq!(fields(""), Ok(vec![]));
    }

    #[test]
    fn broken_json_comes_before_wrong_types() {
        for broken in [
            "{",
            r#"{"items":[{"n":"x"}]"#,
            "{} {}",
            "nul",
            "{\"a\":\"\\ud800\"}",
        ] {
            assert!(
                matches!(fields(broken), Err(BadBody::Malformed(_))),
                "{broken}"
            );
        }
    }

    #[test]
    fn nul_is_refused_where_it_stands_and_an_escaped_backslash_is_not_nul() {
        assert_eq!(
            fields(r#"{"items":[],"a":{"b":["\u0000"]}}"#),
            Ok(vec!["a.b.0".to_owned()])
        );
        assert_eq!(fields(r#"{"a":"\\u0000"}"#), Ok(vec![]));
    }
}
