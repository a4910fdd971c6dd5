//! Payload envelopes: `{"codec": "avro", "blob": "…"}` as a cheap value, read from every form a
//! request may use. Blobs are opaque here; `avro` makes and shows them where the server must.

pub mod avro;
#[cfg(test)]
mod tests;
mod wire;

use std::borrow::Cow;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, LazyLock};

use memchr::memchr2;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;

use wire::Shape;

/// How the bytes of a blob are to be read (payload envelope, codec names).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Codec {
    /// The fixed Avro value schema in base64: the one codec every SDK speaks.
    #[serde(rename = "avro")]
    Avro,
}

impl Codec {
    /// The canonical name, as it is answered and stored.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Codec::Avro => "avro",
        }
    }

    /// Finds a codec by its name in any letter case.
    ///
    /// # Errors
    ///
    /// [`PayloadError::UnsupportedCodec`] for a name that is not served.
    pub fn parse(name: &str) -> Result<Self, PayloadError> {
        if name.eq_ignore_ascii_case(Codec::Avro.as_str()) {
            Ok(Codec::Avro)
        } else {
            Err(PayloadError::UnsupportedCodec {
                // The contract bounds a codec name at 64 characters; more is not worth repeating.
                name: name.chars().take(64).collect(),
            })
        }
    }
}

impl fmt::Display for Codec {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.as_str())
    }
}

/// One encoded value: the codec's name and the encoded text, byte for byte as it was received.
///
/// Serializes to exactly `{"codec": …, "blob": …}`, in that order. The envelope is made once, since a value is
/// written several times: into history, into tasks, into answers. Cloning shares it. The debug form shows the length
/// only, since user data must not reach a log.
#[derive(Clone)]
pub struct Payload {
    envelope: Arc<Envelope>,
}

/// What all clones of a payload share.
struct Envelope {
    codec: Codec,
    /// The envelope as JSON, without white space: one text for each codec and blob.
    json: Box<RawValue>,
    /// The blob, unless it stands in `json` as it is.
    escaped: Option<Box<str>>,
}

/// What stands before and behind a blob in its envelope.
const fn around(codec: Codec) -> (&'static str, &'static str) {
    match codec {
        Codec::Avro => (r#"{"codec":"avro","blob":""#, r#""}"#),
    }
}

impl Envelope {
    fn new(codec: Codec, blob: &str) -> Self {
        let (before, behind) = around(codec);
        let plain = is_plain(blob).then(|| [before, blob, behind].concat());
        let (json, escaped) = match plain {
            Some(json) => (json, None),
            None => {
                let quoted = Value::from(blob).to_string();
                let before = before.trim_end_matches('"');
                ([before, &quoted, "}"].concat(), Some(blob.into()))
            }
        };
        Self {
            codec,
            // Nothing else can come of it, since the text was just made.
            json: RawValue::from_string(json).unwrap_or_else(|_| RawValue::NULL.to_owned()),
            escaped,
        }
    }

    fn blob(&self) -> &str {
        let (before, behind) = around(self.codec);
        let plain = || {
            let json = self.json.get();
            json.get(before.len()..json.len().saturating_sub(behind.len()))
        };
        match &self.escaped {
            Some(blob) => blob,
            None => plain().unwrap_or_default(),
        }
    }
}

impl PartialEq for Payload {
    fn eq(&self, other: &Self) -> bool {
        self.envelope.json.get() == other.envelope.json.get()
    }
}

impl Eq for Payload {}

impl Hash for Payload {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.envelope.json.get().hash(state);
    }
}

/// Why a value of a request cannot become a payload. Callers answer each with 422 on the field that
/// [`PayloadError::path`] completes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PayloadError {
    /// Neither encoded text nor an object with exactly the keys of an envelope.
    #[error("the value must be an encoded string or an object with the keys codec and blob")]
    NotAnEnvelope,
    /// Encoded text, or a key of an envelope, that is no usable string: of another type, with half
    /// a surrogate pair, or with a NUL character in it.
    #[error("{} must be a string of valid text", key.unwrap_or("the encoded value"))]
    UnusableText {
        /// The key at fault; nothing for encoded text without an envelope.
        key: Option<&'static str>,
    },
    /// The codec is not one this server accepts.
    #[error("unsupported_payload_codec: the codec {name:?} is not supported, use \"avro\"")]
    UnsupportedCodec {
        /// The name as received, cut after 64 characters.
        name: String,
    },
    /// A reference to a value that is stored elsewhere; no storage is configured for those.
    #[error("{key}: references to externally stored payloads are not supported")]
    ExternalReference {
        /// The key that held the reference: `external_storage` or `external_payload`.
        key: &'static str,
    },
    /// Plain JSON that has no encoding.
    #[error(transparent)]
    Unencodable(#[from] avro::EncodeError),
}

impl PayloadError {
    /// What to append to the name of the field: empty, or a dot and the key inside the envelope,
    /// such as `.codec`.
    #[must_use]
    pub fn path(&self) -> String {
        match self {
            Self::NotAnEnvelope | Self::Unencodable(_) | Self::UnusableText { key: None } => {
                String::new()
            }
            Self::UnusableText { key: Some(key) } | Self::ExternalReference { key } => {
                format!(".{key}")
            }
            Self::UnsupportedCodec { .. } => ".codec".to_owned(),
        }
    }
}

/// Whether a text needs no escaping in JSON: base64 does not, and is what blobs usually are. Looks at every
/// byte, which is faster than to stop at the first that is wrong.
fn is_plain(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() | matches!(byte, b'+' | b'/' | b'=');
    text.bytes().fold(true, |so_far, byte| so_far & plain(byte))
}

impl Serialize for Payload {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.envelope.json.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Payload {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename = "Payload", deny_unknown_fields)]
        struct Read<'a> {
            codec: Codec,
            #[serde(borrow)]
            blob: Cow<'a, str>,
        }
        let read = Read::deserialize(deserializer)?;
        Ok(Self::new(read.codec, &read.blob))
    }
}

impl Payload {
    /// Wraps encoded text.
    #[must_use]
    pub fn new(codec: Codec, blob: &str) -> Self {
        Self {
            envelope: Arc::new(Envelope::new(codec, blob)),
        }
    }

    /// How the blob is to be read.
    #[must_use]
    pub fn codec(&self) -> Codec {
        self.envelope.codec
    }

    /// The encoded text; its length in bytes is what payload limits count.
    #[must_use]
    pub fn blob(&self) -> &str {
        self.envelope.blob()
    }

    /// Bytes of text that it holds in memory.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        let escaped = self.envelope.escaped.as_deref().map_or(0, str::len);
        self.envelope.json.get().len() + escaped
    }

    /// The encoded `null`.
    #[must_use]
    pub fn null() -> Self {
        static NULL: LazyLock<Payload> =
            LazyLock::new(|| Payload::new(Codec::Avro, avro::NULL_BLOB));
        NULL.clone()
    }

    /// The encoded `[]`: the argument list of a call without arguments.
    #[must_use]
    pub fn empty_list() -> Self {
        static EMPTY_LIST: LazyLock<Payload> =
            LazyLock::new(|| Payload::new(Codec::Avro, avro::EMPTY_LIST_BLOB));
        EMPTY_LIST.clone()
    }

    /// Encodes plain JSON.
    ///
    /// # Errors
    ///
    /// [`PayloadError::Unencodable`], see [`avro::encode`].
    pub fn from_json(value: &Value) -> Result<Self, PayloadError> {
        Ok(Self::new(Codec::Avro, &avro::encode(value)?))
    }

    /// Reads a field that must hold encoded data (workflow commands, payload fields): encoded text
    /// in the `default` codec, or an envelope. An absent or null field is the caller's to handle.
    ///
    /// # Errors
    ///
    /// Every kind of [`PayloadError`] but [`PayloadError::Unencodable`].
    pub fn from_wire(value: &Value, default: Codec) -> Result<Self, PayloadError> {
        Shape::of(value).into_payload(default)
    }

    /// [`Payload::from_wire`] for a field that was left as text; copies nothing but the blob.
    ///
    /// # Errors
    ///
    /// As [`Payload::from_wire`].
    pub fn from_wire_raw(value: &RawValue, default: Codec) -> Result<Self, PayloadError> {
        match Self::as_written(value) {
            Some(payload) => Ok(payload),
            None => Shape::of_raw(value).into_payload(default),
        }
    }

    /// The payload of an envelope that came in the very form in which it is written here, as it does from most
    /// clients. It is neither read nor made again.
    fn as_written(value: &RawValue) -> Option<Self> {
        let codec = Codec::Avro;
        let (before, behind) = around(codec);
        let blob = value.get().strip_prefix(before)?.strip_suffix(behind)?;
        let envelope = || Envelope {
            codec,
            json: value.to_owned(),
            escaped: None,
        };
        // The value is JSON: a text without a quote and an escape in it is one text, as it stands.
        memchr2(b'"', b'\\', blob.as_bytes())
            .is_none()
            .then(|| Self {
                envelope: Arc::new(envelope()),
            })
    }

    /// Reads a field in which plain JSON is legal, such as an activity's `result`: an object with
    /// exactly the keys of an envelope is one, everything else is a value and gets encoded.
    ///
    /// # Errors
    ///
    /// Every kind of [`PayloadError`] but [`PayloadError::NotAnEnvelope`].
    pub fn from_json_or_envelope(value: &Value) -> Result<Self, PayloadError> {
        match Shape::of(value).into_envelope() {
            Some(envelope) => envelope,
            None => Self::from_json(value),
        }
    }

    /// [`Payload::from_json_or_envelope`] for a field that was left as text. Only this form notices
    /// integers of more than 64 bits.
    ///
    /// # Errors
    ///
    /// As [`Payload::from_json_or_envelope`].
    pub fn from_json_or_envelope_raw(value: &RawValue) -> Result<Self, PayloadError> {
        Self::from_raw(value, |json| json)
    }

    /// Reads a field that holds the arguments of a call, such as the `input` of a start: an
    /// envelope is taken as it is; plain JSON becomes the list every SDK expects, so null is no
    /// argument and anything but a list is the only argument.
    ///
    /// # Errors
    ///
    /// As [`Payload::from_json_or_envelope`].
    pub fn arguments_raw(value: &RawValue) -> Result<Self, PayloadError> {
        Self::from_raw(value, |json| match json {
            Value::Null => Value::Array(Vec::new()),
            Value::Array(_) => json,
            single => Value::Array(vec![single]),
        })
    }

    /// Decodes the blob for display, see [`avro::decode`].
    ///
    /// # Errors
    ///
    /// [`avro::DecodeError`] when the blob is not a value of the fixed schema.
    pub fn decode(&self, max_bytes: usize) -> Result<avro::Shown, avro::DecodeError> {
        match self.codec() {
            Codec::Avro => avro::decode(self.blob(), max_bytes),
        }
    }

    /// The JSON view of the value, or nothing when it has none, for answers that show a value next
    /// to its envelope (control plane, values and formats).
    #[must_use]
    pub fn shown(&self, max_bytes: usize) -> Option<Value> {
        match self.decode(max_bytes) {
            Ok(avro::Shown::Json(value)) => Some(value),
            Ok(avro::Shown::NotShowable(_)) | Err(_) => None,
        }
    }

    fn from_raw(value: &RawValue, adapt: fn(Value) -> Value) -> Result<Self, PayloadError> {
        if let Some(payload) = Self::as_written(value) {
            return Ok(payload);
        }
        match Shape::of_raw(value).into_envelope() {
            Some(envelope) => envelope,
            None => Self::from_json(&adapt(avro::read_text(value.get())?)),
        }
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "Payload({}, {} bytes)",
            self.codec(),
            self.blob().len()
        )
    }
}
