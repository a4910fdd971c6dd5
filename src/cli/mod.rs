//! The command line: sub-commands, their flags, exit codes.

mod common;
mod dev;
mod doctor;
mod openapi;

use std::path::PathBuf;

use clap::builder::BoolishValueParser;
use clap::{Args, Parser, Subcommand};

use crate::config::{self, Flags, Loaded};
use crate::store::migrate;

/// Leasehold, a self-hosted worker-plane server for the Durable Workflow SDKs.
#[derive(Debug, Parser)]
#[command(name = "leasehold", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve with a private PostgreSQL that this command starts and stops.
    Dev(DevArgs),
    /// Serve on the PostgreSQL that `DATABASE_URL` names.
    Serve(ServeArgs),
    /// Bring the database schema up to date.
    Migrate(ServeArgs),
    /// Print the OpenAPI documents, or check those that are kept.
    Openapi(openapi::OpenapiArgs),
    /// Explain configuration, database and port.
    Doctor(ServeArgs),
}

/// Flags that stand for settings.
#[derive(Debug, Default, Args)]
struct ServeArgs {
    /// Database, `postgres://user@host/database`; passwords belong into the environment.
    #[arg(long)]
    database_url: Option<String>,
    /// Address to listen on.
    #[arg(long)]
    listen: Option<String>,
    /// Worker protocol version to advertise, 1.0 to 1.20.
    #[arg(long)]
    worker_protocol: Option<String>,
    /// Serve without a token beyond loopback.
    #[arg(long)]
    insecure_no_auth: bool,
}

#[derive(Debug, Args)]
struct DevArgs {
    #[command(flatten)]
    serve: ServeArgs,
    /// Install PostgreSQL with apt if it is missing.
    #[arg(long, env = "DW_DEV_INSTALL_POSTGRES", value_parser = BoolishValueParser::new())]
    install_postgres: bool,
    /// Folder of the private database.
    #[arg(long, env = "DW_DEV_DATA_DIR")]
    data_dir: Option<PathBuf>,
    /// Move the private database aside and begin with an empty one.
    #[arg(long)]
    reset: bool,
}

impl ServeArgs {
    fn flags(&self) -> Flags {
        let mut flags = Flags::new();
        let mut set = |key, value: &Option<String>| {
            if let Some(value) = value {
                flags.insert(key, value.clone());
            }
        };
        set("database.url", &self.database_url);
        set("listen", &self.listen);
        set("worker_protocol", &self.worker_protocol);
        if self.insecure_no_auth {
            flags.insert("auth.insecure_no_auth", "true".to_owned());
        }
        flags
    }

    fn load(&self) -> Result<Loaded, String> {
        config::load(&self.flags()).map_err(|error| error.to_string())
    }
}

/// Runs the command line. The text says what went wrong and what to do.
///
/// Must be called from the main thread, outside any runtime: the private database follows the thread
/// that started it.
///
/// # Errors
/// The text to print before leaving with exit code 1.
pub fn run() -> Result<(), String> {
    match Cli::parse().command {
        Command::Dev(args) => dev::run(&args),
        Command::Serve(args) => common::serve(args.load()?.settings),
        Command::Migrate(args) => {
            let settings = args.load()?.settings;
            let options = common::database(&settings)?;
            common::runtime()?.block_on(async {
                migrate::run(&options)
                    .await
                    .map_err(|error| error.to_string())
            })?;
            common::say(&format!(
                "The schema is at version {}.",
                migrate::known_version()
            ));
            Ok(())
        }
        Command::Openapi(args) => openapi::run(&args),
        Command::Doctor(args) => doctor::run(&args.load()?),
    }
}
