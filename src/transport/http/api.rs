//! What every handler of this server shares: built once, with a copy for each thread of what goes into every answer.

use std::cell::RefCell;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use actix_web::http::header::{CONTENT_ENCODING, HeaderValue};
use actix_web::web::Bytes;
use actix_web::{HttpRequest, HttpResponse, HttpResponseBuilder};
use metrics_exporter_prometheus::PrometheusHandle;

use crate::auth::Gate;
use crate::config::Settings;
use crate::domain::ids::Namespace;
use crate::engine::Engine;
use crate::protocol::capabilities::{Timing, server_capabilities};
use crate::protocol::envelope::EnvelopeBytes;
use crate::protocol::feature::{Feature, Negotiated};
use crate::protocol::support::Supported;
use crate::protocol::version::{Advertised, VersionRefusal};

use super::compression;
use super::documents::{Documents, Writer};
use super::room::Room;
use super::routes::RouteTable;

/// The state behind all handlers.
pub struct Api {
    /// The use cases.
    pub engine: Engine,
    /// The settings.
    pub settings: Settings,
    /// The gate.
    pub gate: Gate,
    /// The advertised worker protocol version.
    pub advertised: Advertised,
    /// What this build can do.
    pub supported: Supported,
    /// Commands that a workflow task may be completed with.
    pub commands: Vec<&'static str>,
    /// Numbers that workers are told.
    pub timing: Timing,
    /// Version and capabilities, in front of every answer of the worker plane.
    pub envelope: Arc<EnvelopeBytes>,
    /// Name of this node.
    pub server_id: String,
    /// Which routes exist, to tell 404 from 405.
    pub routes: RouteTable,
    /// The documents, once somebody has asked for them.
    pub documents: Documents,
    /// Renders the metrics.
    pub metrics: PrometheusHandle,
    /// Room for large bodies of the worker plane.
    pub(super) worker_room: Room,
    /// Room for large bodies of everybody else.
    pub(super) control_room: Room,
    /// When the node started.
    pub started: Instant,
    stopping: AtomicBool,
}

impl Api {
    /// Builds the state.
    ///
    /// # Errors
    /// The configured protocol version is not one that can be advertised.
    pub fn new(
        engine: Engine,
        settings: Settings,
        server_id: String,
        metrics: PrometheusHandle,
        routes: RouteTable,
        documents: Writer,
    ) -> Result<Self, String> {
        let advertised: Advertised = settings
            .worker_protocol
            .parse()
            .map_err(|error: crate::protocol::version::AdvertisedError| error.to_string())?;
        let mut supported = Supported::build();
        if !settings.http.compression {
            supported = supported.without(Feature::ResponseCompression);
        }
        if settings.retention.interval_seconds == 0 {
            supported = supported.without(Feature::HistoryRetention);
        }
        let timing = timing(&settings);
        let capabilities = server_capabilities(&advertised, &supported, &timing);
        let envelope = EnvelopeBytes::new(&advertised, &capabilities);
        Ok(Self {
            gate: Gate::new(settings.auth.token.as_ref().map(|token| token.reveal())),
            envelope: Arc::new(envelope),
            engine,
            settings,
            commands: supported.commands(&advertised).collect(),
            advertised,
            supported,
            timing,
            server_id,
            routes,
            documents: Documents::new(documents),
            metrics,
            worker_room: Room::default(),
            control_room: Room::default(),
            started: Instant::now(),
            stopping: AtomicBool::new(false),
        })
    }

    /// A body in the coding that the request accepts, and the name of that, if there is to be one.
    pub fn encode(&self, request: &HttpRequest, body: &[u8]) -> Option<(Vec<u8>, &'static str)> {
        if !self.settings.http.compression {
            return None;
        }
        compression::encode(request, body)
    }

    /// A response with this body, in the coding that the request accepts.
    pub fn finish(
        &self,
        request: &HttpRequest,
        mut response: HttpResponseBuilder,
        body: Vec<u8>,
    ) -> HttpResponse {
        match self.encode(request, &body) {
            Some((encoded, coding)) => response
                .insert_header((CONTENT_ENCODING, coding))
                .body(encoded),
            None => response.body(body),
        }
    }

    /// The node is about to stop: readiness fails from now on.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    /// Whether the node is about to stop.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }
}

/// The state as one thread has it, with copies of what goes into every answer: threads that count the references
/// to one thing wait for each other.
pub struct Local {
    api: Arc<Api>,
    /// The version that the last request named.
    version: Last<Negotiated>,
    /// The namespace that the last request named.
    namespace: Last<Namespace>,
    /// The beginning of the envelope.
    pub envelope_head: Bytes,
    /// The advertised version as a header: digits and a dot.
    pub version_header: HeaderValue,
}

impl Local {
    /// For the thread that calls this.
    pub fn new(api: Arc<Api>) -> Self {
        Self {
            envelope_head: Bytes::copy_from_slice(api.envelope.head()),
            version_header: HeaderValue::from_str(&api.advertised.to_string())
                .unwrap_or(HeaderValue::from_static("")),
            version: Last::default(),
            namespace: Last::default(),
            api,
        }
    }

    /// Negotiates the version of a request from its version header.
    ///
    /// # Errors
    /// As [`Negotiated::new`].
    pub fn negotiated(&self, header: Option<&str>) -> Result<Negotiated, VersionRefusal> {
        let negotiate = |header| Negotiated::new(&self.advertised, header);
        match header {
            Some(version) => self.version.read(version, || negotiate(header)),
            None => negotiate(None),
        }
    }

    /// The namespace that a request names like this; `read` is asked if the last one named another.
    pub fn namespace(
        &self,
        name: &str,
        read: impl FnOnce() -> Option<Namespace>,
    ) -> Option<Namespace> {
        self.namespace.read(name, || read().ok_or(())).ok()
    }
}

/// Bytes of a text that is kept by [`Last`].
const MAX_KEPT: usize = 256;

/// What the last text was read as that could be: the requests of a thread mostly say the same.
/// What is long is read anew each time.
struct Last<T>(RefCell<Option<(Box<str>, T)>>);

impl<T> Default for Last<T> {
    fn default() -> Self {
        Self(RefCell::default())
    }
}

impl<T: Clone> Last<T> {
    fn read<E>(&self, text: &str, read: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let mut last = self.0.borrow_mut();
        match &*last {
            Some((known, value)) if **known == *text => Ok(value.clone()),
            _ => {
                let value = read()?;
                if text.len() <= MAX_KEPT {
                    *last = Some((text.into(), value.clone()));
                }
                Ok(value)
            }
        }
    }
}

impl Deref for Local {
    type Target = Api;

    fn deref(&self) -> &Api {
        &self.api
    }
}

fn timing(settings: &Settings) -> Timing {
    Timing {
        long_poll_timeout: Duration::from_secs(settings.long_poll.default_seconds),
        heartbeat_interval: Duration::from_secs(settings.workers.heartbeat_interval_seconds),
        stale_after: Duration::from_secs(settings.workers.stale_after_seconds),
        history_page_size_default: settings.history.page_size_default,
        history_page_size_max: settings.history.page_size_max,
        query_timeout: Duration::from_secs(settings.queries.timeout_seconds),
        ..Timing::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_text_is_known_and_a_failure_is_not() {
        let last = Last::default();
        let read = |text: &str| last.read(text, || text.parse::<u8>());
        assert_eq!(read("1"), Ok(1));
        assert_eq!(last.read("1", || "2".parse::<u8>()), Ok(1));
        assert_eq!(read("2"), Ok(2));
        assert!(read("x").is_err());
        assert!(read("x").is_err());
        assert_eq!(read("1"), Ok(1));
        let long = format!("{:0>1$}", 3, MAX_KEPT + 1);
        assert_eq!(read(&long), Ok(3));
        assert_eq!(last.read("1", || "4".parse::<u8>()), Ok(1));
    }
}
