//! Compares two schemas: what the contract allows must be taken, what it promises must be kept.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::differences::{Differences, Kind};

/// A document with the schemas that it refers to.
pub struct Document<'a> {
    pub whole: &'a Value,
    /// Documents beside it, by file name.
    pub beside: &'a [(&'a str, Value)],
}

/// Who writes a value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// The client: all that the contract allows must be taken.
    Request,
    /// The server: all that is sent must be as the contract says.
    Answer,
}

/// Levels that are looked into.
const MAX_DEPTH: usize = 12;
/// Values that are named in a difference.
const MAX_LISTED: usize = 8;
const TYPES: [&str; 7] = [
    "array", "boolean", "integer", "null", "number", "object", "string",
];
/// Bounds from below and from above.
const LOWER: [&str; 3] = ["minLength", "minItems", "minimum"];
const UPPER: [&str; 3] = ["maxLength", "maxItems", "maximum"];
/// Rules that are there or not.
const RULES: [&str; 3] = ["pattern", "uniqueItems", "format"];

/// A schema with the document in which its references are to be looked up.
#[derive(Clone, Copy)]
pub struct Schema<'a> {
    value: &'a Value,
    home: &'a Value,
    document: &'a Document<'a>,
}

impl<'a> Schema<'a> {
    pub fn new(document: &'a Document<'a>, value: &'a Value) -> Self {
        Self {
            value,
            home: document.whole,
            document,
        }
    }

    fn at(self, value: &'a Value) -> Self {
        Self { value, ..self }
    }

    /// Follows references, also those into documents beside.
    pub fn resolved(mut self) -> Self {
        while let Some(reference) = self.value.get("$ref").and_then(Value::as_str) {
            let (file, pointer) = reference.split_once('#').unwrap_or((reference, ""));
            if !file.is_empty() {
                let name = file.trim_start_matches("./");
                let found = self.document.beside.iter().find(|(own, _)| *own == name);
                self.home = &found.unwrap_or_else(|| panic!("no {name}")).1;
            }
            self.value = self
                .home
                .pointer(pointer)
                .unwrap_or_else(|| panic!("nothing at {reference}"));
        }
        self
    }

    /// The schema itself.
    pub fn value(self) -> &'a Value {
        self.value
    }

    fn name(self) -> Option<&'a str> {
        let reference = self.value.get("$ref")?.as_str()?;
        reference.rsplit('/').next()
    }

    fn get(self, key: &str) -> Option<Self> {
        self.value.get(key).map(|value| self.at(value))
    }

    fn list(self, key: &str) -> Vec<Self> {
        let items = self.value.get(key).and_then(Value::as_array);
        items
            .into_iter()
            .flatten()
            .map(|one| self.at(one))
            .collect()
    }

    /// The alternatives that it consists of; itself when there are none.
    fn alternatives(self) -> Vec<Self> {
        let own = self.resolved();
        let mut found = own.list("oneOf");
        if own.value.get("properties").is_none() {
            found.extend(own.list("anyOf"));
        }
        if found.is_empty() {
            return vec![self];
        }
        found.into_iter().flat_map(Self::alternatives).collect()
    }

    /// The schemas that hold together: itself and the parts of `allOf`.
    fn parts(self) -> Vec<Self> {
        let own = self.resolved();
        let mut parts = vec![own];
        for part in own.list("allOf") {
            parts.extend(part.parts());
        }
        parts
    }

    fn types(self) -> BTreeSet<&'a str> {
        let mut types: BTreeSet<&str> = TYPES.into_iter().collect();
        for part in self.parts() {
            let several = part.list("oneOf");
            let own: BTreeSet<&str> = match part.value.get("type") {
                Some(Value::String(one)) => BTreeSet::from([one.as_str()]),
                Some(Value::Array(list)) => list.iter().filter_map(Value::as_str).collect(),
                _ if !several.is_empty() => several.into_iter().flat_map(Self::types).collect(),
                _ => continue,
            };
            types.retain(|one| own.contains(one) || (*one == "integer" && own.contains("number")));
        }
        types
    }

    fn keyword(self, key: &str) -> Option<&'a Value> {
        self.alternatives()
            .into_iter()
            .flat_map(Self::parts)
            .chain([self.resolved()])
            .find_map(|part| part.value.get(key))
    }

    fn values(self) -> Option<BTreeSet<String>> {
        if let Some(one) = self.keyword("const") {
            return Some(BTreeSet::from([one.to_string()]));
        }
        let list = self.keyword("enum")?.as_array()?;
        Some(list.iter().map(Value::to_string).collect())
    }

    fn required(self) -> BTreeSet<&'a str> {
        let parts = self.parts().into_iter();
        parts
            .flat_map(|part| part.list("required"))
            .filter_map(|one| one.value.as_str())
            .collect()
    }

    /// Sets of fields of which one has to be there.
    fn one_of_required(self) -> Vec<BTreeSet<&'a str>> {
        let parts = self.parts().into_iter();
        parts
            .flat_map(|part| part.list("anyOf"))
            .map(Self::required)
            .collect()
    }

    fn properties(self) -> Vec<(&'a str, Self)> {
        let mut found: Vec<(&str, Self)> = Vec::new();
        for part in self.parts() {
            let own: Option<&Map<String, Value>> =
                part.value.get("properties").and_then(Value::as_object);
            for (name, property) in own.into_iter().flatten() {
                if !found.iter().any(|(known, _)| known == name) {
                    found.push((name, part.at(property)));
                }
            }
        }
        found
    }
}

/// Compares what the contract says of a value with what the server says.
pub fn compare(
    found: &mut Differences,
    direction: Direction,
    place: &str,
    contract: Schema<'_>,
    own: Schema<'_>,
) {
    if contract.name().is_some() && contract.name() == own.name() {
        // Compared once, under its name.
        return;
    }
    deep(found, direction, place, contract, own, 0);
}

/// As [`compare`], for two schemas of one name.
pub fn deep(
    found: &mut Differences,
    direction: Direction,
    place: &str,
    contract: Schema<'_>,
    own: Schema<'_>,
    depth: usize,
) {
    if depth > MAX_DEPTH || contract.value == &Value::Bool(true) {
        return;
    }
    let (theirs, ours) = (contract.alternatives(), own.alternatives());
    let objects = |list: &[Schema<'_>]| {
        list.iter()
            .filter(|one| one.types().contains("object"))
            .count()
    };
    if objects(&ours) > 1 {
        alternatives(found, direction, place, &theirs, &ours, depth);
        return;
    }
    types(found, direction, place, contract, own);
    values(found, direction, place, contract, own);
    bounds(found, direction, place, contract, own);
    if let (Some(contract), Some(own)) = (object_of(theirs), object_of(ours)) {
        fields(found, direction, place, contract, own, depth);
    }
    for key in ["items", "additionalProperties"] {
        let (contract, own) = (part(contract, key), part(own, key));
        if let (Some(contract), Some(own)) = (contract, own)
            && contract.value.is_object()
            && own.value.is_object()
        {
            let inner = format!("{place}.{}", if key == "items" { "[]" } else { "{}" });
            deep(found, direction, &inner, contract, own, depth + 1);
        }
    }
}

fn object_of(list: Vec<Schema<'_>>) -> Option<Schema<'_>> {
    list.into_iter().find(|one| one.types().contains("object"))
}

fn part<'a>(schema: Schema<'a>, key: &str) -> Option<Schema<'a>> {
    let parts = schema.alternatives().into_iter().flat_map(Schema::parts);
    parts.into_iter().find_map(|part| part.get(key))
}

fn alternatives(
    found: &mut Differences,
    direction: Direction,
    place: &str,
    theirs: &[Schema<'_>],
    ours: &[Schema<'_>],
    depth: usize,
) {
    for own in ours {
        let name = own.name().unwrap_or("unnamed");
        match theirs.iter().find(|one| one.name() == own.name()) {
            Some(_) => {}
            None if theirs.len() == 1 => {
                let inner = format!("{place} ({name})");
                deep(found, direction, &inner, theirs[0], *own, depth + 1);
            }
            None => found.add(Kind::Addition, place, format!("may be {name}")),
        }
    }
    for one in theirs.iter().filter(|_| theirs.len() > 1) {
        let name = one.name().unwrap_or("unnamed");
        if !ours.iter().any(|own| own.name() == Some(name)) {
            found.add(Kind::Break, place, format!("is never {name}"));
        }
    }
}

fn types(
    found: &mut Differences,
    direction: Direction,
    place: &str,
    contract: Schema<'_>,
    own: Schema<'_>,
) {
    let collect = |schema: Schema<'_>| -> BTreeSet<String> {
        let all = schema.alternatives().into_iter();
        all.flat_map(|one| {
            one.types()
                .into_iter()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        })
        .collect()
    };
    let (theirs, ours) = (collect(contract), collect(own));
    let more: Vec<&str> = ours.difference(&theirs).map(String::as_str).collect();
    let less: Vec<&str> = theirs.difference(&ours).map(String::as_str).collect();
    let (wider, narrower) = kinds(direction);
    if !more.is_empty() {
        found.add(wider, place, format!("may also be {}", more.join(", ")));
    }
    if !less.is_empty() {
        found.add(narrower, place, format!("may not be {}", less.join(", ")));
    }
}

/// What it means to allow more, and to allow less.
fn kinds(direction: Direction) -> (Kind, Kind) {
    match direction {
        Direction::Request => (Kind::Addition, Kind::Break),
        Direction::Answer => (Kind::Break, Kind::Addition),
    }
}

fn values(
    found: &mut Differences,
    direction: Direction,
    place: &str,
    contract: Schema<'_>,
    own: Schema<'_>,
) {
    let (wider, narrower) = kinds(direction);
    match (contract.values(), own.values()) {
        (None, None) => {}
        (Some(_), None) => found.add(wider, place, "may be any value"),
        (None, Some(ours)) => {
            let ours: Vec<String> = ours.into_iter().collect();
            let listed = match ours.len() {
                0..=MAX_LISTED => ours.join(", "),
                _ => "a list".to_owned(),
            };
            found.add(narrower, place, format!("is one of {listed}"));
        }
        (Some(theirs), Some(ours)) => {
            for value in ours.difference(&theirs) {
                found.add(wider, place, format!("may be {value}"));
            }
            for value in theirs.difference(&ours) {
                found.add(narrower, place, format!("may not be {value}"));
            }
        }
    }
}

fn bounds(
    found: &mut Differences,
    direction: Direction,
    place: &str,
    contract: Schema<'_>,
    own: Schema<'_>,
) {
    let number = |schema: Schema<'_>, key: &str| schema.keyword(key).and_then(Value::as_f64);
    for key in LOWER.into_iter().chain(UPPER) {
        let sign = if UPPER.contains(&key) { -1.0 } else { 1.0 };
        let (theirs, ours) = (number(contract, key), number(own, key));
        let (a, b) = (
            theirs.map_or(f64::NEG_INFINITY, |bound| sign * bound),
            ours.map_or(f64::NEG_INFINITY, |bound| sign * bound),
        );
        let words = || match ours {
            Some(bound) => format!("{key} is {bound}"),
            None => format!("has no {key}"),
        };
        let (wider, mut narrower) = kinds(direction);
        if theirs.is_none() && direction == Direction::Request {
            narrower = Kind::Limit;
        }
        if b > a {
            found.add(narrower, place, words());
        } else if b < a {
            found.add(wider, place, words());
        }
    }
    let text = contract
        .alternatives()
        .iter()
        .any(|one| one.types().contains("string"));
    // A rule about text says nothing of a number that may also come as text.
    for key in RULES.into_iter().filter(|key| *key != "pattern" || text) {
        let (theirs, ours) = (contract.keyword(key), own.keyword(key));
        let (wider, mut narrower) = kinds(direction);
        if theirs.is_none() && direction == Direction::Request {
            narrower = Kind::Limit;
        }
        match (theirs, ours) {
            (None, Some(rule)) => found.add(narrower, place, format!("{key} is {rule}")),
            (Some(_), None) => found.add(wider, place, format!("has no {key}")),
            (Some(a), Some(b)) if a != b => found.add(Kind::Break, place, format!("{key} is {b}")),
            _ => {}
        }
    }
}

fn fields(
    found: &mut Differences,
    direction: Direction,
    place: &str,
    contract: Schema<'_>,
    own: Schema<'_>,
    depth: usize,
) {
    let (theirs, ours) = (contract.properties(), own.properties());
    for (name, property) in &theirs {
        let inner = format!("{place}.{name}");
        match ours.iter().find(|(own, _)| own == name) {
            Some((_, own)) => {
                if property.name().is_none() || property.name() != own.name() {
                    deep(found, direction, &inner, *property, *own, depth + 1);
                }
            }
            None => found.add(Kind::Break, &inner, "is not there"),
        }
    }
    let more: Vec<&str> = ours
        .iter()
        .map(|(name, _)| *name)
        .filter(|name| !theirs.iter().any(|(known, _)| known == name))
        .collect();
    if !more.is_empty() {
        found.add(
            Kind::Addition,
            place,
            format!("more fields: {}", more.join(", ")),
        );
    }
    let (must, may) = (contract.required(), own.required());
    let (wider, narrower) = kinds(direction);
    for name in must.difference(&may) {
        found.add(wider, place, format!("{name} may be left out"));
    }
    for name in may.difference(&must) {
        // That a field of our own is always there promises nothing against the contract.
        let known = theirs.iter().any(|(known, _)| known == name);
        if direction == Direction::Request || known {
            found.add(narrower, place, format!("{name} is always there"));
        }
    }
    let branches = own.one_of_required();
    let covered = branches.iter().any(|branch| branch.is_subset(&must));
    if direction == Direction::Request && !branches.is_empty() && !covered {
        let listed: Vec<String> = branches
            .iter()
            .map(|branch| branch.iter().copied().collect::<Vec<_>>().join(" and "))
            .collect();
        // The contract's text says who may report on a task; its schema leaves that out.
        let kind = if must.is_empty() {
            Kind::Limit
        } else {
            narrower
        };
        found.add(kind, place, format!("needs {}", listed.join(", or ")));
    }
}
