//! Counters of requests: each thread keeps the handles that it has used, since looking one up by its
//! labels costs more than counting.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use actix_web::http::{Method, StatusCode};
use metrics::{Counter, Histogram};

/// Route of a request that no document names.
pub const UNKNOWN: &str = "unknown";
/// Method that this server has no use for.
const OTHER: &str = "other";

#[derive(Default)]
struct Handles {
    counters: BTreeMap<(Option<usize>, u16, &'static str), Counter>,
    histograms: BTreeMap<Option<usize>, Histogram>,
}

thread_local! {
    static HANDLES: RefCell<Handles> = RefCell::default();
}

/// The method as a label; callers can make up methods, labels are few.
pub fn method(method: &Method) -> &'static str {
    ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"]
        .into_iter()
        .find(|known| *known == method.as_str())
        .unwrap_or(OTHER)
}

/// Counts an answered request, and unless it is a poll, how long it took.
pub fn answered(
    route: Option<(usize, &str)>,
    method: &'static str,
    status: StatusCode,
    took: Duration,
) {
    let place = route.map(|(place, _)| place);
    let name = route.map_or(UNKNOWN, |(_, pattern)| pattern);
    HANDLES.with_borrow_mut(|handles| {
        handles
            .counters
            .entry((place, status.as_u16(), method))
            .or_insert_with(|| {
                metrics::counter!("dw_requests_total", "method" => method,
                    "route" => name.to_owned(), "status" => status.as_u16().to_string())
            })
            .increment(1);
        if !name.ends_with("/poll") {
            handles
                .histograms
                .entry(place)
                .or_insert_with(
                    || metrics::histogram!("dw_request_seconds", "route" => name.to_owned()),
                )
                .record(took.as_secs_f64());
        }
    });
}
