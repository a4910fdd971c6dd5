//! Telling envelope, encoded text and plain data apart, for parsed values and for raw text.
//!
//! An object is an envelope when its key set is exactly `codec` and `blob`, or `codec` and one
//! reference key (payload envelope). One key more, and it is somebody's data.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use super::{Codec, Payload, PayloadError};

const CODEC: &str = "codec";
const BLOB: &str = "blob";
const EXTERNAL_STORAGE: &str = "external_storage";
const EXTERNAL_PAYLOAD: &str = "external_payload";

/// What a wire value is, before any codec is looked up.
pub(super) enum Shape<'a> {
    /// A JSON string; encoded text where plain JSON is not legal.
    Text(Cow<'a, str>),
    /// An envelope with its blob inside.
    Inline {
        codec: Cow<'a, str>,
        blob: Cow<'a, str>,
    },
    /// An envelope that refers to a value stored elsewhere.
    External {
        codec: Cow<'a, str>,
        key: &'static str,
    },
    /// The keys of an envelope, one of which does not hold a string.
    Malformed { key: &'static str },
    /// A JSON string that no text can hold.
    BrokenText,
    /// Neither a string nor the keys of an envelope.
    Other,
}

impl<'a> Shape<'a> {
    pub(super) fn of(value: &'a Value) -> Self {
        match value {
            Value::String(text) => Shape::Text(Cow::Borrowed(text)),
            Value::Object(entries) if entries.len() == 2 => {
                let mut keys = Keys::default();
                for (key, value) in entries {
                    keys.insert(key, value);
                }
                keys.classify(|value| value.as_str().map(Cow::Borrowed))
            }
            _ => Shape::Other,
        }
    }

    pub(super) fn of_raw(value: &'a RawValue) -> Self {
        let text = value.get();
        match text.trim_start().as_bytes().first() {
            Some(b'"') => match read_string(text) {
                Some(text) => Shape::Text(text),
                None => Shape::BrokenText,
            },
            // The text is valid JSON already, so what fails to be read as keys has none of ours.
            Some(b'{') => serde_json::from_str::<Keys<&RawValue>>(text)
                .unwrap_or_default()
                .classify(|value| read_string(value.get())),
            _ => Shape::Other,
        }
    }

    /// The payload where encoded data is required; `default` is the codec of bare text.
    pub(super) fn into_payload(self, default: Codec) -> Result<Payload, PayloadError> {
        let (codec, blob, key) = match self {
            Shape::Text(text) => (default, text, None),
            Shape::Inline { codec, blob } => (Codec::parse(&codec)?, blob, Some(BLOB)),
            Shape::External { codec, key } => {
                Codec::parse(&codec)?;
                return Err(PayloadError::ExternalReference { key });
            }
            Shape::Malformed { key } => {
                return Err(PayloadError::UnusableText { key: Some(key) });
            }
            Shape::BrokenText => return Err(PayloadError::UnusableText { key: None }),
            Shape::Other => return Err(PayloadError::NotAnEnvelope),
        };
        // No codec produces NUL, and PostgreSQL text cannot hold it: refused here, it is the
        // caller's mistake; let through, it would surface as a failed write.
        if blob.contains('\0') {
            return Err(PayloadError::UnusableText { key });
        }
        Ok(Payload::new(codec, &blob))
    }

    /// The payload if the value is an envelope, right or wrong; nothing if it is plain data.
    pub(super) fn into_envelope(self) -> Option<Result<Payload, PayloadError>> {
        match self {
            Shape::Inline { .. } | Shape::External { .. } | Shape::Malformed { .. } => {
                Some(self.into_payload(Codec::Avro))
            }
            Shape::Text(_) | Shape::BrokenText | Shape::Other => None,
        }
    }
}

/// The entries of an object that matter to the question whether it is an envelope.
struct Keys<V> {
    codec: Option<V>,
    blob: Option<V>,
    external_storage: Option<V>,
    external_payload: Option<V>,
    other: bool,
}

impl<V> Default for Keys<V> {
    fn default() -> Self {
        Self {
            codec: None,
            blob: None,
            external_storage: None,
            external_payload: None,
            other: false,
        }
    }
}

impl<V> Keys<V> {
    /// Where an entry of this name is kept; nothing for a name that makes the object plain data.
    fn slot(&mut self, key: &str) -> Option<&mut Option<V>> {
        match key {
            CODEC => Some(&mut self.codec),
            BLOB => Some(&mut self.blob),
            EXTERNAL_STORAGE => Some(&mut self.external_storage),
            EXTERNAL_PAYLOAD => Some(&mut self.external_payload),
            _ => {
                self.other = true;
                None
            }
        }
    }

    /// A repeated key counts with its last value, as it does in a parsed object.
    fn insert(&mut self, key: &str, value: V) {
        if let Some(slot) = self.slot(key) {
            *slot = Some(value);
        }
    }

    /// Judges the key set first, then the two strings; `string` reads one of them.
    fn classify<'a>(self, string: impl Fn(V) -> Option<Cow<'a, str>>) -> Shape<'a> {
        let (Some(codec), false) = (self.codec, self.other) else {
            return Shape::Other;
        };
        let (blob, key) = match (self.blob, self.external_storage, self.external_payload) {
            (Some(blob), None, None) => (Some(blob), BLOB),
            (None, Some(_), None) => (None, EXTERNAL_STORAGE),
            (None, None, Some(_)) => (None, EXTERNAL_PAYLOAD),
            _ => return Shape::Other,
        };
        let Some(codec) = string(codec) else {
            return Shape::Malformed { key: CODEC };
        };
        match blob.map(string) {
            None => Shape::External { codec, key },
            Some(Some(blob)) => Shape::Inline { codec, blob },
            Some(None) => Shape::Malformed { key },
        }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Keys<&'a RawValue> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct KeysVisitor<'a>(std::marker::PhantomData<&'a ()>);

        impl<'de: 'a, 'a> Visitor<'de> for KeysVisitor<'a> {
            type Value = Keys<&'a RawValue>;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut keys = Keys::default();
                while let Some(key) = map.next_key::<Text<'_>>()? {
                    match keys.slot(&key.0) {
                        Some(slot) => *slot = Some(map.next_value::<&'a RawValue>()?),
                        None => {
                            map.next_value::<IgnoredAny>()?;
                        }
                    }
                }
                Ok(keys)
            }
        }

        deserializer.deserialize_map(KeysVisitor(std::marker::PhantomData))
    }
}

/// A JSON string, borrowed from the text unless it holds escapes.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

fn read_string(json: &str) -> Option<Cow<'_, str>> {
    serde_json::from_str::<Text<'_>>(json)
        .ok()
        .map(|text| text.0)
}
