//! A request of the control plane, checked in the order of the contract before any handler sees it:
//! body, credential, role, control-plane version, namespace, fields.

use std::collections::BTreeMap;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;

use actix_web::error::InternalError;
use actix_web::http::StatusCode;
use actix_web::web::{Bytes, Data, Payload};
use actix_web::{FromRequest, HttpRequest, HttpResponse, dev};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::auth::{Principal, Role};
use crate::domain::ids::Namespace;
use crate::protocol::reason::Reason;
use crate::protocol::{CONTROL_PLANE_HEADER, CONTROL_PLANE_VERSION};

use super::super::api::Local;
use super::super::body::{self, BadBody};
use super::super::{fields, headers, identify};
use super::answer::Answer;

/// Which roles an operation of the control plane takes.
pub trait Allowed: 'static {
    /// The roles.
    const ROLES: &'static [Role];
}

/// Operators and administrators.
#[derive(Debug)]
pub struct OperatorOrAdmin;

impl Allowed for OperatorOrAdmin {
    const ROLES: &'static [Role] = &[Role::Operator, Role::Admin];
}

/// Administrators.
#[derive(Debug)]
pub struct AdminOnly;

impl Allowed for AdminOnly {
    const ROLES: &'static [Role] = &[Role::Admin];
}

/// A request that passed every check. Handlers take it in a box: on its way to them it is moved several times.
pub struct Call<R, T> {
    /// Shared state.
    pub api: Data<Local>,
    /// Who calls.
    #[allow(dead_code, reason = "for operations that differ by caller")]
    pub principal: Principal,
    /// Namespace of the request; it exists.
    pub namespace: Namespace,
    /// Parameters of the query string.
    pub query: BTreeMap<String, String>,
    /// The body.
    pub body: T,
    role: PhantomData<R>,
}

/// No fields are read.
#[derive(Debug, serde::Deserialize)]
pub struct Nothing {}

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
            check(&api, &request, payload).await.map_err(|refused| {
                InternalError::from_response("refused", refused.into_response(&request)).into()
            })
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
        &api.control_room,
    )
    .await
}

async fn check<R: Allowed, T: DeserializeOwned>(
    api: &Data<Local>,
    request: &HttpRequest,
    mut payload: Payload,
) -> Result<Box<Call<R, T>>, Answer> {
    let bytes = read(api, request, &mut payload).await?;
    let parsed = body::parse::<T>(&bytes)?;
    let (principal, namespace) = preamble(api, request, R::ROLES).await?;
    identify::nul_free(request)?;
    Ok(Box::new(Call {
        api: api.clone(),
        principal,
        namespace,
        query: fields::query(request),
        body: parsed?,
        role: PhantomData,
    }))
}

/// The checks that every request of the control plane passes, also one for a path that does not exist.
pub(super) async fn preamble(
    api: &Local,
    request: &HttpRequest,
    roles: &'static [Role],
) -> Result<(Principal, Namespace), Answer> {
    let principal = identify::admit(api, request, roles)?;
    version(request)?;
    let missing = |name: Value| {
        Answer::refuse(
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
        Ok((principal, namespace))
    } else {
        Err(missing(namespace.as_str().into()))
    }
}

/// The one version of the control plane.
fn version(request: &HttpRequest) -> Result<(), Answer> {
    let mut versions = request.headers().get_all(&headers::CONTROL_PLANE);
    let header = versions
        .next()
        .map(|value| value.to_str().unwrap_or("\u{fffd}").trim());
    let several = versions.next().is_some();
    let (reason, sentence, requested) = match header {
        Some(CONTROL_PLANE_VERSION) if !several => return Ok(()),
        None | Some("") => (
            Reason::MissingControlPlaneVersion,
            "The request does not name its control-plane version.",
            Value::Null,
        ),
        Some(other) => (
            Reason::UnsupportedControlPlaneVersion,
            "The control-plane version is not supported.",
            other.into(),
        ),
    };
    Err(Answer::refuse(StatusCode::BAD_REQUEST, reason, sentence)
        .with("supported_version", CONTROL_PLANE_VERSION)
        .with("requested_version", requested)
        .with(
            "remediation",
            format!("Send {CONTROL_PLANE_HEADER}: {CONTROL_PLANE_VERSION}."),
        ))
}
