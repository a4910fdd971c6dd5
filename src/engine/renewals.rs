//! Renewals of leases, grouped: heartbeats of many workers are one statement.

use std::future::ready;

use super::grouped::Grouped;
use crate::store::Store;
use crate::store::lease::{self, Renewal, Renewed};

/// Where renewals go; the answer is `None` for a lease that is not the caller's or has run out.
pub(super) type Renewals = Grouped<Renewal, Option<Renewed>>;

/// Starts to write renewals, at most `batch` with one statement.
pub(super) fn start(store: &Store, batch: usize) -> Renewals {
    let pool = store.hot.clone();
    Grouped::start(
        batch,
        |renewal| Some(renewal.task),
        move |renewals| {
            let pool = pool.clone();
            async move { Ok(lease::renew(&pool, &renewals).await?) }
        },
        |_, _| ready(()),
    )
}
