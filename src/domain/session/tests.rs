//! The rules of worker sessions: every row of the state machine, the order of the checks of an
//! admission, and random lives.
#![allow(clippy::expect_used, reason = "a failed expectation is a failed test")]

use super::*;

const WORKERS: [&str; 3] = ["a", "b", "c"];

fn at(second: u64) -> Timestamp {
    Timestamp::from_micros(0).plus_seconds(second)
}

fn options() -> Options {
    Options {
        session_id: "s".into(),
        connection: None,
        queue: None,
        requirements: Vec::new(),
        lease_seconds: 10,
        ttl_seconds: 100,
        max_concurrent_activities: 1,
        create_if_missing: true,
        allow_reacquire_after_failure: true,
    }
}

fn worker(name: &str) -> Applicant {
    Applicant {
        worker: name.into(),
        queues: vec!["q".into()],
        capabilities: vec!["gpu".to_owned()],
        sessions: 0,
        max_sessions: 2,
    }
}

fn ask(
    existing: Option<&Session>,
    options: Options,
    name: &str,
    second: u64,
) -> Result<(Session, Admitted), Refused> {
    let existing = existing.cloned();
    admit(
        existing,
        &"default".into(),
        options,
        &worker(name),
        None,
        at(second),
    )
}

/// A session that `a` owns since second 0.
fn active() -> Session {
    let (session, admitted) = ask(None, options(), "a", 0).expect("a session");
    assert_eq!(admitted, Admitted::Created);
    session
}

fn settled(mut session: Session, owner_is_gone: bool, second: u64) -> Session {
    session.settle(owner_is_gone, at(second));
    session
}

fn lost(loss: Loss) -> Session {
    match loss {
        Loss::TtlExpired => settled(active(), false, 100),
        Loss::LeaseExpired => settled(active(), false, 10),
        Loss::WorkerHeartbeatStale => settled(active(), true, 5),
    }
}

/// Rule: the words of statuses and losses are the contract's, and are read as they are written.
#[test]
fn words_are_read_as_they_are_written() {
    for (status, word) in [
        (Status::Active, "active"),
        (Status::Closed, "closed"),
        (Status::Expired, "expired"),
        (Status::Orphaned, "orphaned"),
    ] {
        assert_eq!(status.as_str(), word);
        assert_eq!(Status::from_word(word), Some(status));
    }
    for (loss, word) in [
        (Loss::TtlExpired, "ttl_expired"),
        (Loss::LeaseExpired, "lease_expired"),
        (Loss::WorkerHeartbeatStale, "worker_heartbeat_stale"),
    ] {
        assert_eq!(loss.as_str(), word);
        assert_eq!(Loss::from_word(word), Some(loss));
    }
    assert_eq!(Status::from_word("failed"), None);
    assert_eq!(Loss::from_word("failed"), None);
}

/// Rule: no session and `create_if_missing`: created, owned, with lease and TTL from now on; without
/// it nothing is made.
#[test]
fn a_missing_session_is_created_if_that_is_allowed() {
    let session = active();
    assert_eq!(session.status, Status::Active);
    assert_eq!(session.owner, WorkerId::from("a"));
    assert_eq!(session.options.queue, Some("q".into()));
    assert_eq!(session.lease_expires_at, at(10));
    assert_eq!(session.ttl_expires_at, at(100));
    assert_eq!(session.created_at, at(0));
    let never = Options {
        create_if_missing: false,
        ..options()
    };
    assert_eq!(ask(None, never, "a", 0), Err(Refused::Missing));
}

/// Rule: the holder reuses: the lease is renewed, the options are replaced, the TTL stays.
#[test]
fn the_holder_reuses() {
    let later = Options {
        lease_seconds: 7,
        ttl_seconds: 1_000,
        max_concurrent_activities: 5,
        create_if_missing: false,
        ..options()
    };
    let (session, admitted) = ask(Some(&active()), later, "a", 9).expect("reused");
    assert_eq!(admitted, Admitted::Reused);
    assert_eq!(session.lease_expires_at, at(16));
    assert_eq!(session.ttl_expires_at, at(100));
    assert_eq!(session.options.max_concurrent_activities, 5);
    assert_eq!(session.created_at, at(0));
    assert_eq!(session.updated_at, at(9));
}

/// Rule: another worker is refused while the session is owned.
#[test]
fn an_owned_session_refuses_others() {
    let refused = ask(Some(&active()), options(), "b", 9);
    assert_eq!(refused, Err(Refused::OwnedByAnother));
}

/// Rule: the holder's heartbeat renews the lease, by the seconds that it names from then on, and
/// never the TTL; anybody else's is refused, and so is one of a session that is not active.
#[test]
fn a_heartbeat_is_the_holders() {
    let mut session = active();
    let owner = WorkerId::from("a");
    assert_eq!(session.heartbeat(&owner, None, at(5)), Ok(()));
    assert_eq!(session.lease_expires_at, at(15));
    assert_eq!(session.heartbeat(&owner, Some(30), at(6)), Ok(()));
    assert_eq!(session.heartbeat(&owner, None, at(7)), Ok(()));
    assert_eq!(session.lease_expires_at, at(37));
    assert_eq!(session.ttl_expires_at, at(100));
    assert_eq!(session.last_heartbeat_at, at(7));
    let before = session.clone();
    let other = session.heartbeat(&"b".into(), Some(99), at(8));
    assert_eq!(other, Err(Refused::OwnerMismatch));
    assert_eq!(session, before);
    for loss in [
        Loss::TtlExpired,
        Loss::LeaseExpired,
        Loss::WorkerHeartbeatStale,
    ] {
        let mut session = lost(loss);
        let refused = session.heartbeat(&owner, None, at(200));
        assert_eq!(refused, Err(Refused::NotActive));
        assert_eq!(session, lost(loss));
    }
}

/// Rule: time is looked at in the order TTL, lease, holder, each inclusive; only an active session
/// changes.
#[test]
fn time_takes_a_session_in_the_order_of_the_contract() {
    assert_eq!(settled(active(), false, 9), active());
    let cases = [
        (false, 10, Status::Expired, Loss::LeaseExpired),
        (true, 10, Status::Expired, Loss::LeaseExpired),
        (true, 100, Status::Expired, Loss::TtlExpired),
        (true, 9, Status::Orphaned, Loss::WorkerHeartbeatStale),
    ];
    for (gone, second, status, loss) in cases {
        let session = settled(active(), gone, second);
        assert_eq!((session.status, session.loss), (status, Some(loss)));
        assert_eq!(session.updated_at, at(second));
        assert_eq!(settled(session.clone(), true, 500), session);
    }
    let mut closed = active();
    assert_eq!(closed.close(&"a".into(), at(1)), Ok(true));
    assert_eq!(settled(closed.clone(), true, 500), closed);
}

/// Rule: what was lost by its lease or its holder is owned again by any admitted worker, with a new
/// lease and a new TTL.
#[test]
fn a_lost_session_is_reacquired() {
    for loss in [Loss::LeaseExpired, Loss::WorkerHeartbeatStale] {
        for name in ["a", "b"] {
            let (session, admitted) =
                ask(Some(&lost(loss)), options(), name, 50).expect("reacquired");
            assert_eq!(admitted, Admitted::Reacquired);
            assert_eq!(session.owner, WorkerId::from(name));
            assert_eq!((session.status, session.loss), (Status::Active, None));
            assert_eq!(session.lease_expires_at, at(60));
            assert_eq!(session.ttl_expires_at, at(150));
            assert_eq!(session.created_at, at(0));
        }
    }
}

/// Rule: what was lost by its TTL, or when either side does not allow it, is never owned again.
#[test]
fn a_session_that_is_over_is_not_reacquired() {
    let once = Options {
        allow_reacquire_after_failure: false,
        ..options()
    };
    let refused = Err(Refused::ReacquireDisallowed);
    assert_eq!(
        ask(Some(&lost(Loss::TtlExpired)), options(), "a", 200),
        refused
    );
    for loss in [Loss::LeaseExpired, Loss::WorkerHeartbeatStale] {
        assert_eq!(ask(Some(&lost(loss)), once.clone(), "a", 50), refused);
        let mut stored = lost(loss);
        stored.options.allow_reacquire_after_failure = false;
        assert_eq!(ask(Some(&stored), options(), "a", 50), refused);
    }
}

/// Rule: its last owner closes a session in whatever state it is, once; after that it is never owned
/// again. Others may not close it.
#[test]
fn a_close_is_the_last_owners_and_final() {
    let mut all = vec![active()];
    all.extend(
        [
            Loss::TtlExpired,
            Loss::LeaseExpired,
            Loss::WorkerHeartbeatStale,
        ]
        .map(lost),
    );
    for mut session in all {
        let before = session.clone();
        assert_eq!(
            session.close(&"b".into(), at(120)),
            Err(Refused::OwnerMismatch)
        );
        assert_eq!(session, before);
        assert_eq!(session.close(&"a".into(), at(120)), Ok(true));
        assert_eq!((session.status, session.loss), (Status::Closed, None));
        assert_eq!(session.closed_at, Some(at(120)));
        assert_eq!(session.close(&"a".into(), at(130)), Ok(false));
        assert_eq!(session.closed_at, Some(at(120)));
        assert_eq!(
            session.close(&"b".into(), at(130)),
            Err(Refused::OwnerMismatch)
        );
        for name in WORKERS {
            assert_eq!(
                ask(Some(&session), options(), name, 140),
                Err(Refused::Closed)
            );
        }
    }
}

/// Rule: an admission checks queue, requirements, the session, the worker's limit and the session's
/// limit, in this order.
#[test]
fn an_admission_checks_in_order() {
    let asked = Options {
        queue: Some("other".into()),
        requirements: vec!["gpu".to_owned(), "disk".to_owned(), "net".to_owned()],
        ..options()
    };
    let mut applicant = worker("b");
    applicant.sessions = 2;
    let mut existing = Some(active());
    let ask = |existing: &Option<Session>, options: &Options, applicant: &Applicant| {
        let (existing, options) = (existing.clone(), options.clone());
        let namespace = Namespace::from("default");
        admit(existing, &namespace, options, applicant, Some(1), at(5))
            .map(|(_, admitted)| admitted)
    };
    assert_eq!(
        ask(&existing, &asked, &applicant),
        Err(Refused::QueueMismatch)
    );
    // The worker serves it, but the session is owned on another one.
    applicant.queues.push("other".into());
    assert_eq!(
        ask(&existing, &asked, &applicant),
        Err(Refused::QueueMismatch)
    );
    let asked = Options {
        queue: Some("q".into()),
        ..asked
    };
    let lacking = Refused::RequirementsNotMet(vec!["disk".to_owned(), "net".to_owned()]);
    assert_eq!(ask(&existing, &asked, &applicant), Err(lacking));
    applicant.capabilities = asked.requirements.clone();
    assert_eq!(
        ask(&existing, &asked, &applicant),
        Err(Refused::OwnedByAnother)
    );
    existing = Some(lost(Loss::LeaseExpired));
    assert_eq!(
        ask(&existing, &asked, &applicant),
        Err(Refused::WorkerLimit(2))
    );
    applicant.sessions = 1;
    // What runs for a former owner does not keep a new one out.
    assert_eq!(ask(&existing, &asked, &applicant), Ok(Admitted::Reacquired));
    // Neither limit of the worker's keeps it from what it owns.
    existing = Some(Session {
        owner: "b".into(),
        ..active()
    });
    applicant.sessions = 2;
    assert_eq!(
        ask(&existing, &asked, &applicant),
        Err(Refused::ActivityLimit)
    );
    let wide = Options {
        max_concurrent_activities: 2,
        ..asked
    };
    assert_eq!(ask(&existing, &wide, &applicant), Ok(Admitted::Reused));
}

/// Rule: a session that is lost may move to another queue that its new owner serves; without a queue
/// it is the worker's first.
#[test]
fn a_reacquired_session_may_move() {
    let mut applicant = worker("b");
    applicant.queues = vec!["p".into(), "q".into()];
    let existing = Some(lost(Loss::LeaseExpired));
    let namespace = Namespace::from("default");
    let made = admit(existing, &namespace, options(), &applicant, None, at(20));
    let (session, _) = made.expect("reacquired");
    assert_eq!(session.options.queue, Some("p".into()));
    applicant.queues.clear();
    let made = admit(None, &namespace, options(), &applicant, None, at(20));
    assert_eq!(made, Err(Refused::QueueMismatch));
}

/// A small generator, so that a failure can be repeated.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// Rule: whatever the order of requests and losses, nobody becomes the owner while another worker is;
/// a holder's TTL never moves; a closed session and one whose TTL ended stay so.
#[test]
fn random_lives_have_one_owner_at_a_time() {
    let mut counts = [0_u32; 6];
    for seed in 1..=400 {
        let mut dice = Dice(seed);
        let mut session: Option<Session> = None;
        let mut now = 0;
        for _ in 0..200 {
            now += dice.below(6);
            let gone = dice.below(20) == 0;
            if let Some(session) = &mut session {
                session.settle(gone, at(now));
            }
            let before = session.clone();
            let place = usize::try_from(dice.below(3)).unwrap_or(0);
            let name = WorkerId::from(WORKERS[place]);
            let done = match dice.below(5) {
                0 => session
                    .as_mut()
                    .map(|session| session.heartbeat(&name, Some(1 + dice.below(12)), at(now))),
                1 if dice.below(8) == 0 => session
                    .as_mut()
                    .map(|session| session.close(&name, at(now)).map(|_| ())),
                _ => {
                    let asked = Options {
                        lease_seconds: 1 + dice.below(12),
                        ttl_seconds: 1 + dice.below(60),
                        ..options()
                    };
                    match ask(before.as_ref(), asked, WORKERS[place], now) {
                        Ok((made, admitted)) => {
                            counts[admitted as usize] += 1;
                            session = Some(made);
                            Some(Ok(()))
                        }
                        Err(refused) => Some(Err(refused)),
                    }
                }
            };
            let (Some(done), Some(after)) = (done, &session) else {
                continue;
            };
            let Some(before) = before else { continue };
            if done.is_err() {
                counts[3] += 1;
                assert_eq!(*after, before, "a refusal changes nothing");
                continue;
            }
            match before.status {
                Status::Active => {
                    counts[4] += 1;
                    assert_eq!(before.owner, after.owner);
                    assert_eq!(before.owner, name, "only the owner does anything");
                    assert_eq!(before.ttl_expires_at, after.ttl_expires_at);
                }
                Status::Closed => assert_eq!(*after, before),
                Status::Expired | Status::Orphaned => {
                    counts[5] += 1;
                    let over = before.loss == Some(Loss::TtlExpired);
                    assert!(!over || after.status == Status::Closed);
                }
            }
        }
    }
    assert!(counts.iter().all(|count| *count > 100), "{counts:?}");
}
