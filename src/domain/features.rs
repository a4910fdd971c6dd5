//! Features of a history that a worker must know before it may replay it (worker plane 1.14 to 1.20,
//! section 1.3): a few bits on the run, compared with the bits of a poll.

/// `MemoUpserted` occurs.
pub const MEMO: i64 = 1;
/// Search attributes with declared types occur.
pub const TYPED_ATTRIBUTES: i64 = 1 << 1;
/// Condition waits have an occurrence.
pub const OCCURRENCE: i64 = 1 << 2;
/// Selections occur.
pub const SELECTION: i64 = 1 << 3;
/// Messages of a stream occur.
pub const STREAMS: i64 = 1 << 4;
/// A cooperative cancellation waits to be delivered.
pub const CANCELLATION: i64 = 1 << 5;
/// The task runs in a worker session.
pub const SESSIONS: i64 = 1 << 6;
