//! Envelope recognition: every accepted form, every refusal, and agreement of both readers.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use proptest::prelude::*;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::avro::{EncodeError, NotShowable, Shown};
use super::{Codec, Payload, PayloadError};

fn raw(json: &str) -> Box<RawValue> {
    RawValue::from_string(json.to_owned()).unwrap()
}

fn strict(json: &str) -> Result<Payload, PayloadError> {
    let text = raw(json);
    let from_text = Payload::from_wire_raw(&text, Codec::Avro);
    if let Ok(value) = serde_json::from_str::<Value>(json) {
        assert_eq!(Payload::from_wire(&value, Codec::Avro), from_text, "{json}");
    }
    from_text
}

fn lenient(json: &str) -> Result<Payload, PayloadError> {
    let text = raw(json);
    let from_text = Payload::from_json_or_envelope_raw(&text);
    if let Ok(value) = serde_json::from_str::<Value>(json) {
        assert_eq!(Payload::from_json_or_envelope(&value), from_text, "{json}");
    }
    from_text
}

fn avro(blob: &str) -> Payload {
    Payload::new(Codec::Avro, blob)
}

#[test]
fn envelope_round_trips_with_exactly_two_keys_in_order() {
    let text = r#"{"codec":"avro","blob":"wwHioz3/VYAiNwA="}"#;
    let payload: Payload = serde_json::from_str(text).unwrap();
    assert_eq!(payload, Payload::null());
    assert_eq!(serde_json::to_string(&payload).unwrap(), text);
    assert!(serde_json::from_str::<Payload>(r#"{"codec":"avro","blob":"x","more":1}"#).is_err());
}

#[test]
fn encoded_fields_accept_text_and_envelope_in_any_layout() {
    assert_eq!(strict(r#""abc""#), Ok(avro("abc")));
    assert_eq!(strict(r#"  "abc""#.trim()), Ok(avro("abc")));
    assert_eq!(strict(r#""a\/bc""#), Ok(avro("a/bc")));
    assert_eq!(strict(r#"{"codec":"avro","blob":"abc"}"#), Ok(avro("abc")));
    assert_eq!(
        strict(r#"{ "blob" : "a\/bc", "codec" : "AVRO" }"#),
        Ok(avro("a/bc"))
    );
    // The server never looks into a blob it only carries.
    assert_eq!(
        strict(r#"{"codec":"Avro","blob":"not base64 at all"}"#),
        Ok(avro("not base64 at all"))
    );
    assert_eq!(
        strict(r#"{"codec":"avro","blob":"a","blob":"b"}"#),
        Ok(avro("b"))
    );
}

#[test]
fn encoded_fields_refuse_plain_data() {
    for json in [
        "null",
        "true",
        "1",
        "1.5",
        "[]",
        r#"["abc"]"#,
        "{}",
        r#"{"blob":"abc"}"#,
        r#"{"codec":"avro"}"#,
        r#"{"codec":"avro","blob":"abc","note":1}"#,
        r#"{"codec":"avro","blob":"abc","external_storage":{}}"#,
        r#"{"codec":"avro","external_storage":{},"external_payload":{}}"#,
        r#"{"codec":"avro","other":1}"#,
        r#"{"a":1,"b":2}"#,
    ] {
        assert_eq!(strict(json), Err(PayloadError::NotAnEnvelope), "{json}");
    }
}

#[test]
fn unknown_codecs_and_references_are_told_apart() {
    let unknown = strict(r#"{"codec":"json","blob":"abc"}"#).unwrap_err();
    assert_eq!(
        unknown,
        PayloadError::UnsupportedCodec {
            name: "json".into()
        }
    );
    assert_eq!(unknown.path(), ".codec");
    assert!(unknown.to_string().contains("unsupported_payload_codec"));

    for key in ["external_storage", "external_payload"] {
        let refused = strict(&format!(
            r#"{{"codec":"avro","{key}":{{"reference_id":"ep_1"}}}}"#
        ))
        .unwrap_err();
        assert!(matches!(refused, PayloadError::ExternalReference { key: found } if found == key));
        assert_eq!(refused.path(), format!(".{key}"));
    }

    let long = format!(r#"{{"codec":"{}","blob":""}}"#, "x".repeat(500));
    assert_eq!(
        strict(&long),
        Err(PayloadError::UnsupportedCodec {
            name: "x".repeat(64)
        })
    );
}

#[test]
fn text_that_cannot_be_stored_is_refused() {
    let cases = [
        (r#"{"codec":1,"blob":"abc"}"#, ".codec"),
        (r#"{"codec":"avro","blob":null}"#, ".blob"),
        (r#"{"codec":"avro","blob":["abc"]}"#, ".blob"),
        (r#"{"codec":"avro","blob":"a\u0000b"}"#, ".blob"),
        (r#"{"codec":"avro","blob":"\ud800"}"#, ".blob"),
        (r#""a\u0000b""#, ""),
        (r#""\ud800""#, ""),
    ];
    for (json, path) in cases {
        let error = strict(json).unwrap_err();
        assert!(
            matches!(error, PayloadError::UnusableText { .. }),
            "{json}: {error}"
        );
        assert_eq!(error.path(), path, "{json}");
    }
}

#[test]
fn fields_for_plain_json_encode_what_is_not_an_envelope() {
    assert_eq!(lenient(r#"{"codec":"avro","blob":"abc"}"#), Ok(avro("abc")));
    assert_eq!(lenient("null"), Ok(Payload::null()));
    assert_eq!(lenient("[]"), Ok(Payload::empty_list()));
    assert_eq!(lenient("7"), Ok(avro("wwHioz3/VYAiNwQO")));
    for json in [
        r#""abc""#,
        r#"{"codec":"avro","blob":"abc","note":1}"#,
        r#"{"codec":"avro"}"#,
    ] {
        let value: Value = serde_json::from_str(json).unwrap();
        assert_eq!(lenient(json).unwrap().shown(1024), Some(value));
    }
    assert!(matches!(
        lenient(r#"{"codec":"php","blob":"abc"}"#),
        Err(PayloadError::UnsupportedCodec { .. })
    ));
    assert!(matches!(
        lenient(r#"{"codec":"avro","external_payload":{}}"#),
        Err(PayloadError::ExternalReference { .. })
    ));
    assert!(matches!(
        lenient(r#"["\ud800"]"#),
        Err(PayloadError::Unencodable(EncodeError::InvalidJson { .. }))
    ));
    assert!(matches!(
        lenient(r#""\ud800""#),
        Err(PayloadError::Unencodable(EncodeError::InvalidJson { .. }))
    ));
}

#[test]
fn only_raw_text_shows_integers_that_a_json_reader_rounds() {
    let text = raw(r#"{"note": "99999999999999999999", "n": [1, 99999999999999999999]}"#);
    let refused = Payload::from_json_or_envelope_raw(&text);
    assert_eq!(
        refused,
        Err(PayloadError::Unencodable(EncodeError::IntegerOutOfRange {
            literal: "99999999999999999999".into()
        }))
    );
    // As a double it is what the caller wrote.
    assert!(Payload::from_json_or_envelope_raw(&raw("99999999999999999999.0")).is_ok());
}

#[test]
fn arguments_become_a_list() {
    let cases = [
        ("null", json!([])),
        ("[]", json!([])),
        (r#"[1,"a"]"#, json!([1, "a"])),
        (r#"{"a":1}"#, json!([{"a": 1}])),
        (r#""a""#, json!(["a"])),
    ];
    for (given, list) in cases {
        let payload = Payload::arguments_raw(&raw(given)).unwrap();
        assert_eq!(payload.shown(1024), Some(list), "{given}");
    }
    let envelope = Payload::arguments_raw(&raw(r#"{"codec":"avro","blob":"abc"}"#));
    assert_eq!(envelope, Ok(avro("abc")));
}

#[test]
fn a_payload_shows_its_value_only_where_json_can() {
    // [b"\x00"]
    let bytes = avro("wwHioz3/VYAiNwwCCAIAAA==");
    assert_eq!(
        bytes.decode(100),
        Ok(Shown::NotShowable(NotShowable::Bytes))
    );
    assert_eq!(bytes.shown(100), None);
    assert_eq!(avro("???").shown(100), None);
    assert_eq!(Payload::null().shown(100), Some(Value::Null));
}

#[test]
fn debug_output_hides_user_data() {
    assert_eq!(format!("{:?}", avro("secret")), "Payload(avro, 6 bytes)");
}

proptest! {
    #[test]
    fn both_readers_agree_on_any_text(json in r#"[{}\[\]":, a-z0-9\\]{0,24}"#) {
        if let Ok(text) = RawValue::from_string(json.clone()) {
            let from_text = Payload::from_wire_raw(&text, Codec::Avro);
            match serde_json::from_str::<Value>(&json) {
                Ok(value) => prop_assert_eq!(Payload::from_wire(&value, Codec::Avro), from_text),
                Err(_) => prop_assert!(from_text.is_err()),
            }
        }
    }

    #[test]
    fn any_blob_without_nul_is_carried_unchanged(blob in "[^\0]{0,40}") {
        let json = serde_json::to_string(&json!({"codec": "avro", "blob": blob})).unwrap();
        let payload = Payload::from_wire_raw(&raw(&json), Codec::Avro).unwrap();
        prop_assert_eq!(payload.blob(), blob.as_str());
    }
}

proptest! {
    /// Rule: an envelope that is kept as it came is the one that would have been made of it.
    #[test]
    fn an_envelope_in_our_own_form_is_kept_as_it_is(blob in prop_oneof!["[A-Za-z0-9+/=]{0,80}", "[^\0]{0,40}"]) {
        let made = Payload::new(Codec::Avro, &blob);
        let json = serde_json::to_string(&made).unwrap();
        for read in [Payload::from_wire_raw(&raw(&json), Codec::Avro), Payload::arguments_raw(&raw(&json))] {
            let read = read.unwrap();
            prop_assert_eq!(read.blob(), made.blob());
            prop_assert_eq!(&read, &made);
            prop_assert!(read.held_bytes() <= made.held_bytes());
            prop_assert_eq!(serde_json::to_string(&read).unwrap(), json.as_str());
        }
    }
}

#[test]
fn blobs_of_every_kind_are_written_as_they_are() {
    for blob in [
        "",
        "AAEC+/==",
        "a\"b",
        "a\\u0041",
        "a\\",
        "tab\tand\u{1}",
        "wide ä \u{10ffff}",
        "a-b_c",
    ] {
        let payload = Payload::new(Codec::Avro, blob);
        assert_eq!(payload.blob(), blob);
        let expected = serde_json::json!({"codec": "avro", "blob": blob});
        let text = serde_json::to_string(&payload).unwrap_or_default();
        let ordered = text.starts_with(r#"{"codec":"avro","blob":""#);
        assert!(ordered, "{text}");
        assert_eq!(
            serde_json::from_str::<Value>(&text).ok(),
            Some(expected.clone())
        );
        assert_eq!(
            serde_json::from_str::<Payload>(&text).ok(),
            Some(payload.clone())
        );
        assert_eq!(serde_json::to_value(&payload).ok(), Some(expected));
    }
}
