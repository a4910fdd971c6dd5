//! The parts of a request that say who calls and for which namespace, the same on every plane.

use std::borrow::Cow;

use actix_web::HttpRequest;
use actix_web::http::header;

use crate::auth::{Principal, Role, Unauthorized};
use crate::domain::ids::Namespace;

use super::api::{Api, Local};
use super::fields;
use super::headers;
use super::problems::Problems;

/// Longest namespace.
const MAX_NAMESPACE: usize = 128;

/// Why a caller is not let in.
#[derive(Clone, Copy, Debug)]
pub enum NotAdmitted {
    /// No valid credential.
    Unauthorized,
    /// The credential does not cover this.
    Forbidden {
        /// The caller's role.
        role: Option<Role>,
        /// Roles that would be let in.
        allowed: &'static [Role],
    },
}

impl From<Unauthorized> for NotAdmitted {
    fn from(Unauthorized: Unauthorized) -> Self {
        Self::Unauthorized
    }
}

/// Lets a caller in that has one of these roles.
///
/// # Errors
/// [`NotAdmitted`].
pub fn admit(
    api: &Api,
    request: &HttpRequest,
    allowed: &'static [Role],
) -> Result<Principal, NotAdmitted> {
    let mut headers = request.headers().get_all(header::AUTHORIZATION);
    let first = headers.next().and_then(|value| value.to_str().ok());
    if headers.next().is_some() {
        return Err(NotAdmitted::Unauthorized);
    }
    let principal = api.gate.admit(first)?;
    if principal.has_any(allowed) {
        Ok(principal)
    } else {
        Err(NotAdmitted::Forbidden {
            role: principal.role(),
            allowed,
        })
    }
}

/// The namespace that a request is for; `None` when what it names cannot be one.
pub fn namespace(api: &Local, request: &HttpRequest) -> Option<Namespace> {
    let mut named_by = request.headers().get_all(&headers::NAMESPACE);
    let header = named_by.next().map(|value| value.to_str().ok());
    if named_by.next().is_some() {
        return None;
    }
    match header {
        Some(value) => named(api, value?),
        None => named(
            api,
            &fields::query(request)
                .remove("namespace")
                .unwrap_or_default(),
        ),
    }
}

/// The namespace of this name, whose spelling is not strict; without one the default.
fn named(api: &Local, name: &str) -> Option<Namespace> {
    api.namespace(name, || spelled(api, name))
}

/// [`named`], worked out.
fn spelled(api: &Api, name: &str) -> Option<Namespace> {
    let name = match name.trim() {
        "" => api.settings.default_namespace.as_str(),
        name => name,
    };
    let is_lower = |byte: u8| byte.is_ascii() && !byte.is_ascii_uppercase();
    let name = if name.bytes().all(is_lower) {
        Cow::Borrowed(name)
    } else {
        Cow::Owned(name.to_lowercase())
    };
    let is_legal = name.len() <= MAX_NAMESPACE
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
    is_legal.then(|| name.as_ref().into())
}

/// Refuses U+0000 in the path or the query of a request: the database cannot hold it, so nothing is
/// named by it.
///
/// # Errors
/// `path`, or the parameters at fault.
pub fn nul_free(request: &HttpRequest) -> Result<(), Problems> {
    const NUL: &str = "%00";
    let mut problems = Problems::default();
    if request.path().contains(NUL) {
        problems.add("path", "must not contain U+0000");
    }
    if request.query_string().contains(NUL) {
        for (name, value) in fields::query(request) {
            if name.contains('\0') {
                problems.add("query", "must not contain U+0000 in a name");
            } else if value.contains('\0') {
                problems.add(&name, "must not contain U+0000");
            }
        }
    }
    problems.into_result()
}
