//! Request bodies: read with a bound, checked for their media type, parsed once with field paths.

use std::future::poll_fn;
use std::task::{Context, Waker};

use actix_web::error::PayloadError;
use actix_web::http::header::{self, HeaderMap};
use actix_web::web::{Bytes, BytesMut, Payload};
use actix_web::{HttpMessage, HttpRequest};
use futures_util::StreamExt;
use memchr::memchr;
use rapidhash::v3::rapidhash_v3;
use serde::de::{
    self, DeserializeOwned, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor,
};
use serde_json::error::Category;
use sha2::{Digest as _, Sha256};

use crate::domain::run::Digest;

use super::problems::Problems;
use super::room::Room;

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
    /// It is JSON, nested deeper than can be shown again.
    TooDeep,
}

/// Media types that are read, as refusals list them.
pub const ACCEPTED: [&str; 2] = ["application/json", "application/*+json"];

/// Reads a body of at most `limit` bytes, once there is room for it. The bound holds while reading, since nobody has been
/// authenticated yet. The room is taken until the request has been answered.
///
/// # Errors
/// [`BadBody`].
pub async fn read(
    request: &HttpRequest,
    payload: &mut Payload,
    limit: usize,
    room: &Room,
) -> Result<Bytes, BadBody> {
    let headers = request.headers();
    let announced = announced(headers);
    if announced.is_some_and(|length| length > limit) {
        return Err(BadBody::TooLarge { limit });
    }
    if let Some(inside) = room.enter(announced).await {
        request.extensions_mut().insert(inside);
    }
    let mut whole = Bytes::new();
    let mut body = BytesMut::new();
    while let Some(chunk) = next_chunk(payload).await {
        let chunk = chunk.map_err(|error| BadBody::Malformed(error.to_string()))?;
        if body.len() + chunk.len() > limit {
            return Err(BadBody::TooLarge { limit });
        }
        if announced == Some(chunk.len()) {
            // Most bodies come in one piece, which is not copied.
            whole = chunk;
            continue;
        }
        body.reserve(announced.unwrap_or(0).saturating_sub(body.len()));
        body.extend_from_slice(&chunk);
    }
    if whole.is_empty() {
        whole = body.freeze();
    }
    if !whole.is_empty() && !is_json(headers) {
        return Err(BadBody::NotJson);
    }
    Ok(whole)
}

/// How long a body is, as its head says.
fn announced(headers: &HeaderMap) -> Option<usize> {
    let length = headers.get(header::CONTENT_LENGTH)?;
    length.to_str().ok()?.parse().ok()
}

/// The next piece of a body. The task of a connection that reads its socket is the one that asks the handler: it
/// feeds a piece and then asks, in one turn. A waker left with the payload beforehand would have it do both again for
/// nothing, so the first look leaves none; who finds nothing then is told of what comes later. This holds because a
/// connection whose client has gone is shut down in that turn, too, which `h1_allow_half_closed(false)` sees to.
async fn next_chunk(payload: &mut Payload) -> Option<Result<Bytes, PayloadError>> {
    let mut first = true;
    poll_fn(|context| {
        if std::mem::take(&mut first) {
            payload.poll_next_unpin(&mut Context::from_waker(Waker::noop()))
        } else {
            payload.poll_next_unpin(context)
        }
    })
    .await
}

const JSON: &str = "application/json";

fn is_json(headers: &HeaderMap) -> bool {
    let header = |name| {
        let value = headers.get(name);
        value.and_then(|value| value.to_str().ok()).unwrap_or("")
    };
    let encoding = header(header::CONTENT_ENCODING).trim();
    let media = header(header::CONTENT_TYPE);
    let json = media == JSON || {
        let essence = media.split(';').next().unwrap_or("").trim();
        let essence = essence.to_ascii_lowercase();
        essence == JSON || (essence.starts_with("application/") && essence.ends_with("+json"))
    };
    json && (encoding.is_empty() || encoding.eq_ignore_ascii_case("identity"))
}

/// Digest of a report, to tell one that is repeated from another one under the same fence. It is stored, and the
/// hash is the same everywhere. A worker that made two reports of one digest would fool itself alone, so that speed
/// decides.
pub fn report_digest(body: &[u8]) -> Digest {
    Digest(rapidhash_v3(body))
}

/// Digest of what a caller asks under a key of its own, to tell a repeated request from another one.
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
    let body = body.trim_ascii();
    let body = if body.is_empty() { b"{}" } else { body };
    // Looked through once here, each text needs no look of its own below.
    let Ok(text) = std::str::from_utf8(body) else {
        // The reader says best where.
        let read = Whole::check(serde_json::Deserializer::from_slice(body));
        return Err(read.map_or_else(no_json, |()| BadBody::Malformed("no UTF-8".to_owned())));
    };
    // Fields that are kept as text or ignored are not looked into below, and broken JSON comes first.
    Whole::check(serde_json::Deserializer::from_str(text)).map_err(no_json)?;
    if body.first() != Some(&b'{') {
        return Ok(Err(Problems::of("body", "must be an object")));
    }
    let error = match read_typed(text) {
        Ok(value) => return Ok(nul_free(body).map(|()| value)),
        Err(error) => error,
    };
    if !matches!(error.inner().classify(), Category::Data) {
        return Err(BadBody::Malformed(error.inner().to_string()));
    }
    let (path, problem) = wrong_type(&error);
    let field = if path.is_empty() { "body" } else { &path };
    Ok(Err(Problems::of(field, problem)))
}

/// What is wrong with a body that [`Whole`] does not take.
fn no_json(error: serde_json::Error) -> BadBody {
    match error.classify() {
        // The only thing that is wrong with a value that is JSON.
        Category::Data => BadBody::TooDeep,
        _ => BadBody::Malformed(error.to_string()),
    }
}

/// Reads JSON into a type. Keeping track of the path costs more than reading: only what fails is read
/// once more for it.
fn read_typed<T: DeserializeOwned>(
    json: &str,
) -> Result<T, serde_path_to_error::Error<serde_json::Error>> {
    if let Ok(value) = serde_json::from_str(json) {
        return Ok(value);
    }
    serde_path_to_error::deserialize(&mut serde_json::Deserializer::from_str(json))
}

/// The path to a field of a wrong type, empty for the whole, and what is wrong with it.
fn wrong_type(error: &serde_path_to_error::Error<serde_json::Error>) -> (String, String) {
    let path = error.path().to_string().replace('[', ".").replace(']', "");
    let path = if path == "." || path == "?" {
        String::new()
    } else {
        path
    };
    (path, without_position(&error.inner().to_string()))
}

/// Reads valid JSON into a type.
///
/// # Errors
/// The path to the field of a wrong type, empty for the whole, and what is wrong with it.
pub fn typed<T: DeserializeOwned>(json: &str) -> Result<T, (String, String)> {
    if !json.starts_with('{') {
        return Err((String::new(), "must be an object".to_owned()));
    }
    read_typed(json).map_err(|error| wrong_type(&error))
}

/// Most levels of nesting of a body. Stored values are shown again some levels deeper than they came, and
/// readers stop at 128.
pub const MAX_DEPTH: usize = 100;

/// JSON that can be read whole: not too deep, every text valid, every number within the range of its
/// type. What passes here can be shown again wherever it is stored. Holds the levels that are left.
#[derive(Clone, Copy)]
struct Whole(usize);

impl Whole {
    fn check<'de, R: serde_json::de::Read<'de>>(
        mut reader: serde_json::Deserializer<R>,
    ) -> serde_json::Result<()> {
        Self(MAX_DEPTH).deserialize(&mut reader)?;
        reader.end()
    }

    fn deeper<E: de::Error>(self) -> Result<Self, E> {
        let left = self.0.checked_sub(1);
        left.map(Self)
            .ok_or_else(|| E::custom(format_args!("nested deeper than {MAX_DEPTH} levels")))
    }
}

impl<'de> DeserializeSeed<'de> for Whole {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Whole {
    type Value = ();

    fn expecting(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("JSON")
    }

    fn visit_bool<E: de::Error>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E: de::Error>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E: de::Error>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E: de::Error>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E: de::Error>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E: de::Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let inner = self.deeper()?;
        while items.next_element_seed(inner)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        let inner = self.deeper()?;
        while entries.next_entry_seed(inner, inner)?.is_some() {}
        Ok(())
    }
}

/// The part of a parser's message that speaks of the value, not of the place in the text nor of our
/// types.
fn without_position(message: &str) -> String {
    let what = message
        .rsplit_once(" at line ")
        .map_or(message, |(what, _)| what);
    let Some((before, expected)) = what.split_once("expected ") else {
        return what.to_owned();
    };
    let kind = match expected {
        "i8" | "i16" | "i32" | "i64" | "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number",
        "f32" | "f64" => "a number",
        other if other.starts_with("struct ") => "an object",
        other => other,
    };
    format!("{before}expected {kind}")
}

/// Refuses U+0000 anywhere in a string: the database cannot hold it.
fn nul_free(body: &[u8]) -> Result<(), Problems> {
    const ESCAPED: &[u8] = b"\\u0000";
    if memchr(b'\\', body).is_none() || !body.windows(ESCAPED.len()).any(|window| window == ESCAPED)
    {
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
    fn problems_do_not_speak_of_our_types() {
        #[derive(Debug, serde::Deserialize)]
        struct Inner {
            #[allow(dead_code, reason = "only read")]
            list: Option<Vec<i64>>,
        }
        let problem = |json| typed::<Inner>(json).map(|_| ()).err();
        for (json, path, sentence) in [
            ("[]", "", "must be an object"),
            (r#"{"list":["a"]}"#, "list.0", "expected a whole number"),
            (r#"{"list":{}}"#, "list", "expected a sequence"),
        ] {
            let (found, said) = problem(json).unwrap_or_default();
            assert_eq!(found, path, "{json}");
            assert!(said.ends_with(sentence), "{said}");
        }
        assert_eq!(problem("{}"), None);
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
    fn what_could_not_be_shown_again_is_refused_even_where_it_is_not_read() {
        let nested = |levels| {
            format!(
                r#"{{"other":{}{}}}"#,
                "[".repeat(levels),
                "]".repeat(levels)
            )
        };
        assert_eq!(fields(&nested(MAX_DEPTH - 1)), Ok(vec![]));
        assert_eq!(fields(&nested(MAX_DEPTH)), Err(BadBody::TooDeep));
        for broken in [r#"{"other":1e400}"#, r#"{"other":{"\udc00":1}}"#] {
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
