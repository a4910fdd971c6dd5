//! A request of the worker plane, checked in the order of the contract before any handler sees it:
//! body, credential, role, protocol version, namespace, fields.

use std::borrow::Cow;
use std::future::Future;
use std::pin::Pin;

use actix_web::error::InternalError;
use actix_web::http::StatusCode;
use actix_web::web::{Bytes, Data, Payload};
use actix_web::{FromRequest, HttpRequest, HttpResponse, dev};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::auth::{Principal, Role};
use crate::domain::ids::Namespace;
use crate::domain::run::Digest;
use crate::protocol::feature::Negotiated;
use crate::protocol::reason::Reason;
use crate::protocol::version::VersionRefusal;

use super::super::api::Local;
use super::super::body::{self, ACCEPTED, BadBody, MAX_DEPTH};
use super::super::headers;
use super::super::identify::{self, NotAdmitted};
use super::answer::Failure;

/// Which roles an operation of the worker plane takes, and what it remembers of a body.
pub trait Allowed: 'static {
    /// The roles.
    const ROLES: &'static [Role];
    /// What is remembered of a body, to know it again.
    type Digest;
    /// Computes it.
    fn digest(body: &[u8]) -> Self::Digest;
}

/// Workers only.
#[derive(Debug)]
pub struct WorkerOnly;

impl Allowed for WorkerOnly {
    const ROLES: &'static [Role] = &[Role::Worker];
    type Digest = ();
    fn digest(_: &[u8]) {}
}

/// Workers only, who report what may be reported once.
#[derive(Debug)]
pub struct Reporter;

impl Allowed for Reporter {
    const ROLES: &'static [Role] = WorkerOnly::ROLES;
    type Digest = Digest;
    fn digest(body: &[u8]) -> Digest {
        body::report_digest(body)
    }
}

/// Every role: a registration may also come from whoever looks for trouble.
#[derive(Debug)]
pub struct AnyRole;

impl Allowed for AnyRole {
    const ROLES: &'static [Role] = &[Role::Worker, Role::Operator, Role::Admin];
    type Digest = ();
    fn digest(_: &[u8]) {}
}

/// A request that passed every check. Handlers take it in a box: on its way to them it is moved several times.
pub struct Call<R: Allowed, T> {
    /// Shared state.
    pub api: Data<Local>,
    /// Who calls.
    #[allow(dead_code, reason = "for operations that differ by caller")]
    pub principal: Principal,
    /// Versions of both sides.
    pub version: Negotiated,
    /// Namespace of the request; it exists.
    pub namespace: Namespace,
    /// The body.
    pub body: T,
    /// Digest of the body as it was sent.
    pub digest: R::Digest,
}

impl<R: Allowed, T: DeserializeOwned + 'static> FromRequest for Box<Call<R, T>> {
    type Error = actix_web::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self, Self::Error>>>>;

    fn from_request(request: &HttpRequest, payload: &mut dev::Payload) -> Self::Future {
        let request = request.clone();
        let payload = Payload::from_request(&request, payload).into_inner();
        Box::pin(async move {
            let Some(api) = request.app_data::<Data<Local>>().cloned() else {
                let response = HttpResponse::InternalServerError().finish();
                return Err(InternalError::from_response("no state", response).into());
            };
            let payload = payload?;
            match check(&api, &request, payload).await {
                Ok(call) => Ok(call),
                Err(failure) => {
                    let response = failure.into_response(&api);
                    Err(InternalError::from_response("refused", response).into())
                }
            }
        })
    }
}

/// Reads the body of a request of this plane.
///
/// # Errors
/// [`BadBody`].
pub(super) async fn read(
    api: &Local,
    request: &HttpRequest,
    payload: &mut Payload,
) -> Result<Bytes, BadBody> {
    body::read(
        request,
        payload,
        api.settings.http.max_body_bytes,
        &api.worker_room,
    )
    .await
}

async fn check<R: Allowed, T: DeserializeOwned>(
    api: &Data<Local>,
    request: &HttpRequest,
    mut payload: Payload,
) -> Result<Box<Call<R, T>>, Failure> {
    let bytes = read(api, request, &mut payload).await?;
    let parsed = body::parse::<T>(&bytes)?;
    let (principal, version, namespace) = preamble(api, request, R::ROLES).await?;
    identify::nul_free(request)?;
    Ok(Box::new(Call {
        api: api.clone(),
        principal,
        version,
        namespace,
        body: parsed?,
        digest: R::digest(&bytes),
    }))
}

/// The checks that every request below `/api/worker` passes, also one for a path that does not exist.
pub(super) async fn preamble(
    api: &Local,
    request: &HttpRequest,
    roles: &'static [Role],
) -> Result<(Principal, Negotiated, Namespace), Failure> {
    let principal = identify::admit(api, request, roles)?;
    let mut versions = request.headers().get_all(&headers::PROTOCOL);
    let header = versions
        .next()
        .map(|value| value.to_str().unwrap_or("\u{fffd}"));
    let header = match (header, versions.next()) {
        // Two versions are no version.
        (Some(first), Some(_)) => Some(Cow::from(format!("{first}, …"))),
        (first, _) => first.map(Cow::from),
    };
    let version = api.negotiated(header.as_deref())?;
    let missing = |name: Value| {
        Failure::new(
            StatusCode::NOT_FOUND,
            Reason::NamespaceNotFound,
            "The namespace does not exist.",
        )
        .with("namespace", name)
        .with(
            "remediation",
            "Create the namespace, or name another one in X-Namespace.",
        )
    };
    let namespace = identify::namespace(api, request).ok_or_else(|| missing(Value::Null))?;
    if api.engine.namespace_exists(&namespace).await? {
        Ok((principal, version, namespace))
    } else {
        Err(missing(namespace.as_str().into()))
    }
}

impl From<BadBody> for Failure {
    fn from(bad: BadBody) -> Self {
        match bad {
            BadBody::TooLarge { limit } => Self::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                Reason::PayloadTooLarge,
                format!("The body is larger than {limit} bytes."),
            )
            .with("limit", limit as u64),
            BadBody::NotJson => Self::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                Reason::UnsupportedMediaType,
                "The body must be plain JSON, and say so in Content-Type.",
            )
            .with("accepted_content_types", json!(ACCEPTED)),
            BadBody::Malformed(why) => Self::new(
                StatusCode::BAD_REQUEST,
                Reason::MalformedJson,
                "The body is not valid JSON.",
            )
            .with("json_error", why),
            BadBody::TooDeep => Self::new(
                StatusCode::BAD_REQUEST,
                Reason::MalformedJson,
                format!("The body is nested deeper than {MAX_DEPTH} levels."),
            )
            .with("json_error", "nested too deep"),
        }
    }
}

impl From<NotAdmitted> for Failure {
    fn from(refused: NotAdmitted) -> Self {
        match refused {
            NotAdmitted::Unauthorized => Self::new(
                StatusCode::UNAUTHORIZED,
                Reason::Unauthorized,
                "A valid bearer token is needed.",
            ),
            NotAdmitted::Forbidden { role, allowed } => {
                let allowed: Vec<&str> = allowed.iter().map(|role| role.as_str()).collect();
                let failure = Self::new(
                    StatusCode::FORBIDDEN,
                    Reason::Forbidden,
                    "The token's role does not allow this.",
                )
                .with("allowed_roles", allowed);
                match role {
                    Some(role) => failure.with("role", role.as_str()),
                    None => failure,
                }
            }
        }
    }
}

impl From<VersionRefusal> for Failure {
    fn from(refusal: VersionRefusal) -> Self {
        let reason = Reason::ALL
            .iter()
            .copied()
            .find(|reason| reason.as_str() == refusal.reason)
            .unwrap_or(Reason::UnsupportedProtocolVersion);
        Self::new(StatusCode::BAD_REQUEST, reason, refusal.error)
            .with("supported_version", refusal.supported_version)
            .with("requested_version", refusal.requested_version)
            .with("remediation", refusal.remediation)
    }
}
