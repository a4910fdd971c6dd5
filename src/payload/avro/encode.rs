//! JSON to a blob: one block per list or map, map keys in byte order, integers never widened.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Number, Value};

use super::{BOOLEAN, DOUBLE, FRAME, LIST, LONG, MAP, MAX_DEPTH, NULL, STRING};

/// Why a JSON value has no encoding.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// An integer does not fit 64 signed bits. It is refused, since a double would change it
    /// silently.
    #[error("the integer {literal} does not fit into 64 signed bits")]
    IntegerOutOfRange {
        /// The number as written, cut after 40 characters.
        literal: String,
    },
    /// A number is infinite or not a number.
    #[error("a number is not finite")]
    NotFinite,
    /// Lists and maps stand inside each other more than [`MAX_DEPTH`] times.
    #[error("the value is nested deeper than {MAX_DEPTH} levels")]
    TooDeep,
    /// The text is not JSON that can be read: syntax, a lone surrogate, a number beyond any double.
    #[error("the value cannot be read as JSON: {detail}")]
    InvalidJson {
        /// What the JSON reader said, without the text it read.
        detail: String,
    },
}

/// Encodes a JSON value as a blob.
///
/// A JSON reader has already turned integers beyond 64 unsigned bits into doubles; where the text
/// is at hand, [`encode_text`] notices them.
///
/// # Errors
///
/// [`EncodeError`] for integers outside 64 signed bits and for values nested too deeply.
pub fn encode(value: &Value) -> Result<String, EncodeError> {
    let mut bytes = FRAME.to_vec();
    write_value(&mut bytes, value, 0)?;
    Ok(STANDARD.encode(bytes))
}

/// Encodes one JSON document, given as text, as a blob.
///
/// # Errors
///
/// As [`encode`], and [`EncodeError::InvalidJson`] for text that cannot be read.
pub fn encode_text(json: &str) -> Result<String, EncodeError> {
    encode(&read_text(json)?)
}

/// Reads a JSON document that is to be encoded, refusing integers that the reader would round.
pub(crate) fn read_text(json: &str) -> Result<Value, EncodeError> {
    let value = serde_json::from_str(json).map_err(|error| EncodeError::InvalidJson {
        detail: error.to_string(),
    })?;
    match oversized_integer(json) {
        None => Ok(value),
        Some(literal) => Err(out_of_range(literal)),
    }
}

pub(super) fn write_value(
    out: &mut Vec<u8>,
    value: &Value,
    depth: usize,
) -> Result<(), EncodeError> {
    match value {
        Value::Null => write_long(out, NULL),
        Value::Bool(flag) => {
            write_long(out, BOOLEAN);
            out.push(u8::from(*flag));
        }
        Value::Number(number) => write_number(out, number)?,
        Value::String(text) => {
            write_long(out, STRING);
            write_text(out, text);
        }
        Value::Array(items) => {
            write_long(out, LIST);
            let inside = one_level_down(depth)?;
            write_block_count(out, items.len());
            for item in items {
                write_value(out, item, inside)?;
            }
            out.push(0);
        }
        Value::Object(entries) => {
            write_long(out, MAP);
            let inside = one_level_down(depth)?;
            write_block_count(out, entries.len());
            // Sorted here and not left to the map type: equal values must give equal bytes, also
            // when some dependency switches the JSON library to insertion order.
            let mut sorted: Vec<_> = entries.iter().collect();
            sorted.sort_unstable_by(|a, b| a.0.cmp(b.0));
            for (key, item) in sorted {
                write_text(out, key);
                write_value(out, item, inside)?;
            }
            out.push(0);
        }
    }
    Ok(())
}

fn write_number(out: &mut Vec<u8>, number: &Number) -> Result<(), EncodeError> {
    if let Some(long) = number.as_i64() {
        write_long(out, LONG);
        write_long(out, long);
        return Ok(());
    }
    if number.is_u64() {
        return Err(out_of_range(&number.to_string()));
    }
    match number.as_f64() {
        Some(double) if double.is_finite() => {
            write_long(out, DOUBLE);
            out.extend_from_slice(&double.to_le_bytes());
            Ok(())
        }
        _ => Err(EncodeError::NotFinite),
    }
}

fn one_level_down(depth: usize) -> Result<usize, EncodeError> {
    if depth < MAX_DEPTH {
        Ok(depth + 1)
    } else {
        Err(EncodeError::TooDeep)
    }
}

/// An empty list or map has no block at all, only the closing zero.
pub(super) fn write_block_count(out: &mut Vec<u8>, count: usize) {
    if count > 0 {
        write_length(out, count);
    }
}

pub(super) fn write_text(out: &mut Vec<u8>, text: &str) {
    write_length(out, text.len());
    out.extend_from_slice(text.as_bytes());
}

fn write_length(out: &mut Vec<u8>, length: usize) {
    // Nothing in memory is longer than isize::MAX, so the conversion cannot lose anything.
    write_long(out, i64::try_from(length).unwrap_or(i64::MAX));
}

/// Zig-zag, then seven bits per byte, lowest first.
pub(super) fn write_long(out: &mut Vec<u8>, value: i64) {
    let mut rest = ((value << 1) ^ (value >> 63)).cast_unsigned();
    while rest >= 0x80 {
        // The mask leaves seven bits, so the cast is exact.
        out.push((rest & 0x7f) as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

fn out_of_range(literal: &str) -> EncodeError {
    EncodeError::IntegerOutOfRange {
        literal: literal.chars().take(40).collect(),
    }
}

/// The first integer literal of a valid JSON text that does not fit 64 signed bits.
fn oversized_integer(json: &str) -> Option<&str> {
    let bytes = json.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'"' => at = after_string(bytes, at),
            b'-' | b'0'..=b'9' => {
                let end = after_number(bytes, at);
                let literal = &json[at..end];
                let integer = !literal.contains(['.', 'e', 'E']);
                if integer && literal.parse::<i64>().is_err() {
                    return Some(literal);
                }
                at = end;
            }
            _ => at += 1,
        }
    }
    None
}

fn after_string(bytes: &[u8], opening: usize) -> usize {
    let mut at = opening + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

fn after_number(bytes: &[u8], start: usize) -> usize {
    let length = bytes[start..]
        .iter()
        .take_while(|byte| matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E'))
        .count();
    start + length
}
