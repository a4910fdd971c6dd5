//! Holds every answer that a test's client receives against the generated documents: the status is
//! documented, the headers are there, the body is valid.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use jsonschema::Validator;
use leasehold::protocol::version::Advertised;
use leasehold::transport::http::openapi::Plane;
use reqwest::Method;
use serde_json::{Value, json};

use super::support::Answer;

/// Where the operations of a document are.
const BASE: &str = "/api";
/// Header of the worker plane with the version that the server advertises.
const ADVERTISED: &str = "x-durable-workflow-protocol-version";

/// A document, and the validators that were needed so far.
struct Known {
    document: Value,
    validators: Mutex<BTreeMap<String, Arc<Validator>>>,
}

static KNOWN: Mutex<BTreeMap<String, Arc<Known>>> = Mutex::new(BTreeMap::new());

impl Known {
    fn of(plane: Plane, version: &str) -> Arc<Self> {
        let mut known = KNOWN.lock().expect("no panic under the lock");
        let key = format!("{} {version}", plane.name());
        let found = known.entry(key).or_insert_with(|| {
            let advertised: Advertised = version.parse().expect("a version");
            let text = plane.document(&advertised).and_then(|one| one.json());
            Arc::new(Self {
                document: serde_json::from_str(&text.expect("a document")).expect("JSON"),
                validators: Mutex::default(),
            })
        });
        Arc::clone(found)
    }

    /// The operation of a path, by the route with the fewest parameters.
    fn operation(&self, method: &Method, path: &str) -> Option<&Value> {
        let paths = self.document["paths"].as_object()?;
        let short = path.strip_prefix(BASE);
        let fitting = paths.iter().filter(|(pattern, item)| match short {
            // A path with servers of its own is beside the planes.
            Some(short) => item["servers"].is_null() && fits(pattern, short),
            None => fits(pattern, path),
        });
        let (_, item) = fitting.min_by_key(|(pattern, _)| pattern.matches('{').count())?;
        item.get(method.as_str().to_ascii_lowercase())
    }

    fn resolve<'a>(&'a self, value: &'a Value) -> &'a Value {
        match value["$ref"].as_str() {
            Some(reference) => self.document.pointer(&reference[1..]).expect("a component"),
            None => value,
        }
    }

    fn validator(&self, schema: &Value) -> Arc<Validator> {
        let mut validators = self.validators.lock().expect("no panic under the lock");
        let found = validators.entry(schema.to_string()).or_insert_with(|| {
            let whole = json!({"allOf": [schema], "components": self.document["components"]});
            Arc::new(jsonschema::draft202012::new(&whole).expect("a schema"))
        });
        Arc::clone(found)
    }
}

fn fits(pattern: &str, path: &str) -> bool {
    let (pattern, path): (Vec<&str>, Vec<&str>) =
        (pattern.split('/').collect(), path.split('/').collect());
    pattern.len() == path.len()
        && pattern
            .iter()
            .zip(path)
            .all(|(own, given)| *own == given || (own.starts_with('{') && !given.is_empty()))
}

fn of_answer(answer: &Answer) -> Arc<Known> {
    match answer.header(ADVERTISED) {
        "" => Known::of(Plane::Control, "1.13"),
        version => Known::of(Plane::Worker, version),
    }
}

/// The id of the operation that gave an answer.
pub fn operation(method: &Method, path: &str, answer: &Answer) -> Option<String> {
    let known = of_answer(answer);
    let operation = known.operation(method, path)?;
    operation["operationId"].as_str().map(str::to_owned)
}

/// Every operation of both planes with each of its successes.
pub fn successes(version: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for plane in [Plane::Worker, Plane::Control] {
        let known = Known::of(plane, version);
        let items = known.document["paths"].as_object().expect("paths");
        // What is beside the planes answers with text.
        let items = items.values().filter(|item| item["servers"].is_null());
        for operation in items.flat_map(|item| item.as_object().into_iter().flatten()) {
            let Some(id) = operation.1["operationId"].as_str() else {
                continue;
            };
            let answers = operation.1["responses"].as_object().expect("answers");
            let good = answers.keys().filter(|status| status.starts_with('2'));
            found.extend(good.map(|status| (id.to_owned(), status.clone())));
        }
    }
    found
}

/// Fails the test when the answer is not what the documents say of the operation.
#[track_caller]
pub fn check(method: &Method, path: &str, answer: &Answer) {
    let known = of_answer(answer);
    let place = format!("{method} {path}: {}", answer.status);
    let Some(operation) = known.operation(method, path) else {
        assert!(!answer.status.is_success(), "{place} is not documented");
        return;
    };
    let response = &operation["responses"][answer.status.as_str()];
    assert!(!response.is_null(), "{place} is not documented");
    let response = known.resolve(response);
    for (name, header) in response["headers"].as_object().into_iter().flatten() {
        let needed = known.resolve(header)["required"] == true;
        assert!(
            !needed || answer.headers.contains_key(name),
            "{place} has no {name}"
        );
    }
    let schema = &response["content"]["application/json"]["schema"];
    if schema.is_null() {
        return;
    }
    let validator = known.validator(schema);
    let wrong: Vec<String> = validator
        .iter_errors(&answer.body)
        .map(|error| format!("{}: {error:.300}", error.instance_path()))
        .collect();
    assert!(
        wrong.is_empty(),
        "{place} is not valid by {schema}:\n{}",
        wrong.join("\n")
    );
}
