//! `flyball migrate`.

use std::process::ExitCode;

use super::connect;
use super::output::say;
use crate::app;
use crate::config::Settings;

#[derive(clap::Args)]
pub(super) struct Args {}

pub(super) async fn run(_: Args, settings: Settings) -> anyhow::Result<ExitCode> {
    let queue = connect::database(&settings).await?;
    queue.refuse_hidden_pooler().await?;
    let done = app::migrate(&queue).await?;
    match done {
        0 => say!("the schema is up to date"),
        1 => say!("1 migration was run; the schema is up to date"),
        n => say!("{n} migrations were run; the schema is up to date"),
    }
    Ok(ExitCode::SUCCESS)
}
