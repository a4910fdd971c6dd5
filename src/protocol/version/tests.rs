//! Negotiation is total, and equal to a second statement of its rule that shares no code with it.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use proptest::prelude::*;

use super::*;

fn advertised(text: &str) -> Advertised {
    text.parse().unwrap()
}

fn refusal(advertising: &str, header: Option<&str>) -> VersionRefusal {
    negotiate(&advertised(advertising), header).unwrap_err()
}

#[test]
fn the_default_accepts_one_zero_to_one_thirteen() {
    let default = Advertised::default();
    assert_eq!(default.to_string(), "1.13");
    for minor in 0..=13 {
        let text = format!("1.{minor}");
        assert_eq!(
            negotiate(&default, Some(&text)),
            Ok(ProtocolVersion::new(1, minor))
        );
    }
    let accepted: Vec<_> = default
        .accepted()
        .map(|version| version.to_string())
        .collect();
    assert_eq!(accepted.len(), 14);
    assert_eq!(accepted.first().map(String::as_str), Some("1.0"));
    assert_eq!(accepted.last().map(String::as_str), Some("1.13"));
}

#[test]
fn minors_compare_as_numbers() {
    assert!(ProtocolVersion::new(1, 9) < ProtocolVersion::new(1, 13));
    assert!(negotiate(&advertised("1.13"), Some("1.9")).is_ok());
    assert!(negotiate(&advertised("1.9"), Some("1.13")).is_err());
    assert_eq!(
        negotiate(&advertised("1.13"), Some(" 01.013\t")),
        Ok(ProtocolVersion::new(1, 13))
    );
}

#[test]
fn no_value_is_a_missing_version() {
    for header in [None, Some(""), Some("  \t ")] {
        let refused = refusal("1.13", header);
        assert_eq!(refused.reason, "missing_protocol_version");
        assert_eq!(refused.requested_version, None);
        assert_eq!(refused.supported_version, "1.13");
        assert!(
            refused
                .remediation
                .contains("X-Durable-Workflow-Protocol-Version: 1.13")
        );
    }
}

#[test]
fn malformed_values_and_other_majors_are_unsupported() {
    let malformed = [
        "1",
        "v1.13",
        "1.13.0",
        "1.x",
        "1.",
        ".13",
        "1,13",
        "+1.13",
        "1.-3",
        "1. 13",
        "１.１３",
        "1.13,1.13",
    ];
    let other_major = [
        "0.13",
        "2.0",
        "99999999999999999999999.1",
        "18446744073709551617.0",
    ];
    for value in malformed.into_iter().chain(other_major) {
        let refused = refusal("1.13", Some(value));
        assert_eq!(refused.reason, "unsupported_protocol_version", "{value}");
        assert_eq!(refused.requested_version.as_deref(), Some(value));
        assert_eq!(refused.supported_version, "1.13");
        assert!(
            !refused.remediation.contains("DW_WORKER_PROTOCOL_VERSION"),
            "{value}"
        );
    }
    assert_eq!(
        refusal("1.13", Some(" 2.0 ")).requested_version.as_deref(),
        Some(" 2.0 ")
    );
}

#[test]
fn a_newer_minor_names_the_setting_that_admits_it() {
    let refused = refusal("1.13", Some("1.20"));
    assert_eq!(refused.reason, "unsupported_protocol_version");
    assert!(
        refused
            .remediation
            .contains("DW_WORKER_PROTOCOL_VERSION=1.20")
    );
    assert!(refused.remediation.contains("--worker-protocol 1.20"));

    for unknown in ["1.21", "1.18446744073709551616"] {
        let refused = refusal("1.20", Some(unknown));
        assert_eq!(refused.requested_version.as_deref(), Some(unknown));
        assert!(!refused.remediation.contains("DW_WORKER_PROTOCOL_VERSION"));
    }
}

#[test]
fn a_refusal_serializes_to_its_wire_fields() {
    let body = serde_json::to_value(refusal("1.13", None)).unwrap();
    let keys: Vec<_> = body.as_object().unwrap().keys().collect();
    assert_eq!(
        keys,
        [
            "error",
            "reason",
            "remediation",
            "requested_version",
            "supported_version"
        ]
    );
    assert!(body["requested_version"].is_null());
}

#[test]
fn only_known_versions_can_be_configured() {
    for (text, shown) in [
        ("1.0", "1.0"),
        ("1.13", "1.13"),
        (" 1.20 ", "1.20"),
        ("1.019", "1.19"),
    ] {
        assert_eq!(advertised(text).to_string(), shown);
    }
    for text in [
        "",
        "1",
        "1.21",
        "2.0",
        "0.9",
        "v1.13",
        "1.13.0",
        "1.99999999999999999999",
    ] {
        let error = text.parse::<Advertised>().unwrap_err();
        assert!(error.to_string().contains("1.0 to 1.20"), "{error}");
        assert!(error.to_string().contains(text), "{error}");
    }
}

/// What the contract says, restated on digit strings: nothing is parsed into a machine number.
fn restated(advertised_minor: u64, header: Option<&str>) -> &'static str {
    let blank = |c: char| " \t\n\r\x0c".contains(c);
    let value = header.unwrap_or("").trim_matches(blank);
    if value.is_empty() {
        return "missing_protocol_version";
    }
    let parts: Vec<&str> = value.split('.').collect();
    let digits = |part: &&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if parts.len() != 2 || !parts.iter().all(digits) {
        return "unsupported_protocol_version";
    }
    let strip = |part: &str| part.trim_start_matches('0').to_owned();
    let (major, minor) = (strip(parts[0]), strip(parts[1]));
    let limit = strip(&advertised_minor.to_string());
    let newer = (minor.len(), &minor) > (limit.len(), &limit);
    if major != "1" || newer {
        return "unsupported_protocol_version";
    }
    "served"
}

proptest! {
    #[test]
    fn negotiation_matches_its_restatement(
        advertised_minor in 0u64..=20,
        header in prop_oneof![
            Just(None),
            any::<String>().prop_map(Some),
            "[ \t]{0,2}[0-9]{0,3}[.]?[0-9]{0,3}[ \t]{0,2}".prop_map(Some),
            "1[.][0-9]{1,2}".prop_map(Some),
            "0{0,3}1[.]0{0,30}[0-9]{1,25}".prop_map(Some),
        ],
    ) {
        let advertised = advertised(&format!("1.{advertised_minor}"));
        let outcome = negotiate(&advertised, header.as_deref());
        let expected = restated(advertised_minor, header.as_deref());
        match outcome {
            Ok(version) => {
                prop_assert_eq!(expected, "served");
                prop_assert!(advertised.accepted().any(|accepted| accepted == version));
            }
            Err(refused) => {
                prop_assert_eq!(expected, refused.reason);
                prop_assert_eq!(refused.supported_version, advertised.to_string());
                let received = header.filter(|_| expected != "missing_protocol_version");
                prop_assert_eq!(refused.requested_version, received);
                prop_assert!(!refused.error.is_empty() && !refused.remediation.is_empty());
            }
        }
    }
}
