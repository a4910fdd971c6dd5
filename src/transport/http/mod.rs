//! The HTTP listener: one actix application, several planes.

pub mod api;
mod body;
mod compression;
pub mod control;
mod docs;
pub mod documents;
mod fields;
mod headers;
mod identify;
pub mod info;
mod metrics;
pub mod native;
pub mod openapi;
mod problems;
mod room;
pub mod routes;
pub mod server;
