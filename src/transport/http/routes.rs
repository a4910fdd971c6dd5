//! Which routes exist, read from the generated document, to tell an unknown path from a wrong method.

use std::sync::Arc;

use utoipa::openapi::{OpenApi, PathItem};

/// Paths and their methods.
#[derive(Clone, Debug, Default)]
pub struct RouteTable(Vec<Route>);

#[derive(Clone, Debug)]
struct Route {
    pattern: Arc<str>,
    methods: Vec<&'static str>,
}

impl RouteTable {
    /// The routes of a document.
    pub fn of(document: &OpenApi) -> Self {
        Self(
            document
                .paths
                .paths
                .iter()
                .map(|(path, item)| Route {
                    pattern: path.as_str().into(),
                    methods: methods(item),
                })
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
        let mut allowed: Vec<&'static str> = self
            .0
            .iter()
            .filter(|route| matches(&route.pattern, path))
            .flat_map(|route| route.methods.iter().copied())
            .collect();
        allowed.sort_unstable();
        allowed.dedup();
        allowed
    }

    /// The place of the route that a path belongs to, and its pattern; of several, the one that names
    /// the path itself.
    pub fn find(&self, path: &str) -> Option<(usize, &str)> {
        let routes = || self.0.iter().map(|route| &*route.pattern).enumerate();
        routes()
            .find(|(_, pattern)| *pattern == path)
            .or_else(|| routes().find(|(_, pattern)| matches(pattern, path)))
    }
}

fn matches(pattern: &str, path: &str) -> bool {
    let mut wanted = pattern.split('/');
    let mut given = path.split('/');
    loop {
        return match (wanted.next(), given.next()) {
            (Some(wanted), Some(given))
                if wanted == given || (wanted.starts_with('{') && !given.is_empty()) =>
            {
                continue;
            }
            (None, None) => true,
            _ => false,
        };
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn table(patterns: &[&str]) -> RouteTable {
        let route = |pattern: &&str| Route {
            pattern: (*pattern).into(),
            methods: vec!["GET"],
        };
        RouteTable(patterns.iter().map(route).collect())
    }

    #[test]
    fn a_path_is_found_under_its_pattern() {
        let table = table(&["/a/{id}", "/a/poll", "/a/{id}/done", "/"]);
        for (path, found) in [
            ("/a/1", Some("/a/{id}")),
            ("/a/poll", Some("/a/poll")),
            ("/a/1/done", Some("/a/{id}/done")),
            ("/", Some("/")),
            ("/a/", None),
            ("/a//done", None),
            ("/a/1/done/", None),
            ("/b", None),
        ] {
            assert_eq!(
                table.find(path).map(|(_, pattern)| pattern),
                found,
                "{path}"
            );
            assert_eq!(table.methods(path).is_empty(), found.is_none(), "{path}");
        }
    }
}
