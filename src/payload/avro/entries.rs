//! An encoded map taken apart by its entries, whose values stay as they were encoded: what merging
//! needs, so that a value that JSON cannot show survives it.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

use super::decode::{map_entries, show, unframe};
use super::encode::{write_block_count, write_long, write_text, write_value};
use super::{DecodeError, EncodeError, FRAME, MAP, Shown};

/// The datum of `null`, which deletes an entry when it is merged in.
const NULL_DATUM: &[u8] = &[0];

/// Why a blob has no entries.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EntriesError {
    /// The blob is no datum of the schema.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The value is of another kind.
    #[error("the value is not a map")]
    NotAMap,
}

/// A map as name → encoded value, in the order of the names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entries(BTreeMap<String, Box<[u8]>>);

impl Entries {
    /// Reads a blob; of several entries with one name the last counts.
    ///
    /// # Errors
    ///
    /// [`EntriesError`].
    pub fn read(blob: &str) -> Result<Self, EntriesError> {
        let bytes = STANDARD.decode(blob).map_err(|_| DecodeError::NotBase64)?;
        let entries = map_entries(unframe(&bytes)?)?.ok_or(EntriesError::NotAMap)?;
        Ok(Self(
            entries
                .into_iter()
                .map(|(name, datum)| (name, datum.into()))
                .collect(),
        ))
    }

    /// Encodes the values of a JSON object.
    ///
    /// # Errors
    ///
    /// [`EncodeError`].
    pub fn from_json(object: &Map<String, Value>) -> Result<Self, EncodeError> {
        object
            .iter()
            .map(|(name, value)| {
                let mut datum = Vec::new();
                write_value(&mut datum, value, 1)?;
                Ok((name.clone(), datum.into_boxed_slice()))
            })
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// Sets what `changes` holds; its nulls delete.
    pub fn merge(&mut self, changes: &Self) {
        for (name, datum) in &changes.0 {
            if **datum == *NULL_DATUM {
                self.0.remove(name);
            } else {
                self.0.insert(name.clone(), datum.clone());
            }
        }
    }

    /// Names with the size of their value as a blob of its own, in bytes before base64.
    pub fn sizes(&self) -> impl Iterator<Item = (&str, usize)> {
        self.0
            .iter()
            .map(|(name, datum)| (name.as_str(), FRAME.len() + datum.len()))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// There are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The map as bytes before base64, names in order.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = FRAME.to_vec();
        write_long(&mut out, MAP);
        write_block_count(&mut out, self.0.len());
        for (name, datum) in &self.0 {
            write_text(&mut out, name);
            out.extend_from_slice(datum);
        }
        out.push(0);
        out
    }

    /// The map as a blob.
    pub fn blob(&self) -> String {
        STANDARD.encode(self.bytes())
    }

    /// The JSON view; a value that has none is null.
    pub fn shown(&self) -> Map<String, Value> {
        self.0
            .iter()
            .map(|(name, datum)| match show(datum) {
                Ok(Shown::Json(value)) => (name.clone(), value),
                _ => (name.clone(), Value::Null),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use serde_json::json;

    use super::super::{encode, encode_text};
    use super::*;

    fn entries(json: &str) -> Entries {
        Entries::read(&encode_text(json).unwrap()).unwrap()
    }

    #[test]
    fn merging_replaces_deletes_and_keeps() {
        let mut map = entries(r#"{"a":1,"b":{"x":[1]},"c":"old"}"#);
        map.merge(&entries(r#"{"a":null,"c":"new","d":null,"0":2}"#));
        assert_eq!(
            map.blob(),
            encode(&json!({"0": 2, "b": {"x": [1]}, "c": "new"})).unwrap()
        );
    }

    #[test]
    fn a_value_that_json_cannot_show_survives_a_merge() {
        // {"k": bytes 00 ff}
        let mut bytes = FRAME.to_vec();
        bytes.extend([0x0E, 0x02, 0x02, b'k', 0x08, 0x04, 0x00, 0xFF, 0x00]);
        let blob = STANDARD.encode(bytes);
        let mut map = Entries::default();
        map.merge(&Entries::read(&blob).unwrap());
        assert_eq!(map.blob(), blob);
        assert_eq!(map.shown()["k"], Value::Null);
    }

    #[test]
    fn what_is_no_map_is_told_apart_from_what_is_no_datum() {
        assert_eq!(Entries::read("AAAA"), Err(DecodeError::NotFramed.into()));
        assert_eq!(
            Entries::read(&encode(&json!([1])).unwrap()),
            Err(EntriesError::NotAMap)
        );
        let mut long = FRAME.to_vec();
        long.extend([0x0E, 0x00, 0x00]);
        assert_eq!(
            Entries::read(&STANDARD.encode(long)),
            Err(DecodeError::TrailingBytes.into())
        );
    }

    #[test]
    fn json_and_blob_give_the_same_entries() {
        let json = json!({"b": 1.5, "a": [true, null]});
        let from_json = Entries::from_json(json.as_object().unwrap()).unwrap();
        assert_eq!(from_json, Entries::read(&encode(&json).unwrap()).unwrap());
        assert_eq!(Value::Object(from_json.shown()), json);
        assert_eq!(
            from_json.sizes().collect::<Vec<_>>(),
            [("a", 10 + 6), ("b", 10 + 9)]
        );
    }
}
