//! Leases on tasks: what a holder must prove, and what losing a lease costs.

use super::ids::WorkerId;
use super::limits::MAX_DELIVERIES;

/// What a commit checks on a task row before it writes anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hold {
    /// The lease is `owner`'s, of this hand-out, and has not run out.
    Live {
        /// Holder.
        owner: WorkerId,
        /// Hand-out.
        attempt: u32,
    },
    /// The lease is the one that was seen, run out or not.
    Seen {
        /// Holder.
        owner: WorkerId,
        /// Hand-out.
        attempt: u32,
    },
    /// The lease is the one that was seen, and its own or its attempt's deadline has passed.
    Overdue {
        /// Holder.
        owner: WorkerId,
        /// Hand-out.
        attempt: u32,
    },
    /// Nobody holds the task.
    Free,
}

/// What became of the deliveries of a task whose lease was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterLoss {
    /// Hand it out again after this many milliseconds.
    Again(u64),
    /// It was handed out [`MAX_DELIVERIES`] times; stop.
    GiveUp,
}

const FIRST_DELAY_MS: u64 = 500;
const LONGEST_DELAY_MS: u64 = 60_000;

/// How a task goes on after `deliveries` hand-outs, the last of which was lost.
///
/// The first loss costs nothing, because it is nearly always a deploy or a crash of one process;
/// from then on the delay doubles, so that a task that kills its workers cannot take the fleet.
pub fn after_loss(deliveries: u32) -> AfterLoss {
    if deliveries >= MAX_DELIVERIES {
        return AfterLoss::GiveUp;
    }
    if deliveries <= 1 {
        return AfterLoss::Again(0);
    }
    let doubled = FIRST_DELAY_MS << (deliveries - 2).min(16);
    AfterLoss::Again(doubled.min(LONGEST_DELAY_MS))
}

/// Milliseconds before a workflow task whose worker reported a failure is handed out again, after
/// `failures` reports in a row: at once three times, then doubling to a minute.
pub fn after_report(failures: u32) -> u64 {
    if failures < 3 {
        return 0;
    }
    (FIRST_DELAY_MS << (failures - 3).min(16)).min(LONGEST_DELAY_MS)
}

/// Milliseconds before a task that a worker cannot replay is handed out again.
pub fn after_blocked(failures: u32) -> u64 {
    (1_000u64 << failures.saturating_sub(1).min(16)).min(LONGEST_DELAY_MS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_lease_is_free_once_then_doubles_and_ends_at_the_cap() {
        let delays: Vec<_> = (1..=MAX_DELIVERIES).map(after_loss).collect();
        assert_eq!(delays[0], AfterLoss::Again(0));
        assert_eq!(delays[1], AfterLoss::Again(500));
        assert_eq!(delays[2], AfterLoss::Again(1_000));
        assert_eq!(delays[18], AfterLoss::Again(60_000));
        assert_eq!(delays[19], AfterLoss::GiveUp);
        assert_eq!(after_loss(u32::MAX), AfterLoss::GiveUp);
    }

    #[test]
    fn reported_failures_back_off_after_the_third() {
        assert_eq!(
            [1, 2, 3, 4, 99].map(after_report),
            [0, 0, 500, 1_000, 60_000]
        );
        assert_eq!([1, 2, 99].map(after_blocked), [1_000, 2_000, 60_000]);
    }
}
