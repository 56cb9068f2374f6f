//! `flyball suppression add|remove|check|list`.

use std::process::ExitCode;

use serde_json::json;

use super::choice::choice;
use super::exit::CliError;
use super::output::{say, tell};
use super::signed::AuditArgs;
use super::{connect, output};
use crate::config::Settings;
use crate::notify::{Deliveries, Suppression};
use crate::providers::{Channel, Recipient};

#[derive(clap::Subcommand)]
pub(super) enum Command {
    /// Stop all messages to a recipient on a channel
    Add(SuppressArgs),
    /// Allow messages to a recipient again
    Remove(UnsuppressArgs),
    /// Show whether a recipient is suppressed
    Check(SuppressionCheck),
    /// List suppressed recipients by their digests
    List(SuppressionList),
}

#[derive(clap::Args)]
pub(super) struct SuppressionAddress {
    /// The channel: sms, email, push, chat, webhook or inapp
    #[arg(value_parser = channel)]
    channel: Channel,
    /// The number, address, device token, chat or URL, in any spelling
    recipient: String,
}

#[derive(clap::Args)]
pub(super) struct SuppressArgs {
    #[command(flatten)]
    address: SuppressionAddress,
    /// Reason that is shown with messages that are not sent, and in the audit log
    #[arg(long, default_value = "", conflicts_with = "why")]
    reason: String,
    #[command(flatten)]
    signed: AuditArgs,
}

#[derive(clap::Args)]
pub(super) struct UnsuppressArgs {
    #[command(flatten)]
    address: SuppressionAddress,
    #[command(flatten)]
    signed: AuditArgs,
}

#[derive(clap::Args)]
pub(super) struct SuppressionCheck {
    #[command(flatten)]
    address: SuppressionAddress,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
pub(super) struct SuppressionList {
    /// Only this channel
    #[arg(long, value_parser = channel)]
    channel: Option<Channel>,
    /// Only those after this place, which is CHANNEL:DIGEST
    #[arg(long, value_name = "PLACE", value_parser = place)]
    after: Option<(String, String)>,
    /// Maximum number of results
    #[arg(long, default_value_t = 100, allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(1..=1000))]
    limit: i64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Reads the word of a channel.
pub(super) fn channel(text: &str) -> Result<Channel, String> {
    choice(text, &Channel::WORDS)
}

pub(super) async fn run(command: Command, settings: Settings) -> anyhow::Result<ExitCode> {
    match command {
        Command::Add(args) => add(&args, &settings).await?,
        Command::Remove(args) => remove(&args, &settings).await?,
        Command::Check(args) => check(&args, &settings).await?,
        Command::List(args) => list(args, &settings).await?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn add(args: &SuppressArgs, settings: &Settings) -> anyhow::Result<()> {
    let address = parsed(&args.address)?;
    let mut signed = args.signed.signature();
    if !args.reason.is_empty() {
        signed.why.clone_from(&args.reason);
    }
    let deliveries = deliveries(settings).await?;
    let changed = deliveries.suppress(&address, &signed).await?;
    let change = match changed {
        true => "is suppressed",
        false => "was suppressed already",
    };
    report(&args.signed, &address, true, changed, change)
}

async fn remove(args: &UnsuppressArgs, settings: &Settings) -> anyhow::Result<()> {
    let address = parsed(&args.address)?;
    let signed = args.signed.signature();
    let deliveries = deliveries(settings).await?;
    let changed = deliveries.unsuppress(&address, &signed).await?;
    let change = match changed {
        true => "may get messages again",
        false => "was not suppressed",
    };
    report(&args.signed, &address, false, changed, change)
}

async fn check(args: &SuppressionCheck, settings: &Settings) -> anyhow::Result<()> {
    let address = parsed(&args.address)?;
    let found = deliveries(settings).await?.suppression(&address).await?;
    if args.json {
        return output::json(&json!({ "suppressed": found.is_some(), "suppression": found }));
    }
    let (channel, shown) = (address.channel().as_str(), address.masked());
    match found {
        Some(one) => say!(
            "{channel} {shown} is suppressed since {:.0}: {}",
            one.created_at,
            reason(&one)
        ),
        None => say!("{channel} {shown} is not suppressed"),
    }
    Ok(())
}

async fn deliveries(settings: &Settings) -> anyhow::Result<Deliveries> {
    let queue = connect::queue(settings).await?;
    Ok(Deliveries::new(&queue.pool))
}

async fn list(args: SuppressionList, settings: &Settings) -> anyhow::Result<()> {
    let queue = connect::lists(settings).await?;
    let deliveries = Deliveries::new(&queue.pool);
    let after = args
        .after
        .as_ref()
        .map(|(channel, digest)| (channel.as_str(), digest.as_str()));
    let found = deliveries
        .suppressions(args.channel, after, args.limit)
        .await?;
    let next = found.last().filter(|_| found.len() as i64 >= args.limit);
    let next = next.map(|last| format!("{}:{}", last.channel, last.recipient_digest));
    if args.json {
        return output::json(&json!({ "suppressions": found, "next": next }));
    }
    let header = ["CHANNEL", "DIGEST", "REASON", "POOL", "SINCE"];
    output::table(
        &header,
        found.iter().map(|one| {
            vec![
                one.channel.clone(),
                one.recipient_digest.clone(),
                reason(one),
                one.pool.clone().unwrap_or_default(),
                format!("{:.0}", one.created_at),
            ]
        }),
    )?;
    if let Some(next) = next {
        tell!("flyball: more follow: --after {next}");
    }
    Ok(())
}

fn reason(one: &Suppression) -> String {
    match one.reason.as_str() {
        "" => "no reason was given".to_owned(),
        reason => output::clipped(reason, 80),
    }
}

fn report(
    signed: &AuditArgs,
    address: &Recipient,
    suppressed: bool,
    changed: bool,
    change: &str,
) -> anyhow::Result<()> {
    if signed.json {
        return output::json(&json!({ "suppressed": suppressed, "changed": changed }));
    }
    say!(
        "{} {} {change}",
        address.channel().as_str(),
        address.masked()
    );
    Ok(())
}

/// Reads a recipient. One that is none is refused without a database.
fn parsed(address: &SuppressionAddress) -> anyhow::Result<Recipient> {
    let read = Recipient::parse(address.channel, &address.recipient);
    Ok(read.map_err(|message| {
        CliError::Refused(format!("recipient: {message}; nothing was changed"))
    })?)
}

fn place(text: &str) -> Result<(String, String), String> {
    let is_digest =
        |text: &str| text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let parts = text.split_once(':').filter(|(of, digest)| {
        is_digest(digest) && Channel::WORDS.iter().any(|(word, _)| word == of)
    });
    parts
        .map(|(channel, digest)| (channel.to_owned(), digest.to_owned()))
        .ok_or_else(|| "allowed is a channel, a colon and a digest of this list".to_owned())
}
