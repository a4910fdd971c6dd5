//! How clients are to put their connection settings together. An SDK refuses to start a worker
//! when one of the words it knows is missing here.

use serde_json::{Value, json};

/// The `auth_composition_contract` object.
pub(super) fn composition() -> Value {
    json!({
        "schema": "durable-workflow.v2.auth-composition.contract",
        "version": 1,
        "scope": "connection_settings_of_clients_and_workers",
        "unknown_field_policy": "ignore",
        "precedence": {
            "connection_values": ["explicit_argument", "environment", "profile", "default"],
            "profile_selection": ["explicit_argument", "environment", "default_profile"],
        },
        "canonical_environment": {
            "server_url": "DURABLE_WORKFLOW_SERVER_URL",
            "namespace": "DURABLE_WORKFLOW_NAMESPACE",
            "auth_token": "DURABLE_WORKFLOW_AUTH_TOKEN",
            "tls_verify": "DURABLE_WORKFLOW_TLS_VERIFY",
            "profile": "DW_ENV",
        },
        "auth_material": {
            "token": {"status": "supported", "effective_config_value": "redacted"},
            "mtls": {"status": "reserved"},
            "signed_headers": {"status": "reserved"},
        },
        "effective_config": {
            "required_fields": ["server_url", "namespace", "profile", "auth", "tls", "identity"],
        },
        "redaction": {
            "never_echo": ["bearer_tokens", "private_keys", "raw_authorization_headers"],
            "replacement": "redacted",
        },
        "resolution": {
            "rule": "first_source_with_a_value_wins",
            "missing_value": "error_names_the_setting",
        },
    })
}
