//! Habits: what a source file looks like, and what does not belong into one.

use super::source::{Source, files, read, root, sources};

/// Lines after which a file is split.
const MAX_LINES: usize = 600;

/// Files that wait to be split. One that has become short enough must leave this list.
const TO_BE_SPLIT: &[&str] = &["src/engine/reports.rs"];

fn code() -> impl Iterator<Item = &'static Source> {
    sources().iter().filter(|source| !source.is_test)
}

#[track_caller]
fn none(wrong: &[String], rule: &str) {
    assert!(wrong.is_empty(), "{rule}: {wrong:#?}");
}

#[test]
fn every_file_says_what_it_owns() {
    let wrong: Vec<String> = code()
        .filter(|source| !source.text.starts_with("//! "))
        .map(|source| source.path.clone())
        .collect();
    none(&wrong, "the first line must be a //! sentence");
}

#[test]
fn files_stay_short() {
    for source in code() {
        let lines = source.text.lines().count();
        let known = TO_BE_SPLIT.contains(&source.path.as_str());
        assert!(
            lines <= MAX_LINES || known,
            "{} has {lines} lines; {MAX_LINES} are allowed",
            source.path
        );
        assert!(
            lines > MAX_LINES || !known,
            "{} is short enough now: take it off the list",
            source.path
        );
    }
}

#[test]
fn only_the_command_line_prints() {
    let mut wrong = Vec::new();
    for source in code() {
        if matches!(source.layer(), Some("cli" | "main")) {
            continue;
        }
        for pattern in [
            "println!",
            "eprintln!",
            "print!",
            "eprint!",
            "dbg!",
            "stdout()",
        ] {
            if source.has(pattern) {
                wrong.push(format!("{}: {pattern}", source.path));
            }
        }
    }
    none(&wrong, "output belongs to cli, everything else logs");
}

#[test]
fn nothing_gives_up_in_mid_request() {
    let mut wrong = Vec::new();
    for source in code() {
        for pattern in [".unwrap()", ".expect(", "panic!", "todo!", "unimplemented!"] {
            if source.has(pattern) {
                wrong.push(format!("{}: {pattern}", source.path));
            }
        }
    }
    none(&wrong, "errors are returned, not raised");
}

#[test]
fn sql_is_in_the_store_and_is_fixed_text() {
    let mut wrong = Vec::new();
    for source in code() {
        let store = source.layer() == Some("store");
        let begins_like_sql = |text: &str| {
            let text = text.trim_start().to_lowercase();
            ["select ", "insert into ", "delete from ", "with "]
                .iter()
                .any(|word| text.starts_with(word) && text.contains(" from "))
                || (text.starts_with("update ") && text.contains(" set "))
                || text.starts_with("insert into ")
        };
        if !store && source.texts().any(begins_like_sql) {
            wrong.push(format!("{}: SQL outside store", source.path));
        }
        if source.has("AssertSqlSafe") {
            wrong.push(format!("{}: SQL made at run time", source.path));
        }
        // The door numbers its own placeholders, once per process and form.
        if source.has("leak(") && source.path != "src/store/door.rs" {
            wrong.push(format!("{}: text made static at run time", source.path));
        }
        let notifies = source
            .texts()
            .any(|text| text.to_lowercase().contains("notify("));
        if notifies && source.path != "src/store/notify.rs" {
            wrong.push(format!("{}: a notification", source.path));
        }
    }
    for name in files().iter().filter(|name| name.ends_with(".sql")) {
        if read(name).to_lowercase().contains("notify") {
            wrong.push(format!("{name}: a notification inside a write"));
        }
    }
    none(
        &wrong,
        "SQL is fixed text of the store, and notifications are never part of a write",
    );
}

#[test]
fn the_repository_names_no_machine() {
    // Put together here, so that this file does not name them either.
    let paths = [["/wo", "rk/"], ["/ho", "me/"], ["/Us", "ers/"]].map(|parts| parts.concat());
    let hosts = [
        ["pypi", ".org"],
        ["crates", ".io"],
        ["npmjs", ".org"],
        ["npmjs", ".com"],
    ]
    .map(|parts| parts.concat());
    let mut wrong = Vec::new();
    for name in files() {
        let Ok(text) = std::fs::read_to_string(root().join(&name)) else {
            continue;
        };
        for (number, line) in text.lines().enumerate() {
            let machine = paths.iter().any(|path| line.contains(path.as_str()));
            let host =
                name != "Cargo.lock" && hosts.iter().any(|host| line.contains(host.as_str()));
            if machine || host {
                wrong.push(format!("{name}:{}: {line}", number + 1));
            }
        }
    }
    none(
        &wrong,
        "paths of one machine and names of registries do not belong here",
    );
}
