//! Who calls: tokens, roles, and the principal that every handler asks for.

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// What a caller may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Everything below `/api/worker`.
    Worker,
    /// Workflows, queues, and looking at workers.
    Operator,
    /// Everything of an operator, and the system.
    Admin,
}

impl Role {
    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Worker => "worker",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }
}

/// A caller that was let in.
#[derive(Clone, Debug)]
pub struct Principal {
    roles: &'static [Role],
}

/// Every role: the single token, or no token at all.
const ALL: &[Role] = &[Role::Worker, Role::Operator, Role::Admin];

impl Principal {
    /// Whether the caller has one of these roles.
    pub fn has_any(&self, roles: &[Role]) -> bool {
        roles.iter().any(|role| self.roles.contains(role))
    }

    /// The caller's role, for its own information.
    pub fn role(&self) -> Option<Role> {
        self.roles.first().copied()
    }
}

/// No valid credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unauthorized;

/// The gate.
#[derive(Clone, Debug)]
pub struct Gate {
    /// SHA-256 of the token; none lets everybody in.
    token: Option<[u8; 32]>,
}

impl Gate {
    /// A gate that one token opens, or that stands open.
    pub fn new(token: Option<&str>) -> Self {
        Self {
            token: token.map(digest),
        }
    }

    /// Whether a credential is needed at all.
    pub fn is_open(&self) -> bool {
        self.token.is_none()
    }

    /// Lets a caller in by the value of its `Authorization` header (RFC 6750).
    ///
    /// # Errors
    /// [`Unauthorized`]; it does not say why.
    pub fn admit(&self, authorization: Option<&str>) -> Result<Principal, Unauthorized> {
        let Some(expected) = &self.token else {
            return Ok(Principal { roles: ALL });
        };
        let given = authorization
            .and_then(|header| header.split_once(' '))
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
            .map_or("", |(_, token)| token.trim());
        // Digests have one length, so the comparison tells nothing about the token's.
        if bool::from(digest(given).ct_eq(expected)) && !given.is_empty() {
            Ok(Principal { roles: ALL })
        } else {
            Err(Unauthorized)
        }
    }
}

fn digest(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_opens_the_gate_and_nothing_else_does() {
        let gate = Gate::new(Some("right"));
        for refused in [
            None,
            Some(""),
            Some("Bearer"),
            Some("Bearer "),
            Some("Bearer wrong"),
            Some("Basic right"),
            Some("right"),
        ] {
            assert_eq!(gate.admit(refused).err(), Some(Unauthorized), "{refused:?}");
        }
        for admitted in ["Bearer right", "bearer right", "BEARER  right "] {
            assert!(gate.admit(Some(admitted)).is_ok(), "{admitted:?}");
        }
        assert!(Gate::new(None).admit(None).is_ok());
    }
}
