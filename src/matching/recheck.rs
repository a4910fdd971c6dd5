//! When a queue with parked polls is looked at of which nobody tells anything.

use std::time::{Duration, Instant};

use super::keys::QueueKey;
use crate::domain::routing::Profile;

/// Shortest and longest pause, in milliseconds, between two looks at a queue that has parked polls and no hint.
const RECHECK: std::ops::Range<u64> = 1_500..2_500;

/// A pause that differs from look to look, so that nodes do not look together.
pub(super) fn pause(now: Instant) -> Duration {
    let spread = RECHECK.end - RECHECK.start;
    let noise = u64::from(now.elapsed().subsec_nanos()) ^ uuid::Uuid::new_v4().as_u64_pair().0;
    Duration::from_millis(RECHECK.start + noise % spread)
}

/// A queue whose slow re-check is due.
#[derive(Debug)]
pub struct Due {
    /// The queue.
    pub key: QueueKey,
    /// Those of its parked polls.
    pub profiles: Vec<Profile>,
    /// It is to be claimed from in any case: its last claim failed, or only some workers may take what is ready.
    pub claims: bool,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

    use std::sync::Arc;

    use super::super::Registry;
    use super::super::kit::{key, park, profile};
    use super::*;
    use crate::domain::routing::{Routing, TaskKind};

    /// A time at which every re-check is due.
    fn later() -> Instant {
        Instant::now() + Duration::from_millis(RECHECK.end)
    }

    #[test]
    fn a_quiet_queue_is_due_for_the_polls_that_wait() {
        let registry = Arc::new(Registry::default());
        let first = park(&registry, 1, None).unwrap();
        let _second = park(&registry, 2, None).unwrap();
        assert!(registry.due_for_recheck(Instant::now()).is_empty());
        let due = registry.due_for_recheck(later());
        assert!(due[0].claims, "nobody has looked yet");
        assert!(registry.wants_claim(&key()));
        for _ in 0..2 {
            let (_, polls) = registry.next_claim(&key(), 1).unwrap();
            for poll in polls {
                assert!(registry.put_back(poll).is_empty());
            }
        }
        assert!(registry.next_claim(&key(), 1).is_none());
        let hour = Duration::from_hours(1);
        let due = registry.due_for_recheck(later() + hour);
        assert_eq!((due.len(), due[0].claims), (1, false));
        assert_eq!(due[0].profiles, [profile(1), profile(2)]);
        drop(first);
        let due = registry.due_for_recheck(later() + 2 * hour);
        assert_eq!(due[0].profiles, [profile(2)]);
    }

    /// Rule: a task that nobody waited for at first passes none that is ready already.
    #[test]
    fn a_task_that_is_offered_again_goes_behind_those_that_wait_for_a_claim() {
        let registry = Arc::new(Registry::default());
        let _waiting = park(&registry, 1, None).unwrap();
        let routing = Routing {
            kind: TaskKind::Workflow,
            namespace: "n".into(),
            queue: "q".into(),
            task_type: "t".into(),
            priority: 5,
            fairness_key: None,
            fairness_weight: 1,
            build_id: None,
            needs: 0,
            session: None,
            preferred: None,
        };
        registry.saw(&key(), false);
        let reserve = |again| registry.reserve(&routing, again);
        assert!(reserve(true).is_none(), "nobody has looked yet");
        let handed = reserve(false).unwrap();
        assert_eq!(registry.put_back(handed), [key()]);
        let (_, mut polls) = registry.next_claim(&key(), 1).unwrap();
        assert!(registry.put_back(polls.remove(0)).is_empty());
        assert!(reserve(true).is_none(), "a claim is under way");
        assert!(registry.next_claim(&key(), 1).is_none());
        let handed = reserve(true).unwrap();
        assert!(registry.put_back(handed).is_empty());
        assert!(registry.backlog(&key()));
        assert!(reserve(true).is_none(), "others are ready");
    }

    /// A queue that is claimed from all the time has nothing forgotten: the claim goes on to everybody.
    #[test]
    fn a_claim_goes_on_to_those_that_it_would_have_left_out() {
        let registry = Arc::new(Registry::default());
        let _waiting = park(&registry, 1, None).unwrap();
        assert!(registry.wants_claim(&key()));
        let (_, mut polls) = registry.next_claim(&key(), 1).unwrap();
        assert!(registry.put_back(polls.remove(0)).is_empty());
        assert!(registry.due_for_recheck(later()).is_empty());
        assert!(registry.next_claim(&key(), 1).is_some());
    }
}
