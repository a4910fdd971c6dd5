//! The test kit: a modelled database, a bench that drives one run on it, and makers of inputs.

mod bench;
mod db;
mod language;
mod make;
mod seeds;

pub use bench::{Bench, Held, Outcome, reported, returned};
pub use db::{Db, Lost, Stored};
pub use language::*;
pub use make::*;
pub use seeds::{Log, SEEDS, live_seeds};
