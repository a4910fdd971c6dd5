//! `postgres.log`: where `initdb` and the server write, and the last lines shown in errors.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use super::{Error, lock};

/// Above this size in bytes the file is set aside at the next start, so that it stays bounded.
const ROTATE_ABOVE: u64 = 16 << 20;

/// At most so many bytes from the end of the file are read for an error.
const TAIL_BYTES: u64 = 8 << 10;

/// At most so many lines are shown in an error.
const TAIL_LINES: usize = 15;

/// The log of one start; lines of earlier starts stay in the file and are not shown.
#[derive(Debug)]
pub(super) struct Log {
    path: PathBuf,
    file: File,
    begin: u64,
}

impl Log {
    /// Opens `postgres.log` in `dir` for appending.
    pub(super) fn open(dir: &Path) -> Result<Log, Error> {
        let path = dir.join("postgres.log");
        Self::open_file(&path)
            .map(|(file, begin)| Log {
                path: path.clone(),
                file,
                begin,
            })
            .map_err(|source| Error::io("open", &path, source))
    }

    fn open_file(path: &Path) -> io::Result<(File, u64)> {
        if fs::symlink_metadata(path).is_ok_and(|found| found.size() > ROTATE_ABOVE) {
            fs::rename(path, path.with_extension("log.1"))?;
        }
        let file = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o640)
            .custom_flags(lock::no_follow())
            .open(path)?;
        let begin = file.metadata()?.size();
        Ok((file, begin))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// A handle for a child's output.
    pub(super) fn stdio(&self) -> Result<Stdio, Error> {
        self.file
            .try_clone()
            .map(Stdio::from)
            .map_err(|source| Error::io("open", &self.path, source))
    }

    /// Size of the file in bytes; while it grows, the server is working.
    pub(super) fn size(&self) -> u64 {
        self.file
            .metadata()
            .map_or(self.begin, |found| found.size())
    }

    /// The last lines written since the log was opened.
    pub(super) fn tail(&self) -> String {
        let read = || -> io::Result<Vec<u8>> {
            let mut file = File::open(&self.path)?;
            let from = self.begin.max(self.size().saturating_sub(TAIL_BYTES));
            file.seek(SeekFrom::Start(from))?;
            let mut bytes = Vec::new();
            file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        let text = read().unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]
    use std::io::Write;

    use super::super::testing::scratch_dir;
    use super::*;

    #[test]
    fn only_the_last_lines_of_this_start_are_shown() {
        let dir = scratch_dir("log-tail").unwrap();
        fs::write(dir.join("postgres.log"), "an earlier start\n").unwrap();
        let mut log = Log::open(&dir).unwrap();
        assert_eq!(log.tail(), "");
        for line in 1..=TAIL_LINES + 1 {
            writeln!(log.file, "line {line}").unwrap();
        }
        let tail = log.tail();
        assert_eq!(tail.lines().count(), TAIL_LINES);
        assert_eq!(tail.lines().next(), Some("line 2"));
    }

    #[test]
    fn a_large_file_is_set_aside() {
        let dir = scratch_dir("log-rotate").unwrap();
        let path = dir.join("postgres.log");
        File::create(&path)
            .unwrap()
            .set_len(ROTATE_ABOVE + 1)
            .unwrap();
        let log = Log::open(&dir).unwrap();
        assert_eq!(log.size(), 0);
        assert!(dir.join("postgres.log.1").exists());
    }
}
