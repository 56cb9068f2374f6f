//! `flyball notify`.

mod check_rules;
mod dry_run;

use std::process::ExitCode;

use anyhow::bail;
use serde_json::{Map, Value};

use super::choice::choice;
use super::exit::CliError;
use super::output::{say, tell};
use super::{connect, notify_check, output, when};
use crate::admission::Admission;
use crate::app;
use crate::config::Settings;
use crate::input::json::parse_short;
use crate::jobs::{Error, NewMessage};
use crate::notify::recipient::KIND;
use crate::providers::Channel;

#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(after_help = "Examples:
  flyball notify email ada@example.com --body 'Welcome' --more '{\"subject\":\"Hello\"}'
  flyball notify sms +15550100 --body 'Your code is 4711' --priority high --tenant acme --module login
  flyball notify email --recipient user-7 --body 'Your parcel is here' --tenant acme
  flyball notify check email ada@example.com --category marketing
  flyball notify check-rules recipients.toml")]
pub(super) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// The channel: sms, email, push, chat, webhook or inapp
    #[arg(required = true)]
    channel: Option<String>,
    /// The address; may be left out with --recipient if the profile has one for the channel
    #[arg(required_unless_present = "recipient")]
    to: Option<String>,
    /// The id of the recipient whose profile the gates use
    #[arg(long, value_name = "ID")]
    recipient: Option<String>,
    /// The text
    #[arg(long)]
    body: Option<String>,
    /// Further fields of the message, as a JSON object
    #[arg(long, value_name = "JSON", default_value = "{}")]
    more: String,
    /// The priority: critical, high, normal or low; normal by default
    #[arg(long)]
    priority: Option<String>,
    /// The pool that sends it; by default the first one that has the channel
    #[arg(long)]
    pool: Option<String>,
    /// The tenant that sends it, within its limits; by default none
    #[arg(long, default_value = "")]
    tenant: String,
    /// The module of the tenant
    #[arg(long, default_value = "", requires = "tenant")]
    module: String,
    /// The rate-limit key in the pool's throttle; that of the tenant if empty
    #[arg(long, default_value = "")]
    key: String,
    /// Earliest time: a time such as 2026-11-20T14:00:00Z, or a span from now such as 2h
    #[arg(long, value_name = "TIME", value_parser = when::ahead)]
    run_at: Option<jiff::Timestamp>,
    /// The time of the recipient's clock at which it goes, such as 09:00 or 2026-12-01T09:00
    #[arg(long, value_name = "CLOCK")]
    local_time: Option<String>,
    /// Unique key: no second message is sent while an unfinished one has it
    #[arg(long)]
    unique_key: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Check a file of rules for recipients: print everything that is wrong, or a summary
    CheckRules(check_rules::Args),
    /// Replay the messages of the last hours under new rules, and show what would become of them;
    /// changes nothing
    DryRun(dry_run::Args),
    /// Check what a recipient may get now, by every cap and gate, without using anything
    Check(notify_check::Args),
}

pub(super) async fn run(args: Args, settings: Settings) -> anyhow::Result<ExitCode> {
    match args.command {
        Some(Command::CheckRules(args)) => check_rules::run(&args),
        Some(Command::DryRun(args)) => dry_run::run(&args, &settings).await,
        Some(Command::Check(args)) => notify_check::run(args, settings).await,
        None => send(args, settings).await,
    }
}

async fn send(args: Args, settings: Settings) -> anyhow::Result<ExitCode> {
    let message = message(&args)?;
    check(&message, &settings)?;
    let pool = match &args.pool {
        Some(pool) => pool.clone(),
        None => pool_of(args.channel.as_deref().unwrap_or_default(), &settings)?,
    };
    let queue = connect::queue(&settings).await?;
    let new = NewMessage {
        key: args.key,
        run_at: args.run_at,
        unique_key: args.unique_key,
        ..NewMessage::new(pool, message)
    };
    let mut sent = queue.notify_as(&args.tenant, &args.module, &new).await?;
    if let Some(pool) = &args.pool {
        tell_unknown(pool, &settings);
    }
    let mut waits = String::new();
    if sent.status == "held" {
        // Redis knows what was sent within the last minute. The message is accepted without it.
        let store = connect::throttles(&settings).await;
        let waiting = match store {
            Ok(store) => {
                Admission::new(store, queue, settings.tenant_limits())
                    .waiting(sent.id)
                    .await?
            }
            Err(_) => None,
        };
        if let Some(waiting) = waiting.filter(|waiting| waiting.level.is_some()) {
            sent.held_until = when::in_seconds(waiting.wait_s);
        }
        waits = sent.held_until.map_or_else(String::new, |at| {
            format!(
                ": it waits for the limits of tenant {}, until about {at:.0}",
                args.tenant
            )
        });
    }
    if args.json {
        output::json(&sent)?;
    } else {
        say!("message {} is {}{waits}", sent.id, sent.status);
    }
    Ok(ExitCode::SUCCESS)
}

/// Tells on standard error of a pool that these settings do not have: those of a worker may, or its
/// name is misspelt.
fn tell_unknown(pool: &str, settings: &Settings) {
    let pools = settings.pools_without_credentials();
    if pools.get(pool).is_some() {
        return;
    }
    let known: Vec<&str> = pools.0.keys().map(String::as_str).collect();
    let known = known.join(", ");
    tell!(
        "flyball: there is no pool {pool} in the settings; they have {known}: the message waits for a worker that has it"
    );
}

/// Refuses a message that no worker could send.
fn check(message: &Value, settings: &Settings) -> anyhow::Result<()> {
    let kinds = app::built_in_kinds(settings, None)?;
    let issues = kinds
        .get(KIND)
        .and_then(|handler| handler.prepare(message).err())
        .unwrap_or_default();
    if issues.is_empty() {
        return Ok(());
    }
    let wrong: Vec<String> = issues
        .iter()
        .map(|issue| {
            let field = issue.pointer.trim_start_matches('/').replace('/', ".");
            format!("{field}: {}", issue.message)
        })
        .collect();
    bail!(CliError::Refused(format!(
        "{}; nothing was sent",
        wrong.join("; ")
    )))
}

fn message(args: &Args) -> anyhow::Result<Value> {
    let refuse = |field: &str, message: String| Error::Refused {
        index: None,
        field: field.to_owned(),
        message,
    };
    let mut message: Map<String, Value> = serde_json::from_str(&args.more)
        .map_err(|error| refuse("more", format!("must be a JSON object: {error}")))?;
    if let Err(error) = parse_short(&args.more) {
        let (pointer, problem) = error.into_problem();
        bail!(refuse(&format!("more{pointer}"), problem));
    }
    let given = [
        ("channel", args.channel.as_ref()),
        ("to", args.to.as_ref()),
        ("recipient", args.recipient.as_ref()),
        ("body", args.body.as_ref()),
        ("priority", args.priority.as_ref()),
        ("local_time", args.local_time.as_ref()),
    ];
    for (field, text) in given {
        let Some(text) = text else {
            continue;
        };
        if message
            .insert(field.to_owned(), text.as_str().into())
            .is_some()
        {
            let message = format!("must be without {field}, which the command line gives as well");
            bail!(refuse("more", message));
        }
    }
    Ok(Value::Object(message))
}

fn pool_of(channel: &str, settings: &Settings) -> anyhow::Result<String> {
    let pools = settings.pools_without_credentials();
    let known = choice(channel, &Channel::WORDS).ok();
    let pool = known.and_then(|channel| pools.route(channel, None));
    match pool {
        Some(pool) => Ok(pool.name.clone()),
        None => bail!(Error::Refused {
            index: None,
            field: "pool".to_owned(),
            message: format!("must be given, because no pool in the settings carries {channel:?}"),
        }),
    }
}
