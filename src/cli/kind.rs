//! `flyball kind list|register`.

use std::process::ExitCode;

use serde_json::json;

use super::output::say;
use super::signed::AuditArgs;
use super::{connect, output};
use crate::api::AuditEntry;
use crate::config::Settings;
use crate::jobs::RegisteredKind;

#[derive(clap::Subcommand)]
pub(super) enum Command {
    /// List the kinds that can be enqueued
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Register a kind before its first worker starts, or say who may enqueue it
    Register {
        /// The name
        name: String,
        /// True if every role and every token that may enqueue may enqueue it; unchanged if it is
        /// left out, and true for a new kind
        #[arg(long, value_name = "true|false")]
        public: Option<bool>,
        #[command(flatten)]
        signed: AuditArgs,
    },
}

pub(super) async fn run(command: Command, settings: Settings) -> anyhow::Result<ExitCode> {
    let queue = connect::queue(&settings).await?;
    match command {
        Command::List { json } => {
            let kinds = queue.kinds().await?;
            if json {
                output::json(&json!({ "kinds": kinds }))?;
            } else {
                let header = ["NAME", "PUBLIC", "ATTEMPTS", "MEAN COST", "REGISTERED"];
                output::table(&header, kinds.iter().map(row))?;
            }
        }
        Command::Register {
            name,
            public,
            signed,
        } => {
            let kind = queue.register_kind(&name, public).await?;
            let (by, why) = (signed.by.clone(), signed.why.clone());
            let mut entry = AuditEntry::now(by, "kind.register", name, why);
            entry.after = Some(json!({ "public": kind.public }));
            if let Err(error) = crate::api::postgres::write_audit(&queue.pool, &entry).await {
                eprintln!("flyball: writing the audit log failed: {error}");
            }
            if signed.json {
                output::json(&kind)?;
            } else {
                say!("kind {} is registered, {}", kind.name, public_word(&kind));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn row(kind: &RegisteredKind) -> Vec<String> {
    vec![
        kind.name.clone(),
        public_word(kind).to_owned(),
        kind.attempts.to_string(),
        kind.mean_cost.map_or_else(String::new, output::number),
        format!("{:.0}", kind.registered_at),
    ]
}

fn public_word(kind: &RegisteredKind) -> &'static str {
    match kind.public {
        true => "public",
        false => "not public",
    }
}
