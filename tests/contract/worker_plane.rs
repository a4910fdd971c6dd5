//! The generated worker-plane document and the contract, operation by operation and schema by schema.

use std::collections::BTreeMap;

use leasehold::protocol::version::Advertised;
use leasehold::transport::http::openapi::Plane;
use serde_json::Value;

use super::compare::{Direction, Document, Schema, compare, deep};
use super::differences::{Differences, Kind, reviewed};

const CONTRACT: &str = include_str!("seed.yaml");
const SESSIONS: &str = include_str!("schemas/worker-sessions-runtime.schema.json");
const REVIEWED: &str = include_str!("reviewed.txt");
const METHODS: [&str; 5] = ["get", "post", "put", "delete", "patch"];

fn object(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten()
}

fn operations(document: &Value) -> BTreeMap<String, &Value> {
    let paths = object(&document["paths"]);
    paths
        .flat_map(|(path, item)| {
            object(item)
                .filter(|(method, _)| METHODS.contains(&method.as_str()))
                .map(move |(method, operation)| {
                    (format!("{} {path}", method.to_uppercase()), operation)
                })
        })
        .collect()
}

/// Extensions, tags, ids: what has to be the same word for word.
fn same(found: &mut Differences, place: &str, contract: &Value, own: &Value) {
    for (key, theirs) in object(contract) {
        if !(key.starts_with("x-") || ["tags", "operationId", "security"].contains(&key.as_str())) {
            continue;
        }
        if own[key] != *theirs {
            found.add(Kind::Break, place, format!("{key} is {}", own[key]));
        }
    }
}

fn parameters<'a>(document: &'a Document<'a>, operation: &'a Value) -> BTreeMap<String, Value> {
    let listed = operation["parameters"].as_array();
    let listed = listed.into_iter().flatten();
    listed
        .map(|parameter| {
            let parameter = document.resolve(parameter).clone();
            let key = format!("{} {}", parameter["in"], parameter["name"]).replace('"', "");
            (key, parameter)
        })
        .collect()
}

impl Document<'_> {
    fn resolve<'a>(&'a self, value: &'a Value) -> &'a Value {
        Schema::new(self, value).resolved().value()
    }
}

struct Comparison<'a> {
    contract: Document<'a>,
    own: Document<'a>,
    found: Differences,
}

impl Comparison<'_> {
    fn schema(&mut self, direction: Direction, place: &str, contract: &Value, own: &Value) {
        let contract = Schema::new(&self.contract, contract);
        let own = Schema::new(&self.own, own);
        compare(&mut self.found, direction, place, contract, own);
    }

    fn operation(&mut self, place: &str, contract: &Value, own: &Value) {
        same(&mut self.found, place, contract, own);
        let theirs = parameters(&self.contract, contract);
        let ours = parameters(&self.own, own);
        for (name, parameter) in &theirs {
            let place = format!("{place} parameter {name}");
            let Some(own) = ours.get(name) else {
                self.found.add(Kind::Break, &place, "is not there");
                continue;
            };
            if own["required"] != parameter["required"] {
                let what = format!("required is {}", own["required"]);
                self.found.add(Kind::Break, &place, what);
            }
            self.schema(
                Direction::Request,
                &place,
                &parameter["schema"],
                &own["schema"],
            );
        }
        for (name, parameter) in ours.iter().filter(|(name, _)| !theirs.contains_key(*name)) {
            let needed = parameter["required"] == true;
            let kind = if needed { Kind::Break } else { Kind::Addition };
            self.found
                .add(kind, place, format!("more parameters: {name}"));
        }
        self.request(&format!("{place} request"), contract, own);
        self.answers(place, contract, own);
    }

    fn request(&mut self, place: &str, contract: &Value, own: &Value) {
        let (theirs, ours) = (&contract["requestBody"], &own["requestBody"]);
        match (theirs.is_null(), ours.is_null()) {
            (true, true) => return,
            (false, true) => return self.found.add(Kind::Break, place, "has no body"),
            (true, false) => return self.found.add(Kind::Break, place, "has a body"),
            (false, false) => {}
        }
        match (theirs["required"] == true, ours["required"] == true) {
            (true, false) => self
                .found
                .add(Kind::Addition, place, "the body may be left out"),
            (false, true) => self
                .found
                .add(Kind::Break, place, "the body may not be left out"),
            _ => {}
        }
        self.bodies(Direction::Request, place, theirs, ours);
    }

    fn answers(&mut self, place: &str, contract: &Value, own: &Value) {
        let (theirs, ours) = (&contract["responses"], &own["responses"]);
        for (status, answer) in object(theirs) {
            let place = format!("{place} {status}");
            let Some(own) = ours.get(status) else {
                self.found.add(Kind::Break, &place, "is not there");
                continue;
            };
            let answer = self.contract.resolve(answer).clone();
            let own = self.own.resolve(own).clone();
            for (name, header) in object(&answer["headers"]) {
                let place = format!("{place} header {name}");
                let Some(own) = own["headers"].get(name) else {
                    self.found.add(Kind::Break, &place, "is not there");
                    continue;
                };
                let header = self.contract.resolve(header).clone();
                let own = self.own.resolve(own).clone();
                self.schema(Direction::Answer, &place, &header["schema"], &own["schema"]);
            }
            self.bodies(Direction::Answer, &place, &answer, &own);
        }
        let more: Vec<&str> = object(ours)
            .map(|(status, _)| status.as_str())
            .filter(|status| theirs.get(status).is_none())
            .collect();
        if !more.is_empty() {
            let what = format!("more answers: {}", more.join(", "));
            self.found.add(Kind::Addition, place, what);
        }
    }

    fn bodies(&mut self, direction: Direction, place: &str, contract: &Value, own: &Value) {
        for (media, content) in object(&contract["content"]) {
            match own["content"].get(media) {
                None => self
                    .found
                    .add(Kind::Break, place, format!("is not {media}")),
                Some(own) => self.schema(direction, place, &content["schema"], &own["schema"]),
            }
        }
    }

    fn components(&mut self, contract: &Value, own: &Value) {
        let (theirs, ours) = (&contract["components"], &own["components"]);
        for (name, scheme) in object(&theirs["securitySchemes"]) {
            for (key, value) in object(scheme) {
                if ours["securitySchemes"][name][key] != *value {
                    let place = format!("security scheme {name}");
                    self.found
                        .add(Kind::Break, &place, format!("{key} differs"));
                }
            }
        }
        for (name, schema) in object(&theirs["schemas"]) {
            let Some(own) = ours["schemas"].get(name) else {
                self.found.add(Kind::Addition, name, "has another name");
                continue;
            };
            let direction = if name.ends_with("Request") || name.ends_with("RequestVersion") {
                Direction::Request
            } else {
                Direction::Answer
            };
            let contract = Schema::new(&self.contract, schema);
            let own = Schema::new(&self.own, own);
            deep(&mut self.found, direction, name, contract, own, 0);
        }
    }
}

fn differences(contract: &Value, own: &Value) -> Differences {
    let sessions = serde_json::from_str(SESSIONS).expect("the session schemas are JSON");
    let beside = [("worker-sessions-runtime.schema.json", sessions)];
    let mut comparison = Comparison {
        contract: Document {
            whole: contract,
            beside: &beside,
        },
        own: Document {
            whole: own,
            beside: &[],
        },
        found: Differences::default(),
    };
    same(&mut comparison.found, "document", contract, own);
    if contract["servers"] != own["servers"] {
        comparison
            .found
            .add(Kind::Break, "document", "servers differ");
    }
    let (theirs, ours) = (operations(contract), operations(own));
    for (route, operation) in &theirs {
        match ours.get(route) {
            Some(own) => {
                let place = operation["operationId"].as_str().expect("an id");
                comparison.operation(place, operation, own);
            }
            None => comparison.found.add(Kind::Break, route, "is not there"),
        }
    }
    for (route, operation) in ours
        .iter()
        .filter(|(route, _)| !theirs.contains_key(*route))
    {
        let id = operation["operationId"].as_str().expect("an id");
        comparison.found.add(
            Kind::Addition,
            "document",
            format!("more operations: {id}, {route}"),
        );
    }
    comparison.components(contract, own);
    comparison.found
}

fn contract() -> Value {
    yaml_serde::from_str(CONTRACT).expect("the contract is YAML")
}

fn own() -> Value {
    let document = Plane::Worker
        .document(&Advertised::default())
        .expect("a document");
    serde_json::from_str(&document.json().expect("JSON")).expect("JSON")
}

/// Rule: the worker plane is the contract's, and differs from it by additions only, each reviewed.
#[test]
fn the_document_is_the_contracts() {
    let found = differences(&contract(), &own());
    let reviewed = reviewed(REVIEWED);
    let mut wrong = Vec::new();
    for (difference, kind) in &found.0 {
        let known = reviewed.get(difference);
        let reason = known.map_or("NOT REVIEWED", |(_, reason)| reason.as_str());
        println!("{kind}: {difference} -- {reason}");
        if known.is_none_or(|(known, _)| known != kind) {
            wrong.push(format!("{kind}: {difference}"));
        }
    }
    for gone in reviewed.keys().filter(|line| !found.0.contains_key(*line)) {
        wrong.push(format!("reviewed, but no longer there: {gone}"));
    }
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
}

/// The comparison sees what would break a client.
#[test]
fn breaks_are_found() {
    type Change = fn(&mut Value);
    let changes: [(&str, Change); 8] = [
        ("/worker/register: is not there", |own| {
            own["paths"]
                .as_object_mut()
                .unwrap()
                .remove("/worker/register");
        }),
        ("heartbeatWorker 404: is not there", |own| {
            let answers = &mut own["paths"]["/worker/heartbeat"]["post"]["responses"];
            answers.as_object_mut().unwrap().remove("404");
        }),
        ("pollWorkflowTask 200: is never DrainingPoll", |own| {
            let polls = &mut own["components"]["schemas"]["WorkflowTaskPoll"]["oneOf"];
            polls
                .as_array_mut()
                .unwrap()
                .retain(|one| !one.to_string().contains("Draining"));
        }),
        (
            "WorkerHeartbeatRequest: task_queues is always there",
            |own| {
                own["components"]["schemas"]["WorkerHeartbeatRequest"]["required"] =
                    serde_json::json!(["worker_id", "task_queues"]);
            },
        ),
        ("WorkerError: server_capabilities may be left out", |own| {
            own["components"]["schemas"]["WorkerError"]["required"] =
                serde_json::json!(["protocol_version"]);
        }),
        ("AdvertisedWorkerProtocolVersion: may be \"2.0\"", |own| {
            own["components"]["schemas"]["AdvertisedWorkerProtocolVersion"]["const"] = "2.0".into();
        }),
        (
            "deregisterWorker: x-durable-workflow-required-role is null",
            |own| {
                let operation = &mut own["paths"]["/worker/registrations/{workerId}"]["delete"];
                operation
                    .as_object_mut()
                    .unwrap()
                    .remove("x-durable-workflow-required-role");
            },
        ),
        (
            "WorkerHeartbeatRequest.worker_id: may not be string",
            |own| {
                let schema = &mut own["components"]["schemas"]["WorkerHeartbeatRequest"];
                schema["properties"]["worker_id"]["type"] = "integer".into();
            },
        ),
    ];
    let contract = contract();
    for (expected, change) in changes {
        let mut changed = own();
        change(&mut changed);
        let found = differences(&contract, &changed);
        let hit = found
            .0
            .iter()
            .any(|(difference, kind)| difference.contains(expected) && *kind == Kind::Break);
        assert!(hit, "{expected}: {:#?}", found.0);
    }
}
