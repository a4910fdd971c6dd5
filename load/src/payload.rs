//! Values that no compression makes small, in the codec of the protocol.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// What every Avro blob of the protocol begins with: the mark of a single object and the schema's
/// fingerprint.
const FRAME: [u8; 10] = [0xC3, 0x01, 0xE2, 0xA3, 0x3D, 0xFF, 0x55, 0x80, 0x22, 0x37];
/// Branches of the value's union, as written.
const STRING: u8 = 5 << 1;
const LIST: u8 = 6 << 1;
/// Values of which a round draws.
const VARIANTS: usize = 64;
const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// A small generator whose sequence is fixed by its seed.
pub struct Chance(u64);

impl Chance {
    /// A sequence of its own for each seed.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// Text of that many bytes.
    pub fn text(&mut self, bytes: usize) -> String {
        (0..bytes)
            .map(|_| char::from(LETTERS[(self.next() >> 58) as usize]))
            .collect()
    }
}

fn length(mut out: u64, bytes: &mut Vec<u8>) {
    out <<= 1;
    while out >= 0x80 {
        bytes.push((out & 0x7f) as u8 | 0x80);
        out >>= 7;
    }
    bytes.push(out as u8);
}

fn string(text: &str, bytes: &mut Vec<u8>) {
    bytes.push(STRING);
    length(text.len() as u64, bytes);
    bytes.extend_from_slice(text.as_bytes());
}

/// The blob of a text.
pub fn text_blob(text: &str) -> String {
    let mut bytes = FRAME.to_vec();
    string(text, &mut bytes);
    STANDARD.encode(bytes)
}

/// The blob of a list of one text: the arguments of a workflow or an activity.
pub fn list_blob(text: &str) -> String {
    let mut bytes = FRAME.to_vec();
    bytes.push(LIST);
    length(1, &mut bytes);
    string(text, &mut bytes);
    bytes.push(0);
    STANDARD.encode(bytes)
}

/// Blobs of one size; what number `n` sends is always the same.
pub struct Blobs {
    lists: Vec<String>,
}

impl Blobs {
    /// Values of `bytes` bytes each.
    pub fn new(bytes: usize, seed: u64) -> Self {
        let mut chance = Chance::new(seed);
        // A few large ones do as well as many.
        let count = VARIANTS.min((64 << 20) / bytes.max(1)).max(2);
        Self {
            lists: (0..count).map(|_| list_blob(&chance.text(bytes))).collect(),
        }
    }

    /// The list of number `n`.
    pub fn list(&self, n: u64) -> &str {
        &self.lists[(n % self.lists.len() as u64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blobs_are_the_protocols() {
        assert_eq!(text_blob("Hello Ada"), "wwHioz3/VYAiNwoSSGVsbG8gQWRh");
        let list = STANDARD.decode(list_blob("Ada")).unwrap_or_default();
        assert_eq!(list[10..], [0x0C, 0x02, 0x0A, 0x06, b'A', b'd', b'a', 0x00]);
    }

    #[test]
    fn texts_have_their_size_and_differ() {
        let mut chance = Chance::new(7);
        let (one, two) = (chance.text(1_024), chance.text(1_024));
        assert_eq!((one.len(), two.len()), (1_024, 1_024));
        assert_ne!(one, two);
    }
}
