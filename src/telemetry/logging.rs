//! Logs: structured, to standard error, never with payloads or tokens.

use tracing_subscriber::EnvFilter;

/// What the HTTP library says of a connection: that a client sent what is no HTTP, as an error. It is
/// nothing that an operator could do anything about, and is answered with 400.
const QUIET: &str = "actix_http::h1::dispatcher=off";

/// Starts logging. `format` is `text` or `json`; `filter` holds directives such as `info`; a directive
/// for a part of the HTTP library overrides what is said there.
///
/// # Errors
/// The filter cannot be read, or logging was started before.
pub fn start(format: &str, filter: &str) -> Result<(), String> {
    let filter = EnvFilter::try_new(format!("{QUIET},{filter}"))
        .map_err(|error| format!("log.filter: {error}"))?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false);
    if format == "json" {
        builder.json().flatten_event(true).try_init()
    } else {
        builder.try_init()
    }
    .map_err(|error| error.to_string())
}
