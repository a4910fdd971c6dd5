//! Leasehold: a self-hosted, durable worker-plane server.

pub mod auth;
pub mod cli;
pub mod clock;
pub mod config;
pub mod domain;
pub mod engine;
pub mod maintenance;
pub mod managed_pg;
pub mod matching;
pub mod node;
pub mod payload;
pub mod protocol;
pub mod store;
pub mod telemetry;
pub mod transport;
