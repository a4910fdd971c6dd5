//! Worker protocol versions: their syntax, the version this server advertises, and the decision
//! whether a request's version is served (worker protocol, version negotiation).

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

use super::reason::Reason;

/// Header with the worker protocol version, on requests and on every answer below `/api/worker`.
pub const PROTOCOL_HEADER: &str = "X-Durable-Workflow-Protocol-Version";

/// The only major version this server speaks.
const MAJOR: u64 = 1;

/// The newest minor this server knows the rules of.
const NEWEST_MINOR: u64 = 20;

/// A worker protocol version such as `1.13`, ordered by major and minor as numbers.
///
/// Kept as a semantic version whose patch is always zero. Displays and serializes as `1.13`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProtocolVersion(semver::Version);

/// A text that is not two groups of ASCII digits with a dot between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a protocol version has the form MAJOR.MINOR, for example 1.13")]
pub struct MalformedVersion;

impl ProtocolVersion {
    /// A version from its two numbers.
    #[must_use]
    pub const fn new(major: u64, minor: u64) -> Self {
        Self(semver::Version::new(major, minor, 0))
    }

    /// Reads `MAJOR.MINOR` after trimming white space. Leading zeros are only spelling: `01.013` is
    /// 1.13. Numbers too large for the machine become the largest one, which compares the same.
    ///
    /// # Errors
    ///
    /// [`MalformedVersion`] for everything else, `1`, `v1.13` and `1.13.0` included.
    pub fn parse(text: &str) -> Result<Self, MalformedVersion> {
        let trimmed = text.trim_matches(|c: char| c.is_ascii_whitespace());
        let (major, minor) = trimmed.split_once('.').ok_or(MalformedVersion)?;
        Ok(Self::new(number(major)?, number(minor)?))
    }

    /// The first number.
    #[must_use]
    pub const fn major(&self) -> u64 {
        self.0.major
    }

    /// The second number.
    #[must_use]
    pub const fn minor(&self) -> u64 {
        self.0.minor
    }
}

/// A run of ASCII digits as a number, the largest one when it does not fit.
fn number(digits: &str) -> Result<u64, MalformedVersion> {
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(MalformedVersion);
    }
    Ok(digits.parse().unwrap_or(u64::MAX))
}

impl fmt::Display for ProtocolVersion {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}.{}", self.major(), self.minor())
    }
}

impl Serialize for ProtocolVersion {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The version this server announces, and with it the newest it accepts: `1.0` to `1.20`.
///
/// A configuration value. Everything that depends on it (the accepted set, capabilities, cluster
/// info, the generated document) is derived from it once, at start.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(transparent)]
pub struct Advertised(ProtocolVersion);

/// A configured protocol version that this server cannot advertise; the server must not start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the worker protocol version must be one of 1.0 to 1.{NEWEST_MINOR}, not {given:?}")]
pub struct AdvertisedError {
    /// The configured text.
    pub given: String,
}

impl Advertised {
    /// The version itself.
    #[must_use]
    pub const fn version(&self) -> &ProtocolVersion {
        &self.0
    }

    /// Every version a request may name, oldest first.
    pub fn accepted(&self) -> impl Iterator<Item = ProtocolVersion> + use<> {
        (0..=self.0.minor()).map(|minor| ProtocolVersion::new(MAJOR, minor))
    }
}

impl Default for Advertised {
    /// The contract's own default, `1.13`.
    fn default() -> Self {
        Self(ProtocolVersion::new(MAJOR, 13))
    }
}

impl FromStr for Advertised {
    type Err = AdvertisedError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match ProtocolVersion::parse(text) {
            Ok(version) if version.major() == MAJOR && version.minor() <= NEWEST_MINOR => {
                Ok(Self(version))
            }
            _ => Err(AdvertisedError {
                given: text.to_owned(),
            }),
        }
    }
}

impl fmt::Display for Advertised {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

/// Why a request's version is not served: the fields of a 400 answer, by their wire names. The
/// request must not reach a handler, and nothing about it may be looked up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VersionRefusal {
    /// `missing_protocol_version` or `unsupported_protocol_version`.
    pub reason: &'static str,
    /// One sentence for a person.
    pub error: String,
    /// The header's value as it was received; null when there was none.
    pub requested_version: Option<String>,
    /// The advertised version.
    pub supported_version: String,
    /// What to send instead, or what the operator may set.
    pub remediation: String,
}

/// Decides whether a request with this version header is served.
///
/// # Errors
///
/// [`VersionRefusal`] in the four fail-closed cases: no value, a malformed value, another major, a
/// newer minor than the advertised one.
pub fn negotiate(
    advertised: &Advertised,
    header: Option<&str>,
) -> Result<ProtocolVersion, VersionRefusal> {
    let refuse = |reason: Reason, error: String, remediation: String| VersionRefusal {
        reason: reason.as_str(),
        error,
        requested_version: match reason {
            Reason::MissingProtocolVersion => None,
            _ => header.map(str::to_owned),
        },
        supported_version: advertised.to_string(),
        remediation,
    };
    let send = || format!("Send the header {PROTOCOL_HEADER}: {advertised}");
    let unsupported = |error, remediation| {
        Err(refuse(
            Reason::UnsupportedProtocolVersion,
            error,
            remediation,
        ))
    };

    let value = header.unwrap_or_default();
    if value.bytes().all(|byte| byte.is_ascii_whitespace()) {
        return Err(refuse(
            Reason::MissingProtocolVersion,
            "The request names no worker protocol version.".to_owned(),
            send() + ".",
        ));
    }
    let Ok(requested) = ProtocolVersion::parse(value) else {
        return unsupported(format!("{MalformedVersion}."), send() + ".");
    };
    if requested.major() != MAJOR {
        return unsupported(
            format!("Only major version {MAJOR} of the worker protocol is served here."),
            send() + ".",
        );
    }
    if requested > advertised.0 {
        let error = format!("The newest worker protocol version served here is {advertised}.");
        // A newer client of a version that only needs to be switched on is the usual case; its
        // operator should not have to search for the switch.
        let remediation = if requested.minor() <= NEWEST_MINOR {
            format!(
                "{} or an older 1.N, or start the server with \
                 DW_WORKER_PROTOCOL_VERSION={requested} (or --worker-protocol {requested}), which \
                 admits this version.",
                send()
            )
        } else {
            send() + " or an older 1.N."
        };
        return unsupported(error, remediation);
    }
    Ok(requested)
}

#[cfg(test)]
mod tests;
