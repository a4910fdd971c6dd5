//! Logs: structured, to standard error, never with payloads or tokens.

use tracing_subscriber::EnvFilter;

/// Starts logging. `format` is `text` or `json`; `filter` holds directives such as `info`.
///
/// # Errors
/// The filter cannot be read, or logging was started before.
pub fn start(format: &str, filter: &str) -> Result<(), String> {
    let filter = EnvFilter::try_new(filter).map_err(|error| format!("log.filter: {error}"))?;
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
