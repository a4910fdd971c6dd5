//! Leasehold: a self-hosted, durable worker-plane server.

pub mod clock;
pub mod domain;
pub mod engine;
pub mod matching;
pub mod payload;
pub mod protocol;
pub mod store;
