//! History text as it is stored: a byte that says how, then the text, plain or compressed.
//!
//! Most of a small batch is what all batches have in common, so it is compressed against a dictionary
//! of that, in LZ4's block format. Half the bytes mean half the write-ahead log and half the disk.

use std::cell::RefCell;

use lz4_flex::block;

/// The text follows as it is.
const PLAIN: u8 = 0;
/// Its length in bytes (32 bits, little endian) and an LZ4 block against [`DICTIONARY`] follow.
const LZ4: u8 = 1;
/// What batches have in common. Never changed, since what was packed against it needs it: another
/// dictionary is another form.
const DICTIONARY: &[u8] = include_bytes!("packed.dictionary");

thread_local! {
    /// Where a block is made before its size is known.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}
/// Bytes of scratch that a thread keeps.
const SCRATCH_KEPT: usize = 1 << 20;

/// Packs a text.
pub fn pack(text: &str) -> Vec<u8> {
    let text = text.as_bytes();
    SCRATCH.with_borrow_mut(|scratch| {
        let most = block::get_maximum_output_size(text.len());
        if scratch.len() < most {
            scratch.resize(most, 0);
        }
        let packed = block::compress_into_with_dict(text, scratch, DICTIONARY)
            .ok()
            .filter(|size| size + 5 < text.len())
            .zip(u32::try_from(text.len()).ok());
        let packed = match packed {
            Some((size, length)) => {
                let mut packed = Vec::with_capacity(5 + size);
                packed.push(LZ4);
                packed.extend_from_slice(&length.to_le_bytes());
                packed.extend_from_slice(&scratch[..size]);
                packed
            }
            None => {
                let mut plain = Vec::with_capacity(1 + text.len());
                plain.push(PLAIN);
                plain.extend_from_slice(text);
                plain
            }
        };
        if scratch.len() > SCRATCH_KEPT {
            *scratch = Vec::new();
        }
        packed
    })
}

/// Why stored bytes are no text; only a damaged database has such.
#[derive(Debug, thiserror::Error)]
pub enum Damaged {
    /// An unknown form.
    #[error("history is stored in an unknown form")]
    Form,
    /// The block does not decompress.
    #[error("history does not decompress: {0}")]
    Block(#[from] block::DecompressError),
    /// The text is not UTF-8.
    #[error("history is no text: {0}")]
    Text(#[from] std::string::FromUtf8Error),
}

impl From<Damaged> for sqlx::Error {
    fn from(damaged: Damaged) -> Self {
        Self::Decode(damaged.into())
    }
}

/// Bytes of the text that was packed; what is damaged has none.
pub fn text_length(packed: &[u8]) -> usize {
    match packed {
        [LZ4, a, b, c, d, ..] => {
            usize::try_from(u32::from_le_bytes([*a, *b, *c, *d])).unwrap_or(usize::MAX)
        }
        [PLAIN, text @ ..] => text.len(),
        _ => 0,
    }
}

/// [`unpack`] without copying what is plain.
///
/// # Errors
/// [`Damaged`].
pub fn unpack_owned(mut packed: Vec<u8>) -> Result<String, Damaged> {
    if packed.first() != Some(&PLAIN) {
        return unpack(&packed);
    }
    packed.remove(0);
    Ok(String::from_utf8(packed)?)
}

/// The text that was packed.
///
/// # Errors
/// [`Damaged`].
pub fn unpack(packed: &[u8]) -> Result<String, Damaged> {
    let bytes = match packed {
        [PLAIN, text @ ..] => text.to_vec(),
        [LZ4, a, b, c, d, block @ ..] => {
            let length = u32::from_le_bytes([*a, *b, *c, *d]);
            let length = usize::try_from(length).map_err(|_| Damaged::Form)?;
            block::decompress_with_dict(block, length, DICTIONARY)?
        }
        _ => return Err(Damaged::Form),
    };
    Ok(String::from_utf8(bytes)?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

    use proptest::prelude::*;
    use sha2::{Digest as _, Sha256};

    use super::*;

    /// Rule: what was stored stays readable.
    #[test]
    fn the_dictionary_never_changes() {
        let digest: String = Sha256::digest(DICTIONARY)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        assert_eq!(
            digest,
            "d627e088ef72857921dbc013e8ed243cd8e21349d29428635018bad7644dd743"
        );
    }

    #[test]
    fn text_that_all_batches_have_takes_little_room() {
        let text = std::str::from_utf8(&DICTIONARY[DICTIONARY.len() - 2_000..]).unwrap();
        assert!(pack(text).len() < 100);
        let noise: String = (0..2_000_u32)
            .map(|n| char::from(b'a' + (n.wrapping_mul(2_654_435_761) >> 27) as u8 % 26))
            .collect();
        assert!(pack(&noise).len() <= noise.len() + 1);
    }

    #[test]
    fn damaged_bytes_are_refused() {
        assert!(unpack(&[]).is_err());
        assert!(unpack(&[7, 1, 2]).is_err());
        assert!(unpack(&[LZ4, 1, 0]).is_err());
        assert!(unpack(&[PLAIN, 0xff]).is_err());
        let mut packed = pack(&"{\"event_type\":".repeat(40));
        assert_eq!(packed[0], LZ4);
        packed.truncate(packed.len() - 3);
        assert!(unpack(&packed).is_err());
    }

    proptest! {
        #[test]
        fn every_text_comes_back(text in any::<String>(), times in 1_usize..60) {
            let text = text.repeat(times);
            let packed = pack(&text);
            prop_assert_eq!(text_length(&packed), text.len());
            prop_assert_eq!(&unpack(&packed).unwrap(), &text);
            prop_assert_eq!(unpack_owned(packed).unwrap(), text);
        }
    }
}
