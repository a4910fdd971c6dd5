//! A blob back to JSON, for display. Reads what any writer of the schema may produce and refuses
//! everything that is not exactly one datum; no input makes it panic or allocate beyond its size.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Number, Value};

use super::{
    BOOLEAN, BYTES, DOUBLE, FRAME, LIST, LONG, MAP, MAX_DEPTH, NULL, NotShowable, STRING, Shown,
};

/// Why a blob is not one datum of the fixed schema.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Not standard base64 with its padding.
    #[error("the blob is not strict base64")]
    NotBase64,
    /// The single-object marker is missing.
    #[error("the bytes do not begin with the single-object marker")]
    NotFramed,
    /// Written with a schema that is not the fixed one.
    #[error("the bytes were written with an unknown schema")]
    UnknownSchema,
    /// The bytes end inside the datum.
    #[error("the datum is cut off")]
    Truncated,
    /// Bytes follow the datum.
    #[error("bytes follow the datum")]
    TrailingBytes,
    /// A double is infinite or not a number.
    #[error("a double is not finite")]
    NotFinite,
    /// A part of the datum cannot be right.
    #[error("the datum is malformed: {0}")]
    Malformed(&'static str),
}

/// Decodes a blob of at most `max_bytes` bytes (before base64) for display.
///
/// A shown value can take some sixty times the memory of its bytes (a list of nulls has one byte
/// per item), which is what the caller limits with `max_bytes`.
///
/// # Errors
///
/// [`DecodeError`] when the blob is not exactly one datum of the fixed schema. A blob that is right
/// but has no JSON form is not an error, see [`Shown::NotShowable`].
pub fn decode(blob: &str, max_bytes: usize) -> Result<Shown, DecodeError> {
    // Measured before decoding, so that an oversized blob costs nothing. Base64 has three bytes in
    // four characters, of which padding takes up to two.
    if blob.len() / 4 * 3 > max_bytes.saturating_add(2) {
        return Ok(Shown::NotShowable(NotShowable::TooLarge));
    }
    let bytes = STANDARD.decode(blob).map_err(|_| DecodeError::NotBase64)?;
    if bytes.len() > max_bytes {
        return Ok(Shown::NotShowable(NotShowable::TooLarge));
    }
    show(unframe(&bytes)?)
}

/// The datum behind the frame.
pub(super) fn unframe(bytes: &[u8]) -> Result<&[u8], DecodeError> {
    let (marker, schema) = FRAME.split_at(2);
    let rest = bytes.strip_prefix(marker).ok_or(DecodeError::NotFramed)?;
    if rest.len() < schema.len() {
        return Err(DecodeError::Truncated);
    }
    rest.strip_prefix(schema).ok_or(DecodeError::UnknownSchema)
}

/// The JSON view of exactly one datum.
pub(super) fn show(datum: &[u8]) -> Result<Shown, DecodeError> {
    let mut reader = Reader {
        rest: datum,
        saw_bytes: false,
    };
    let value = match reader.value(0) {
        Ok(value) => value,
        Err(Stop::TooDeep) => return Ok(Shown::NotShowable(NotShowable::TooDeep)),
        Err(Stop::Broken(error)) => return Err(error),
    };
    if !reader.rest.is_empty() {
        return Err(DecodeError::TrailingBytes);
    }
    if reader.saw_bytes {
        return Ok(Shown::NotShowable(NotShowable::Bytes));
    }
    Ok(Shown::Json(value))
}

/// An entry of a map: its name, and the bytes of its value.
pub(super) type EntryBytes<'a> = (String, &'a [u8]);

/// The entries of a datum that is a map: each name with the bytes of its value, which are checked to
/// be one datum. A later entry of the same name comes later.
pub(super) fn map_entries(datum: &[u8]) -> Result<Option<Vec<EntryBytes<'_>>>, DecodeError> {
    let mut reader = Reader {
        rest: datum,
        saw_bytes: false,
    };
    if reader.long()? != MAP {
        return Ok(None);
    }
    let mut entries = Vec::new();
    let read = reader.blocks(0, |reader, inside| {
        let name = reader.text()?;
        let before = reader.rest;
        reader.value(inside)?;
        let (value, _) = before.split_at(before.len() - reader.rest.len());
        entries.push((name, value));
        Ok(())
    });
    match read {
        Ok(()) if reader.rest.is_empty() => Ok(Some(entries)),
        Ok(()) => Err(DecodeError::TrailingBytes),
        Err(Stop::Broken(error)) => Err(error),
        Err(Stop::TooDeep) => Err(DecodeError::Malformed("a value is nested too deeply")),
    }
}

enum Stop {
    TooDeep,
    Broken(DecodeError),
}

impl From<DecodeError> for Stop {
    fn from(error: DecodeError) -> Self {
        Stop::Broken(error)
    }
}

struct Reader<'a> {
    rest: &'a [u8],
    /// Set when a value was raw bytes. Reading goes on, so that a broken blob is still told from
    /// one that JSON cannot show.
    saw_bytes: bool,
}

impl<'a> Reader<'a> {
    fn value(&mut self, depth: usize) -> Result<Value, Stop> {
        Ok(match self.long()? {
            NULL => Value::Null,
            BOOLEAN => match self.take(1)? {
                [0] => Value::Bool(false),
                [1] => Value::Bool(true),
                _ => return Err(DecodeError::Malformed("a boolean is neither 0 nor 1").into()),
            },
            LONG => Value::from(self.long()?),
            DOUBLE => {
                let mut raw = [0; 8];
                raw.copy_from_slice(self.take(8)?);
                let number = Number::from_f64(f64::from_le_bytes(raw));
                Value::Number(number.ok_or(DecodeError::NotFinite)?)
            }
            BYTES => {
                let length = self.length()?;
                self.take(length)?;
                self.saw_bytes = true;
                Value::Null
            }
            STRING => Value::String(self.text()?),
            LIST => {
                let mut items = Vec::new();
                self.blocks(depth, |reader, inside| {
                    items.push(reader.value(inside)?);
                    Ok(())
                })?;
                Value::Array(items)
            }
            MAP => {
                let mut entries = Map::new();
                self.blocks(depth, |reader, inside| {
                    let key = reader.text()?;
                    entries.insert(key, reader.value(inside)?);
                    Ok(())
                })?;
                Value::Object(entries)
            }
            _ => return Err(DecodeError::Malformed("a value has an unknown kind").into()),
        })
    }

    /// Reads the blocks of a list or map. A negative count is followed by the block's size in
    /// bytes, which other readers use to skip it; both must tell the same story.
    fn blocks(
        &mut self,
        depth: usize,
        mut item: impl FnMut(&mut Self, usize) -> Result<(), Stop>,
    ) -> Result<(), Stop> {
        if depth >= MAX_DEPTH {
            return Err(Stop::TooDeep);
        }
        loop {
            let count = self.long()?;
            if count == 0 {
                return Ok(());
            }
            let size = if count < 0 {
                Some(self.length()?)
            } else {
                None
            };
            let before = self.rest.len();
            // Each item takes at least one byte, so a count that lies ends at the end of the input.
            for _ in 0..count.unsigned_abs() {
                item(self, depth + 1)?;
            }
            if size.is_some_and(|size| size != before - self.rest.len()) {
                return Err(DecodeError::Malformed("a block's size and content differ").into());
            }
        }
    }

    fn text(&mut self) -> Result<String, DecodeError> {
        let length = self.length()?;
        let bytes = self.take(length)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => Err(DecodeError::Malformed("a string is not UTF-8")),
        }
    }

    fn length(&mut self) -> Result<usize, DecodeError> {
        let length = self.long()?;
        if length < 0 {
            return Err(DecodeError::Malformed("a length is negative"));
        }
        usize::try_from(length).map_err(|_| DecodeError::Truncated)
    }

    fn long(&mut self) -> Result<i64, DecodeError> {
        let mut raw = 0u64;
        for position in 0..10 {
            let byte = match self.take(1)? {
                [byte] => *byte,
                _ => return Err(DecodeError::Truncated),
            };
            // The tenth byte has room for one bit only.
            if position == 9 && byte > 1 {
                break;
            }
            raw |= u64::from(byte & 0x7f) << (7 * position);
            if byte < 0x80 {
                return Ok((raw >> 1).cast_signed() ^ -(raw & 1).cast_signed());
            }
        }
        Err(DecodeError::Malformed("an integer is longer than 64 bits"))
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], DecodeError> {
        let (taken, rest) = self
            .rest
            .split_at_checked(count)
            .ok_or(DecodeError::Truncated)?;
        self.rest = rest;
        Ok(taken)
    }
}
