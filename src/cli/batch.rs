//! `flyball batch`.

use std::process::ExitCode;

use super::exit::CliError;
use super::output::say;
use super::signed::AuditArgs;
use super::{connect, output};
use crate::admission::{Admission, Batches};
use crate::config::Settings;
use crate::jobs::Queue;

#[derive(clap::Subcommand)]
pub(super) enum Command {
    /// Show a batch of messages: its state, its messages by state, and when the last one is
    /// admitted
    Show(Args),
    /// Pause a batch: none of its messages is sent or uses a slot until it is resumed
    Pause(ChangeArgs),
    /// Resume a paused batch
    Resume(ChangeArgs),
    /// Cancel a batch: waiting messages are not sent, those being sent are asked to stop
    Cancel(ChangeArgs),
}

#[derive(clap::Args)]
pub(super) struct Args {
    /// The number of the batch
    #[arg(allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(1..))]
    id: i64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
pub(super) struct ChangeArgs {
    /// The number of the batch
    #[arg(allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(1..))]
    id: i64,
    #[command(flatten)]
    signed: AuditArgs,
}

pub(super) async fn run(command: Command, settings: Settings) -> anyhow::Result<ExitCode> {
    let queue = connect::queue(&settings).await?;
    let batches = Batches::new(queue.clone());
    match command {
        Command::Show(args) => show(&args, &batches, queue, &settings).await?,
        Command::Pause(args) => {
            let state = batches.pause(args.id, &args.signed.signature()).await?;
            report(&args, state.ok_or_else(|| unknown(args.id))?, "paused")?;
        }
        Command::Resume(args) => {
            let state = batches.resume(args.id, &args.signed.signature()).await?;
            report(&args, state.ok_or_else(|| unknown(args.id))?, "resumed")?;
        }
        Command::Cancel(args) => cancel(&args, &batches).await?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn show(
    args: &Args,
    batches: &Batches,
    queue: Queue,
    settings: &Settings,
) -> anyhow::Result<()> {
    // Redis knows the estimate alone.
    let (found, away) = match connect::throttles(settings).await {
        Ok(store) => {
            let admission = Admission::new(store, queue, settings.tenant_limits());
            (admission.show_batch(batches, None, args.id).await?, None)
        }
        Err(error) => (batches.show(None, args.id).await?, Some(error)),
    };
    let batch = found.ok_or_else(|| unknown(args.id))?;
    if args.json {
        return output::json(&batch);
    }
    let counts: Vec<String> = batch
        .counts
        .iter()
        .map(|(state, messages)| format!("{messages} {state}"))
        .collect();
    let whose = match batch.tenant.as_str() {
        "" => String::new(),
        tenant => format!(" of tenant {tenant}"),
    };
    say!(
        "batch {}{whose} is {}; its {} messages: {}",
        batch.id,
        batch.state,
        batch.recipients,
        counts.join(", ")
    );
    if let Some(problem) = &batch.problem {
        say!("{problem}");
    }
    if let Some(estimate) = batch.estimate {
        say!("the limits let the last one go at about {estimate:.0}");
    }
    if let Some(error) = away {
        say!("when the limits let the last one go is not known: {error:#}");
    }
    Ok(())
}

async fn cancel(args: &ChangeArgs, batches: &Batches) -> anyhow::Result<()> {
    let cancelled = batches.cancel(args.id, &args.signed.signature()).await?;
    let cancelled = cancelled.ok_or_else(|| unknown(args.id))?;
    if args.signed.json {
        return output::json(&cancelled);
    }
    say!(
        "batch {} is cancelled: {} messages were sent, {} will not be sent, {} are being sent{}",
        args.id,
        cancelled.sent,
        cancelled.cancelled,
        cancelled.too_late,
        cancelled
            .ended
            .iter()
            .map(|(state, messages)| format!(", {messages} {state}"))
            .collect::<String>()
    );
    Ok(())
}

fn report(args: &ChangeArgs, state: String, change: &str) -> anyhow::Result<()> {
    if state == "cancelled" {
        let message = format!("batch {} is cancelled and cannot be {change}", args.id);
        return Err(CliError::Refused(message).into());
    }
    if args.signed.json {
        output::json(&serde_json::json!({ "id": args.id, "state": state }))
    } else {
        say!("batch {} is {state}", args.id);
        Ok(())
    }
}

fn unknown(id: i64) -> CliError {
    CliError::NotFound(format!("there is no batch {id}"))
}
