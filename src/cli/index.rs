//! `flyball index create|list|drop`.

use std::process::ExitCode;

use anyhow::bail;
use serde_json::json;

use super::exit::CliError;
use super::output::say;
use super::{connect, output};
use crate::config::Settings;
use crate::jobs::JobIndex;

#[derive(clap::Subcommand)]
pub(super) enum Command {
    /// Add an index that makes a search fast, while the queue works; it is written with each job
    #[command(after_help = "Examples:
  flyball index create --args '$.customer.id'        for --args '{\"customer\": {\"id\": 17}}'
  flyball index create --trace")]
    Create(IndexArgs),
    /// List the added indexes with their sizes
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Drop an added index
    Drop(IndexArgs),
}

#[derive(clap::Args)]
#[group(required = true, multiple = false)]
pub(super) struct IndexArgs {
    /// By the value at this path of the arguments, such as '$.customer.id'
    #[arg(long, value_name = "PATH", value_parser = path)]
    args: Option<ArgsPath>,
    /// By the trace id
    #[arg(long)]
    trace: bool,
}

/// A path of names.
#[derive(Clone)]
struct ArgsPath(Vec<String>);

pub(super) async fn run(command: Command, settings: Settings) -> anyhow::Result<ExitCode> {
    let queue = &connect::queue(&settings).await?;
    match command {
        Command::Create(of) => {
            let names = of.args.map(|path| path.0);
            queue.create_job_index(names.as_deref()).await?;
            say!("the index by {} is ready", words(names.as_deref()));
        }
        Command::List { json } => {
            let indexes = queue.job_indexes().await?;
            if json {
                let indexes: Vec<_> = indexes
                    .iter()
                    .map(|index| {
                        json!({
                            "by": words(index.path.as_deref()), "ready": index.is_ready, "bytes": index.bytes,
                            "created_at": index.created_at,
                        })
                    })
                    .collect();
                output::json(&json!({ "indexes": indexes }))?;
            } else {
                output::table(
                    &["BY", "STATE", "BYTES", "CREATED"],
                    indexes.iter().map(row),
                )?;
            }
        }
        Command::Drop(of) => {
            let names = of.args.map(|path| path.0);
            if !queue.drop_job_index(names.as_deref()).await? {
                let by = words(names.as_deref());
                bail!(CliError::NotFound(format!("there is no index by {by}")));
            }
            say!("the index by {} is dropped", words(names.as_deref()));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn row(index: &JobIndex) -> Vec<String> {
    let state = if index.is_ready {
        "ready"
    } else {
        "unfinished"
    };
    vec![
        words(index.path.as_deref()),
        state.to_owned(),
        index.bytes.to_string(),
        format!("{:.0}", index.created_at),
    ]
}

fn words(path: Option<&[String]>) -> String {
    path.map_or_else(
        || "trace".to_owned(),
        |path| format!("$.{}", path.join(".")),
    )
}

fn path(text: &str) -> Result<ArgsPath, String> {
    let names = text.strip_prefix("$.").map(|rest| rest.split('.'));
    names
        .map(|names| ArgsPath(names.map(str::to_owned).collect()))
        .ok_or_else(|| "allowed is a path of names such as $.customer.id".to_owned())
}
