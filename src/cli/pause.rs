//! `flyball pause` and `flyball resume`.

use std::process::ExitCode;

use serde_json::json;

use super::output::say;
use super::signed::AuditArgs;
use super::{connect, output};
use crate::config::Settings;
use crate::jobs::Pause;

#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    signed: AuditArgs,
}

pub(super) async fn pause(args: Args, settings: Settings) -> anyhow::Result<ExitCode> {
    let queue = connect::queue(&settings).await?;
    let changed = queue.pause_all(&args.signed.signature()).await?;
    let paused = queue.paused().await?;
    if args.signed.json {
        output::json(&json!({ "paused": paused, "changed": changed }))?;
    } else if let Some(pause) = paused {
        let already = if changed { "" } else { " already" };
        say!("everything is{already} {}", sentence(&pause));
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn resume(args: Args, settings: Settings) -> anyhow::Result<ExitCode> {
    let queue = connect::queue(&settings).await?;
    let changed = queue.resume_all(&args.signed.signature()).await?;
    if args.signed.json {
        output::json(&json!({ "paused": null, "changed": changed }))?;
    } else {
        say!(
            "{}",
            if changed {
                "everything is resumed"
            } else {
                "everything was running already"
            }
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the pause in words.
pub(super) fn sentence(pause: &Pause) -> String {
    let why = if pause.why.is_empty() {
        String::new()
    } else {
        format!(": {}", pause.why)
    };
    format!("paused since {:.0} by {}{why}", pause.since, pause.by)
}
