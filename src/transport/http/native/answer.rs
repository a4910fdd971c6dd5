//! Answers of the worker plane: every one in the envelope, with the version header, errors included.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};

use actix_web::body::{BodySize, BoxBody, MessageBody};
use actix_web::http::StatusCode;
use actix_web::http::header::{
    ACCEPT_ENCODING, ALLOW, CONTENT_ENCODING, CONTENT_TYPE, HeaderValue, RETRY_AFTER,
};
use actix_web::web::{Bytes, Data};
use actix_web::{HttpRequest, HttpResponse, Responder};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::engine::Fault;
use crate::matching::Grant;
use crate::protocol::envelope::EnvelopeBytes;
use crate::protocol::reason::Reason;

use super::super::api::{Api, Local};
use super::super::headers;
use super::super::problems::Problems;

/// Bytes of a body that are handed to the connection at once; it copies what it is handed.
const PIECE: usize = 64 << 10;
/// Text that is shared between parts of a body has at least so many bytes; less is copied.
const SHARED: usize = 16 << 10;

/// The fields of an answer as one JSON object, written piece by piece, so that large texts are not copied
/// into it.
#[derive(Debug, Default)]
pub struct Fields {
    /// Up to the first shared text.
    first: Vec<u8>,
    more: Vec<Bytes>,
    /// After the last shared text.
    last: Vec<u8>,
}

impl Fields {
    /// Nothing yet, with room for so many bytes.
    pub fn with_capacity(bytes: usize) -> Self {
        Self {
            first: Vec::with_capacity(bytes),
            ..Self::default()
        }
    }

    /// Appends text.
    pub fn push(&mut self, text: &str) {
        self.end().extend_from_slice(text.as_bytes());
    }

    /// Bytes of a text that [`share`](Self::share) copies.
    pub fn copied(text: &Bytes) -> usize {
        if text.len() < SHARED { text.len() } else { 0 }
    }

    /// Appends text that may be large, without copying it then.
    pub fn share(&mut self, text: &Bytes) {
        if Self::copied(text) == text.len() {
            self.end().extend_from_slice(text);
            return;
        }
        if !self.last.is_empty() {
            self.more.push(std::mem::take(&mut self.last).into());
        }
        self.more.push(text.clone());
    }

    /// Appends a value.
    ///
    /// # Errors
    /// It cannot be written as JSON, which is a defect.
    pub fn value<T: Serialize>(&mut self, value: &T) -> Result<(), Failure> {
        serde_json::to_writer(self.end(), value).map_err(|error| Fault::from(error).into())
    }

    /// Appends the fields of an object that has some, without its closing brace and with `begin` for the
    /// other one.
    ///
    /// # Errors
    /// They cannot be written as JSON, which is a defect.
    pub fn fields<T: Serialize>(&mut self, begin: u8, object: &T) -> Result<(), Failure> {
        let open = self.end().len();
        self.value(object)?;
        let end = self.end();
        end.pop();
        if let Some(brace) = end.get_mut(open) {
            *brace = begin;
        }
        Ok(())
    }

    fn end(&mut self) -> &mut Vec<u8> {
        if self.more.is_empty() {
            &mut self.first
        } else {
            &mut self.last
        }
    }

    /// Everything in one piece.
    fn whole(self) -> Vec<u8> {
        let Self { first, more, last } = self;
        let mut whole = first;
        whole.reserve_exact(more.iter().map(Bytes::len).sum::<usize>() + last.len());
        for part in more {
            whole.extend_from_slice(&part);
        }
        whole.extend_from_slice(&last);
        whole
    }

    /// The parts of a body that begins with the head of the envelope.
    fn behind(self, head: Bytes) -> Parts {
        let Self {
            mut first,
            more,
            last,
        } = self;
        if more.is_empty() {
            let rest = EnvelopeBytes::rest(first).unwrap_or_default();
            return Parts::new(head, rest.into());
        }
        if let Some(open) = first.first_mut() {
            *open = b',';
        }
        let mut parts = Parts::new(head, first.into());
        parts.more = more.into();
        parts.more.push_back(last.into());
        parts
    }
}

impl From<Vec<u8>> for Fields {
    fn from(fields: Vec<u8>) -> Self {
        Self {
            first: fields,
            ..Self::default()
        }
    }
}

/// A body that is ready to be put into the envelope.
#[derive(Debug)]
pub struct Answer {
    fields: Fields,
    status: StatusCode,
    grant: Option<Box<Grant>>,
}

impl Answer {
    /// An answer with these fields.
    ///
    /// # Errors
    /// They cannot be written as JSON, which is a defect.
    pub fn of<T: Serialize + ?Sized>(fields: &T) -> Result<Self, Failure> {
        let fields = serde_json::to_vec(fields).map_err(|error| {
            tracing::error!(error = %error, "an answer cannot be written as JSON");
            Failure::from(Fault::Bug)
        })?;
        Ok(Self::raw(fields))
    }

    /// An answer whose fields are one JSON object already.
    pub fn raw(fields: impl Into<Fields>) -> Self {
        Self {
            fields: fields.into(),
            status: StatusCode::OK,
            grant: None,
        }
    }

    /// With another status than 200.
    pub fn status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }

    /// The task in this answer is given back if the answer is not taken.
    pub fn carrying(mut self, grant: Box<Grant>) -> Self {
        self.grant = Some(grant);
        self
    }
}

/// A refusal or failure: a status, a reason, a sentence, and whatever else the contract adds.
#[derive(Clone, Debug)]
pub struct Failure {
    status: StatusCode,
    fields: Map<String, Value>,
    retry_after: Option<u64>,
    allow: Option<String>,
}

impl Failure {
    /// A refusal.
    pub fn new(status: StatusCode, reason: Reason, sentence: impl Into<String>) -> Self {
        let sentence = sentence.into();
        let mut fields = Map::new();
        fields.insert("error".to_owned(), sentence.clone().into());
        fields.insert("message".to_owned(), sentence.into());
        fields.insert("reason".to_owned(), reason.as_str().into());
        Self {
            status,
            fields,
            retry_after: None,
            allow: None,
        }
    }

    /// The reason.
    pub fn reason(&self) -> String {
        let reason = self.fields.get("reason").and_then(Value::as_str);
        reason.unwrap_or_default().to_owned()
    }

    /// The status.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// Whether it is one with the state of things, and not with the request as such.
    pub fn is_conflict(&self) -> bool {
        self.status == StatusCode::CONFLICT
    }

    /// Adds a field.
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.fields.insert(key.to_owned(), value.into());
        self
    }

    /// Adds all fields of an object.
    pub fn with_all(mut self, fields: Value) -> Self {
        if let Value::Object(fields) = fields {
            self.fields.extend(fields);
        }
        self
    }

    /// Says that the caller may try again in so many seconds.
    pub fn retry_in(mut self, seconds: u64) -> Self {
        self.retry_after = Some(seconds);
        self.with("retryable", true)
            .with("retry_after_seconds", seconds)
    }

    /// Names the methods that the path takes.
    pub fn allow(mut self, methods: &[&str]) -> Self {
        self.allow = Some(methods.join(", "));
        self
    }

    /// The answer that a request gets.
    pub fn into_response(self, api: &Local) -> HttpResponse {
        let fields = serde_json::to_vec(&self.fields).unwrap_or_else(|_| b"{}".to_vec());
        let mut response = builder(api, self.status);
        if let Some(seconds) = self.retry_after {
            response.insert_header((RETRY_AFTER, seconds));
        }
        if let Some(allow) = self.allow {
            response.insert_header((ALLOW, allow));
        }
        response.body(envelope(api, &fields))
    }
}

impl From<Problems> for Failure {
    fn from(problems: Problems) -> Self {
        let sentence = problems.sentence();
        let listed = json!(problems);
        Self::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            Reason::ValidationFailed,
            sentence,
        )
        .with("errors", listed.clone())
        .with("validation_errors", listed)
    }
}

/// Seconds after which a caller may try again when the server could not.
const RETRY_SECONDS: u64 = 1;
/// The same when storage takes no writes, which an operator must see to.
pub const CLOSED_RETRY_SECONDS: u64 = 5;

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        let sentence = fault.to_string();
        match fault {
            Fault::Busy | Fault::Contended => Self::new(
                StatusCode::SERVICE_UNAVAILABLE,
                Reason::BackendLockPressure,
                sentence,
            )
            .with("backend", json!({"driver": "pgsql", "lock_pressure": true}))
            .retry_in(RETRY_SECONDS),
            Fault::Full | Fault::ReadOnly => {
                let reason = if fault == Fault::Full {
                    Reason::StoragePressure
                } else {
                    Reason::StorageAdmissionUnavailable
                };
                Self::new(StatusCode::SERVICE_UNAVAILABLE, reason, sentence)
                    .with("storage_state", "fenced")
                    .with("request_admitted", false)
                    .retry_in(CLOSED_RETRY_SECONDS)
            }
            Fault::Unavailable | Fault::Unknown => Self::new(
                StatusCode::SERVICE_UNAVAILABLE,
                Reason::BackendUnavailable,
                sentence,
            )
            .with("outcome", "unknown")
            .retry_in(RETRY_SECONDS),
            Fault::Bug => Self::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                Reason::ServerError,
                "The server failed; its log has the cause under this request's id.",
            ),
        }
    }
}

/// What a handler of the worker plane returns. Those that are called for every task box their work: what a handler
/// returns is moved several times before it runs.
#[derive(Debug)]
pub struct Native(pub Result<Answer, Failure>);

impl Responder for Native {
    type Body = BoxBody;

    fn respond_to(self, request: &HttpRequest) -> HttpResponse<BoxBody> {
        let Some(api) = request.app_data::<Data<Local>>() else {
            return HttpResponse::InternalServerError().finish();
        };
        match self.0 {
            Err(failure) => failure.into_response(api),
            Ok(Answer {
                fields,
                status,
                grant,
            }) => {
                let mut response = builder(api, status);
                if request.headers().contains_key(ACCEPT_ENCODING) {
                    let body = envelope(api, &fields.whole());
                    let body = match api.encode(request, &body) {
                        Some((encoded, coding)) => {
                            response.insert_header((CONTENT_ENCODING, coding));
                            encoded
                        }
                        None => body,
                    };
                    return response
                        .body(Carrier::new(Parts::new(body.into(), Bytes::new()), grant));
                }
                let parts = fields.behind(api.envelope_head.clone());
                response.body(Carrier::new(parts, grant))
            }
        }
    }
}

fn builder(api: &Local, status: StatusCode) -> actix_web::HttpResponseBuilder {
    let mut response = HttpResponse::build(status);
    response.insert_header((headers::PROTOCOL.clone(), api.version_header.clone()));
    response.insert_header((CONTENT_TYPE, HeaderValue::from_static("application/json")));
    response
}

fn envelope(api: &Api, fields: &[u8]) -> Vec<u8> {
    api.envelope.wrap(fields).unwrap_or_default()
}

/// Parts of a body; most have no more than two.
struct Parts {
    first: Bytes,
    second: Bytes,
    more: VecDeque<Bytes>,
}

impl Parts {
    fn new(first: Bytes, second: Bytes) -> Self {
        Self {
            first,
            second,
            more: VecDeque::new(),
        }
    }

    fn size(&self) -> u64 {
        let parts = [&self.first, &self.second].into_iter().chain(&self.more);
        parts.map(|part| part.len() as u64).sum()
    }

    /// The next piece; none when all were taken.
    fn next(&mut self) -> Option<Bytes> {
        while self.more.front().is_some_and(Bytes::is_empty) {
            self.more.pop_front();
        }
        let parts = [&mut self.first, &mut self.second].into_iter();
        let mut parts = parts.chain(self.more.front_mut());
        let part = parts.find(|part| !part.is_empty())?;
        Some(part.split_to(part.len().min(PIECE)))
    }
}

/// A body in parts, which may carry a task: once all of it was written the worker holds the lease;
/// dropped before that, the lease is given back.
struct Carrier {
    size: u64,
    parts: Parts,
    written: bool,
    grant: Option<Box<Grant>>,
}

impl Carrier {
    fn new(parts: Parts, grant: Option<Box<Grant>>) -> Self {
        Self {
            size: parts.size(),
            parts,
            written: false,
            grant,
        }
    }
}

impl MessageBody for Carrier {
    type Error = std::convert::Infallible;

    fn size(&self) -> BodySize {
        BodySize::Sized(self.size)
    }

    fn poll_next(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Self::Error>>> {
        if let Some(piece) = self.parts.next() {
            return Poll::Ready(Some(Ok(piece)));
        }
        if self.grant.is_some() && !self.written {
            // The connection now writes what it has. It comes back only if that went well and the
            // client is still there; otherwise this is dropped.
            self.written = true;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        if let Some(grant) = &mut self.grant {
            grant.delivered();
        }
        Poll::Ready(None)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

    use super::*;
    use crate::matching::{GrantedLease, Releases};

    /// Rule: a large text is in memory once, however often an answer has it, and is handed over in pieces.
    #[test]
    fn large_texts_are_shared_and_sent_in_pieces() {
        for size in [0, 10, SHARED - 1, SHARED, PIECE, 3 * PIECE + 1] {
            let text = Bytes::from("x".repeat(size));
            let mut fields = Fields::default();
            fields.push(r#"{"a":""#);
            fields.share(&text);
            fields.push(r#"","b":""#);
            fields.share(&text);
            fields.push("\"");
            fields.fields(b',', &json!({"c": 1})).unwrap();
            fields.push("}");
            let object = json!({"a": "x".repeat(size), "b": "x".repeat(size), "c": 1}).to_string();
            let mut parts = fields.behind("{".into());
            let shared = [&parts.first, &parts.second]
                .into_iter()
                .chain(&parts.more)
                .filter(|part| part.as_ptr() == text.as_ptr())
                .count();
            assert_eq!(shared, if size < SHARED { 0 } else { 2 }, "{size} bytes");
            parts.first = Bytes::new();
            let mut carrier = Box::pin(Carrier::new(parts, None));
            let announced = carrier.size();
            let mut context = Context::from_waker(std::task::Waker::noop());
            let mut body = Vec::new();
            while let Poll::Ready(Some(Ok(piece))) = carrier.as_mut().poll_next(&mut context) {
                assert!(piece.len() <= PIECE);
                body.extend_from_slice(&piece);
            }
            assert_eq!(announced, BodySize::Sized(body.len() as u64));
            body[0] = b'{';
            assert_eq!(String::from_utf8(body).unwrap(), object);
        }
    }

    #[test]
    fn a_task_is_given_back_unless_the_connection_comes_back_after_writing() {
        for polls in 0..4 {
            let (releases, mut given_back) = Releases::new();
            let lease = GrantedLease::of_task(1, 1);
            let grant = Box::new(Grant::new(lease, releases));
            let mut carrier = Box::pin(Carrier::new(
                Parts::new("{}".into(), Bytes::new()),
                Some(grant),
            ));
            let mut context = Context::from_waker(std::task::Waker::noop());
            assert_eq!(carrier.size(), BodySize::Sized(2));
            let mut ended = false;
            for _ in 0..polls {
                ended = matches!(carrier.as_mut().poll_next(&mut context), Poll::Ready(None));
            }
            assert_eq!(ended, polls == 3);
            drop(carrier);
            assert_eq!(
                given_back.try_recv().is_ok(),
                polls < 3,
                "after {polls} polls"
            );
        }
    }
}
