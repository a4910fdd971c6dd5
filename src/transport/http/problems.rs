//! What is wrong with the fields of a request, by their paths.

use std::collections::BTreeMap;
use std::fmt::Display;

use serde::Serialize;

/// Fields and what is wrong with each: `commands.0.delay_seconds` → sentences. A field is written out only when
/// something is wrong with it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Problems(BTreeMap<String, Vec<String>>);

impl Problems {
    /// One problem.
    pub fn of(field: impl Display, problem: impl Into<String>) -> Self {
        let mut problems = Self::default();
        problems.add(field, problem);
        problems
    }

    /// Notes a problem.
    pub fn add(&mut self, field: impl Display, problem: impl Into<String>) {
        self.0
            .entry(field.to_string())
            .or_default()
            .push(problem.into());
    }

    /// `Ok` when there is none.
    ///
    /// # Errors
    /// The problems themselves.
    pub fn into_result(self) -> Result<(), Self> {
        if self.0.is_empty() { Ok(()) } else { Err(self) }
    }

    /// The fields that are wrong.
    #[cfg(test)]
    pub fn fields(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// The first problem as a sentence.
    pub fn sentence(&self) -> String {
        self.0
            .iter()
            .next()
            .map_or_else(String::new, |(field, problems)| {
                format!("{field}: {}", problems.join(", "))
            })
    }

    /// A text of 1 to `max` characters without control characters.
    pub fn text(&mut self, field: impl Display, value: &str, max: usize) {
        if value.is_empty() {
            self.add(field, "must not be empty");
        } else if value.chars().count() > max {
            self.add(field, format!("must have at most {max} characters"));
        } else if value.chars().any(char::is_control) {
            self.add(field, "must not contain control characters");
        }
    }

    /// A required text, see [`Problems::text`].
    pub fn required_text(&mut self, field: impl Display, value: Option<&str>, max: usize) {
        match value {
            Some(value) => self.text(field, value, max),
            None => self.add(field, "is required"),
        }
    }

    /// A number within a range.
    pub fn within(
        &mut self,
        field: impl Display,
        value: i64,
        range: std::ops::RangeInclusive<i64>,
    ) {
        if !range.contains(&value) {
            self.add(
                field,
                format!("must be between {} and {}", range.start(), range.end()),
            );
        }
    }

    /// Two spellings of one field that must agree; the value of whichever was sent.
    pub fn agree<T: PartialEq>(
        &mut self,
        field: impl Display,
        first: Option<T>,
        other: Option<T>,
    ) -> Option<T> {
        if let (Some(a), Some(b)) = (&first, &other)
            && a != b
        {
            self.add(field, "contradicts the other spelling of the same field");
        }
        first.or(other)
    }
}
