//! Arguments of commands that change what a server does.

use clap::Args;
use corelane::client::Address;
use std::path::PathBuf;

/// Arguments of `reload`.
#[derive(Debug, Args)]
pub struct ReloadArgs {
    /// The model, as clients call it; default: every model.
    #[arg(value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub model: Option<String>,
    /// The server's Unix socket: unix:PATH.
    #[arg(long, value_name = "ADDRESS")]
    pub connect: Address,
    /// File with the pre-shared key, where the server wants one.
    #[arg(long, value_name = "FILE")]
    pub psk_file: Option<PathBuf>,
    /// How long to wait for it, in seconds.
    #[arg(long, value_name = "N", default_value_t = 600, value_parser = clap::value_parser!(u32).range(1..))]
    pub timeout_s: u32,
    /// Print one JSON object per model.
    #[arg(long)]
    pub json: bool,
}
