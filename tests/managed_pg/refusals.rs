//! Starts that must be refused, with the words that help.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use leasehold::managed_pg::testing::scratch_dir;
use leasehold::managed_pg::{Cluster, Durability, Error, reset};

use crate::support::*;

#[test]
fn data_of_another_version_is_refused_and_can_be_set_aside() {
    let dir = scratch_dir("version").unwrap();
    start(&dir).stop().unwrap();
    let version_file = dir.join("data/PG_VERSION");
    let installed = fs::read_to_string(&version_file).unwrap();
    fs::write(&version_file, "9\n").unwrap();
    let text = refusal(&dir);
    assert!(
        text.contains("was made by PostgreSQL 9; installed: "),
        "{text}"
    );
    assert!(text.contains(installed.trim()), "{text}");
    assert!(text.contains("`dev --reset`"), "{text}");

    let old = reset(&dir).unwrap().unwrap();
    assert_eq!(fs::read_to_string(old.join("PG_VERSION")).unwrap(), "9\n");
    assert_eq!(reset(&dir).unwrap(), None);
    start(&dir).stop().unwrap();
    let newer = reset(&dir).unwrap().unwrap();
    assert_ne!(newer, old);
    assert!(old.exists());
}

#[test]
fn a_reset_of_nothing_makes_nothing() {
    let dir = scratch_dir("reset-nothing").unwrap().join("never");
    assert_eq!(reset(&dir).unwrap(), None);
    assert!(!dir.exists());
}

#[test]
fn a_foreign_data_folder_is_left_alone() {
    let dir = scratch_dir("foreign").unwrap();
    fs::create_dir(dir.join("data")).unwrap();
    fs::write(dir.join("data/letter.txt"), "dear").unwrap();
    let text = refusal(&dir);
    assert!(text.contains("is not a PostgreSQL data folder"), "{text}");
    assert!(dir.join("data/letter.txt").exists());
}

#[test]
fn missing_programs_are_reported_before_anything_is_made() {
    let dir = scratch_dir("no-programs").unwrap().join("never");
    let mut settings = settings(&dir, Durability::TestOnly);
    settings.bin_dir = Some(PathBuf::from("/nonexistent/bin"));
    let error = Cluster::start(&settings).unwrap_err();
    assert!(matches!(error, Error::ProgramsNotFound { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("looked in /nonexistent/bin"), "{text}");
    assert!(text.contains("--install-postgres"), "{text}");
    assert!(!dir.exists());
}

#[test]
fn a_server_that_refuses_to_start_shows_its_last_words() {
    let dir = scratch_dir("bad-config").unwrap();
    start(&dir).stop().unwrap();
    let config = dir.join("data/postgresql.auto.conf");
    fs::write(&config, "shared_buffers = 'plenty'\n").unwrap();
    let text = refusal(&dir);
    assert!(
        text.contains("PostgreSQL stopped while starting (exit status 1)"),
        "{text}"
    );
    assert!(text.contains("shared_buffers"), "{text}");
    // The lines of the first, good start are not among them.
    assert!(!text.contains(CLEAN_SHUTDOWN), "{text}");
}

#[test]
fn a_folder_that_the_other_user_cannot_reach_is_named() {
    if !is_root() {
        eprintln!("skipped: only root switches to another user");
        return;
    }
    let closed = scratch_dir("closed").unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
    let dir = closed.join("inner/dev");
    let text = refusal(&dir);
    let what = format!(
        "cannot reach {} (mode 700 on {})",
        dir.display(),
        closed.display()
    );
    assert!(text.contains(&what), "{text}");
    assert!(text.contains("`--data-dir`"), "{text}");
    assert!(!closed.join("inner").exists());
}
