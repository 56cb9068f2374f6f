//! `flyball batch`.

use std::process::ExitCode;

use super::exit::CliError;
use super::output::say;
use super::{connect, output};
use crate::admission::{Admission, Batches};
use crate::config::Settings;

#[derive(clap::Subcommand)]
pub(super) enum Command {
    /// Show a batch of messages: its state, its messages by state, and when the last one is
    /// admitted
    Show(Args),
    /// Pause a batch: its waiting messages stay where they are until it is resumed
    Pause(Args),
    /// Resume a paused batch
    Resume(Args),
    /// Cancel a batch: waiting messages are not sent, those being sent are asked to stop
    Cancel(Args),
}

#[derive(clap::Args)]
pub(super) struct Args {
    /// The number of the batch
    id: i64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(command: Command, settings: Settings) -> anyhow::Result<ExitCode> {
    let queue = connect::queue(&settings).await?;
    let batches = Batches::new(queue.clone());
    let gone = |id: i64| CliError::NotFound(format!("there is no batch {id}"));
    match command {
        Command::Show(args) => {
            let store = connect::throttles(&settings).await?;
            let admission = Admission::new(store, queue, settings.tenant_limits());
            let found = admission.show_batch(&batches, None, args.id).await?;
            let batch = found.ok_or_else(|| gone(args.id))?;
            if args.json {
                output::json(&batch)?;
            } else {
                let counts: Vec<String> = batch
                    .counts
                    .iter()
                    .map(|(state, messages)| format!("{messages} {state}"))
                    .collect();
                say!(
                    "batch {} of tenant {:?} is {}: {} of {} recipients",
                    batch.id,
                    batch.tenant,
                    batch.state,
                    counts.join(", "),
                    batch.recipients
                );
                if let Some(estimate) = batch.estimate {
                    say!("the last of them is admitted at about {estimate}");
                }
            }
        }
        Command::Pause(args) => {
            let state = batches.pause(None, args.id).await?;
            told(&args, state.ok_or_else(|| gone(args.id))?)?;
        }
        Command::Resume(args) => {
            let state = batches.resume(None, args.id).await?;
            let state = state.ok_or_else(|| gone(args.id))?;
            if state == "cancelled" {
                let message = format!("batch {} is cancelled and cannot be resumed", args.id);
                return Err(CliError::Refused(message).into());
            }
            told(&args, state)?;
        }
        Command::Cancel(args) => {
            let cancelled = batches.cancel(None, args.id).await?;
            let cancelled = cancelled.ok_or_else(|| gone(args.id))?;
            if args.json {
                output::json(&cancelled)?;
            } else {
                say!(
                    "batch {} is cancelled: {} had ended, {} will not be sent, {} are being sent",
                    args.id,
                    cancelled.sent,
                    cancelled.cancelled,
                    cancelled.too_late
                );
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn told(args: &Args, state: String) -> anyhow::Result<()> {
    if args.json {
        output::json(&serde_json::json!({ "id": args.id, "state": state }))
    } else {
        say!("batch {} is {state}", args.id);
        Ok(())
    }
}
