//! The house: rules about the sources and the documents, checked by reading them.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a test stops at the first thing that is not as it should be"
)]

mod documents;
mod habits;
mod layers;
mod source;
