//! Rust sources as the rules of the house read them: tokens without comments and without test code.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// A piece of a source text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Token {
    /// A word.
    Word(String),
    /// `::`
    Sep,
    /// A string literal, without its quotes.
    Text(String),
    /// Any other character.
    Sign(char),
}

impl Token {
    /// Whether it is this word.
    pub fn is(&self, word: &str) -> bool {
        matches!(self, Self::Word(own) if own == word)
    }

    /// The word, if it is one.
    pub fn word(&self) -> Option<&str> {
        match self {
            Self::Word(word) => Some(word),
            _ => None,
        }
    }
}

/// A source file of the library or the binary.
#[derive(Debug)]
pub struct Source {
    /// Path from the root of the repository.
    pub path: String,
    /// The text.
    pub text: String,
    /// Where it stands in the module tree: `["store", "commit"]`; empty for the root.
    pub module: Vec<String>,
    /// It holds nothing but tests.
    pub is_test: bool,
    /// Its tokens, test code left out.
    pub tokens: Vec<Token>,
}

impl Source {
    /// The layer, which is the first module; `main` for the binary, nothing for the library's root.
    pub fn layer(&self) -> Option<&str> {
        if ["src/main.rs", "src/allocator.rs"].contains(&self.path.as_str()) {
            return Some("main");
        }
        self.module.first().map(String::as_str)
    }

    /// Paths that the code names, from the root of the crate: `["domain", "time", "Timestamp"]`.
    pub fn own_paths(&self) -> Vec<Vec<String>> {
        let mut found = Vec::new();
        for (at, token) in self.tokens.iter().enumerate() {
            let begins = at == 0 || self.tokens[at - 1] != Token::Sep;
            let rooted = ["crate", "super", "leasehold"]
                .iter()
                .any(|word| token.is(word));
            if begins && rooted && self.tokens.get(at + 1) == Some(&Token::Sep) {
                let mut trees = Vec::new();
                tree(&self.tokens, at, Vec::new(), &mut trees);
                found.extend(trees.into_iter().filter_map(|path| self.resolve(&path)));
            }
        }
        found
    }

    fn resolve(&self, path: &[String]) -> Option<Vec<String>> {
        let first = path.first()?;
        if first != "super" {
            return Some(path[1..].to_vec());
        }
        let ups = path.iter().take_while(|part| *part == "super").count();
        // Inline modules make a path look one step shorter than it is; those are all tests.
        let kept = self.module.len().checked_sub(ups)?;
        Some([&self.module[..kept], &path[ups..]].concat())
    }

    /// Crates that the code names, with the next part of the path: `("sqlx", "Error")`.
    pub fn crates(&self, known: &[String]) -> Vec<(String, String)> {
        let shadowed: Vec<String> = self
            .own_paths()
            .into_iter()
            .filter_map(|mut path| path.pop())
            .collect();
        let mut found = Vec::new();
        for (at, token) in self.tokens.iter().enumerate() {
            let Some(word) = token
                .word()
                .filter(|word| known.iter().any(|known| known == word))
            else {
                continue;
            };
            let inner = at > 0
                && match &self.tokens[at - 1] {
                    // `::name::` is the crate for certain; `other::name` is not.
                    Token::Sep => at > 1 && self.tokens[at - 2].word().is_some(),
                    before => *before == Token::Sign('.'),
                };
            let leading = at > 0 && self.tokens[at - 1] == Token::Sep;
            let shadow = !leading && shadowed.iter().any(|shadow| shadow == word);
            if inner || shadow || self.tokens.get(at + 1) != Some(&Token::Sep) {
                continue;
            }
            let mut trees = Vec::new();
            tree(&self.tokens, at, Vec::new(), &mut trees);
            for path in trees {
                found.push((word.to_owned(), path.get(1).cloned().unwrap_or_default()));
            }
        }
        found
    }

    /// Whether these words stand one after another, with the signs between them as written.
    pub fn has(&self, pattern: &str) -> bool {
        let pattern = tokens(pattern);
        self.tokens
            .windows(pattern.len())
            .any(|window| window == pattern)
    }

    /// The string literals.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        self.tokens.iter().filter_map(|token| match token {
            Token::Text(text) => Some(text.as_str()),
            _ => None,
        })
    }
}

/// Follows a path and its braces, and adds each of its ends to `found`.
fn tree(
    tokens: &[Token],
    mut at: usize,
    mut path: Vec<String>,
    found: &mut Vec<Vec<String>>,
) -> usize {
    loop {
        match tokens.get(at) {
            Some(Token::Word(word)) => {
                path.push(word.clone());
                at += 1;
            }
            Some(Token::Sign('{')) => {
                at += 1;
                while !matches!(tokens.get(at), None | Some(Token::Sign('}'))) {
                    let from = at;
                    at = tree(tokens, at, path.clone(), found);
                    // `as name`, commas and whatever else stands between two branches.
                    at = at.max(from + 1);
                    while matches!(tokens.get(at), Some(Token::Sign(',')))
                        || tokens.get(at).is_some_and(|token| token.is("as"))
                    {
                        at += if tokens[at].is("as") { 2 } else { 1 };
                    }
                }
                return at + 1;
            }
            _ => break,
        }
        if tokens.get(at) == Some(&Token::Sep) {
            at += 1;
        } else {
            break;
        }
    }
    path.retain(|part| part != "self");
    found.push(path);
    at
}

/// The root of the repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A file of the repository.
pub fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// All sources below `src`, in order; read once.
pub fn sources() -> &'static [Source] {
    static SOURCES: OnceLock<Vec<Source>> = OnceLock::new();
    SOURCES.get_or_init(read_sources)
}

fn read_sources() -> Vec<Source> {
    let mut files = Vec::new();
    walk(&root().join("src"), &mut files);
    files.sort();
    files
        .iter()
        .filter(|file| file.extension().is_some_and(|extension| extension == "rs"))
        .map(|file| {
            let path = relative(file);
            let text = read(&path);
            let inner = path.trim_start_matches("src/").trim_end_matches(".rs");
            let module: Vec<String> = inner
                .split('/')
                .filter(|part| !matches!(*part, "mod" | "lib" | "main"))
                .map(str::to_owned)
                .collect();
            Source {
                is_test: module.iter().any(|part| part == "tests"),
                tokens: without_tests(tokens(&text)),
                path,
                text,
                module,
            }
        })
        .collect()
}

/// Every file that belongs to the repository, by its path from the root.
pub fn files() -> Vec<String> {
    let listed = std::process::Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output();
    if let Ok(listed) = listed
        && listed.status.success()
    {
        let names = String::from_utf8_lossy(&listed.stdout).into_owned();
        return names
            .lines()
            .filter(|name| root().join(name).is_file())
            .map(str::to_owned)
            .collect();
    }
    let mut files = Vec::new();
    walk(root(), &mut files);
    files.iter().map(|file| relative(file)).collect()
}

fn relative(file: &Path) -> String {
    file.strip_prefix(root())
        .unwrap_or(file)
        .to_string_lossy()
        .into_owned()
}

fn walk(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = entry.file_name();
        if name == "target" || name == ".git" {
            continue;
        }
        if path.is_dir() {
            walk(&path, files);
        } else {
            files.push(path);
        }
    }
}

/// The tokens of a Rust text. Comments are left out.
pub fn tokens(text: &str) -> Vec<Token> {
    let chars: Vec<char> = text.chars().collect();
    let mut tokens = Vec::new();
    let mut at = 0;
    while at < chars.len() {
        let rest = &chars[at..];
        at += match rest {
            ['/', '/', ..] => rest.iter().position(|c| *c == '\n').unwrap_or(rest.len()),
            ['/', '*', ..] => block_comment(rest),
            [':', ':', ..] => {
                tokens.push(Token::Sep);
                2
            }
            ['r', '"', ..] | ['r', '#', '"' | '#', ..] | ['b', 'r', '"' | '#', ..] => {
                raw_string(rest, &mut tokens)
            }
            ['"', ..] => string(rest, &mut tokens),
            ['\'', ..] => character(rest),
            [c, ..] if c.is_alphanumeric() || *c == '_' => {
                let end = rest
                    .iter()
                    .position(|c| !(c.is_alphanumeric() || *c == '_'))
                    .unwrap_or(rest.len());
                tokens.push(Token::Word(rest[..end].iter().collect()));
                end
            }
            [c, ..] => {
                if !c.is_whitespace() {
                    tokens.push(Token::Sign(*c));
                }
                1
            }
            [] => 1,
        };
    }
    tokens
}

fn block_comment(rest: &[char]) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        match rest[at..] {
            ['/', '*', ..] => {
                depth += 1;
                at += 2;
            }
            ['*', '/', ..] => {
                depth -= 1;
                at += 2;
                if depth == 0 {
                    return at;
                }
            }
            _ => at += 1,
        }
    }
    rest.len()
}

fn string(rest: &[char], tokens: &mut Vec<Token>) -> usize {
    let mut at = 1;
    let mut text = String::new();
    while at < rest.len() && rest[at] != '"' {
        if rest[at] == '\\' {
            at += 1;
        }
        if let Some(c) = rest.get(at) {
            text.push(*c);
        }
        at += 1;
    }
    tokens.push(Token::Text(text));
    at + 1
}

fn raw_string(rest: &[char], tokens: &mut Vec<Token>) -> usize {
    let start = rest.iter().position(|c| *c == '"').unwrap_or(0);
    let hashes = rest[..start].iter().filter(|c| **c == '#').count();
    let mut at = start + 1;
    while at < rest.len() {
        let closed =
            rest[at] == '"' && rest[at + 1..].iter().take_while(|c| **c == '#').count() >= hashes;
        if closed {
            break;
        }
        at += 1;
    }
    tokens.push(Token::Text(
        rest[start + 1..at.min(rest.len())].iter().collect(),
    ));
    at + 1 + hashes
}

/// A character literal or a lifetime.
fn character(rest: &[char]) -> usize {
    match rest {
        ['\'', '\\', ..] => rest[2..]
            .iter()
            .skip(1)
            .position(|c| *c == '\'')
            .map_or(rest.len(), |n| n + 4),
        ['\'', _, '\'', ..] => 3,
        _ => 1,
    }
}

/// Leaves out what stands behind `#[cfg(test)]`.
fn without_tests(tokens: Vec<Token>) -> Vec<Token> {
    let marker = self::tokens("#[cfg(test)]");
    let mut kept = Vec::with_capacity(tokens.len());
    let mut at = 0;
    while at < tokens.len() {
        if !tokens[at..].starts_with(&marker) {
            kept.push(tokens[at].clone());
            at += 1;
            continue;
        }
        at += marker.len();
        let mut depth = 0_u32;
        while at < tokens.len() {
            match tokens[at] {
                Token::Sign('{') => depth += 1,
                Token::Sign('}') => depth -= 1,
                _ => {}
            }
            let over = depth == 0 && matches!(tokens[at], Token::Sign(';' | '}'));
            at += 1;
            if over {
                break;
            }
        }
    }
    kept
}

#[test]
fn tokens_are_those_of_the_code() {
    let text = "//! one::two\nuse a::{b, c::d}; /* x::y /* */ */ let s = \"e::f \\\" g\"; let c = '\"'; fn g<'a>() {} r#\"h\"i\"#";
    let found = tokens(text);
    assert!(
        !found
            .iter()
            .any(|token| token.is("one") || token.is("x") || token.is("f"))
    );
    assert!(found.contains(&Token::Text("e::f \" g".to_owned())));
    assert!(found.contains(&Token::Text("h\"i".to_owned())));
    assert!(found.iter().any(|token| token.is("g")));
}

#[test]
fn test_code_is_left_out_and_the_rest_is_kept() {
    let text = "fn a() {} #[cfg(test)] mod tests { fn b() { panic!() } } fn c() {} #[cfg(test)] mod d; fn e() {}";
    let kept = without_tests(tokens(text));
    let words: Vec<&str> = kept.iter().filter_map(Token::word).collect();
    assert_eq!(words, ["fn", "a", "fn", "c", "fn", "e"]);
}

#[test]
fn paths_are_followed_through_braces_and_upwards() {
    let source = |module: &[&str], text: &str| Source {
        path: String::new(),
        text: text.to_owned(),
        module: module.iter().map(|part| (*part).to_owned()).collect(),
        is_test: false,
        tokens: tokens(text),
    };
    let own = source(
        &["store", "commit"],
        "use crate::domain::{ids::{RunId, TaskId as T}, time}; use super::super::payload::Codec;",
    );
    let paths: Vec<String> = own.own_paths().iter().map(|path| path.join("::")).collect();
    assert_eq!(
        paths,
        [
            "domain::ids::RunId",
            "domain::ids::TaskId",
            "domain::time",
            "payload::Codec"
        ]
    );
    let known = ["sqlx".to_owned(), "metrics".to_owned()];
    let named = source(
        &["node"],
        "use crate::telemetry::metrics; fn f() { metrics::start(); ::metrics::gauge!(); sqlx::Error; }",
    );
    assert_eq!(
        named.crates(&known),
        [
            ("metrics".to_owned(), "gauge".to_owned()),
            ("sqlx".to_owned(), "Error".to_owned())
        ]
    );
}
