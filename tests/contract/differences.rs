//! What differs between two documents, and the reviewed list of what may.

use std::collections::BTreeMap;
use std::fmt;

/// What a difference means for a client that knows only the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Something more is offered, taken or promised.
    Addition,
    /// A bound where the contract leaves one open: longer or larger values are refused.
    Limit,
    /// A request that the contract allows is not, or an answer is not what it promises.
    Break,
}

impl fmt::Display for Kind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Addition => "addition",
            Self::Limit => "limit",
            Self::Break => "BREAK",
        })
    }
}

/// Differences, by place and words.
#[derive(Debug, Default)]
pub struct Differences(pub BTreeMap<String, Kind>);

impl Differences {
    pub fn add(&mut self, kind: Kind, place: &str, what: impl fmt::Display) {
        self.0.insert(format!("{place}: {what}"), kind);
    }
}

/// The reviewed list: a line for each difference, `kind: difference -- reason`.
pub fn reviewed(text: &str) -> BTreeMap<String, (Kind, String)> {
    text.lines()
        .filter(|line| !line.trim().is_empty() && !line.starts_with('#'))
        .map(|line| {
            let (kind, rest) = match line.split_once(": ") {
                Some(("addition", rest)) => (Kind::Addition, rest),
                Some(("limit", rest)) => (Kind::Limit, rest),
                _ => panic!("neither an addition nor a limit: {line}"),
            };
            let (difference, reason) = rest
                .split_once(" -- ")
                .unwrap_or_else(|| panic!("no reason: {line}"));
            assert!(!reason.trim().is_empty(), "no reason: {line}");
            (
                difference.trim().to_owned(),
                (kind, reason.trim().to_owned()),
            )
        })
        .collect()
}
