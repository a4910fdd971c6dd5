//! `upsert_search_attributes`: names, values and declared types.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::domain::command::UpsertSearchAttributes;
use crate::domain::run::is_attribute_name;
use crate::domain::time::Timestamp;

use super::{CommandRequest, Reader};

/// Longest text, in characters.
const MAX_TEXT: usize = 2_048;
/// Longest entry of a list, in characters.
const MAX_LISTED_TEXT: usize = 255;
/// Entries of a list.
const MAX_LISTED: usize = 1_000;
/// Longest name of an attribute with a declared type.
const MAX_TYPED_NAME: usize = 128;

/// The types that a command may declare.
const TYPES: [&str; 7] = [
    "string",
    "keyword",
    "keyword_list",
    "int",
    "float",
    "bool",
    "datetime",
];

impl Reader<'_> {
    pub(super) fn search_attributes(
        &mut self,
        command: &CommandRequest,
    ) -> Option<UpsertSearchAttributes> {
        let object = |raw: &str| serde_json::from_str::<Map<String, Value>>(raw).ok();
        let attributes = match command.attributes.as_deref().map(|raw| object(raw.get())) {
            Some(Some(attributes)) if !attributes.is_empty() => attributes,
            Some(_) => {
                self.add("attributes", "must be an object with at least one entry");
                return None;
            }
            None => {
                self.add("attributes", "is required");
                return None;
            }
        };
        let declared = match command
            .attribute_types
            .as_deref()
            .filter(|raw| raw.get() != "null")
            .map(|raw| object(raw.get()))
        {
            None => Map::new(),
            Some(Some(declared)) => declared,
            Some(None) => {
                self.add("attribute_types", "must be an object");
                return None;
            }
        };
        let mut types = BTreeMap::new();
        for (name, declared) in &declared {
            let field = format!("attribute_types.{name}");
            let known = TYPES
                .into_iter()
                .find(|known| declared.as_str() == Some(known));
            match (known, attributes.get(name)) {
                (None, _) => self.add(&field, format!("must be one of {}", TYPES.join(", "))),
                (_, None) => self.add(&field, "names no attribute of this command"),
                (Some(known), Some(value)) => {
                    self.typed(name, known, value);
                    types.insert(name.clone(), known);
                }
            }
        }
        for (name, value) in &attributes {
            let typed = types.contains_key(name);
            if !(if typed {
                is_typed_name(name)
            } else {
                is_attribute_name(name)
            }) {
                self.add(
                    &format!("attributes.{name}"),
                    "is not a name that is allowed",
                );
            }
            self.value(name, value);
        }
        Some(UpsertSearchAttributes { attributes, types })
    }

    fn value(&mut self, name: &str, value: &Value) {
        let field = format!("attributes.{name}");
        match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
            Value::String(text) => {
                if text.chars().count() > MAX_TEXT {
                    self.add(&field, format!("must have at most {MAX_TEXT} characters"));
                }
            }
            Value::Array(items) => {
                let texts = items.iter().all(|item| {
                    item.as_str()
                        .is_some_and(|text| text.chars().count() <= MAX_LISTED_TEXT)
                });
                if !texts || items.len() > MAX_LISTED {
                    self.add(
                        &field,
                        format!(
                            "must be a list of at most {MAX_LISTED} texts of at most \
                             {MAX_LISTED_TEXT} characters"
                        ),
                    );
                }
            }
            Value::Object(_) => self.add(&field, "must not be an object"),
        }
    }

    fn typed(&mut self, name: &str, declared: &str, value: &Value) {
        let fits = match (declared, value) {
            (_, Value::Null)
            | ("string" | "keyword", Value::String(_))
            | ("keyword_list", Value::Array(_))
            | ("float", Value::Number(_))
            | ("bool", Value::Bool(_)) => true,
            ("int", Value::Number(number)) => number.is_i64() || number.is_u64(),
            ("datetime", Value::String(text)) => Timestamp::is_rfc3339(text),
            _ => false,
        };
        if !fits {
            self.add(
                &format!("attributes.{name}"),
                format!("is not a value of the type {declared}"),
            );
        }
    }
}

/// `^[A-Za-z][A-Za-z0-9_]{0,127}$`
fn is_typed_name(name: &str) -> bool {
    name.len() <= MAX_TYPED_NAME
        && name.starts_with(|first: char| first.is_ascii_alphabetic())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}
