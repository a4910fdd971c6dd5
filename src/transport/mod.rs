//! Bindings: each turns its wire into calls of the engine and back, and nothing else.

pub mod http;
