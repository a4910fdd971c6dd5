//! The protocols as such: versions and their negotiation, features, what this build announces,
//! refusal codes and the envelope around worker answers. Imports nothing of ours and does no I/O.

pub mod budget;
pub mod capabilities;
pub mod envelope;
pub mod feature;
pub mod manifests;
pub mod reason;
pub mod replay;
pub mod support;
pub mod version;

pub use capabilities::{Timing, server_capabilities};
pub use envelope::{EnvelopeBytes, EnvelopeError};
pub use feature::{Feature, Negotiated};
pub use manifests::{
    AnnouncedLimits, CONTROL_PLANE_HEADER, CONTROL_PLANE_VERSION, ClusterFacts, cluster_info,
};
pub use reason::Reason;
pub use support::Supported;
pub use version::{
    Advertised, AdvertisedError, PROTOCOL_HEADER, ProtocolVersion, VersionRefusal, negotiate,
};
