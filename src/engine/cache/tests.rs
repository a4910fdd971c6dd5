//! Tests of the memory of runs: what it keeps, forgets and counts.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use super::*;
use crate::domain::run::tests::kit::start_request;
use crate::domain::run::{Close, CloseReason, Settings, StartRequest, start};
use crate::domain::time::Timestamp;
use crate::payload::{Codec, Payload};

const MIB: usize = 1 << 20;

/// A write that begins run number `n` with an input of so many bytes.
fn begun(n: usize, bytes: usize) -> RunWrite {
    let at = Timestamp::from_micros(1);
    let run = RunId::new(at, n as u128);
    let request = StartRequest {
        workflow_id: format!("wf-{n}").as_str().into(),
        input: Payload::new(Codec::Avro, &"x".repeat(bytes)),
        ..start_request()
    };
    let mut write = start(run, request, at, &Settings::default()).write;
    write.seal(&mut Vec::new()).unwrap();
    let_go_of_text(&mut write);
    write
}

/// A write that ends the run after this one.
fn closed(begun: &RunWrite) -> RunWrite {
    let mut closed = begun.clone();
    let state = Arc::make_mut(&mut closed.next);
    state.version += 1;
    state.close = Some(Arc::new(Close {
        reason: CloseReason::Completed,
        at: Timestamp::from_micros(2),
        event: 2,
        output: None,
        failure: None,
        detail: None,
        continued_to: None,
        under_lease: None,
    }));
    closed.base = begun.next.version;
    closed.events.clear();
    closed
}

/// Rule: large runs have a bound of their own, and leave small ones alone.
#[test]
fn large_runs_are_forgotten_first() {
    let cache = Cache::default();
    let small = begun(0, 10);
    cache.written(&small, None);
    for n in 1..=160 {
        cache.written(&begun(n, MIB), None);
        let large = cache.large.load(Ordering::Relaxed);
        assert!(large <= LARGE_BYTES_KEPT, "{large} bytes after {n} runs");
    }
    let known = |n: usize| cache.known(begun(n, 1).next.id);
    assert!(known(160).is_some(), "the last one is there");
    assert!(known(1).is_none(), "the first large one is gone");
    assert!(known(0).unwrap().history.is_some(), "the small one stays");
    let bytes = cache.bytes.load(Ordering::Relaxed);
    let large = cache.large.load(Ordering::Relaxed);
    assert!(large >= LARGE_BYTES_KEPT / 2 - 2 * MIB, "{large}");
    assert!(bytes > large && bytes < large + 10_000, "{bytes}, {large}");
    for n in 0..=160 {
        cache.forget(begun(n, 1).next.id);
    }
    assert_eq!(cache.bytes.load(Ordering::Relaxed), 0);
    assert_eq!(cache.large.load(Ordering::Relaxed), 0);
}

/// Rule: a large run that has closed is not remembered.
#[test]
fn closed_runs_are_kept_only_while_they_are_small() {
    for (bytes, stays) in [(10, true), (MIB, false)] {
        let cache = Cache::default();
        let write = begun(1, bytes);
        cache.written(&write, None);
        assert!(cache.known(write.next.id).is_some());
        let closed = closed(&write);
        cache.written(&closed, None);
        assert_eq!(cache.known(write.next.id).is_some(), stays, "{bytes} bytes");
        assert_eq!(cache.large.load(Ordering::Relaxed), 0);
    }
}

/// Rule: of the runs that have ended, the last are kept, for whoever waited for it.
#[test]
fn runs_that_have_ended_are_soon_forgotten() {
    let cache = Cache::default();
    let open = begun(0, 10);
    cache.written(&open, None);
    let ended: Vec<RunWrite> = (1..=CLOSED_KEPT + 1).map(|n| begun(n, 10)).collect();
    for write in &ended {
        cache.written(write, None);
        cache.written(&closed(write), None);
    }
    let is_known = |write: &RunWrite| lock(&cache.slots).contains_key(&write.next.id);
    assert!(is_known(&open));
    let known: Vec<bool> = ended.iter().map(is_known).collect();
    assert!(!known[0] && known[1..].iter().all(|is_known| *is_known));
    // One that is asked for stays, and a few only are passed by for it.
    for write in &ended[1..=PASSED_BY + 1] {
        assert!(cache.known(write.next.id).is_some());
    }
    let another = |n: usize| cache.written(&closed(&begun(CLOSED_KEPT + n, 10)), None);
    another(2);
    assert!(
        !is_known(&ended[PASSED_BY + 1]),
        "not all of them are passed by"
    );
    assert!(ended[1..=PASSED_BY].iter().all(is_known));
    another(3);
    assert!(ended[1..=PASSED_BY].iter().all(is_known));
    assert!(
        !is_known(&ended[PASSED_BY + 2]),
        "the next one that nobody asked for"
    );
}

/// Rule: a run that is forgotten while somebody works on it counts for nothing afterwards.
#[test]
fn what_is_kept_for_a_forgotten_run_is_not_counted() {
    let cache = Cache::default();
    let write = begun(1, 10);
    cache.written(&write, None);
    let held = cache.slot(write.next.id);
    let cached = held.known().unwrap();
    cache.remove(write.next.id);
    cache.keep(&held, cached);
    assert_eq!(cache.bytes.load(Ordering::Relaxed), 0);
}

#[test]
fn the_text_of_a_large_write_is_not_kept() {
    for (bytes, stays) in [
        (HISTORY_BYTES_PER_RUN, true),
        (HISTORY_BYTES_PER_RUN + 1, false),
    ] {
        let mut write = begun(1, 10);
        Arc::make_mut(&mut write.next).history_bytes = bytes;
        let_go_of_text(&mut write);
        assert_eq!(write.text.is_some(), stays, "{bytes} bytes");
    }
}
