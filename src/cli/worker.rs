//! `flyball worker list|show`.

use std::process::ExitCode;

use anyhow::bail;
use serde_json::json;

use super::exit::CliError;
use super::output::say;
use super::{connect, output};
use crate::api::postgres::{Worker, read_workers};
use crate::config::Settings;

#[derive(clap::Subcommand)]
pub(super) enum Command {
    /// List the live workers, those in other programs as well
    List {
        /// Only workers in other programs, which claim over HTTP
        #[arg(long)]
        remote: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show one worker, or all of a name: what it serves, and the number of its running jobs
    Show {
        /// The name, or the number
        worker: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

pub(super) async fn run(command: Command, settings: Settings) -> anyhow::Result<ExitCode> {
    let queue = connect::queue(&settings).await?;
    let mut workers = read_workers(&queue.pool).await?;
    match command {
        Command::List { remote, json } => {
            workers.retain(|worker| worker.remote || !remote);
            if json {
                output::json(&json!({ "workers": workers }))?;
            } else {
                let header = [
                    "ID",
                    "NAME",
                    "HOST",
                    "PROGRAM",
                    "RUNNING",
                    "KINDS",
                    "THROTTLES",
                    "HEARTBEAT",
                ];
                output::table(&header, workers.iter().map(row))?;
            }
        }
        Command::Show { worker, json } => {
            let number = worker.parse().ok();
            workers.retain(|one| one.name == worker || Some(one.id) == number);
            if workers.is_empty() {
                bail!(CliError::NotFound(format!(
                    "there is no live worker {worker}; flyball worker list shows all"
                )));
            }
            if json {
                output::json(&json!({ "workers": workers }))?;
            } else {
                for one in &workers {
                    show(one)?;
                }
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn row(worker: &Worker) -> Vec<String> {
    vec![
        worker.id.to_string(),
        worker.name.clone(),
        worker.host.clone(),
        program(worker).to_owned(),
        worker.running.to_string(),
        output::clipped(&worker.kinds.join(", "), 60),
        output::clipped(&throttles(worker), 60),
        format!("{:.0}", worker.heartbeat_at),
    ]
}

fn show(worker: &Worker) -> anyhow::Result<()> {
    say!("worker     {}, number {}", worker.name, worker.id);
    let on = match worker.host.as_str() {
        "" => String::new(),
        host => format!(" on {host}"),
    };
    say!("program    {}{on}", program(worker));
    say!("started    {:.0}", worker.started_at);
    say!("heartbeat  {:.0}", worker.heartbeat_at);
    say!("running    {}", output::jobs(worker.running as usize));
    say!("kinds      {}", worker.kinds.join(", "));
    say!("throttles  {}", throttles(worker));
    let capabilities: Vec<&str> = worker.capabilities.keys().map(String::as_str).collect();
    if !capabilities.is_empty() {
        say!("has        {}", capabilities.join(", "));
    }
    Ok(())
}

fn program(worker: &Worker) -> &'static str {
    match worker.remote {
        true => "another one",
        false => "flyball",
    }
}

fn throttles(worker: &Worker) -> String {
    match worker.throttles.as_slice() {
        [] => "all".to_owned(),
        some => some.join(", "),
    }
}
