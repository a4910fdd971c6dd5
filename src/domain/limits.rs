//! Every bound that the domain enforces, by name.

/// Events that one run may hold before further commands are refused.
pub const MAX_HISTORY_EVENTS: u64 = 50_000;
/// Reports whose outcome a run remembers, so that a repeat gets the first answer.
pub const RECEIPTS_KEPT: usize = 512;
/// Control-plane commands that a run's description shows.
pub const COMMANDS_SHOWN: usize = 100;
/// Hand-outs of one task before it is given up (see [`super::lease`]).
pub const MAX_DELIVERIES: u32 = 20;

/// Entries of a memo.
pub const MAX_MEMO_ENTRIES: usize = 100;
/// Bytes of one value of a memo, as a blob of its own before base64.
pub const MAX_MEMO_VALUE_BYTES: usize = 10_240;
/// Bytes of a memo, encoded, before base64.
pub const MAX_MEMO_BYTES: u64 = 65_536;
/// Search attributes of a run.
pub const MAX_SEARCH_ATTRIBUTES: u64 = 100;
/// Updates whose outcome a run finds without reading its history.
pub const ANSWERS_KEPT: usize = 256;

/// Structural limits of one run and one completion. 0 switches a limit off.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Activities that may be open at once.
    pub pending_activities: u64,
    /// User timers that may be open at once.
    pub pending_timers: u64,
    /// Children that may be open at once.
    pub pending_children: u64,
    /// Signals that may wait to be recorded.
    pub pending_signals: u64,
    /// Updates that may be open at once.
    pub pending_updates: u64,
    /// Commands in one completion.
    pub command_batch: u64,
    /// Events that one completion may append.
    pub events_per_transaction: u64,
    /// Bytes of one payload blob.
    pub payload_bytes: u64,
    /// Bytes of the memo, encoded.
    pub memo_bytes: u64,
    /// Bytes of all search attributes, encoded.
    pub search_attribute_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            pending_activities: 2_000,
            pending_timers: 2_000,
            pending_children: 2_000,
            pending_signals: 5_000,
            pending_updates: 500,
            command_batch: 1_000,
            events_per_transaction: 5_000,
            payload_bytes: 2_097_152,
            memo_bytes: 262_144,
            search_attribute_bytes: 40_960,
        }
    }
}

/// Which limit a request met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitKind {
    /// Open activities.
    PendingActivities,
    /// Open timers.
    PendingTimers,
    /// Open children.
    PendingChildren,
    /// Signals waiting to be recorded.
    PendingSignals,
    /// Updates without an outcome.
    PendingUpdates,
    /// Bytes of the memo.
    MemoSize,
    /// Number or bytes of search attributes.
    SearchAttributes,
    /// Commands in one completion.
    CommandBatch,
    /// Events in one transaction.
    HistoryTransaction,
    /// Events in one run.
    HistoryEvents,
    /// Bytes of one payload.
    PayloadSize,
}

impl LimitKind {
    /// The name on the wire, `limit_kind`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::PendingActivities => "pending_activity_count",
            Self::PendingTimers => "pending_timer_count",
            Self::PendingChildren => "pending_child_count",
            Self::PendingSignals => "pending_signal_count",
            Self::PendingUpdates => "pending_update_count",
            Self::MemoSize => "memo_size",
            Self::SearchAttributes => "search_attribute_size",
            Self::CommandBatch => "command_batch_size",
            Self::HistoryTransaction => "history_transaction_size",
            Self::HistoryEvents => "history_event_count",
            Self::PayloadSize => "payload_size",
        }
    }
}
