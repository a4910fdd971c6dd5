//! The HTTP listener: one actix application, several planes.

pub mod api;
mod body;
mod fields;
mod identify;
pub mod native;
mod problems;
pub mod routes;
