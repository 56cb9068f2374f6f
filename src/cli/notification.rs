//! `flyball notification list|show|cancel`.

use std::process::ExitCode;

use anyhow::bail;
use serde_json::json;

use super::choice::choice;
use super::exit::CliError;
use super::given_text::filled;
use super::output::{say, tell};
use super::signed::AuditArgs;
use super::suppression::channel;
use super::{connect, output};
use crate::config::Settings;
use crate::jobs::{CancelAnswer, Queue, State};
use crate::notify::{Deliveries, DeliveryState, Notification, NotificationFilter};
use crate::providers::Channel;

#[derive(clap::Subcommand)]
pub(super) enum Command {
    /// List messages, newest first
    List(NotificationList),
    /// Show what became of a message: its state, and every attempt with account, status and reason
    Show(NotificationId),
    /// Cancel a message: one that waits is not sent
    Cancel(NotificationCancel),
}

#[derive(clap::Args)]
pub(super) struct NotificationList {
    /// Only messages in this state, such as queued, sent, delivered, failed or bounced
    #[arg(long, value_parser = state)]
    state: Option<DeliveryState>,
    /// Only messages of this channel
    #[arg(long, value_parser = channel)]
    channel: Option<Channel>,
    /// Only messages of this pool
    #[arg(long, value_parser = filled)]
    pool: Option<String>,
    /// Only messages whose last attempt used this account
    #[arg(long, value_parser = filled)]
    account: Option<String>,
    /// Only messages of this tenant
    #[arg(long, value_parser = filled)]
    tenant: Option<String>,
    /// Only messages older than the one with this number
    #[arg(long, value_name = "ID")]
    before: Option<i64>,
    /// Maximum number of results
    #[arg(long, default_value_t = 20, allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(1..=1000))]
    limit: i64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
pub(super) struct NotificationId {
    /// The number of the message, which is that of its job
    #[arg(allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(1..))]
    id: i64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
pub(super) struct NotificationCancel {
    /// The number of the message, which is that of its job
    #[arg(allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(1..))]
    id: i64,
    #[command(flatten)]
    signed: AuditArgs,
}

pub(super) async fn run(command: Command, settings: Settings) -> anyhow::Result<ExitCode> {
    let queue = match command {
        Command::List(_) => connect::lists(&settings).await?,
        _ => connect::queue(&settings).await?,
    };
    let deliveries = Deliveries::new(&queue.pool);
    match command {
        Command::List(args) => list(&deliveries, args).await?,
        Command::Show(args) => {
            let message = found(&deliveries, args.id).await?;
            if args.json {
                output::json(&message)?;
            } else {
                show(&message)?;
            }
        }
        Command::Cancel(args) => {
            found(&deliveries, args.id).await?;
            cancel(&queue, args).await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(deliveries: &Deliveries, args: NotificationList) -> anyhow::Result<()> {
    let filter = NotificationFilter {
        state: args.state,
        channel: args.channel,
        pool: args.pool,
        account: args.account,
        tenant: args.tenant,
        before: args.before,
        limit: args.limit,
    };
    let page = deliveries.page(&filter).await?;
    if args.json {
        let messages = page.notifications;
        return output::json(&json!({ "notifications": messages, "next": page.next }));
    }
    let header = [
        "ID", "STATE", "CHANNEL", "POOL", "ACCOUNT", "TO", "ATTEMPTS", "CREATED", "REASON",
    ];
    output::table(&header, page.notifications.iter().map(row))?;
    if let Some(next) = page.next {
        tell!("flyball: older messages were not searched; continue with --before {next}");
    }
    Ok(())
}

async fn cancel(queue: &Queue, args: NotificationCancel) -> anyhow::Result<()> {
    let id = args.id;
    let result = match queue.cancel_signed(id, &args.signed.signature()).await? {
        CancelAnswer::Cancelled | CancelAnswer::Ended(State::Cancelled) => "cancelled",
        CancelAnswer::Requested => "asked to stop: it is being sent",
        CancelAnswer::Ended(state) => bail!(CliError::Refused(format!(
            "notification {id} is already {}; nothing was changed",
            state.as_str()
        ))),
        // Its job is pruned before its record.
        CancelAnswer::NotFound => bail!(CliError::Refused(format!(
            "notification {id} ended long ago; nothing was changed"
        ))),
    };
    if args.signed.json {
        return output::json(&json!({ "id": id, "result": result }));
    }
    say!("notification {id} is {result}");
    Ok(())
}

async fn found(deliveries: &Deliveries, id: i64) -> anyhow::Result<Notification> {
    let found = deliveries.find(id, None).await?;
    let missing = || CliError::NotFound(format!("there is no notification {id}"));
    Ok(found.ok_or_else(missing)?)
}

fn row(message: &Notification) -> Vec<String> {
    vec![
        message.id.to_string(),
        message.state.as_str().to_owned(),
        message.channel.clone(),
        message.pool.clone(),
        message.account.clone().unwrap_or_default(),
        message.to.clone(),
        message.attempt_count.to_string(),
        format!("{:.0}", message.created_at),
        output::clipped(&message.reason, 60),
    ]
}

fn show(message: &Notification) -> anyhow::Result<()> {
    say!("message    {}", message.id);
    say!("state      {}", message.state.as_str());
    if !message.reason.is_empty() {
        say!("reason     {}", message.reason);
    }
    say!("to         {} on {}", message.to, message.channel);
    if !message.tenant.is_empty() {
        say!("tenant     {}", message.tenant);
    }
    if !message.category.is_empty() {
        say!("category   {}", message.category);
    }
    let account = message.account.as_deref().unwrap_or("no account yet");
    say!("pool       {}, {account}", message.pool);
    if let Some(id) = &message.provider_id {
        say!("provider   {}, its id {id}", message.provider);
    }
    say!("created    {:.0}", message.created_at);
    say!("changed    {:.0}", message.updated_at);
    if message.complained {
        say!("complained its recipient reported it as spam");
    }
    for attempt in &message.attempts {
        say!(
            "attempt    {:.0} {} at {}: {} {} ({} ms)",
            attempt.at,
            attempt.outcome,
            attempt.account.as_deref().unwrap_or("no account"),
            attempt.status,
            attempt.reason,
            attempt.ms
        );
    }
    Ok(())
}

fn state(text: &str) -> Result<DeliveryState, String> {
    choice(text, &DeliveryState::WORDS)
}
