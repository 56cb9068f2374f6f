//! `flyball kind list|register`.

use std::process::ExitCode;

use anyhow::bail;
use serde_json::json;

use super::exit::CliError;
use super::output::say;
use super::signed::AuditArgs;
use super::{connect, output};
use crate::admission::BATCH;
use crate::api::kinds::of_settings;
use crate::app;
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
        /// left out, and true for a new kind; only for kinds of other programs
        #[arg(long, value_name = "true|false")]
        public: Option<bool>,
        #[command(flatten)]
        signed: AuditArgs,
    },
}

pub(super) async fn run(command: Command, settings: Settings) -> anyhow::Result<ExitCode> {
    if let Command::Register {
        name,
        public: Some(_),
        ..
    } = &command
        && runs(&settings, name)?
    {
        let fault = of_settings(name);
        bail!(CliError::Refused(format!(
            "--public {fault}; nothing was changed"
        )));
    }
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
            let after = json!({ "public": kind.public });
            signed
                .note(&queue, "kind.register", &name, Some(after))
                .await;
            if signed.json {
                output::json(&kind)?;
            } else {
                say!("kind {} is registered, {}", kind.name, public_word(&kind));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns true if this program has the handler of a kind.
fn runs(settings: &Settings, kind: &str) -> anyhow::Result<bool> {
    Ok(kind == BATCH || app::built_in_kinds(settings, None)?.get(kind).is_some())
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
