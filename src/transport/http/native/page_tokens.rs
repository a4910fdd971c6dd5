//! Tokens of history pages: where the next page of a run begins.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

use crate::domain::ids::RunId;

/// Digits of the mark that ties a token to its run.
const MARK: usize = 16;

/// The token of the page after event `after` of a run whose reader names it: base64 of the number.
pub fn position(after: u64) -> String {
    STANDARD.encode(after.to_string())
}

/// The event after which a page begins.
pub fn read_position(token: &str) -> Option<u64> {
    number(&text(token)?)
}

/// The token of the page after event `after` of the run that a task belongs to: the number, and a mark
/// of run and number. The first page has the same token for every run, which SDKs write themselves.
///
/// The lease is no part of it: each page is asked for under a live lease of the run, and workers that
/// keep a run in memory go on at a token of an earlier task. The mark is no secret either: a token
/// grants nothing, it only must not be mistaken for that of another run.
pub fn of_run(run: RunId, after: u64) -> String {
    if after == 0 {
        return position(0);
    }
    STANDARD.encode(format!("{after}.{}", mark(run, after)))
}

/// The event after which a page of this run begins; nothing for a token of another run.
pub fn read_of_run(run: RunId, token: &str) -> Option<u64> {
    let text = text(token)?;
    let Some((after, marked)) = text.split_once('.') else {
        return number(&text).filter(|after| *after == 0);
    };
    let after = number(after)?;
    (after > 0 && marked == mark(run, after)).then_some(after)
}

fn text(token: &str) -> Option<String> {
    String::from_utf8(STANDARD.decode(token).ok()?).ok()
}

/// One position has one spelling.
fn number(text: &str) -> Option<u64> {
    let number: u64 = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

fn mark(run: RunId, after: u64) -> String {
    let mut mark = format!(
        "{:x}",
        Sha256::digest(format!("history page {run} {after}"))
    );
    mark.truncate(MARK);
    mark
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::time::Timestamp;

    #[test]
    fn a_token_is_read_for_its_own_run_only() {
        let [one, other] = [1, 2].map(|noise| RunId::new(Timestamp::from_micros(1), noise));
        for after in [1, 500, u64::MAX] {
            let token = of_run(one, after);
            assert_eq!(read_of_run(one, &token), Some(after));
            assert_eq!(read_of_run(other, &token), None);
            assert_eq!(read_of_run(one, &position(after)), None);
        }
        assert_eq!(of_run(one, 0), "MA==");
        assert_eq!(read_of_run(other, "MA=="), Some(0));
        assert_eq!(read_position(&position(7)), Some(7));
    }

    #[test]
    fn a_changed_token_is_no_token() {
        let run = RunId::new(Timestamp::from_micros(1), 1);
        let marked = |text: String| read_of_run(run, &STANDARD.encode(text));
        assert_eq!(marked(format!("5.{}", mark(run, 5))), Some(5));
        assert_eq!(marked(format!("6.{}", mark(run, 5))), None);
        assert_eq!(marked(format!("05.{}", mark(run, 5))), None);
        assert_eq!(marked(format!("0.{}", mark(run, 0))), None);
        assert_eq!(marked("5.".to_owned()), None);
        assert_eq!(read_of_run(run, "%"), None);
    }
}
