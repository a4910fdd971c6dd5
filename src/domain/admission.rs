//! Admission: how many tasks may be held and handed out, and what is left of that.

/// What an operator allows for one kind of task. Nothing is limited unless it is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Tasks held at once, per queue.
    pub leases_per_queue: Option<u64>,
    /// Tasks held at once, per namespace.
    pub leases_per_namespace: Option<u64>,
    /// Tasks handed out in a minute, per queue.
    pub dispatches_per_queue: Option<u64>,
    /// Tasks handed out in a minute, per namespace.
    pub dispatches_per_namespace: Option<u64>,
}

impl Limits {
    /// Whether anything is limited.
    pub fn any(self) -> bool {
        self.leases() || self.dispatches()
    }

    /// Whether held tasks are limited.
    pub fn leases(self) -> bool {
        self.leases_per_queue.is_some() || self.leases_per_namespace.is_some()
    }

    /// Whether hand-outs are limited.
    pub fn dispatches(self) -> bool {
        self.dispatches_per_queue.is_some() || self.dispatches_per_namespace.is_some()
    }

    /// Whether one queue's tasks count against another's.
    pub fn namespace_wide(self) -> bool {
        self.leases_per_namespace.is_some() || self.dispatches_per_namespace.is_some()
    }

    /// How many tasks may be handed out now; `None` for any number.
    pub fn room(self, used: Used) -> Option<u64> {
        let [a, b, c, d] = self.remaining(used);
        a.into_iter().chain(b).chain(c).chain(d).min()
    }

    /// What is left of each limit, in the order of the fields.
    pub fn remaining(self, used: Used) -> [Option<u64>; 4] {
        let left = |limit: Option<u64>, used| limit.map(|limit| limit.saturating_sub(used));
        [
            left(self.leases_per_queue, used.leases_of_queue),
            left(self.leases_per_namespace, used.leases_of_namespace),
            left(self.dispatches_per_queue, used.dispatches_of_queue),
            left(self.dispatches_per_namespace, used.dispatches_of_namespace),
        ]
    }
}

/// What counts against the limits now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// Tasks of the queue that are held.
    pub leases_of_queue: u64,
    /// Tasks of the namespace that are held.
    pub leases_of_namespace: u64,
    /// Tasks of the queue that were handed out in this minute.
    pub dispatches_of_queue: u64,
    /// Tasks of the namespace that were handed out in this minute.
    pub dispatches_of_namespace: u64,
}

/// What a queue does with polls now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Tasks are handed out.
    Accepting,
    /// A limit of the server is reached.
    Throttled,
    /// The workers hold as much as they said they can.
    Saturated,
    /// The workers said that they take no task of this kind.
    NoSlots,
    /// No live worker takes tasks.
    NoActiveWorkers,
}

impl Status {
    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Accepting => "accepting",
            Self::Throttled => "throttled",
            Self::Saturated => "saturated",
            Self::NoSlots => "no_slots",
            Self::NoActiveWorkers => "no_active_workers",
        }
    }

    /// Of a queue with so many live workers, slots and held tasks. What the workers cannot do is said
    /// before what the server does not let them do.
    pub fn of(workers: usize, slots: u64, leased: u64, room: Option<u64>) -> Self {
        if workers == 0 {
            Self::NoActiveWorkers
        } else if slots == 0 {
            Self::NoSlots
        } else if room == Some(0) {
            Self::Throttled
        } else if leased >= slots {
            Self::Saturated
        } else {
            Self::Accepting
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tightest_limit_counts() {
        let used = Used {
            leases_of_queue: 1,
            leases_of_namespace: 5,
            dispatches_of_queue: 9,
            dispatches_of_namespace: 9,
        };
        assert_eq!(Limits::default().room(used), None);
        assert!(!Limits::default().any());
        let limits = Limits {
            leases_per_queue: Some(3),
            dispatches_per_namespace: Some(10),
            ..Limits::default()
        };
        assert_eq!(limits.room(used), Some(1));
        assert_eq!(limits.remaining(used), [Some(2), None, None, Some(1)]);
        let over = Limits {
            leases_per_namespace: Some(4),
            ..limits
        };
        assert_eq!(over.room(used), Some(0));
        assert!(over.namespace_wide());
    }

    #[test]
    fn a_status_says_what_stands_in_the_way() {
        assert_eq!(Status::of(0, 0, 0, Some(0)), Status::NoActiveWorkers);
        assert_eq!(Status::of(1, 0, 0, Some(0)), Status::NoSlots);
        assert_eq!(Status::of(1, 2, 2, Some(0)), Status::Throttled);
        assert_eq!(Status::of(1, 2, 2, None), Status::Saturated);
        assert_eq!(Status::of(1, 2, 1, Some(1)), Status::Accepting);
    }
}
