//! The gates of the protocol as a whole: every feature, used at every advertised and requested version
//! and with and without its capability, is served or refused as the table says.

mod table;
mod uses;
mod world;

use std::collections::BTreeMap;

use leasehold::protocol::feature::Feature;
use leasehold::protocol::support::Supported;
use serde_json::{Value, json};

use super::support::TestServer;
use table::{How, Outcome, Row, Use, row};
use world::{Seen, World};

/// Advertised versions at which every feature is tried: the default, and the newest.
const WHOLE: [u64; 2] = [13, 20];

/// What a use comes to for the versions of both sides, and a worker without the capability.
fn expected(row: &Row, use_: &Use, advertised: u64, requested: u64, lacks: bool) -> Outcome {
    match (row.is_built, requested >= row.introduced) {
        (false, false) => use_.absent,
        (false, true) => use_.from,
        (true, _) if advertised < row.introduced => use_.absent,
        (true, false) => use_.below,
        (true, true) if lacks => use_.without,
        (true, true) => use_.from,
    }
}

/// Requested versions that are tried: all of them at the default version, and at the newest for what
/// is newer than the default; otherwise those around the feature's own.
fn requests(row: &Row, use_: &Use, advertised: u64) -> Vec<u64> {
    let floor = row.introduced;
    let is_whole = advertised == WHOLE[0] || (advertised == WHOLE[1] && floor > WHOLE[0]);
    let near = [0, floor.saturating_sub(1), floor, WHOLE[0], advertised];
    (use_.since..=advertised)
        .filter(|minor| is_whole || near.contains(minor))
        .collect()
}

/// Whether a feature is tried at an advertised version: at the oldest and the newest all are, in
/// between those that begin here or right after.
fn is_tried(row: &Row, advertised: u64) -> bool {
    WHOLE.contains(&advertised) || [advertised, advertised + 1].contains(&row.introduced)
}

struct Matrix {
    server: TestServer,
    advertised: u64,
    worlds: u64,
    cells: usize,
    /// What is not as the table says, so that one run shows all of it.
    wrong: Vec<String>,
}

impl Matrix {
    async fn at(advertised: u64) -> Self {
        let server = TestServer::with(|settings| {
            settings.worker_protocol = format!("1.{advertised}");
        })
        .await;
        Self {
            server,
            advertised,
            worlds: 0,
            cells: 0,
            wrong: Vec::new(),
        }
    }

    fn world(&mut self, lacks: Option<&'static str>, outcome: Outcome) -> World {
        self.worlds += 1;
        let own = self.server.client.clone();
        World {
            name: format!("x{}", self.worlds),
            client: own.clone(),
            own,
            advertised: self.advertised,
            lacks,
            patience: if outcome == Outcome::Served { 5 } else { 0 },
        }
    }

    async fn contents(&self) -> BTreeMap<&'static str, String> {
        self.server.db.contents().await
    }

    /// Uses a feature as a request of this version.
    async fn use_at(&mut self, use_: &Use, world: &World, given: &Value, requested: u64) -> Seen {
        self.cells += 1;
        let world = World {
            client: world.own.speaking(&format!("1.{requested}")),
            ..world.clone()
        };
        match &use_.how {
            How::Commands(commands, event) => {
                let answer = world.client.complete(given, commands.clone()).await;
                world.recorded(answer, given, event).await
            }
            How::Registers(capability) => uses::register_for(world, capability).await,
            How::Announced(pointer) => {
                let answer = world.own.get("/cluster/info").await;
                let effect = answer.body.pointer(pointer).is_some_and(says_yes);
                Seen { answer, effect }
            }
            How::Control(probe) | How::Worker(probe) => probe(world, given.clone()).await,
        }
    }

    /// All uses of a feature, with the capability and without it.
    async fn feature(&mut self, feature: Feature, row: &Row) {
        for use_ in &row.uses {
            self.tried(feature, row, use_, None).await;
            let asks = !matches!(use_.how, How::Announced(_) | How::Registers(_));
            let known = row.introduced <= self.advertised;
            if let Some(capability) = row.capability.filter(|_| asks && known) {
                self.tried(feature, row, use_, Some(capability)).await;
            }
        }
    }

    async fn tried(
        &mut self,
        feature: Feature,
        row: &Row,
        use_: &Use,
        lacks: Option<&'static str>,
    ) {
        let is_control = matches!(use_.how, How::Control(_) | How::Announced(_));
        let mut requested = match is_control {
            true => vec![self.advertised],
            false => requests(row, use_, self.advertised),
        };
        if lacks.is_some() {
            requested.retain(|minor| *minor >= row.introduced);
        }
        let outcome = |minor: u64| expected(row, use_, self.advertised, minor, lacks.is_some());
        let (refused, served): (Vec<u64>, Vec<u64>) = requested
            .into_iter()
            .filter(|minor| outcome(*minor) != Outcome::Nowhere)
            .partition(|minor| {
                matches!(outcome(*minor), Outcome::Refused(..) | Outcome::Invalid(_))
            });
        let outcomes: BTreeMap<u64, Outcome> = refused
            .iter()
            .chain(&served)
            .map(|minor| (*minor, outcome(*minor)))
            .collect();
        let place = format!(
            "{feature:?}, {}, advertised 1.{}, without {lacks:?}",
            use_.what, self.advertised
        );
        // Refusals change nothing, so that one world does for all of them.
        let negotiated = !is_control && lacks.is_none() && !outcomes.is_empty();
        if negotiated || !refused.is_empty() {
            let world = self.world(lacks, Outcome::Ignored);
            let given = (use_.prepare)(world.clone()).await;
            let before = self.contents().await;
            for minor in refused {
                let seen = self.use_at(use_, &world, &given, minor).await;
                let place = format!("{place}, requested 1.{minor}");
                let checked = refused_as(row, use_, minor, outcomes[&minor], &seen);
                if let Err(wrong) = checked {
                    self.wrong
                        .push(format!("{place}, requested 1.{minor}: {wrong}"));
                }
            }
            if negotiated {
                let seen = self.use_at(use_, &world, &given, self.advertised + 1).await;
                let newer = Outcome::Refused(400, "unsupported_protocol_version");
                let checked = refused_as(row, use_, self.advertised + 1, newer, &seen);
                if let Err(wrong) = checked {
                    self.wrong
                        .push(format!("{place}, requested a newer one: {wrong}"));
                }
            }
            if self.contents().await != before {
                self.wrong.push(format!("{place}: something changed"));
            }
        }
        for minor in served {
            let outcome = outcomes[&minor];
            let world = self.world(lacks, outcome);
            let given = (use_.prepare)(world.clone()).await;
            let seen = self.use_at(use_, &world, &given, minor).await;
            let (status, body) = (seen.answer.status, &seen.answer.body);
            if !status.is_success() || seen.effect != (outcome == Outcome::Served) {
                self.wrong.push(format!(
                    "{place}, requested 1.{minor}: {outcome:?}, but {status} {} {}, seen: {}",
                    body["reason"], body["errors"], seen.effect
                ));
            }
        }
    }
}

/// Whether an answer is the refusal that the table names, with all that it has to tell.
fn refused_as(
    row: &Row,
    use_: &Use,
    requested: u64,
    outcome: Outcome,
    seen: &Seen,
) -> Result<(), String> {
    let (status, body) = (seen.answer.status.as_u16(), &seen.answer.body);
    let is = match outcome {
        Outcome::Refused(wanted, reason) => status == wanted && body["reason"] == reason,
        Outcome::Invalid(path) => {
            status == 422
                && body["reason"] == "validation_failed"
                && body["errors"].get(path).is_some()
        }
        _ => false,
    };
    if !is {
        let (reason, errors) = (&body["reason"], &body["errors"]);
        return Err(format!("{outcome:?}, but {status} {reason} {errors}"));
    }
    if !matches!(use_.how, How::Commands(..)) || status != 409 {
        return Ok(());
    }
    // Nothing is applied, the lease is kept, and the worker is told what it lacks.
    for (field, value) in [
        ("outcome", json!("rejected")),
        ("recorded", json!(false)),
        ("requested_version", json!(format!("1.{requested}"))),
        (
            "minimum_protocol_version",
            json!(format!("1.{}", row.introduced)),
        ),
        ("workflow_task_attempt", json!(1)),
    ] {
        if body[field] != value {
            return Err(format!("{field} is {} and not {value}", body[field]));
        }
    }
    for field in ["task_id", "remediation"] {
        if body[field].as_str().is_none_or(str::is_empty) {
            return Err(format!("no {field}"));
        }
    }
    Ok(())
}

/// Whether a place of the discovery document says that something is there.
fn says_yes(value: &Value) -> bool {
    match value {
        Value::Array(list) => !list.is_empty(),
        value => *value == json!(true),
    }
}

/// Tries everything that is to be tried at an advertised version.
async fn tried_at(advertised: u64) {
    let mut matrix = Matrix::at(advertised).await;
    for feature in Feature::ALL {
        let row = row(*feature);
        if is_tried(&row, advertised) {
            matrix.feature(*feature, &row).await;
        }
    }
    println!("1.{advertised}: {} uses", matrix.cells);
    assert!(matrix.wrong.is_empty(), "{:#?}", matrix.wrong);
    matrix.server.stop().await;
}

/// Rule: the gate table, at the default version: whatever is newer is not there.
#[tokio::test(flavor = "multi_thread")]
async fn the_table_holds_at_the_default_version() {
    tried_at(13).await;
}

/// Rule: the gate table, at each version between the default and the newest, for what begins there.
#[tokio::test(flavor = "multi_thread")]
async fn the_table_holds_between() {
    for advertised in 14..20 {
        tried_at(advertised).await;
    }
}

/// Rule: the gate table, at the newest version: whatever is newer than the default, for every
/// requested version.
#[tokio::test(flavor = "multi_thread")]
async fn the_table_holds_at_the_newest_version() {
    tried_at(20).await;
}

/// The table says of each feature what the server says: its version, its capability, and whether it is
/// there at all.
#[test]
fn the_table_is_the_servers() {
    for feature in Feature::ALL {
        let row = row(*feature);
        assert_eq!(
            feature.floor().to_string(),
            format!("1.{}", row.introduced),
            "{feature:?}"
        );
        assert_eq!(
            Supported::build().has(*feature),
            row.is_built,
            "{feature:?}"
        );
        if row.is_built {
            assert_eq!(feature.worker_capability(), row.capability, "{feature:?}");
        }
        assert!(!row.uses.is_empty(), "{feature:?}");
    }
}
