//! Documents that must agree with the code.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use figment::Figment;
use figment::providers::{Format, Toml};
use leasehold::config::Settings;
use leasehold::protocol::feature::Feature;
use leasehold::protocol::reason::Reason;
use serde_json::Value;

use super::source::{Source, Token, files, read, root, sources};

/// Names of the direct dependencies of the program, as the manifest spells them.
pub fn dependencies() -> Vec<String> {
    section(&read("Cargo.toml"), "[dependencies]")
}

fn section(manifest: &str, title: &str) -> Vec<String> {
    manifest
        .lines()
        .skip_while(|line| *line != title)
        .skip(1)
        .take_while(|line| !line.starts_with('['))
        .filter_map(|line| line.split_once('='))
        .map(|(name, _)| name.trim().to_owned())
        .collect()
}

/// The cells of the rows of all tables in a page, without heads and rulers.
fn rows(page: &str) -> Vec<Vec<String>> {
    page.lines()
        .filter(|line| line.starts_with("| `"))
        .map(|line| {
            let line = line.trim_matches('|');
            line.split('|').map(|cell| cell.trim().to_owned()).collect()
        })
        .collect()
}

fn code(cell: &str) -> &str {
    cell.split('`').nth(1).unwrap_or_default()
}

#[test]
fn every_dependency_has_its_line() {
    let manifest = read("Cargo.toml");
    let mut wanted = dependencies();
    wanted.extend(section(&manifest, "[dev-dependencies]"));
    wanted.extend(section(&read("load/Cargo.toml"), "[dependencies]"));
    let page = read("docs/dependencies.md");
    let explained: BTreeSet<String> = rows(&page)
        .iter()
        .map(|row| code(&row[0]).to_owned())
        .collect();
    assert_eq!(wanted.into_iter().collect::<BTreeSet<_>>(), explained);
}

#[test]
fn every_dependency_is_used() {
    let all = sources();
    for name in dependencies() {
        let word = name.replace('-', "_");
        let used = all
            .iter()
            .any(|source| source.tokens.iter().any(|token| token.is(&word)));
        assert!(used, "{name} is not used");
    }
}

/// What the sources say of a reason: whether it is answered, and with which statuses.
fn answered() -> BTreeMap<String, BTreeSet<u16>> {
    let mut found: BTreeMap<String, BTreeSet<u16>> = BTreeMap::new();
    for source in sources() {
        let answers =
            source.layer() == Some("transport") || source.path == "src/protocol/version.rs";
        if source.is_test || !answers {
            continue;
        }
        for feature in gated(source) {
            if let Some(reason) = feature.unavailable() {
                found.entry(format!("{reason:?}")).or_default().insert(409);
            }
        }
        for (at, window) in source.tokens.windows(3).enumerate() {
            let [first, Token::Sep, Token::Word(name)] = window else {
                continue;
            };
            if !first.is("Reason") || !name.starts_with(char::is_uppercase) {
                continue;
            }
            let statuses = found.entry(name.clone()).or_default();
            let before = &source.tokens[at.saturating_sub(4)..at];
            // `StatusCode::CONFLICT, Reason::…`, or a call of `conflict(Reason::…`.
            if let [.., a, Token::Sep, Token::Word(status), Token::Sign(',')] = before
                && a.is("StatusCode")
            {
                statuses.insert(number(status));
            }
            if let [.., call, Token::Sign('(')] = before
                && call.is("conflict")
            {
                statuses.insert(409);
            }
        }
    }
    found
}

/// The features that a gate of completions names, `feature: Feature::…`: each is refused with the
/// reason that the feature knows itself.
fn gated(source: &Source) -> Vec<Feature> {
    let named: BTreeSet<&str> = source
        .tokens
        .windows(5)
        .filter_map(|window| match window {
            [field, Token::Sign(':'), of, Token::Sep, Token::Word(name)]
                if field.is("feature") && of.is("Feature") =>
            {
                Some(name.as_str())
            }
            _ => None,
        })
        .collect();
    Feature::ALL
        .iter()
        .copied()
        .filter(|feature| named.contains(format!("{feature:?}").as_str()))
        .collect()
}

fn number(status: &str) -> u16 {
    match status {
        "BAD_REQUEST" => 400,
        "UNAUTHORIZED" => 401,
        "FORBIDDEN" => 403,
        "NOT_FOUND" => 404,
        "METHOD_NOT_ALLOWED" => 405,
        "CONFLICT" => 409,
        "GONE" => 410,
        "PRECONDITION_FAILED" => 412,
        "PAYLOAD_TOO_LARGE" => 413,
        "UNSUPPORTED_MEDIA_TYPE" => 415,
        "UNPROCESSABLE_ENTITY" => 422,
        "TOO_MANY_REQUESTS" => 429,
        "INTERNAL_SERVER_ERROR" => 500,
        "SERVICE_UNAVAILABLE" => 503,
        "GATEWAY_TIMEOUT" => 504,
        other => panic!("give {other} a number in tests/house/documents.rs"),
    }
}

#[test]
fn every_reason_is_explained() {
    let page = read("docs/errors.md");
    let rows = rows(&page);
    let codes: Vec<&str> = rows.iter().map(|row| code(&row[0])).collect();
    let wanted: Vec<&str> = Reason::ALL.iter().map(|reason| reason.as_str()).collect();
    assert_eq!(
        codes, wanted,
        "one row for each reason, in the order of src/protocol/reason.rs"
    );
    let answered = answered();
    // The engine says itself why a heartbeat must stop.
    let spelled: BTreeSet<&str> = sources()
        .iter()
        .filter(|source| source.layer() == Some("engine"))
        .flat_map(Source::texts)
        .collect();
    for (row, reason) in rows.iter().zip(Reason::ALL) {
        let [_, statuses, meaning, remedy] = &row[..] else {
            panic!("{reason}: a row has code, statuses, meaning and remedy");
        };
        assert!(
            meaning.len() > 10 && remedy.len() > 10,
            "{reason}: say what it means and what to do"
        );
        let said: BTreeSet<u16> = statuses
            .split(|c: char| !c.is_ascii_digit())
            .filter_map(|word| word.parse().ok())
            .collect();
        let later = statuses.contains("not yet");
        match answered.get(&format!("{reason:?}")) {
            Some(statuses) => {
                assert!(!later, "{reason} is answered now");
                let missing: Vec<_> = statuses.difference(&said).collect();
                assert!(
                    missing.is_empty(),
                    "{reason} is answered with {missing:?} as well"
                );
            }
            None if spelled.contains(reason.as_str()) => {
                assert!(!later, "{reason} is answered now")
            }
            None => assert!(
                later,
                "{reason} is not answered by any binding: mark it `not yet`"
            ),
        }
        assert!(later || !said.is_empty(), "{reason}: name its status");
    }
}

/// Every setting with its default, `database.url` → null.
fn settings() -> BTreeMap<String, Value> {
    fn flatten(prefix: &str, value: Value, into: &mut BTreeMap<String, Value>) {
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    let path = if prefix.is_empty() {
                        name
                    } else {
                        format!("{prefix}.{name}")
                    };
                    flatten(&path, value, into);
                }
            }
            value => {
                into.insert(prefix.to_owned(), value);
            }
        }
    }
    let mut all = BTreeMap::new();
    flatten(
        "",
        serde_json::to_value(Settings::default()).expect("settings are JSON"),
        &mut all,
    );
    all
}

#[test]
fn the_example_file_holds_every_setting_with_its_default() {
    let text = read("config/example.toml");
    let parsed = Figment::from(Toml::string(&text));
    for (key, default) in settings() {
        if default.is_null() {
            let name = key.rsplit('.').next().unwrap_or_default();
            assert!(
                text.contains(&format!("# {name} = ")),
                "config/example.toml must show {key}"
            );
            continue;
        }
        let value: Value = parsed
            .extract_inner(&key)
            .unwrap_or_else(|error| panic!("config/example.toml: {error}"));
        assert_eq!(value, default, "config/example.toml: {key}");
    }
    let merged: Result<Settings, _> =
        Figment::from(figment::providers::Serialized::defaults(Settings::default()))
            .merge(Toml::string(&text))
            .extract();
    assert!(
        merged.is_ok(),
        "config/example.toml holds something that is no setting"
    );
}

#[test]
fn the_readme_lists_every_setting() {
    let page = read("README.md");
    let rows = rows(&page);
    let aliases: Vec<(String, String)> = {
        let sources = sources();
        let config = sources
            .iter()
            .find(|source| source.path == "src/config/mod.rs")
            .expect("the settings");
        config
            .tokens
            .windows(4)
            .filter_map(|window| match window {
                [
                    Token::Sign('('),
                    Token::Text(name),
                    Token::Sign(','),
                    Token::Text(key),
                ] => Some((name.clone(), key.clone())),
                _ => None,
            })
            .collect()
    };
    assert!(aliases.len() > 10);
    for (key, default) in settings() {
        let row = rows
            .iter()
            .find(|row| code(&row[0]) == key)
            .unwrap_or_else(|| panic!("README.md has no row for {key}"));
        let shown = match &default {
            Value::Null => "none".to_owned(),
            Value::String(text) if text.is_empty() => "empty".to_owned(),
            Value::String(text) => format!("`{text}`"),
            other => format!("`{other}`"),
        };
        assert!(
            row[2].contains(&shown),
            "README.md: the default of {key} is {shown}"
        );
        for (name, _) in aliases.iter().filter(|(_, aliased)| *aliased == key) {
            assert!(
                row[1].contains(&format!("`{name}`")),
                "README.md: {key} may be set by {name}"
            );
        }
    }
}

#[test]
fn every_metric_is_described_recorded_and_explained() {
    let page = read("docs/operations.md");
    let explained: BTreeSet<String> = rows(&page)
        .iter()
        .map(|row| code(&row[0]).to_owned())
        .filter(|name| name.starts_with("dw_"))
        .collect();
    let (mut described, mut recorded) = (BTreeSet::new(), BTreeSet::new());
    for source in sources() {
        for window in source.tokens.windows(3) {
            let [Token::Sign('!'), Token::Sign('('), Token::Text(name)] = window else {
                continue;
            };
            if !name.starts_with("dw_") {
                continue;
            }
            if source.path == "src/telemetry/metrics.rs" {
                assert!(described.insert(name.clone()), "{name} is described twice");
            } else {
                recorded.insert(name.clone());
            }
        }
    }
    assert!(!described.is_empty());
    assert_eq!(
        described, recorded,
        "what is described and what is recorded"
    );
    assert_eq!(
        described, explained,
        "what is described and what docs/operations.md explains"
    );
}

#[test]
fn links_lead_somewhere() {
    for name in files().iter().filter(|name| name.ends_with(".md")) {
        let folder = Path::new(name).parent().unwrap_or(Path::new(""));
        let text = read(name);
        for link in text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next())
        {
            let target = link.split('#').next().unwrap_or_default();
            if target.is_empty() || target.contains("://") {
                continue;
            }
            assert!(
                root().join(folder).join(target).exists(),
                "{name} links to {target}"
            );
        }
    }
}
