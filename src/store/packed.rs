//! History text as it is stored: a byte that says how, then the text, plain or compressed.
//!
//! Most of a small batch is what all batches have in common, so it is compressed against a dictionary
//! of that, in LZ4's block format. Half the bytes mean half the write-ahead log and half the disk. A small
//! journal is compressed with its events: to begin anew costs more than the journal does.

use lz4_flex::block;

use super::scratch;

/// The text follows as it is.
const PLAIN: u8 = 0;
/// Its length in bytes (32 bits, little endian) and an LZ4 block against [`DICTIONARY`] follow.
const LZ4: u8 = 1;
/// The lengths of events and of journal in bytes (32 bits each, little endian) and an LZ4 block of one after
/// the other against [`DICTIONARY`] follow. The column of the journal is empty then.
const LZ4_BOTH: u8 = 2;
/// Bytes of a journal that is stored with its events; a page of history has to unpack it too.
const JOURNAL_WITH_EVENTS: usize = 2 << 10;
/// What batches have in common. Never changed, since what was packed against it needs it: another
/// dictionary is another form.
const DICTIONARY: &[u8] = include_bytes!("packed.dictionary");

/// Packs a batch, written out as events, so many bytes, and journal: what the columns for both hold.
pub fn pack_batch(batch: &[u8], events: usize) -> (Vec<u8>, Vec<u8>) {
    let (events, journal) = batch.split_at(events.min(batch.len()));
    let together = journal.len() <= JOURNAL_WITH_EVENTS;
    let both = together.then(|| compressed(batch, LZ4_BOTH, &[events.len(), journal.len()]));
    match both.flatten() {
        Some(both) => (both, Vec::new()),
        None => (pack(events), pack(journal)),
    }
}

fn pack(text: &[u8]) -> Vec<u8> {
    compressed(text, LZ4, &[text.len()]).unwrap_or_else(|| {
        let mut plain = Vec::with_capacity(1 + text.len());
        plain.push(PLAIN);
        plain.extend_from_slice(text);
        plain
    })
}

/// A form, lengths and the block; nothing when that is no gain.
fn compressed(text: &[u8], form: u8, lengths: &[usize]) -> Option<Vec<u8>> {
    let mut head = Vec::with_capacity(1 + 4 * lengths.len());
    head.push(form);
    for length in lengths {
        head.extend_from_slice(&u32::try_from(*length).ok()?.to_le_bytes());
    }
    scratch::lend(|block| {
        let most = block::get_maximum_output_size(text.len());
        if block.len() < most {
            block.resize(most, 0);
        }
        let size = block::compress_into_with_dict(text, block, DICTIONARY).ok();
        size.filter(|size| size + head.len() < text.len())
            .map(|size| [&head, &block[..size]].concat())
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

fn length(bytes: [u8; 4]) -> usize {
    usize::try_from(u32::from_le_bytes(bytes)).unwrap_or(usize::MAX)
}

/// Bytes of all text that was packed into a column; what is damaged has none.
pub fn text_length(packed: &[u8]) -> usize {
    match packed {
        [LZ4, a, b, c, d, ..] => length([*a, *b, *c, *d]),
        [LZ4_BOTH, a, b, c, d, e, f, g, h, ..] => {
            length([*a, *b, *c, *d]).saturating_add(length([*e, *f, *g, *h]))
        }
        [PLAIN, text @ ..] => text.len(),
        _ => 0,
    }
}

/// The events of a batch, whose journal is not wanted.
///
/// # Errors
/// [`Damaged`].
pub fn unpack_events(events: Vec<u8>) -> Result<String, Damaged> {
    Ok(unpack(events)?.0)
}

/// Events and journal of a batch.
///
/// # Errors
/// [`Damaged`].
pub fn unpack_batch(events: Vec<u8>, journal: Vec<u8>) -> Result<(String, String), Damaged> {
    match unpack(events)? {
        (events, Some(journal)) => Ok((events, journal)),
        (events, None) => Ok((events, unpack(journal)?.0)),
    }
}

/// The text of a column, and the journal that is in it too. Copies nothing that is plain.
fn unpack(mut packed: Vec<u8>) -> Result<(String, Option<String>), Damaged> {
    match packed.as_slice() {
        [PLAIN, ..] => {
            packed.remove(0);
            Ok((String::from_utf8(packed)?, None))
        }
        [LZ4, a, b, c, d, block @ ..] => {
            let length = length([*a, *b, *c, *d]);
            let text = block::decompress_with_dict(block, length, DICTIONARY)?;
            Ok((String::from_utf8(text)?, None))
        }
        [LZ4_BOTH, a, b, c, d, e, f, g, h, block @ ..] => {
            let events = length([*a, *b, *c, *d]);
            let journal = length([*e, *f, *g, *h]);
            let all = events.checked_add(journal).ok_or(Damaged::Form)?;
            let mut text = block::decompress_with_dict(block, all, DICTIONARY)?;
            if events > text.len() {
                return Err(Damaged::Form);
            }
            let journal = text.split_off(events);
            Ok((String::from_utf8(text)?, Some(String::from_utf8(journal)?)))
        }
        _ => Err(Damaged::Form),
    }
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

    fn unpacked(packed: &[u8]) -> Result<String, Damaged> {
        unpack_events(packed.to_vec())
    }

    fn packed(events: &str, journal: &str) -> (Vec<u8>, Vec<u8>) {
        pack_batch([events, journal].concat().as_bytes(), events.len())
    }

    #[test]
    fn text_that_all_batches_have_takes_little_room() {
        let text = std::str::from_utf8(&DICTIONARY[DICTIONARY.len() - 2_000..]).unwrap();
        assert!(pack(text.as_bytes()).len() < 100);
        let noise: String = (0..2_000_u32)
            .map(|n| char::from(b'a' + (n.wrapping_mul(2_654_435_761) >> 27) as u8 % 26))
            .collect();
        assert!(pack(noise.as_bytes()).len() <= noise.len() + 1);
    }

    #[test]
    fn damaged_bytes_are_refused() {
        assert!(unpacked(&[]).is_err());
        assert!(unpacked(&[7, 1, 2]).is_err());
        assert!(unpacked(&[LZ4, 1, 0]).is_err());
        assert!(unpacked(&[PLAIN, 0xff]).is_err());
        let text = "{\"event_type\":".repeat(40);
        let mut cut = pack(text.as_bytes());
        assert_eq!(cut[0], LZ4);
        cut.truncate(cut.len() - 3);
        assert!(unpacked(&cut).is_err());
        let (both, _) = packed(&text, "[]");
        assert_eq!(both[0], LZ4_BOTH);
        assert!(unpacked(&both[..8]).is_err());
        let mut longer = both.clone();
        longer[2] += 1;
        assert!(unpacked(&longer).is_err());
        let (accents, _) = packed(&"é".repeat(200), "[]");
        let mut inside = accents.clone();
        (inside[1], inside[5]) = (inside[1] - 1, inside[5] + 1);
        assert!(unpacked(&inside).is_err());
        assert!(unpacked(&accents).is_ok());
    }

    /// Rule: what was stored before a journal could be stored with its events stays readable.
    #[test]
    fn events_and_journal_that_are_stored_apart_come_back() {
        let events = "{\"event_type\":".repeat(40);
        let apart = unpack_batch(pack(events.as_bytes()), pack(b"[[1,{}]]")).unwrap();
        assert_eq!(apart, (events, "[[1,{}]]".to_owned()));
    }

    proptest! {
        #[test]
        fn every_text_comes_back(text in any::<String>(), times in 1_usize..60) {
            let text = text.repeat(times);
            let packed = pack(text.as_bytes());
            prop_assert_eq!(text_length(&packed), text.len());
            prop_assert_eq!(unpacked(&packed).unwrap(), text);
        }

        #[test]
        fn every_batch_comes_back(
            events in any::<String>(), journal in any::<String>(),
            times in 0_usize..60, entries in 0_usize..200,
        ) {
            let (events, journal) = (events.repeat(times), journal.repeat(entries));
            let (both, beside) = packed(&events, &journal);
            prop_assert_eq!(text_length(&both) + text_length(&beside), events.len() + journal.len());
            prop_assert_eq!(unpack_events(both.clone()).unwrap(), events.clone());
            prop_assert_eq!(unpack_batch(both, beside).unwrap(), (events, journal));
        }
    }
}
