//! Completes what the handlers say to a whole document: answers that any request may get, headers,
//! schemas of bodies, credentials, and the extensions of the contract.
//!
//! Two files beside this one hold what cannot be derived. Each has these parts:
//!
//! - `document`: the head of the document and its components;
//! - `always`: parameters of every operation;
//! - `paths`: component for each path parameter;
//! - `requests`: what is laid over the derived schemas of requests, where fields depend on each other;
//! - `answers`: the schema of each successful answer, by operation and status;
//! - `operations`: what is laid over an operation.

use yaml_serde::{Mapping, Value};

use crate::protocol::reason::Reason;
use crate::protocol::version::Advertised;

use super::Plane;

const WORKER: &str = include_str!("worker-plane.yaml");
const CONTROL: &str = include_str!("control-plane.yaml");
/// Where all operations are but those of [`APART`].
const BASE: &str = "/api";
/// Operations that are not of a plane and say themselves what they take and answer.
const APART: [&str; 7] = [
    "getHealth",
    "getReadiness",
    "getClusterInfo",
    "metrics",
    "getDocument",
    "getDocumentationPage",
    "getDocumentationAsset",
];

/// Answers that a request may get from the checks in front of every handler, or from any handler
/// whose database or code fails. Every request may come with a body, also where none is wanted. What a
/// handler says of them itself goes first.
const ANYWHERE: [(&str, &str); 9] = [
    ("400", "BadRequest"),
    ("401", "Unauthorized"),
    ("403", "Forbidden"),
    ("404", "NoNamespace"),
    ("413", "TooLarge"),
    ("415", "NotJson"),
    ("422", "Invalid"),
    ("500", "Defect"),
    ("503", "Unavailable"),
];

/// The whole document.
pub(super) fn document(plane: Plane, advertised: &Advertised) -> Result<Value, String> {
    let wrong = |error: yaml_serde::Error| format!("{}: {error}", plane.name());
    let derived = yaml_serde::to_value(plane.derived()).map_err(wrong)?;
    let text = match plane {
        Plane::Worker => WORKER,
        Plane::Control => CONTROL,
    };
    let given: Value = yaml_serde::from_str(text).map_err(wrong)?;
    let mut document = given["document"].clone();
    document["info"]["version"] = env!("CARGO_PKG_VERSION").into();
    let mut schemas = derived["components"]["schemas"].clone();
    lay_over(&mut schemas, &given["requests"]);
    lay_over(&mut schemas, &document["components"]["schemas"]);
    for (path, item) in entries(&derived["paths"]) {
        let mut item = item.clone();
        for (_, operation) in entries_mut(&mut item) {
            complete_operation(plane, &given, &schemas, operation);
        }
        let path = path.as_str().unwrap_or_default();
        let short = path.strip_prefix(BASE).filter(|rest| rest.starts_with('/'));
        if short.is_none() {
            item["servers"] = sequence([mapping([("url", "/".into())])]);
        }
        document["paths"][short.unwrap_or(path)] = item;
    }
    document["components"]["schemas"] = sorted(schemas);
    speak(plane, advertised, &mut document);
    Ok(document)
}

fn complete_operation(plane: Plane, given: &Value, schemas: &Value, operation: &mut Value) {
    let id = operation["operationId"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let apart = APART.contains(&id.as_str());
    let own = match &operation["parameters"] {
        Value::Sequence(own) => own.clone(),
        _ => Vec::new(),
    };
    let always = given["always"].as_sequence().filter(|_| !apart);
    let mut parameters = always.cloned().unwrap_or_default();
    parameters.extend(own.into_iter().map(|parameter| {
        let shared = parameter["name"].as_str().map(|name| &given["paths"][name]);
        match shared {
            Some(Value::String(name)) => reference("parameters", name),
            _ => parameter,
        }
    }));
    if !parameters.is_empty() {
        operation["parameters"] = Value::Sequence(parameters);
    }
    if !operation["requestBody"].is_null() {
        let body = &mut operation["requestBody"];
        let schema = body["content"]["application/json"]["schema"]["$ref"].as_str();
        let name = schema.and_then(|schema| schema.rsplit('/').next());
        // No body is read as an empty object.
        let needed = name.is_some_and(|name| {
            !schemas[name]["required"].is_null() || !schemas[name]["anyOf"].is_null()
        });
        body["required"] = needed.into();
    }
    let answers = &mut operation["responses"];
    for (status, answer) in entries_mut(answers) {
        let status = status.as_str().unwrap_or_default();
        let schema = match &given["answers"][id.as_str()][status] {
            Value::String(name) => name.as_str(),
            _ if status.starts_with('2') || apart => continue,
            _ => match plane {
                Plane::Worker => "WorkerError",
                Plane::Control => "ControlPlaneError",
            },
        };
        let limited = matches!(status, "429" | "503");
        answer["headers"] = given["headers"][if limited { "limited" } else { "all" }].clone();
        answer["content"]["application/json"]["schema"] = reference("schemas", schema);
    }
    for (status, name) in ANYWHERE.iter().filter(|_| !apart) {
        if answers[*status].is_null() {
            answers[*status] = reference("responses", name);
        }
    }
    if let Value::Mapping(answers) = answers {
        let mut listed: Vec<(Value, Value)> = std::mem::take(answers).into_iter().collect();
        listed.sort_by(|(a, _), (b, _)| a.as_str().cmp(&b.as_str()));
        answers.extend(listed);
    }
    lay_over(operation, &given["operations"][id.as_str()]);
}

/// Puts in what depends on the advertised version, and the words that the code lists.
fn speak(plane: Plane, advertised: &Advertised, document: &mut Value) {
    let reasons = sequence(Reason::ALL.iter().map(|reason| reason.as_str().into()));
    document["components"]["schemas"]["Reason"]["enum"] = reasons;
    if plane == Plane::Control {
        return;
    }
    let version = || Value::from(advertised.to_string());
    let accepted = || {
        sequence(
            advertised
                .accepted()
                .map(|version| version.to_string().into()),
        )
    };
    let negotiation = &mut document["x-durable-workflow-worker-protocol-negotiation"];
    negotiation["default_advertised_version"] = version();
    negotiation["accepted_request_versions_by_default"] = accepted();
    let schemas = &mut document["components"]["schemas"];
    schemas["AdvertisedWorkerProtocolVersion"]["const"] = version();
    schemas["AcceptedWorkerProtocolRequestVersion"]["enum"] = accepted();
}

fn reference(kind: &str, name: &str) -> Value {
    mapping([("$ref", format!("#/components/{kind}/{name}").into())])
}

fn mapping<const N: usize>(entries: [(&str, Value); N]) -> Value {
    let entries = entries.into_iter();
    Value::Mapping(entries.map(|(key, value)| (key.into(), value)).collect())
}

fn sequence(items: impl IntoIterator<Item = Value>) -> Value {
    Value::Sequence(items.into_iter().collect())
}

fn entries(value: &Value) -> impl Iterator<Item = (&Value, &Value)> {
    value.as_mapping().into_iter().flatten()
}

fn entries_mut(value: &mut Value) -> impl Iterator<Item = (&Value, &mut Value)> {
    value.as_mapping_mut().into_iter().flatten()
}

/// Lays a value over another one: fields are laid over fields, anything else takes the place.
fn lay_over(base: &mut Value, over: &Value) {
    match over {
        Value::Null => {}
        Value::Mapping(over) => {
            if !base.is_mapping() {
                *base = Value::Mapping(Mapping::new());
            }
            for (key, value) in over {
                if let (Value::Mapping(base), true) = (&mut *base, !value.is_null()) {
                    lay_over(base.entry(key.clone()).or_insert(Value::Null), value);
                }
            }
        }
        other => *base = other.clone(),
    }
}

fn sorted(value: Value) -> Value {
    let Value::Mapping(entries) = value else {
        return value;
    };
    let mut entries: Vec<(Value, Value)> = entries.into_iter().collect();
    entries.sort_by(|(a, _), (b, _)| a.as_str().cmp(&b.as_str()));
    Value::Mapping(entries.into_iter().collect())
}
