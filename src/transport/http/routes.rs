//! Which routes exist, read from the generated document, to tell an unknown path from a wrong method.

use std::sync::Arc;

use utoipa::openapi::{OpenApi, PathItem};

/// Paths and their methods.
#[derive(Clone, Debug, Default)]
pub struct RouteTable {
    routes: Vec<Route>,
    /// The routes by the segments of their paths; every answer is counted under its route.
    root: Node,
}

/// What may follow some first segments of a path.
#[derive(Clone, Debug, Default)]
struct Node {
    fixed: Vec<(Box<str>, Node)>,
    any: Option<Box<Node>>,
    /// The route that ends here.
    route: Option<usize>,
}

impl Node {
    fn add(&mut self, pattern: &str, route: usize) {
        let mut node = self;
        for segment in pattern.split('/') {
            node = if segment.starts_with('{') {
                node.any.get_or_insert_default()
            } else {
                node.follow(segment)
            };
        }
        node.route.get_or_insert(route);
    }

    fn follow(&mut self, segment: &str) -> &mut Self {
        let known = self.fixed.iter().position(|(name, _)| **name == *segment);
        let place = known.unwrap_or_else(|| {
            self.fixed.push((segment.into(), Self::default()));
            self.fixed.len() - 1
        });
        &mut self.fixed[place].1
    }

    fn find(&self, path: Option<&str>) -> Option<usize> {
        let Some(path) = path else {
            return self.route;
        };
        // A slash is a character of its own in UTF-8, and segments are too short for a search by blocks.
        let (segment, rest) = match path.bytes().position(|byte| byte == b'/') {
            Some(end) => (&path[..end], Some(&path[end + 1..])),
            None => (path, None),
        };
        let fixed = self.fixed.iter().find(|(name, _)| **name == *segment);
        let fixed = fixed.and_then(|(_, node)| node.find(rest));
        fixed.or_else(|| {
            let any = self.any.as_ref().filter(|_| !segment.is_empty())?;
            any.find(rest)
        })
    }
}

#[derive(Clone, Debug)]
struct Route {
    pattern: Arc<str>,
    methods: Vec<&'static str>,
}

impl RouteTable {
    /// The routes of a document.
    pub fn of(document: &OpenApi) -> Self {
        let routes = document.paths.paths.iter().map(|(path, item)| Route {
            pattern: path.as_str().into(),
            methods: methods(item),
        });
        Self::with(routes)
    }

    fn with(routes: impl Iterator<Item = Route>) -> Self {
        let routes: Vec<Route> = routes.collect();
        let mut root = Node::default();
        for (place, route) in routes.iter().enumerate() {
            root.add(&route.pattern, place);
        }
        Self { routes, root }
    }

    /// Adds the routes of another document.
    pub fn and(self, other: Self) -> Self {
        Self::with(self.routes.into_iter().chain(other.routes))
    }

    /// The methods that a path takes; empty when there is no such path.
    pub fn methods(&self, path: &str) -> Vec<&'static str> {
        let mut allowed: Vec<&'static str> = self
            .routes
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
        let place = self.root.find(Some(path))?;
        Some((place, &self.routes.get(place)?.pattern))
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
        RouteTable::with(patterns.iter().map(route))
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
            ("/a/poll/", None),
            ("/a/poll/done", Some("/a/{id}/done")),
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
