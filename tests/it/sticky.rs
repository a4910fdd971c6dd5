//! Sticky execution.
