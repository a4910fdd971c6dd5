//! Which routes exist, read from the generated document, to tell an unknown path from a wrong method.

use utoipa::openapi::{OpenApi, PathItem};

/// Paths and their methods.
#[derive(Clone, Debug, Default)]
pub struct RouteTable(Vec<(Vec<String>, Vec<&'static str>)>);

impl RouteTable {
    /// The routes of a document.
    pub fn of(document: &OpenApi) -> Self {
        Self(
            document
                .paths
                .paths
                .iter()
                .map(|(path, item)| (segments(path), methods(item)))
                .collect(),
        )
    }

    /// Adds the routes of another document.
    pub fn and(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }

    /// The methods that a path takes; empty when there is no such path.
    pub fn methods(&self, path: &str) -> Vec<&'static str> {
        let path = segments(path);
        let mut allowed: Vec<&'static str> = self
            .0
            .iter()
            .filter(|(pattern, _)| matches(pattern, &path))
            .flat_map(|(_, methods)| methods.iter().copied())
            .collect();
        allowed.sort_unstable();
        allowed.dedup();
        allowed
    }
}

fn segments(path: &str) -> Vec<String> {
    path.split('/').map(str::to_owned).collect()
}

fn matches(pattern: &[String], path: &[String]) -> bool {
    pattern.len() == path.len()
        && pattern.iter().zip(path).all(|(pattern, segment)| {
            pattern == segment || (pattern.starts_with('{') && !segment.is_empty())
        })
}

fn methods(item: &PathItem) -> Vec<&'static str> {
    [
        ("GET", item.get.is_some()),
        ("POST", item.post.is_some()),
        ("PUT", item.put.is_some()),
        ("DELETE", item.delete.is_some()),
        ("PATCH", item.patch.is_some()),
    ]
    .into_iter()
    .filter_map(|(method, present)| present.then_some(method))
    .collect()
}
