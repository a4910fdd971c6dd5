//! The `control_plane` object beside every answer on a workflow route: which operation it was, what
//! it was about, and which fields a client may rely on.

use actix_web::HttpRequest;
use serde::Serialize;
use serde_json::{Map, Value};

/// Fields of an answer that the object repeats.
const PROJECTED: &[&str] = &[
    "run_id",
    "workflow_type",
    "namespace",
    "business_key",
    "status",
    "status_bucket",
    "run_status",
    "is_terminal",
    "task_queue",
    "run_number",
    "run_count",
    "workflow_count",
    "is_current_run",
    "compatibility",
    "started_at",
    "closed_at",
    "last_progress_at",
    "wait_kind",
    "wait_reason",
    "next_page_token",
    "command_id",
    "command_status",
    "command_source",
    "target_scope",
    "signal_name",
    "query_name",
    "update_name",
    "outcome",
    "reason",
    "rejection_reason",
    "rejection_category",
    "validation_errors",
    "result",
    "result_envelope",
    "update_id",
    "update_status",
    "principal",
    "wait_for",
    "wait_timed_out",
    "wait_timeout_seconds",
    "blocked_reason",
    "message",
    "remediation",
    "execution_owner",
    "identity",
    "declared_signals",
    "signal_admission",
    "diagnostic_status",
    "retryable",
    "error_id",
];

/// An operation on a workflow route.
#[derive(Clone, Debug)]
pub struct Operation {
    name: &'static str,
    workflow_id: Option<String>,
    run_id: Option<String>,
    /// Name of the signal, query or update, and the field that holds it.
    subject: Option<(&'static str, String)>,
}

/// Bytes that most objects have room in.
const USUAL_BYTES: usize = 1_024;

/// An object that is written field by field. Keys are names of fields, which need no escaping.
#[derive(Debug)]
pub struct Object {
    json: Vec<u8>,
    /// Where the value of each field begins and ends.
    fields: Vec<(&'static str, usize, usize)>,
}

impl Default for Object {
    fn default() -> Self {
        Self {
            json: Vec::with_capacity(USUAL_BYTES),
            fields: Vec::new(),
        }
    }
}

impl Object {
    /// Adds a field, which [`Operation::object`] may repeat.
    pub fn with<T: Serialize + ?Sized>(mut self, key: &'static str, value: &T) -> Self {
        let begin = self.field(key, value);
        self.fields.push((key, begin, self.json.len()));
        self
    }

    /// Whether it has such a field.
    pub fn has(&self, key: &str) -> bool {
        self.fields.iter().any(|(field, ..)| *field == key)
    }

    /// Adds the fields of another object.
    pub fn append(&mut self, fields: &Map<String, Value>) {
        if fields.is_empty() {
            return;
        }
        let begin = self.json.len();
        // A map of values with text for keys always serializes.
        let _ = serde_json::to_writer(&mut self.json, fields);
        self.json.pop();
        if begin > 0 {
            self.json[begin] = b',';
        }
    }

    fn key(&mut self, key: &str) {
        let before = if self.json.is_empty() { "{" } else { "," };
        for part in [before, "\"", key, "\":"] {
            self.json.extend_from_slice(part.as_bytes());
        }
    }

    /// Adds a field and says where its value begins.
    fn field<T: Serialize + ?Sized>(&mut self, key: &str, value: &T) -> usize {
        self.key(key);
        let begin = self.json.len();
        // Values with text for keys always serialize.
        if serde_json::to_writer(&mut self.json, value).is_err() {
            self.json.truncate(begin);
            self.json.extend_from_slice(b"null");
        }
        begin
    }

    /// Adds a field whose value is JSON already.
    pub fn raw(&mut self, key: &str, value: &[u8]) {
        self.key(key);
        self.json.extend_from_slice(value);
    }

    /// The object as JSON.
    pub fn end(mut self) -> Vec<u8> {
        if self.json.is_empty() {
            self.json.push(b'{');
        }
        self.json.push(b'}');
        self.json
    }
}

/// Which fields of an answer clients may rely on.
#[derive(Serialize)]
struct Contract {
    schema: &'static str,
    version: u8,
    legacy_field_policy: &'static str,
    legacy_fields: LegacyFields,
    required_fields: &'static [&'static str],
    success_fields: &'static [&'static str],
}

/// Names of fields that earlier versions had, and today's.
#[derive(Serialize)]
struct LegacyFields {
    query: &'static str,
    signal: &'static str,
    update: &'static str,
    wait_policy: &'static str,
}

impl Contract {
    fn of(required: &'static [&'static str], success: &'static [&'static str]) -> Self {
        Self {
            schema: "durable-workflow.v2.control-plane-response.contract",
            version: 1,
            legacy_field_policy: "reject_non_canonical",
            legacy_fields: LegacyFields {
                query: "query_name",
                signal: "signal_name",
                update: "update_name",
                wait_policy: "wait_for",
            },
            required_fields: required,
            success_fields: success,
        }
    }
}

/// Last segment of a route below `/api/workflows`, and the operation it stands for.
const OPERATIONS: &[(&str, &str)] = &[
    ("runs", "list_runs"),
    ("history", "history"),
    ("signal", "signal"),
    ("query", "query"),
    ("update", "update"),
    ("cancel", "cancel"),
    ("terminate", "terminate"),
    ("repair", "repair"),
    ("archive", "archive"),
    ("redrive", "redrive"),
    ("debug", "debug_workflow"),
    ("request-cancellation", "request_cancellation"),
];

impl Operation {
    /// The operation of a request; `None` off the workflow routes, and for an export, which is a
    /// document of its own.
    pub fn of(request: &HttpRequest) -> Option<Self> {
        let path = request.path().strip_prefix("/api/workflows")?;
        if !path.is_empty() && !path.starts_with('/') {
            return None;
        }
        let mut segments = path.split('/').filter(|segment| !segment.is_empty());
        let workflow_id = segments.next().map(decode);
        let rest: Vec<&str> = segments.collect();
        let (run_id, rest) = match rest.split_first() {
            Some((&"runs", [run, rest @ ..])) => (Some(decode(run)), rest),
            _ => (None, rest.as_slice()),
        };
        let name = match (&workflow_id, rest) {
            (_, [.., "export"]) => return None,
            (None, _) if request.method() == actix_web::http::Method::POST => "start",
            (None, _) => "list",
            (Some(_), []) if run_id.is_some() => "describe_run",
            (Some(_), []) => "describe",
            (Some(_), [first, ..]) => OPERATIONS.iter().find(|(segment, _)| segment == first)?.1,
        };
        let subject = match (name, rest) {
            ("signal", [_, subject]) => Some(("signal_name", decode(subject))),
            ("query", [_, subject]) => Some(("query_name", decode(subject))),
            ("update", [_, subject]) => Some(("update_name", decode(subject))),
            _ => None,
        };
        Some(Self {
            name,
            workflow_id,
            run_id,
            subject,
        })
    }

    /// The object as JSON, for an answer with these fields, some of which were written out already.
    pub fn object(&self, body: &Map<String, Value>, written: &Object) -> Vec<u8> {
        let mut object = Object::default();
        let mut has = Vec::with_capacity(body.len() + written.fields.len() + 4);
        for (key, begin, end) in &written.fields {
            if PROJECTED.contains(key) || *key == "workflow_id" {
                object.raw(key, written.json.get(*begin..*end).unwrap_or(b"null"));
                has.push(*key);
            }
        }
        for (key, value) in body {
            if PROJECTED.contains(&key.as_str()) {
                object.field(key, value);
                has.push(key.as_str());
            }
        }
        let mut also = |object: &mut Object, key: &'static str, value: Option<&str>| {
            if !has.contains(&key) {
                object.field(key, &value);
                has.push(key);
            }
        };
        let workflow_id = body.get("workflow_id").and_then(Value::as_str);
        if let Some(workflow_id) = workflow_id.or(self.workflow_id.as_deref()) {
            also(&mut object, "workflow_id", Some(workflow_id));
        }
        if let Some(run_id) = &self.run_id {
            also(&mut object, "run_id", Some(run_id));
        }
        if let Some((field, name)) = &self.subject {
            also(&mut object, "operation_name", Some(name));
            also(&mut object, "operation_name_field", Some(field));
            also(&mut object, field, Some(name));
        }
        let (required, success) = self.relied_on();
        // A list of fields promises their keys, with or without a value.
        for key in success {
            also(&mut object, key, None);
        }
        object.field("schema", "durable-workflow.v2.control-plane-response");
        object.field("version", &1);
        object.field("operation", self.name);
        object.field("contract", &Contract::of(required, success));
        object.end()
    }

    /// Fields that the object always has, and those that it has on success.
    fn relied_on(&self) -> (&'static [&'static str], &'static [&'static str]) {
        const NAMED: &[&str] = &["workflow_id", "operation_name", "operation_name_field"];
        match self.name {
            "list" => (&[], &[]),
            "start" => (&[], &["workflow_id", "outcome"]),
            "describe_run" => (&["workflow_id"], &["run_id"]),
            "debug_workflow" => (&[], &["run_id", "diagnostic_status"]),
            "history" => (&["workflow_id", "run_id"], &["next_page_token"]),
            "signal" | "update" => (NAMED, &["outcome"]),
            "query" => (NAMED, &["result"]),
            "describe" | "list_runs" => (&["workflow_id"], &[]),
            _ => (&["workflow_id"], &["outcome"]),
        }
    }
}

/// Percent-decodes a path segment; what is no text stays as it is.
fn decode(segment: &str) -> String {
    let bytes = segment.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut place = 0;
    while place < bytes.len() {
        let hex = bytes.get(place + 1..place + 3).and_then(|hex| {
            let hex = std::str::from_utf8(hex).ok()?;
            u8::from_str_radix(hex, 16).ok()
        });
        match (bytes[place], hex) {
            (b'%', Some(byte)) => {
                decoded.push(byte);
                place += 3;
            }
            (byte, _) => {
                decoded.push(byte);
                place += 1;
            }
        }
    }
    String::from_utf8(decoded).unwrap_or_else(|_| segment.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use actix_web::test::TestRequest;

    fn operation(method: actix_web::http::Method, path: &str) -> Option<Operation> {
        Operation::of(
            &TestRequest::default()
                .method(method)
                .uri(path)
                .to_http_request(),
        )
    }

    #[test]
    fn routes_are_known_by_their_operation() {
        use actix_web::http::Method;
        let name = |method, path| operation(method, path).map(|operation| operation.name);
        assert_eq!(name(Method::POST, "/api/workflows"), Some("start"));
        assert_eq!(
            name(Method::GET, "/api/workflows?status=running"),
            Some("list")
        );
        assert_eq!(name(Method::GET, "/api/workflows/a"), Some("describe"));
        assert_eq!(
            name(Method::GET, "/api/workflows/a/runs"),
            Some("list_runs")
        );
        assert_eq!(
            name(Method::GET, "/api/workflows/a/runs/b"),
            Some("describe_run")
        );
        assert_eq!(
            name(Method::GET, "/api/workflows/a/runs/b/history"),
            Some("history")
        );
        assert_eq!(
            name(Method::GET, "/api/workflows/a/runs/b/history/export"),
            None
        );
        assert_eq!(
            name(Method::POST, "/api/workflows/a/runs/b/cancel"),
            Some("cancel")
        );
        assert_eq!(name(Method::GET, "/api/workers"), None);
        assert_eq!(name(Method::GET, "/api/workflowsx"), None);
        let signal = operation(Method::POST, "/api/workflows/a%2Fb/signal/go%20on");
        let object: Value = signal
            .and_then(|signal| {
                serde_json::from_slice(&signal.object(&Map::new(), &Object::default())).ok()
            })
            .unwrap_or_default();
        assert_eq!(object["operation_name"], "go on");
        assert_eq!(object["workflow_id"], "a/b");
        assert_eq!(object["signal_name"], "go on");
        assert!(object["outcome"].is_null());
    }
}
