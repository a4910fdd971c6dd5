//! The transcript in `README.md`, run line by line in a shell against a server.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a test stops at the first thing that is not as it should be"
)]

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};

use leasehold::managed_pg::testing::TestCluster;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, PgConnection};

const README: &str = include_str!("../../README.md");
/// What the transcript calls the server.
const ADDRESS: &str = "127.0.0.1:8080";
/// What stands before a line that a command prints.
const PRINTS: &str = "# => ";
/// Printed after each command, to tell where its output ends.
const END: &str = "--- end of output ---";
/// Letters and digits of a run id.
const ID_LENGTH: usize = 26;

/// A command and the lines that it is said to print.
#[derive(Debug)]
struct Step {
    command: String,
    prints: Vec<String>,
}

/// The first shell block behind the heading `With curl`.
fn transcript() -> Vec<Step> {
    let section = README
        .split("\n## With curl\n")
        .nth(1)
        .expect("the section");
    let block = section.split("```sh\n").nth(1).expect("a shell block");
    let block = block.split("\n```").next().expect("its end");
    let mut steps: Vec<Step> = Vec::new();
    for line in block.lines() {
        if let Some(printed) = line.strip_prefix(PRINTS) {
            let step = steps.last_mut().expect("a command before what it prints");
            step.prints.push(printed.to_owned());
        } else if !line.is_empty() && !line.starts_with('#') {
            steps.push(Step {
                command: line.to_owned(),
                prints: Vec::new(),
            });
        }
    }
    steps
}

/// Replaces ids of runs, and of what is inside them, by one word.
fn without_ids(line: &str) -> String {
    let mut text = String::new();
    let mut rest = line;
    while !rest.is_empty() {
        let end = rest
            .find(|c: char| !c.is_ascii_uppercase() && !c.is_ascii_digit())
            .unwrap_or(rest.len());
        if end == ID_LENGTH {
            text.push_str("RUN");
        } else {
            text.push_str(&rest[..end]);
        }
        rest = &rest[end..];
        let other = rest.chars().next().map_or(0, char::len_utf8);
        text.push_str(&rest[..other]);
        rest = &rest[other..];
    }
    text
}

/// A `leasehold serve` with a database of its own.
struct Server {
    process: Child,
    address: String,
    // Kept open: the server must not write into a closed pipe.
    _log: Lines<BufReader<ChildStderr>>,
}

impl Server {
    async fn start(database: &str) -> Self {
        let cluster = TestCluster::shared()
            .unwrap_or_else(|error| panic!("no PostgreSQL for tests: {error}"));
        let options = cluster.admin_options();
        let mut admin = PgConnection::connect_with(&options)
            .await
            .expect("the database answers");
        for statement in [
            format!("drop database if exists {database} with (force)"),
            format!("create database {database}"),
        ] {
            sqlx::raw_sql(AssertSqlSafe(statement))
                .execute(&mut admin)
                .await
                .expect("the statement runs");
        }
        let mut process = Command::new(env!("CARGO_BIN_EXE_leasehold"))
            .arg("serve")
            .env(
                "DATABASE_URL",
                options.database(database).to_url_lossy().as_str(),
            )
            .env("DW_LISTEN", "127.0.0.1:0")
            .env("DW_LOG__FORMAT", "json")
            .env("DW_CONFIG", "/dev/null")
            .env_remove("DW_AUTH_TOKEN")
            .env_remove("DW_WORKER_PROTOCOL_VERSION")
            .env_remove("RUST_LOG")
            .env_remove("PORT")
            .stderr(Stdio::piped())
            .spawn()
            .expect("the server starts");
        let mut log = BufReader::new(process.stderr.take().expect("a log")).lines();
        let address = loop {
            let line = log
                .next()
                .expect("the server says where it serves")
                .expect("a line");
            let Ok(entry) = serde_json::from_str::<serde_json::Value>(&line) else {
                panic!("{line}");
            };
            if let (Some("serving"), Some(address)) =
                (entry["message"].as_str(), entry["address"].as_str())
            {
                break address.to_owned();
            }
        };
        Self {
            process,
            address,
            _log: log,
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A shell that is given one line at a time.
struct Shell {
    process: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Shell {
    fn start() -> Self {
        let mut process = Command::new("bash")
            .args(["--noprofile", "--norc"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("bash starts");
        Self {
            input: process.stdin.take().expect("an input"),
            output: BufReader::new(process.stdout.take().expect("an output")).lines(),
            process,
        }
    }

    fn run(&mut self, command: &str) -> Vec<String> {
        writeln!(self.input, "{command}\necho; echo '{END}'").expect("bash listens");
        self.input.flush().expect("bash listens");
        let lines = self.output.by_ref().map(|line| line.expect("a line"));
        let mut printed: Vec<String> = lines.take_while(|line| line != END).collect();
        while printed.last().is_some_and(String::is_empty) {
            printed.pop();
        }
        printed
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[tokio::test]
async fn the_transcript_does_what_it_says() {
    let steps = transcript();
    assert!(
        steps.iter().filter(|step| !step.prints.is_empty()).count() >= 9,
        "{steps:#?}"
    );
    let server = Server::start(&format!("leasehold_readme_{}", std::process::id())).await;
    let mut shell = Shell::start();
    let mut ran = Vec::new();
    for Step { command, prints } in &steps {
        let printed = shell.run(&command.replace(ADDRESS, &server.address));
        ran.push(format!("{command}\n{}", printed.join("\n")));
        let plain = |lines: &[String]| {
            lines
                .iter()
                .map(|line| without_ids(line))
                .collect::<Vec<_>>()
        };
        assert_eq!(plain(&printed), plain(prints), "{}", ran.join("\n"));
    }
    // Here, in a process of its own, a counter whose handle was taken before anybody collected would be missing.
    let counted = shell.run(&format!("curl -s http://{}/metrics", server.address));
    let value = |counter: &str| {
        let line = counted.iter().find_map(|line| line.strip_prefix(counter));
        let value = line.unwrap_or_else(|| panic!("{counter} is not among {counted:#?}"));
        value.trim().parse::<u64>().expect("a number")
    };
    assert!(value(r#"dw_commits_total{outcome="committed"}"#) > 0);
    let tasks = |counter: &str| {
        let of = |kind| value(&format!(r#"{counter}{{kind="{kind}"}}"#));
        of("workflow") + of("activity")
    };
    assert!(tasks("dw_handoffs_total") + tasks("dw_claims_total") > 0);
}

#[test]
fn ids_are_told_from_words() {
    assert_eq!(
        without_ids("id 01M8MD7K7Y8FSTH79PKFTGCS98-3, OK"),
        "id RUN-3, OK"
    );
    assert_eq!(without_ids("Hello Ada 1.20"), "Hello Ada 1.20");
}

#[test]
fn the_readme_begins_with_the_two_commands() {
    let block = README.split("```sh\n").nth(1).expect("a shell block");
    assert!(
        block.starts_with("cargo run -- dev --install-postgres\ncargo test\n```"),
        "{block}"
    );
    assert!(README.find("```sh").is_some_and(|at| at < 200));
}
