//! The order of the search, and what is said when it finds nothing.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::fs;
use std::os::unix::fs::symlink;

use super::super::testing::scratch_dir;
use super::*;

fn no_machine() -> &'static Path {
    Path::new("/nonexistent/postgresql")
}

/// A root with empty program files; nothing here is ever executed.
fn root_with(name: &str, versions: &[&str]) -> PathBuf {
    let root = scratch_dir(name).unwrap();
    for version in versions {
        let bin = root.join(version).join("bin");
        fs::create_dir_all(&bin).unwrap();
        fs::write(bin.join("initdb"), "").unwrap();
        fs::write(bin.join("postgres"), "").unwrap();
    }
    root
}

fn programs(majors: &[u32]) -> Vec<Programs> {
    majors
        .iter()
        .map(|major| Programs {
            bin_dir: PathBuf::from(format!("/opt/{major}")),
            major: *major,
        })
        .collect()
}

#[test]
fn an_empty_machine_gets_the_install_line() {
    let search = Search {
        named: None,
        root: no_machine(),
        path: OsStr::new(""),
    };
    let text = search.candidates().unwrap_err().to_string();
    assert!(
        text.starts_with("PostgreSQL server programs not found"),
        "{text}"
    );
    assert!(
        text.contains("looked in /nonexistent/postgresql/*/bin, pg_config"),
        "{text}"
    );
    assert!(text.contains("apt-get install -y"), "{text}");
    assert!(text.contains("--install-postgres"), "{text}");
    assert!(
        text.contains("DATABASE_URL") && text.contains("DW_POSTGRES_BIN"),
        "{text}"
    );
}

#[test]
fn the_newest_version_comes_first_and_client_only_folders_are_skipped() {
    let root = root_with("locate-order", &["9", "15", "17", "16"]);
    fs::create_dir_all(root.join("18/bin")).unwrap();
    fs::write(root.join("18/bin/psql"), "").unwrap();
    fs::create_dir_all(root.join("common/bin")).unwrap();
    let search = Search {
        named: None,
        root: &root,
        path: OsStr::new(""),
    };
    let majors: Vec<u32> = search
        .candidates()
        .unwrap()
        .iter()
        .map(|found| found.major)
        .collect();
    assert_eq!(majors, [17, 16, 15, 9]);
}

#[test]
fn a_named_folder_is_the_only_one_looked_at() {
    let root = root_with("locate-named", &["15"]);
    let search = Search {
        named: Some(Path::new("/nonexistent/bin")),
        root: &root,
        path: OsStr::new("/usr/bin"),
    };
    let text = search.candidates().unwrap_err().to_string();
    assert!(text.contains("looked in /nonexistent/bin)"), "{text}");
}

#[test]
fn the_search_path_is_the_last_resort_and_tells_the_version() {
    let installed = Search {
        named: None,
        root: Path::new(DEBIAN_ROOT),
        path: &env::var_os("PATH").unwrap_or_default(),
    }
    .candidates()
    .unwrap()
    .remove(0);
    let folder = scratch_dir("locate-path").unwrap();
    symlink(installed.initdb(), folder.join("initdb")).unwrap();
    symlink(installed.postgres(), folder.join("postgres")).unwrap();
    let path = env::join_paths([Path::new("/nonexistent"), &folder]).unwrap();
    let search = Search {
        named: None,
        root: no_machine(),
        path: &path,
    };
    let found = search.candidates().unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].bin_dir, folder);
    assert_eq!(found[0].major, installed.major);
}

#[test]
fn existing_data_decides_the_version() {
    let data = Path::new("/x/data");
    assert_eq!(
        select(&programs(&[17, 15]), data, Some(15)).unwrap().major,
        15
    );
    assert_eq!(select(&programs(&[17, 15]), data, None).unwrap().major, 17);
    let text = select(&programs(&[17, 16]), data, Some(15))
        .unwrap_err()
        .to_string();
    assert!(
        text.contains("was made by PostgreSQL 15; installed: 16, 17."),
        "{text}"
    );
    assert!(
        text.contains("Install 15, or start fresh with `dev --reset`"),
        "{text}"
    );
}

#[test]
fn new_data_needs_a_supported_version() {
    let data = Path::new("/x/data");
    assert_eq!(select(&programs(&[14, 16]), data, None).unwrap().major, 16);
    let text = select(&programs(&[13, 14]), data, None)
        .unwrap_err()
        .to_string();
    assert!(
        text.contains("PostgreSQL 14 in /opt/14 is too old; 15 or newer"),
        "{text}"
    );
}

#[test]
fn version_lines_are_read() {
    assert_eq!(
        major_of("postgres (PostgreSQL) 15.14 (Debian 15.14-0+deb12u1)"),
        Some(15)
    );
    assert_eq!(major_of("postgres (PostgreSQL) 18beta1"), Some(18));
    assert_eq!(major_of("postgres (PostgreSQL) 19devel"), Some(19));
    assert_eq!(major_of("something else 15"), None);
}
