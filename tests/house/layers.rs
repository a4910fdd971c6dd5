//! The layers: what each owns, what it may import of ours, and which crates it may name.

use std::collections::{BTreeMap, BTreeSet};

use super::source::{read, sources};

/// A layer is a top-level module.
struct Layer {
    name: &'static str,
    owns: &'static str,
    /// Layers, or paths inside layers, that it may import. `*` is everything.
    imports: &'static [&'static str],
    /// Crates, or names inside crates, that it may use besides [`EVERYWHERE`]. `*` is everything.
    crates: &'static [&'static str],
}

/// Crates without a concern of their own.
const EVERYWHERE: &[&str] = &["serde", "serde_json", "thiserror"];

/// From the outside in. `docs/architecture.md` shows this table.
const LAYERS: &[Layer] = &[
    Layer {
        name: "cli",
        owns: "sub-commands, their flags and exit codes",
        imports: &["*"],
        crates: &["clap", "sqlx", "tokio"],
    },
    Layer {
        name: "node",
        owns: "one node: connected, serving, stopped in order",
        imports: &[
            "config",
            "domain",
            "engine",
            "maintenance",
            "store",
            "telemetry",
            "transport",
        ],
        crates: &["actix_web", "sqlx::postgres", "tokio", "tracing", "uuid"],
    },
    Layer {
        name: "transport",
        owns: "bindings: a request in, use case called, an answer out",
        imports: &[
            "auth",
            "config",
            "domain",
            "engine",
            "matching::Grant",
            "matching::GrantedLease",
            "payload",
            "protocol",
        ],
        crates: &[
            "actix_web",
            "base64",
            "flate2",
            "futures_util",
            "memchr",
            "metrics",
            "metrics_exporter_prometheus",
            "rapidhash",
            "serde_path_to_error",
            "sha2",
            "tokio::sync",
            "tokio::task",
            "tokio::time",
            "tracing",
            "utoipa",
            "utoipa_actix_web",
            "uuid",
            "yaml_serde",
        ],
    },
    Layer {
        name: "maintenance",
        owns: "background passes: timers, leases, hints",
        imports: &["engine", "store::notify"],
        crates: &["tokio", "tracing"],
    },
    Layer {
        name: "engine",
        owns: "use cases: load, decide, commit, wake",
        imports: &["clock", "domain", "matching", "payload", "store"],
        crates: &["metrics", "sqlx::Error", "tokio", "tracing", "uuid"],
    },
    Layer {
        name: "matching",
        owns: "parked polls and hand-off, in memory",
        imports: &["domain"],
        crates: &["foldhash", "tokio", "uuid"],
    },
    Layer {
        name: "store",
        owns: "all SQL; the door for writes",
        imports: &["domain", "payload"],
        crates: &[
            "chrono",
            "futures_util",
            "metrics",
            "lz4_flex",
            "sqlx",
            "tokio",
            "tracing",
        ],
    },
    Layer {
        name: "clock",
        owns: "the database's time",
        imports: &["domain::time"],
        crates: &[],
    },
    Layer {
        name: "domain",
        owns: "pure decisions and value types",
        imports: &["payload", "protocol"],
        crates: &["chrono"],
    },
    Layer {
        name: "protocol",
        owns: "versions, features, capabilities, reasons",
        imports: &[],
        crates: &["semver"],
    },
    Layer {
        name: "payload",
        owns: "payload envelopes and the value codec",
        imports: &[],
        crates: &["base64", "memchr"],
    },
    Layer {
        name: "auth",
        owns: "tokens and roles",
        imports: &[],
        crates: &["sha2", "subtle"],
    },
    Layer {
        name: "config",
        owns: "settings and where they come from",
        imports: &[],
        crates: &["figment"],
    },
    Layer {
        name: "telemetry",
        owns: "logs and metrics",
        imports: &[],
        crates: &[
            "metrics",
            "metrics_exporter_prometheus",
            "tracing",
            "tracing_subscriber",
        ],
    },
    Layer {
        name: "managed_pg",
        owns: "the private PostgreSQL of `dev` and of tests",
        imports: &[],
        crates: &["chrono", "rustix", "sqlx", "uuid"],
    },
];

fn layer(name: &str) -> &'static Layer {
    LAYERS
        .iter()
        .find(|layer| layer.name == name)
        .unwrap_or_else(|| {
            panic!("src/{name} is in no layer: give it a place in tests/house/layers.rs")
        })
}

fn covers(rules: &[&str], path: &[&str]) -> bool {
    rules.iter().any(|rule| {
        let rule: Vec<&str> = rule.split("::").collect();
        rule == ["*"] || path.starts_with(&rule)
    })
}

#[test]
fn imports_run_downwards() {
    let mut wrong = BTreeSet::new();
    for source in sources().iter().filter(|source| !source.is_test) {
        let Some(own) = source.layer() else { continue };
        for path in source.own_paths() {
            let path: Vec<&str> = path.iter().map(String::as_str).collect();
            let Some(other) = path.first().filter(|other| **other != own) else {
                continue;
            };
            if own == "main" {
                assert_eq!(*other, "cli", "src/main.rs only runs the command line");
                continue;
            }
            layer(other);
            if !covers(layer(own).imports, &path) {
                wrong.insert(format!(
                    "{}: {} may not import {}",
                    source.path,
                    own,
                    path.join("::")
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn crates_stay_where_their_concern_is() {
    let known: Vec<String> = super::documents::dependencies()
        .iter()
        .map(|name| name.replace('-', "_"))
        .filter(|name| !EVERYWHERE.contains(&name.as_str()))
        .collect();
    let mut wrong = BTreeSet::new();
    for source in sources().iter().filter(|source| !source.is_test) {
        let Some(own) = source.layer().filter(|own| *own != "main") else {
            continue;
        };
        for (name, inner) in source.crates(&known) {
            if !covers(layer(own).crates, &[&name, &inner]) {
                wrong.insert(format!(
                    "{}: {own} may not use {name}::{inner}",
                    source.path
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn pure_layers_read_no_clock_and_touch_nothing() {
    let mut wrong = Vec::new();
    for source in sources().iter().filter(|source| !source.is_test) {
        if !matches!(source.layer(), Some("domain" | "protocol" | "payload")) {
            continue;
        }
        for pattern in [
            "Utc::now",
            "Local::now",
            "Instant::now",
            "SystemTime",
            "std::fs",
            "std::net",
            "std::env",
            "std::process",
            "std::thread",
            "async fn",
            ".await",
        ] {
            if source.has(pattern) {
                wrong.push(format!("{}: {pattern}", source.path));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

type Graph = BTreeMap<String, BTreeSet<String>>;

/// Groups of nodes that reach each other.
fn circles(graph: &Graph) -> BTreeSet<Vec<String>> {
    let reach = |from: &String| {
        let mut seen = BTreeSet::new();
        let mut next: Vec<&String> = graph.get(from).into_iter().flatten().collect();
        while let Some(node) = next.pop() {
            if seen.insert(node.clone()) {
                next.extend(graph.get(node).into_iter().flatten());
            }
        }
        seen
    };
    let reached: BTreeMap<&String, BTreeSet<String>> =
        graph.keys().map(|node| (node, reach(node))).collect();
    graph
        .keys()
        .map(|node| {
            let with: Vec<String> = reached[node]
                .iter()
                .filter(|other| reached.get(other).is_some_and(|back| back.contains(node)))
                .cloned()
                .collect();
            with
        })
        .filter(|circle| circle.len() > 1)
        .collect()
}

#[test]
fn there_are_no_circles() {
    let all = sources();
    let modules: BTreeSet<(&str, &str)> = all
        .iter()
        .filter_map(|source| {
            Some((
                source.module.first()?.as_str(),
                source.module.get(1)?.as_str(),
            ))
        })
        .collect();
    let mut between = Graph::new();
    let mut inside: BTreeMap<String, Graph> = BTreeMap::new();
    for source in all.iter().filter(|source| !source.is_test) {
        let Some(own) = source.module.first() else {
            continue;
        };
        for path in source.own_paths() {
            let Some(other) = path.first() else { continue };
            if other != own {
                between
                    .entry(own.clone())
                    .or_default()
                    .insert(other.clone());
            } else if let (Some(from), Some(to)) = (source.module.get(1), path.get(1))
                && from != to
                && modules.contains(&(own.as_str(), to.as_str()))
            {
                let graph = inside.entry(own.clone()).or_default();
                graph.entry(from.clone()).or_default().insert(to.clone());
            }
        }
    }
    let found = circles(&between);
    assert!(found.is_empty(), "layers that import each other: {found:?}");
    for (own, graph) in &inside {
        let found = circles(graph);
        assert!(
            found.is_empty(),
            "modules of {own} that import each other: {found:?}"
        );
    }
}

#[test]
fn the_architecture_page_shows_these_layers() {
    let list = |names: &[&str]| match names {
        [] => "nothing".to_owned(),
        ["*"] => "everything".to_owned(),
        names => names
            .iter()
            .map(|name| format!("`{name}`"))
            .collect::<Vec<_>>()
            .join(", "),
    };
    let mut table = String::from(
        "| Layer | Owns | May import of ours | May use of crates |\n| --- | --- | --- | --- |\n",
    );
    for Layer {
        name,
        owns,
        imports,
        crates,
    } in LAYERS
    {
        table.push_str(&format!(
            "| `{name}` | {owns} | {} | {} |\n",
            list(imports),
            list(crates)
        ));
    }
    table.push_str(&format!("\nEvery layer may use {}.\n", list(EVERYWHERE)));
    let page = read("docs/architecture.md");
    assert!(
        page.contains(&table),
        "docs/architecture.md must hold this table, taken from tests/house/layers.rs:\n\n{table}"
    );
}

#[test]
fn circles_are_found() {
    let graph = |edges: &[(&str, &str)]| {
        let mut graph = Graph::new();
        for (from, to) in edges {
            graph
                .entry((*from).to_owned())
                .or_default()
                .insert((*to).to_owned());
        }
        graph
    };
    assert!(circles(&graph(&[("a", "b"), ("b", "c"), ("a", "c")])).is_empty());
    assert_eq!(
        circles(&graph(&[("a", "b"), ("b", "c"), ("c", "a"), ("d", "a")])).len(),
        1
    );
}
