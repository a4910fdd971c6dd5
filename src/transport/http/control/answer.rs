//! Answers of the control plane: fields with the `control_plane` object, and refusals in one shape.

use actix_web::body::BoxBody;
use actix_web::http::StatusCode;
use actix_web::http::header::{ALLOW, CONTENT_ENCODING, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse, Responder};
use serde_json::{Map, Value, json};

use crate::engine::{Fault, NotFound, ReadError};
use crate::protocol::CONTROL_PLANE_VERSION;
use crate::protocol::reason::Reason;

use super::super::api::Local;
use super::super::body::{ACCEPTED, BadBody, MAX_DEPTH};
use super::super::headers;
use super::super::identify::NotAdmitted;
use super::super::problems::Problems;
use super::operation::{Object, Operation};

/// An answer: a status, fields, and fields that are raw JSON already.
#[derive(Debug)]
pub struct Answer {
    status: StatusCode,
    fields: Map<String, Value>,
    written: Option<Box<Object>>,
    raw: Vec<(&'static str, Vec<u8>)>,
    retry_after: Option<u64>,
    allow: Option<String>,
    bare: bool,
}

impl Answer {
    /// An answer with the fields of a JSON object.
    pub fn new(status: StatusCode, fields: Value) -> Self {
        let fields = match fields {
            Value::Object(fields) => fields,
            other => Map::from_iter([("value".to_owned(), other)]),
        };
        Self {
            status,
            fields,
            written: None,
            raw: Vec::new(),
            retry_after: None,
            allow: None,
            bare: false,
        }
    }

    /// An answer with status 200.
    pub fn ok(fields: Value) -> Self {
        Self::new(StatusCode::OK, fields)
    }

    /// An answer whose fields were written out already: for what every workflow passes.
    pub fn written(status: StatusCode, fields: Object) -> Self {
        Self {
            written: Some(Box::new(fields)),
            ..Self::new(status, Value::Object(Map::new()))
        }
    }

    /// A refusal: a status, a reason and a sentence.
    pub fn refuse(status: StatusCode, reason: Reason, sentence: impl Into<String>) -> Self {
        Self::new(
            status,
            json!({"reason": reason, "message": sentence.into()}),
        )
    }

    /// Adds a field, which must not be one that was written out.
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        let mut written = self.written.iter();
        debug_assert!(!written.any(|written| written.has(key)), "{key} twice");
        self.fields.insert(key.to_owned(), value.into());
        self
    }

    /// Adds a field that is raw JSON and is not repeated anywhere.
    pub fn with_raw(mut self, key: &'static str, json: String) -> Self {
        self.raw.push((key, json.into_bytes()));
        self
    }

    /// Leaves the `control_plane` object out: the fields are a document of their own.
    pub fn bare(mut self) -> Self {
        self.bare = true;
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
    pub fn into_response(mut self, request: &HttpRequest) -> HttpResponse {
        let written = self.written.take().map(|written| *written);
        let mut written = written.unwrap_or_default();
        if !self.bare
            && let Some(operation) = Operation::of(request)
        {
            let object = operation.object(&self.fields, &written);
            self.raw.push(("control_plane", object));
        }
        let mut response = HttpResponse::build(self.status);
        let version = HeaderValue::from_static(CONTROL_PLANE_VERSION);
        response.insert_header((headers::CONTROL_PLANE.clone(), version));
        response.insert_header((CONTENT_TYPE, HeaderValue::from_static("application/json")));
        if let Some(seconds) = self.retry_after {
            response.insert_header((RETRY_AFTER, seconds));
        }
        if let Some(allow) = self.allow {
            response.insert_header((ALLOW, allow));
        }
        written.append(&self.fields);
        for (key, json) in &self.raw {
            written.raw(key, json);
        }
        let body = written.end();
        let api = request.app_data::<Data<Local>>();
        match api.and_then(|api| api.encode(request, &body)) {
            Some((encoded, coding)) => response
                .insert_header((CONTENT_ENCODING, coding))
                .body(encoded),
            None => response.body(body),
        }
    }
}

impl From<Problems> for Answer {
    fn from(problems: Problems) -> Self {
        let listed = json!(problems);
        Self::refuse(
            StatusCode::UNPROCESSABLE_ENTITY,
            Reason::ValidationFailed,
            problems.sentence(),
        )
        .with("errors", listed.clone())
        .with("validation_errors", listed)
    }
}

impl From<Fault> for Answer {
    fn from(fault: Fault) -> Self {
        let unavailable = |reason| {
            Self::refuse(StatusCode::SERVICE_UNAVAILABLE, reason, fault.to_string()).retry_in(1)
        };
        match fault {
            Fault::Busy | Fault::Contended => unavailable(Reason::BackendLockPressure),
            Fault::Full | Fault::ReadOnly => {
                let reason = if fault == Fault::Full {
                    Reason::StoragePressure
                } else {
                    Reason::StorageAdmissionUnavailable
                };
                unavailable(reason)
                    .with("storage_state", "fenced")
                    .with("request_admitted", false)
                    .retry_in(5)
            }
            Fault::Unavailable => unavailable(Reason::BackendUnavailable),
            Fault::Unknown => unavailable(Reason::BackendUnavailable).with("outcome", "unknown"),
            Fault::Bug => Self::refuse(
                StatusCode::INTERNAL_SERVER_ERROR,
                Reason::ControlPlaneInternalError,
                "The server failed; its log has the cause under this request's id.",
            )
            .with("retryable", false),
        }
    }
}

impl From<BadBody> for Answer {
    fn from(bad: BadBody) -> Self {
        match bad {
            BadBody::TooLarge { limit } => Self::refuse(
                StatusCode::PAYLOAD_TOO_LARGE,
                Reason::PayloadTooLarge,
                format!("The body is larger than {limit} bytes."),
            )
            .with("limit", limit as u64),
            BadBody::NotJson => Self::refuse(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                Reason::UnsupportedMediaType,
                "The body must be plain JSON, and say so in Content-Type.",
            )
            .with("accepted_content_types", json!(ACCEPTED)),
            BadBody::Malformed(why) => Self::refuse(
                StatusCode::BAD_REQUEST,
                Reason::MalformedJson,
                "The body is not valid JSON.",
            )
            .with("json_error", why),
            BadBody::TooDeep => Self::refuse(
                StatusCode::BAD_REQUEST,
                Reason::MalformedJson,
                format!("The body is nested deeper than {MAX_DEPTH} levels."),
            )
            .with("json_error", "nested too deep"),
        }
    }
}

impl From<NotAdmitted> for Answer {
    fn from(refused: NotAdmitted) -> Self {
        match refused {
            NotAdmitted::Unauthorized => Self::refuse(
                StatusCode::UNAUTHORIZED,
                Reason::Unauthorized,
                "A valid bearer token is needed.",
            ),
            NotAdmitted::Forbidden { role, allowed } => {
                let allowed: Vec<&str> = allowed.iter().map(|role| role.as_str()).collect();
                let answer = Self::refuse(
                    StatusCode::FORBIDDEN,
                    Reason::Forbidden,
                    "The token's role does not allow this.",
                )
                .with("allowed_roles", allowed);
                match role {
                    Some(role) => answer.with("role", role.as_str()),
                    None => answer,
                }
            }
        }
    }
}

impl From<NotFound> for Answer {
    fn from(missing: NotFound) -> Self {
        let (reason, sentence) = match missing {
            NotFound::Workflow => (Reason::InstanceNotFound, "There is no such workflow."),
            NotFound::Run => (Reason::RunNotFound, "The workflow has no such run."),
        };
        Self::refuse(StatusCode::NOT_FOUND, reason, sentence)
    }
}

impl From<ReadError> for Answer {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::NotFound(missing) => missing.into(),
            ReadError::Fault(fault) => fault.into(),
        }
    }
}

/// Two objects as one.
pub fn joined(mut fields: Value, more: Value) -> Value {
    if let (Some(fields), Value::Object(more)) = (fields.as_object_mut(), more) {
        fields.extend(more);
    }
    fields
}

/// What a handler of the control plane returns: an answer either way.
#[derive(Debug)]
pub struct Control(pub Result<Answer, Answer>);

impl Responder for Control {
    type Body = BoxBody;

    fn respond_to(self, request: &HttpRequest) -> HttpResponse<BoxBody> {
        match self.0 {
            Ok(answer) | Err(answer) => answer.into_response(request),
        }
    }
}
