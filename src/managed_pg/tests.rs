//! The small decisions of the public face that need no server.

use super::*;

fn dir_for(is_root: bool, state: Option<&str>, home: Option<&str>) -> PathBuf {
    default_dir_for(is_root, state.map(OsString::from), home.map(OsString::from))
}

#[test]
fn the_default_folder_follows_the_user() {
    let system = Path::new("/var/lib/leasehold/dev");
    assert_eq!(dir_for(true, Some("/root/.state"), Some("/root")), system);
    assert_eq!(
        dir_for(false, Some("/s"), Some("/h")),
        Path::new("/s/leasehold/dev")
    );
    let home = Path::new("/h/.local/state/leasehold/dev");
    assert_eq!(dir_for(false, None, Some("/h")), home);
    assert_eq!(dir_for(false, Some("relative"), Some("/h")), home);
    assert_eq!(dir_for(false, None, None), system);
}

#[test]
fn durability_is_written_on_the_command_line() {
    let options = |durability| {
        let settings = Settings {
            dir: PathBuf::from("/x"),
            bin_dir: None,
            durability,
            max_connections: 42,
        };
        server_options(&settings, Path::new("/x/sock"))
    };
    for (durability, value) in [(Durability::Durable, "on"), (Durability::TestOnly, "off")] {
        let options = options(durability);
        for name in ["fsync", "synchronous_commit", "full_page_writes"] {
            assert!(
                options.contains(&format!("{name}={value}").into()),
                "{options:?}"
            );
        }
        assert!(options.contains(&"listen_addresses=".into()), "{options:?}");
        assert!(
            options.contains(&"max_connections=42".into()),
            "{options:?}"
        );
    }
}

#[test]
fn strange_paths_are_quoted_for_each_reader() {
    assert_eq!(quoted_list_item(Path::new("/a,b\"c")), "\"/a,b\"\"c\"");
    assert_eq!(percent_encoded("/a b&c"), "/a%20b%26c");
    assert_eq!(shell_quoted("/plain/path-1.2_x"), "/plain/path-1.2_x");
    assert_eq!(shell_quoted("/it's here"), r"'/it'\''s here'");
}
