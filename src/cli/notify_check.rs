//! `flyball notify check`.

use std::process::ExitCode;

use anyhow::bail;

use super::choice::choice;
use super::output::say;
use super::{connect, output};
use crate::config::Settings;
use crate::jobs::Error;
use crate::providers::{Channel, Recipient};
use crate::recipient::check::{CheckedCap, RecipientCheck};
use crate::recipient::explain::item_count;
use crate::recipient::postgres::CheckedMessage;

#[derive(clap::Args)]
pub(super) struct Args {
    /// The channel: sms, email, push, chat, webhook or inapp
    channel: String,
    /// The address
    #[arg(required_unless_present = "recipient")]
    to: Option<String>,
    /// The id of the recipient
    #[arg(long, value_name = "ID")]
    recipient: Option<String>,
    /// The category of the message; transactional by default
    #[arg(long)]
    category: Option<String>,
    /// The person or thing whose action the message reports, for its caps
    #[arg(long)]
    actor: Option<String>,
    /// The template, for preferences and digests
    #[arg(long, value_name = "NAME")]
    template_id: Option<String>,
    /// The tenant whose recipient it is; by default none
    #[arg(long, default_value = "")]
    tenant: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(args: Args, settings: Settings) -> anyhow::Result<ExitCode> {
    let refuse = |field: &str, message: String| Error::Refused {
        index: None,
        field: field.to_owned(),
        message,
    };
    let channel = choice(&args.channel, &Channel::WORDS).map_err(|_| {
        let words = Channel::WORDS.map(|(word, _)| word).join(", ");
        refuse("channel", format!("must be one of {words}"))
    })?;
    if let Some(to) = &args.to
        && let Err(message) = Recipient::parse(channel, to)
    {
        bail!(refuse("to", message.to_string()));
    }
    let asked = CheckedMessage {
        tenant: args.tenant,
        channel,
        to: args.to,
        recipient: args.recipient,
        category: args.category,
        actor: args.actor,
        template: args.template_id,
    };
    let queue = connect::queue(&settings).await?;
    let checked = connect::gates(&queue, &settings)?.check(&asked).await?;
    if args.json {
        output::json(&checked)?;
    } else {
        show(&checked)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn show(checked: &RecipientCheck) -> anyhow::Result<()> {
    say!("a message now {}", checked.forecast.sentence);
    for rule in &checked.rules {
        say!("{}", cap(rule));
    }
    if let Some(until) = checked.quiet_until {
        say!("quiet hours ({}) until {until:.0}", checked.quiet_rule);
    }
    if checked.suppressed {
        say!("the recipient is suppressed on the channel");
    }
    if !checked.preference.rule.is_empty() {
        let wanted = match checked.preference.wanted {
            true => "wanted",
            false => "not wanted",
        };
        say!("preference: {} is {wanted}", checked.preference.rule);
    }
    for digest in &checked.digests {
        say!(
            "digest {} with {} closes at {:.0}",
            digest.kind,
            item_count(digest.items),
            digest.closes_at
        );
    }
    for held in &checked.held {
        say!(
            "message {} waits ({}, {}) until {:.0}",
            held.id,
            held.held_by.gate,
            held.held_by.rule,
            held.held_by.until
        );
    }
    Ok(())
}

fn cap(rule: &CheckedCap) -> String {
    let of_actor = if rule.is_of_actor {
        ", of the actor"
    } else {
        ""
    };
    let (name, cap, remaining) = (&rule.check.rule, &rule.cap, rule.check.remaining);
    match rule.check.allowed {
        true => format!("cap {name} ({cap}{of_actor}): {remaining} remaining"),
        false => format!(
            "cap {name} ({cap}{of_actor}): none until {:.0}",
            rule.check.reset_at
        ),
    }
}
