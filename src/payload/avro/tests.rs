//! The value codec against the vectors both SDK families document, and against hostile bytes.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use proptest::prelude::*;
use serde_json::{Map, Number, Value, json};

use super::*;

const LIMIT: usize = 1 << 20;

fn blob_of(datum: &[u8]) -> String {
    let mut bytes = FRAME.to_vec();
    bytes.extend_from_slice(datum);
    STANDARD.encode(bytes)
}

fn shown(datum: &[u8]) -> Result<Shown, DecodeError> {
    decode(&blob_of(datum), LIMIT)
}

fn shows(datum: &[u8], value: Value) {
    assert_eq!(shown(datum), Ok(Shown::Json(value)), "{datum:?}");
}

#[test]
fn documented_values_have_the_documented_blobs() {
    let vectors = [
        (json!(null), NULL_BLOB),
        (json!(true), "wwHioz3/VYAiNwIB"),
        (json!(7), "wwHioz3/VYAiNwQO"),
        (json!(7.0), "wwHioz3/VYAiNwYAAAAAAAAcQA=="),
        (json!([]), EMPTY_LIST_BLOB),
    ];
    for (value, blob) in vectors {
        assert_eq!(encode(&value), Ok(blob.to_owned()));
        assert_eq!(decode(blob, LIMIT), Ok(Shown::Json(value)));
    }
}

#[test]
fn the_documented_argument_list_reads_except_for_its_bytes() {
    // ["Ada", 42, None, True, 1.5, b"\x00\xff", {"k": []}]
    let documented = "wwHioz3/VYAiNwwOCgZBZGEEVAACAQYAAAAAAAD4PwgEAP8OAgJrDAAAAA==";
    assert_eq!(
        decode(documented, LIMIT),
        Ok(Shown::NotShowable(NotShowable::Bytes))
    );

    // The same datum without the bytes member, spelled out byte by byte.
    let mut datum = vec![0x0C, 0x0C];
    datum.extend([0x0A, 0x06, b'A', b'd', b'a']);
    datum.extend([0x04, 0x54]);
    datum.push(0x00);
    datum.extend([0x02, 0x01]);
    datum.extend([0x06, 0, 0, 0, 0, 0, 0, 0xF8, 0x3F]);
    datum.extend([0x0E, 0x02, 0x02, b'k', 0x0C, 0x00, 0x00]);
    datum.push(0x00);
    let value = json!(["Ada", 42, null, true, 1.5, {"k": []}]);
    assert_eq!(encode(&value), Ok(blob_of(&datum)));
    shows(&datum, value);
}

#[test]
fn numbers_keep_their_kind_and_their_range() {
    for (text, value) in [("1", json!(1)), ("1.0", json!(1.0)), ("-0.0", json!(-0.0))] {
        let blob = encode_text(text).unwrap();
        assert_eq!(blob, encode(&value).unwrap());
        let Ok(Shown::Json(back)) = decode(&blob, LIMIT) else {
            unreachable!("a number is always shown")
        };
        assert_eq!(back.is_f64(), value.is_f64());
        assert_eq!(back, value);
    }
    for edge in [i64::MIN, i64::MAX] {
        let blob = encode(&json!(edge)).unwrap();
        assert_eq!(decode(&blob, LIMIT), Ok(Shown::Json(json!(edge))));
    }

    let beyond = |literal: &str| {
        Err(EncodeError::IntegerOutOfRange {
            literal: literal.to_owned(),
        })
    };
    assert_eq!(
        encode(&json!(i64::MAX as u64 + 1)),
        beyond("9223372036854775808")
    );
    assert_eq!(
        encode(&json!([{"a": u64::MAX}])),
        beyond("18446744073709551615")
    );
    assert_eq!(
        encode_text("9223372036854775808"),
        beyond("9223372036854775808")
    );
    assert_eq!(
        encode_text("-9223372036854775809"),
        beyond("-9223372036854775809")
    );
    assert_eq!(
        encode_text("[18446744073709551616]"),
        beyond("18446744073709551616")
    );
    assert_eq!(
        encode_text(&"9".repeat(200)),
        beyond(&"9".repeat(40)),
        "a long literal is cut"
    );
    assert!(encode_text(r#"{"9999999999999999999999": "\"9999999999999999999999"}"#).is_ok());
    assert!(encode_text("1e25").is_ok());
    assert!(matches!(
        encode_text("1e999"),
        Err(EncodeError::InvalidJson { .. })
    ));
    assert!(matches!(
        encode_text("[1,"),
        Err(EncodeError::InvalidJson { .. })
    ));
}

#[test]
fn equal_maps_have_equal_bytes() {
    let one = encode_text(r#"{"b":1,"a":{"z":1,"é":2,"y":3}}"#).unwrap();
    let other = encode_text(r#"{"a":{"é":2,"y":3,"z":1},"b":1}"#).unwrap();
    assert_eq!(one, other);
    let bytes = STANDARD.decode(one).unwrap();
    // map, one block of two, key "a" first
    assert_eq!(&bytes[10..14], &[0x0E, 0x04, 0x02, b'a']);
}

#[test]
fn foreign_writers_may_use_several_blocks_sizes_and_long_integers() {
    // [1] then [2], as two blocks.
    shows(
        &[0x0C, 0x02, 0x04, 0x02, 0x02, 0x04, 0x04, 0x00],
        json!([1, 2]),
    );
    // A block of -2 items in 4 bytes.
    shows(
        &[0x0C, 0x03, 0x08, 0x04, 0x02, 0x04, 0x04, 0x00],
        json!([1, 2]),
    );
    shows(
        &[0x0E, 0x01, 0x08, 0x02, b'k', 0x04, 0x02, 0x00],
        json!({"k": 1}),
    );
    // A later entry of the same key wins, as in every SDK.
    let repeated = [
        0x0E, 0x04, 0x02, b'k', 0x04, 0x02, 0x02, b'k', 0x04, 0x04, 0x00,
    ];
    shows(&repeated, json!({"k": 2}));
    // 1 in two bytes instead of one.
    shows(&[0x04, 0x82, 0x00], json!(1));
}

#[test]
fn malformed_blobs_are_named_for_what_they_are() {
    let malformed = |result: Result<Shown, DecodeError>| {
        assert!(
            matches!(result, Err(DecodeError::Malformed(_))),
            "{result:?}"
        );
    };
    for text in [
        "!",
        "wwHioz3/VYAiNwA",
        "wwHioz3/VYAiNwA==",
        " wwHioz3/VYAiNwA=",
        "wwHioz3_VYAiNwA=",
    ] {
        assert_eq!(decode(text, LIMIT), Err(DecodeError::NotBase64), "{text}");
    }
    // Set bits behind the last byte.
    assert_eq!(
        decode("wwHioz3/VYAiNwB=", LIMIT),
        Err(DecodeError::NotBase64)
    );
    assert_eq!(decode("", LIMIT), Err(DecodeError::NotFramed));
    assert_eq!(
        decode(&STANDARD.encode("[1,2]"), LIMIT),
        Err(DecodeError::NotFramed)
    );
    assert_eq!(
        decode(&STANDARD.encode([0xC3, 0x01, 0xE2]), LIMIT),
        Err(DecodeError::Truncated)
    );
    let mut other_schema = FRAME.to_vec();
    other_schema[9] ^= 1;
    other_schema.push(0);
    assert_eq!(
        decode(&STANDARD.encode(other_schema), LIMIT),
        Err(DecodeError::UnknownSchema)
    );

    assert_eq!(shown(&[]), Err(DecodeError::Truncated));
    assert_eq!(shown(&[0x0A, 0x06, b'A']), Err(DecodeError::Truncated));
    assert_eq!(shown(&[0x0C, 0x02, 0x00]), Err(DecodeError::Truncated));
    assert_eq!(shown(&[0x06, 0, 0]), Err(DecodeError::Truncated));
    assert_eq!(shown(&[0x00, 0x00]), Err(DecodeError::TrailingBytes));
    for double in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let mut datum = vec![0x06];
        datum.extend(double.to_le_bytes());
        assert_eq!(shown(&datum), Err(DecodeError::NotFinite));
    }
    malformed(shown(&[0x10]));
    malformed(shown(&[0x01]));
    malformed(shown(&[0x02, 0x02]));
    malformed(shown(&[0x0A, 0x01]));
    malformed(shown(&[0x0A, 0x02, 0xFF]));
    malformed(shown(&[0x0C, 0x01, 0x04, 0x00, 0x00]));
    malformed(shown(&[0x0C, 0x01, 0x01, 0x00, 0x00]));
    malformed(shown(&[
        0x04, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x02,
    ]));
    malformed(shown(&[0xFF; 16]));
    // Raw bytes do not excuse what follows them.
    assert_eq!(
        shown(&[0x0C, 0x04, 0x08, 0x02, 0x00]),
        Err(DecodeError::Truncated)
    );
}

#[test]
fn counts_that_lie_end_with_the_input() {
    // i64::MAX and i64::MIN items.
    let most = [0xFE, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x01];
    let least = [0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x01];
    for kind in [0x0C, 0x0E, 0x0A, 0x08] {
        for count in [most, least] {
            let mut datum = vec![kind];
            datum.extend(count);
            assert!(shown(&datum).is_err());
            datum.extend([0x02, 0x00, 0x00]);
            assert!(shown(&datum).is_err());
        }
    }
}

#[test]
fn nesting_is_bounded_both_ways() {
    let nested = |depth: usize| (0..depth).fold(json!(1), |inner, _| json!([inner]));
    let deepest = nested(MAX_DEPTH);
    let blob = encode(&deepest).unwrap();
    assert_eq!(decode(&blob, LIMIT), Ok(Shown::Json(deepest)));
    assert_eq!(encode(&nested(MAX_DEPTH + 1)), Err(EncodeError::TooDeep));

    let mut datum = [0x0C, 0x02].repeat(100_000);
    assert_eq!(shown(&datum), Ok(Shown::NotShowable(NotShowable::TooDeep)));
    datum = [0x0E, 0x02, 0x00].repeat(100_000);
    assert_eq!(shown(&datum), Ok(Shown::NotShowable(NotShowable::TooDeep)));
}

#[test]
fn size_is_measured_before_anything_is_read() {
    let blob = encode(&json!("x".repeat(100))).unwrap();
    let bytes = STANDARD.decode(&blob).unwrap().len();
    assert!(matches!(decode(&blob, bytes), Ok(Shown::Json(_))));
    for limit in [0, 10, bytes - 1] {
        assert_eq!(
            decode(&blob, limit),
            Ok(Shown::NotShowable(NotShowable::TooLarge))
        );
    }
    assert_eq!(
        decode(&"A".repeat(5_000), 1_000),
        Ok(Shown::NotShowable(NotShowable::TooLarge))
    );
}

fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_filter_map("finite", |double| {
            Number::from_f64(double).map(Value::Number)
        }),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 64, 8, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..8).prop_map(Value::Array),
            prop::collection::vec((any::<String>(), inner), 0..8)
                .prop_map(|entries| Value::Object(Map::from_iter(entries))),
        ]
    })
}

proptest! {
    #[test]
    fn json_round_trips(value in json_value()) {
        let blob = encode(&value).unwrap();
        prop_assert_eq!(decode(&blob, LIMIT), Ok(Shown::Json(value.clone())));
        // The text goes through the JSON reader, which decides how exactly it reads a double.
        let text = value.to_string();
        let read: Value = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(encode_text(&text), encode(&read));
    }

    #[test]
    fn any_text_is_answered_without_panic(text in any::<String>(), limit in 0usize..64) {
        let _ = decode(&text, limit);
        let _ = decode(&text, LIMIT);
    }

    #[test]
    fn any_bytes_behind_the_frame_are_answered_without_panic(datum in any::<Vec<u8>>()) {
        let _ = shown(&datum);
    }

    /// Small numbers make valid prefixes likely, so that the interesting branches are reached.
    #[test]
    fn nearly_valid_bytes_are_answered_without_panic(
        datum in prop::collection::vec(prop_oneof![0u8..=0x10, any::<u8>()], 0..64)
    ) {
        let _ = shown(&datum);
    }

    #[test]
    fn a_cut_or_lengthened_blob_never_reads(value in json_value(), cut in any::<prop::sample::Index>()) {
        let bytes = STANDARD.decode(encode(&value).unwrap()).unwrap();
        let shorter = &bytes[..cut.index(bytes.len())];
        prop_assert!(decode(&STANDARD.encode(shorter), LIMIT).is_err());
        let mut longer = bytes.clone();
        longer.push(0);
        prop_assert_eq!(decode(&STANDARD.encode(longer), LIMIT), Err(DecodeError::TrailingBytes));
    }
}
