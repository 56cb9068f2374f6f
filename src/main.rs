//! The command `flyball`.

use std::process::ExitCode;

use clap::Parser;
use flyball::cli::services::{self, ServicesArgs};

/// Background jobs that go as fast as the things they touch can bear, and no faster.
#[derive(clap::Parser)]
#[command(name = "flyball", version)]
enum Command {
    Services(ServicesArgs),
}

fn main() -> ExitCode {
    let result = match Command::parse() {
        Command::Services(args) => services::run(args),
    };
    result.unwrap_or_else(|error| {
        eprintln!("flyball: {error:#}");
        ExitCode::FAILURE
    })
}
