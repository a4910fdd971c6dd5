//! The one value codec of the platform, for the few places where the server itself makes or shows
//! a payload: plain JSON results and inputs, empty argument lists, JSON views of stored values.
//!
//! Everywhere else blobs stay opaque and are handed on byte for byte. What is refused here can
//! therefore still travel through the server unharmed; it only cannot be shown.

mod decode;
mod encode;
mod entries;
#[cfg(test)]
mod tests;

use serde_json::Value;

pub use decode::{DecodeError, decode};
pub(crate) use encode::read_text;
pub use encode::{EncodeError, encode, encode_text};
pub use entries::{Entries, EntriesError};

/// What stands in front of every datum: the single-object marker and the fingerprint of the fixed
/// `durable_workflow.protocol.Value` schema (payload envelope, Avro value encoding).
pub const FRAME: [u8; 10] = [0xC3, 0x01, 0xE2, 0xA3, 0x3D, 0xFF, 0x55, 0x80, 0x22, 0x37];

/// The blob of `null`: what a finished step without a result carries.
pub const NULL_BLOB: &str = "wwHioz3/VYAiNwA=";

/// The blob of `[]`: what a call without arguments carries.
pub const EMPTY_LIST_BLOB: &str = "wwHioz3/VYAiNwwA";

/// Lists and maps that may stand inside each other, in both directions.
///
/// Readers of our answers commonly stop at 128 levels and fail the whole document there; the gap
/// leaves room for the answer that is wrapped around a shown value.
pub const MAX_DEPTH: usize = 100;

/// A readable blob, as far as JSON can show it.
#[derive(Clone, Debug, PartialEq)]
pub enum Shown {
    /// The value.
    Json(Value),
    /// The blob is no error, but there is no JSON view of it; the envelope alone speaks for it.
    NotShowable(NotShowable),
}

/// Why a blob has no JSON view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotShowable {
    /// Raw bytes occur in it, and JSON has no form for them.
    Bytes,
    /// It is larger than the caller wanted to look at; the rest of it was not read.
    TooLarge,
    /// It is nested deeper than [`MAX_DEPTH`]; the rest of it was not read.
    TooDeep,
}

// Union branches of the schema, as the index that precedes each value.
const NULL: i64 = 0;
const BOOLEAN: i64 = 1;
const LONG: i64 = 2;
const DOUBLE: i64 = 3;
const BYTES: i64 = 4;
const STRING: i64 = 5;
const LIST: i64 = 6;
const MAP: i64 = 7;
