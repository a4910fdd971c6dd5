//! Names of the headers of the protocols, parsed once: each request is asked for several.

use actix_web::http::header::HeaderName;

/// [`PROTOCOL_HEADER`](crate::protocol::PROTOCOL_HEADER).
pub static PROTOCOL: HeaderName = HeaderName::from_static("x-durable-workflow-protocol-version");
/// [`CONTROL_PLANE_HEADER`](crate::protocol::CONTROL_PLANE_HEADER).
pub static CONTROL_PLANE: HeaderName =
    HeaderName::from_static("x-durable-workflow-control-plane-version");
/// The namespace of a request.
pub static NAMESPACE: HeaderName = HeaderName::from_static("x-namespace");
/// The id of a request, taken over from the caller or made here.
pub static REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{CONTROL_PLANE_HEADER, PROTOCOL_HEADER};

    #[test]
    fn names_are_those_of_the_protocols() {
        for (name, written) in [
            (&PROTOCOL, PROTOCOL_HEADER),
            (&CONTROL_PLANE, CONTROL_PLANE_HEADER),
        ] {
            assert_eq!(name.as_str(), written.to_ascii_lowercase());
        }
    }
}
