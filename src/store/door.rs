//! The door's text: one template, and the forms of it that leave out what a batch does not need.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

/// The door's text with its placeholders named: `{name:text,int}` stands for two array parameters, and
/// lines between `--? part` and `--.` are left out when nothing in a batch needs that part. Tests
/// break it on purpose, and see that it is noticed.
pub const TEMPLATE: &str = include_str!("commit.sql");

/// The door that this server writes through.
pub static DOOR: LazyLock<&'static Door> = LazyLock::new(|| Door::new(TEMPLATE));

macro_rules! parts {
    ($($name:ident = $bit:literal: $word:literal, $doc:literal;)*) => {
        /// Which parts of the door's text a batch needs. Starting fewer plan nodes is a good part of
        /// what a small batch costs.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub struct Parts(u16);

        impl Parts {
            $(#[doc = $doc] pub const $name: Self = Self(1 << $bit);)*
            /// None of them: what every batch needs.
            pub const NONE: Self = Self(0);
            /// Everything.
            pub const ALL: Self = Self(0 $(| 1 << $bit)*);

            fn named(word: &str) -> Option<Self> {
                match word {
                    $($word => Some(Self::$name),)*
                    _ => None,
                }
            }
        }
    };
}

parts! {
    WORKFLOWS = 0: "workflows", "Workflow ids are claimed.";
    REQUESTS = 1: "requests", "Callers' keys are claimed. Comes with [`Self::WORKFLOWS`].";
    CREATED = 2: "created", "Runs begin.";
    CHANGED = 3: "changed", "Runs go on.";
    FAMILY = 4: "family", "Runs begin that no caller started, or tell other runs something.";
    CLOSED = 5: "closed", "Tasks close.";
    OPENED = 6: "opened", "Tasks open.";
    TOUCHED = 7: "touched", "Tasks become ready again, or change while they stay.";
    TIMERS = 8: "timers", "Timers are set or cancelled.";
    FENCED = 9: "fenced", "Something that exists is written: a run, or a task.";
}

impl Parts {
    /// Both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all of `other` is in it.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// `self` if `needed`, nothing otherwise.
    #[must_use]
    pub const fn if_any(self, needed: bool) -> Self {
        if needed { self } else { Self::NONE }
    }
}

/// A template and the forms of it that were needed so far.
#[derive(Debug)]
pub struct Door {
    template: String,
    forms: Mutex<HashMap<Parts, &'static str>>,
}

impl Door {
    /// A door for a template. It stays for as long as the process lives, and so does each of its
    /// forms, of which there are at most as many as sets of parts.
    pub fn new(template: &str) -> &'static Self {
        Box::leak(Box::new(Self {
            template: template.to_owned(),
            forms: Mutex::default(),
        }))
    }

    /// The text with these parts.
    pub fn form(&self, parts: Parts) -> &'static str {
        let mut forms = self.forms.lock().unwrap_or_else(PoisonError::into_inner);
        forms.entry(parts).or_insert_with(|| {
            Box::leak(number_parameters(&select(&self.template, parts)).into_boxed_str())
        })
    }
}

/// The lines of a template that are in no part, or in one of `parts`.
fn select(template: &str, parts: Parts) -> String {
    let mut text = String::with_capacity(template.len());
    let mut kept = true;
    for line in template.lines() {
        if let Some(word) = line.strip_prefix("--? ") {
            kept = Parts::named(word).is_some_and(|part| parts.has(part));
        } else if line == "--." {
            kept = true;
        } else if kept && !line.starts_with("--") {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

fn number_parameters(template: &str) -> String {
    let mut statement = String::with_capacity(template.len() + 1024);
    let mut next = 1;
    let mut rest = template;
    while let Some(open) = rest.find('{') {
        let Some(close) = rest[open..].find('}') else {
            break;
        };
        statement.push_str(&rest[..open]);
        let types = rest[open + 1..open + close]
            .split_once(':')
            .map_or("", |(_, types)| types);
        let parameters: Vec<String> = types
            .split(',')
            .map(|kind| {
                let parameter = format!("${next}::{kind}[]");
                next += 1;
                parameter
            })
            .collect();
        statement.push_str(&parameters.join(", "));
        rest = &rest[open + close + 1..];
    }
    statement.push_str(rest);
    statement
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(text: &str) -> usize {
        (1..)
            .take_while(|n| text.contains(&format!("${n}::")))
            .count()
    }

    #[test]
    fn every_placeholder_has_a_column() {
        let text = DOOR.form(Parts::ALL);
        assert!(!text.contains('{'), "a placeholder was left");
        assert_eq!(parameters(text), 116, "parameters in the statement");
    }

    #[test]
    fn a_form_has_no_more_than_it_needs() {
        let begun = TEMPLATE
            .lines()
            .filter_map(|line| line.strip_prefix("--? "));
        for word in begun {
            assert!(Parts::named(word).is_some(), "no part is named {word}");
        }
        let least = DOOR.form(Parts::default());
        assert!(!least.contains("insert into tasks") && !least.contains("wi as"));
        assert!(least.contains("insert into history_batches"));
        let start = DOOR.form(Parts::WORKFLOWS.and(Parts::CREATED).and(Parts::OPENED));
        assert!(!start.contains("for update") && !start.contains("for no key update"));
        assert!(start.contains("insert into tasks") && !start.contains("update tasks"));
        assert!(parameters(least) < parameters(start));
        assert!(parameters(start) < 80);
        assert_eq!(
            start,
            DOOR.form(Parts::WORKFLOWS.and(Parts::CREATED).and(Parts::OPENED))
        );
    }
}
