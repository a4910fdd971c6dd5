//! The documents of this server as they are served: written when somebody first asks, then kept.

use std::sync::OnceLock;

use crate::protocol::version::Advertised;

/// A document in both forms.
#[derive(Debug)]
pub struct Written {
    /// The plane that it describes, as its file is named.
    pub name: &'static str,
    /// As JSON.
    pub json: String,
    /// As YAML.
    pub yaml: String,
}

/// Writes the documents of a server that advertises this version.
pub type Writer = fn(&Advertised) -> Result<Vec<Written>, String>;

/// The documents.
#[derive(Debug)]
pub struct Documents {
    writer: Writer,
    written: OnceLock<Result<Vec<Written>, String>>,
}

impl Documents {
    /// Nothing is written yet.
    pub fn new(writer: Writer) -> Self {
        Self {
            writer,
            written: OnceLock::new(),
        }
    }

    /// All of them.
    ///
    /// # Errors
    /// They cannot be written, which is a defect.
    pub fn all(&self, advertised: &Advertised) -> Result<&[Written], &str> {
        let written = self.written.get_or_init(|| (self.writer)(advertised));
        match written {
            Ok(written) => Ok(written),
            Err(error) => Err(error),
        }
    }
}
