//! Which PostgreSQL server programs to use; decides, and starts nothing but `--version` queries.

use std::collections::HashSet;
use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::Error;

/// Where Debian and Ubuntu keep one folder for each major version.
pub(super) const DEBIAN_ROOT: &str = "/usr/lib/postgresql";

/// Oldest major version whose SQL this server is written for.
pub(super) const OLDEST_MAJOR: u32 = 15;

/// A folder with `initdb` and `postgres`, and the major version of the latter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Programs {
    pub(super) bin_dir: PathBuf,
    pub(super) major: u32,
}

impl Programs {
    pub(super) fn initdb(&self) -> PathBuf {
        self.bin_dir.join("initdb")
    }

    pub(super) fn postgres(&self) -> PathBuf {
        self.bin_dir.join("postgres")
    }
}

/// Where to look. All inputs are arguments, so that a test can look at an empty machine.
#[derive(Debug, Clone, Copy)]
pub(super) struct Search<'a> {
    /// The folder that the configuration names; nothing else is looked at then.
    pub(super) named: Option<&'a Path>,
    /// Folder with one sub-folder for each major version, normally [`DEBIAN_ROOT`].
    pub(super) root: &'a Path,
    /// The search path, for `pg_config` and for the programs themselves.
    pub(super) path: &'a OsStr,
}

impl Search<'_> {
    /// All usable folders, the preferred one first; never empty.
    ///
    /// Order: the root's versions from the newest down, then what `pg_config` names, then the
    /// search path.
    pub(super) fn candidates(&self) -> Result<Vec<Programs>, Error> {
        let mut found = match self.named {
            Some(named) => examine(named).into_iter().collect(),
            None => {
                let mut found = self.installed_versions();
                found.extend(self.named_by_pg_config());
                found.extend(self.on_path());
                found
            }
        };
        let mut seen = HashSet::new();
        found.retain(|programs| seen.insert(programs.bin_dir.clone()));
        if found.is_empty() {
            return Err(Error::ProgramsNotFound {
                looked_in: self.looked_in(),
            });
        }
        Ok(found)
    }

    fn installed_versions(&self) -> Vec<Programs> {
        let mut found: Vec<Programs> = self
            .root
            .read_dir()
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| {
                let major = entry.file_name().to_str()?.parse().ok()?;
                let bin_dir = entry.path().join("bin");
                has_programs(&bin_dir).then_some(Programs { bin_dir, major })
            })
            .collect();
        found.sort_by_key(|programs| std::cmp::Reverse(programs.major));
        found
    }

    fn named_by_pg_config(&self) -> Option<Programs> {
        let pg_config = env::split_paths(self.path)
            .map(|folder| folder.join("pg_config"))
            .find(|program| program.is_file())?;
        examine(Path::new(&output_of(&pg_config, "--bindir")?))
    }

    fn on_path(&self) -> Option<Programs> {
        env::split_paths(self.path).find_map(|folder| examine(&folder))
    }

    fn looked_in(&self) -> String {
        match self.named {
            Some(named) => named.display().to_string(),
            None => format!("{}/*/bin, pg_config --bindir, PATH", self.root.display()),
        }
    }
}

/// Picks the folder for data of `data_major`, or the preferred supported one for new data.
pub(super) fn select(
    candidates: &[Programs],
    data: &Path,
    data_major: Option<u32>,
) -> Result<Programs, Error> {
    if let Some(major) = data_major {
        return candidates
            .iter()
            .find(|programs| programs.major == major)
            .cloned()
            .ok_or_else(|| Error::VersionMismatch {
                dir: data.to_path_buf(),
                data: major,
                installed: versions(candidates),
            });
    }
    if let Some(programs) = candidates.iter().find(|found| found.major >= OLDEST_MAJOR) {
        return Ok(programs.clone());
    }
    Err(match candidates.iter().max_by_key(|found| found.major) {
        Some(newest) => Error::TooOld {
            found: newest.major,
            bin_dir: newest.bin_dir.clone(),
            oldest: OLDEST_MAJOR,
        },
        None => Error::ProgramsNotFound {
            looked_in: "nowhere".to_owned(),
        },
    })
}

fn versions(candidates: &[Programs]) -> String {
    let mut majors: Vec<u32> = candidates.iter().map(|found| found.major).collect();
    majors.sort_unstable();
    majors.dedup();
    let words: Vec<String> = majors.iter().map(u32::to_string).collect();
    words.join(", ")
}

fn has_programs(bin_dir: &Path) -> bool {
    // A client-only package leaves the folder without these two.
    ["initdb", "postgres"]
        .iter()
        .all(|name| bin_dir.join(name).is_file())
}

fn examine(bin_dir: &Path) -> Option<Programs> {
    if !has_programs(bin_dir) {
        return None;
    }
    // The child will run with another current folder.
    let bin_dir = std::path::absolute(bin_dir).ok()?;
    let major = major_of(&output_of(&bin_dir.join("postgres"), "--version")?)?;
    Some(Programs { bin_dir, major })
}

/// Reads `postgres (PostgreSQL) 15.14 (Debian …)`, `… 18beta1` and the like.
fn major_of(version: &str) -> Option<u32> {
    let number = version.split_once("(PostgreSQL)")?.1.trim_start();
    let end = number
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(number.len());
    number[..end].parse().ok()
}

fn output_of(program: &Path, argument: &str) -> Option<String> {
    let output = Command::new(program)
        .arg(argument)
        .stdin(Stdio::null())
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

#[cfg(test)]
mod tests;
