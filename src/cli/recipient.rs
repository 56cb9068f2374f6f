//! `flyball recipient`.

use std::collections::BTreeSet;
use std::io::Read as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use serde_json::{Value, json};

use super::exit::CliError;
use super::given_text::{given_text, lost, text_of_file, without_mark};
use super::output::{say, tell};
use super::signed::AuditArgs;
use super::{connect, output};
use crate::config::Settings;
use crate::input::{Issue, Reader};
use crate::recipient::new_recipient::{
    DEFAULTS_FIELDS, IMPORT_MAX, NewRecipient, check_id, take_profile, take_recipients,
};
use crate::recipient::postgres::{PutRecipients, RecipientProfiles};
use crate::recipient::profile::PROFILE_FIELDS;
use crate::throttle::admission::throttle_of;

/// Most errors of a file that are listed; the rest is counted.
const WRONG_SHOWN: usize = 20;

#[derive(clap::Subcommand)]
pub(super) enum Command {
    /// Set the profile of a recipient, in place of the one that it had
    #[command(after_help = "Examples:
  flyball recipient set user-7 --tenant acme --profile '{\"addresses\":{\"email\":\"ada@example.com\"},\"time_zone\":\"Europe/Berlin\"}'
  flyball recipient set user-7 --profile @ada.json")]
    Set(SetArgs),
    /// Show a recipient, with its addresses
    Show(ShowArgs),
    /// List the recipients of a tenant by their ids, with masked addresses
    #[command(after_help = "Examples:
  flyball recipient list --tenant acme
  flyball recipient list --tenant acme --after user-700 --limit 1000 --json")]
    List(ListArgs),
    /// Erase a recipient with everything that is kept about it
    Delete(DeleteArgs),
    /// Set the profiles of many recipients from a file
    #[command(after_help = "Example:
  flyball recipient import recipients.ndjson --tenant acme        one recipient per line: an id and the fields of a profile")]
    Import(ImportArgs),
    /// Show what holds for all recipients of a tenant unless their profiles say otherwise, or set it
    Defaults(DefaultsArgs),
}

#[derive(clap::Args)]
pub(super) struct SetArgs {
    /// The id by which messages name the recipient
    id: String,
    /// The profile as JSON, @FILE, or - for standard input
    #[arg(long, value_name = "JSON")]
    profile: String,
    #[command(flatten)]
    of: OfTenant,
    #[command(flatten)]
    signed: AuditArgs,
}

#[derive(clap::Args)]
pub(super) struct ShowArgs {
    /// The id by which messages name the recipient
    id: String,
    #[command(flatten)]
    of: OfTenant,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
pub(super) struct ListArgs {
    /// The most recipients, 1 to 1000
    #[arg(long, default_value_t = 100, allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(1..=1000))]
    limit: i64,
    /// Only those after this id: the last one of the page before
    #[arg(long, value_name = "ID", default_value = "")]
    after: String,
    /// Show the addresses in full
    #[arg(long)]
    addresses: bool,
    #[command(flatten)]
    of: OfTenant,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
pub(super) struct DeleteArgs {
    /// The id by which messages name the recipient
    id: String,
    #[command(flatten)]
    of: OfTenant,
    #[command(flatten)]
    signed: AuditArgs,
}

#[derive(clap::Args)]
pub(super) struct ImportArgs {
    /// The file, one JSON object per line; - for standard input
    file: String,
    #[command(flatten)]
    of: OfTenant,
    #[command(flatten)]
    signed: AuditArgs,
}

#[derive(clap::Args)]
pub(super) struct DefaultsArgs {
    /// The new defaults as JSON, @FILE, or - for standard input; shows the present ones if absent
    #[arg(long, value_name = "JSON")]
    set: Option<String>,
    #[command(flatten)]
    of: OfTenant,
    #[command(flatten)]
    signed: AuditArgs,
}

#[derive(clap::Args)]
struct OfTenant {
    /// The tenant; by default none, for the recipients of the operators
    #[arg(long, default_value = "")]
    tenant: String,
}

impl OfTenant {
    fn read(self) -> anyhow::Result<String> {
        if !self.tenant.is_empty() && throttle_of(&self.tenant).is_none() {
            bail!(CliError::Refused(
                "tenant: must be a name of letters, digits or any of . _ - / : { }".to_owned()
            ));
        }
        Ok(self.tenant)
    }
}

pub(super) async fn run(command: Command, settings: Settings) -> anyhow::Result<ExitCode> {
    match command {
        Command::Set(args) => set(args, &settings).await?,
        Command::Show(args) => {
            let tenant = args.of.read()?;
            let found = profiles(&settings).await?.find(&tenant, &args.id).await?;
            let stored = found
                .ok_or_else(|| CliError::NotFound(format!("there is no recipient {}", args.id)))?;
            if args.json {
                output::json(&stored)?;
            } else {
                say!(
                    "recipient {}, changed at {:.0}",
                    stored.id,
                    stored.updated_at
                );
                fields(&stored.profile)?;
            }
        }
        Command::List(args) => list(args, &settings).await?,
        Command::Delete(args) => {
            let tenant = args.of.read()?;
            let profiles = profiles(&settings).await?;
            let signed = args.signed.signature();
            let erased = profiles.erase(&tenant, &args.id, &signed).await?;
            if args.signed.json {
                output::json(&erased)?;
            } else if erased.profile {
                say!(
                    "recipient {} is erased, with {} open digests and its address in {} messages; \
                     {} messages that waited are cancelled",
                    args.id,
                    erased.digests,
                    erased.messages,
                    erased.cancelled
                );
            } else {
                say!(
                    "recipient {} had no profile; whatever was kept is erased",
                    args.id
                );
            }
        }
        Command::Import(args) => import(args, &settings).await?,
        Command::Defaults(args) => defaults(args, &settings).await?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(args: ListArgs, settings: &Settings) -> anyhow::Result<()> {
    let tenant = args.of.read()?;
    let queue = connect::lists(settings).await?;
    let profiles = RecipientProfiles::new(queue.pool);
    let found = profiles.list(&tenant, &args.after, args.limit).await?;
    let next = found.last().filter(|_| found.len() as i64 >= args.limit);
    let next = next.map(|last| last.id.clone());
    let shown: Vec<Value> = found
        .iter()
        .map(|one| {
            json!({
                "id": one.id, "addresses": one.shown_addresses(!args.addresses), "time_zone": one.profile.get("time_zone"),
                "updated_at": one.updated_at,
            })
        })
        .collect();
    if args.json {
        return output::json(&json!({"recipients": shown, "next": next}));
    }
    for one in &shown {
        let addresses = one["addresses"].as_object();
        let each = addresses.into_iter().flatten().map(|(channel, address)| {
            format!("{channel} {}", address.as_str().unwrap_or_default())
        });
        let mut rest: Vec<String> = each.collect();
        rest.extend(one["time_zone"].as_str().map(str::to_owned));
        say!(
            "{}  {}",
            one["id"].as_str().unwrap_or_default(),
            rest.join(", ")
        );
    }
    match next {
        Some(next) => tell!("flyball: more follow: --after {}", output::clean(&next)),
        None if shown.is_empty() => say!("there are no recipients"),
        None => {}
    }
    Ok(())
}

async fn set(args: SetArgs, settings: &Settings) -> anyhow::Result<()> {
    let tenant = args.of.read()?;
    if let Err(message) = check_id(&args.id) {
        bail!(CliError::Refused(format!(
            "id: {message}; nothing was changed"
        )));
    }
    let profile = profile_of(&args.profile, "profile", &PROFILE_FIELDS)?;
    let new = NewRecipient {
        id: args.id,
        profile,
    };
    let signed = args.signed.signature();
    let profiles = profiles(settings).await?;
    let put = profiles
        .put(&tenant, std::slice::from_ref(&new), &signed)
        .await?;
    if args.signed.json {
        return output::json(&put);
    }
    let change = match put {
        PutRecipients { created: 1, .. } => "is new",
        PutRecipients { changed: 1, .. } => "has a new profile",
        _ => "has this profile already",
    };
    say!("recipient {} {change}", new.id);
    Ok(())
}

async fn import(args: ImportArgs, settings: &Settings) -> anyhow::Result<()> {
    let tenant = args.of.read()?;
    let recipients = read_lines(&args.file)?;
    let profiles = profiles(settings).await?;
    let signed = args.signed.signature();
    let mut all = PutRecipients {
        created: 0,
        changed: 0,
    };
    for (nth, part) in recipients.chunks(IMPORT_MAX).enumerate() {
        let put = profiles.put(&tenant, part, &signed).await;
        let put = put.with_context(|| {
            format!(
                "the first {} recipients were set, the rest was not",
                nth * IMPORT_MAX
            )
        })?;
        all.created += put.created;
        all.changed += put.changed;
    }
    if args.signed.json {
        return output::json(&all);
    }
    say!(
        "of {} recipients {} are new and {} have changed",
        recipients.len(),
        all.created,
        all.changed
    );
    Ok(())
}

async fn defaults(args: DefaultsArgs, settings: &Settings) -> anyhow::Result<()> {
    let tenant = args.of.read()?;
    let new = args
        .set
        .map(|text| profile_of(&text, "set", &DEFAULTS_FIELDS))
        .transpose()?;
    let profiles = profiles(settings).await?;
    if let Some(new) = new {
        let signed = args.signed.signature();
        profiles.set_defaults(&tenant, &new, &signed).await?;
    }
    let stored = profiles.defaults(&tenant).await?;
    if args.signed.json {
        return output::json(&stored);
    }
    match stored.updated_at {
        Some(at) => say!("changed at {at:.0}"),
        None => say!("there are no defaults"),
    }
    fields(&stored.profile)
}

async fn profiles(settings: &Settings) -> anyhow::Result<RecipientProfiles> {
    let queue = connect::queue(settings).await?;
    Ok(RecipientProfiles::new(queue.pool.clone()))
}

/// Prints the fields of a profile, one a line.
fn fields(profile: &Value) -> anyhow::Result<()> {
    for (name, value) in profile.as_object().into_iter().flatten() {
        match value {
            Value::String(text) => say!("{name}: {text}"),
            other => say!("{name}: {other}"),
        }
    }
    Ok(())
}

/// Reads a profile from an option, and refuses it with everything that is wrong.
fn profile_of(given: &str, option: &str, allowed: &[&str]) -> anyhow::Result<Value> {
    let text = given_text(given)?;
    // The parser's message quotes nothing of the text.
    let value: Value = serde_json::from_str(&text).map_err(|error| {
        CliError::Refused(format!(
            "{option}: is not JSON: {error}; nothing was changed"
        ))
    })?;
    if let Some(wrong) = lost(option, &text) {
        bail!(CliError::Refused(format!("{wrong}; nothing was changed")));
    }
    if !value.is_object() {
        let form = format!("{option}: must be a JSON object; nothing was changed");
        bail!(CliError::Refused(form));
    }
    let mut issues: Vec<Issue> = Vec::new();
    let profile = Reader::of(&value, "", allowed, &mut issues)
        .map(|mut fields| take_profile(&mut fields, allowed));
    let wrong: Vec<String> = issues
        .iter()
        .map(|issue| format!("{option}{}: {}", issue.pointer, issue.message))
        .collect();
    refuse(wrong)?;
    Ok(profile.unwrap_or_default())
}

/// Reads a file of recipients, and refuses it with everything that is wrong.
fn read_lines(file: &str) -> anyhow::Result<Vec<NewRecipient>> {
    let (name, text) = if file == "-" {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text)?;
        ("standard input", text)
    } else {
        (file, text_of_file(Path::new(file))?)
    };
    let text = without_mark(&text);
    let (mut found, mut wrong, mut ids) = (Vec::new(), Vec::new(), BTreeSet::new());
    for (nth, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let at = format!("{name}, line {}", nth + 1);
        let Ok(value) = serde_json::from_str::<Value>(line) else {
            wrong.push(format!(
                "{at}: is not JSON; allowed is one recipient per line"
            ));
            continue;
        };
        if let Some(problem) = lost("", line) {
            wrong.push(format!("{at}: {problem}"));
            continue;
        }
        let list = json!({ "recipients": [value] });
        let mut issues: Vec<Issue> = Vec::new();
        let read = Reader::of(&list, "", &["recipients"], &mut issues)
            .map(|mut fields| take_recipients(&mut fields, "recipients"));
        wrong.extend(issues.iter().map(|issue| {
            let below = issue.pointer.trim_start_matches("/recipients/0");
            format!("{at}{below}: {}", issue.message)
        }));
        for one in read.unwrap_or_default() {
            if ids.insert(one.id.clone()) {
                found.push(one);
            } else {
                wrong.push(format!("{at}/id: must differ from those before it"));
            }
        }
    }
    if found.is_empty() && wrong.is_empty() {
        bail!(CliError::Refused(format!("{name} holds no recipients")));
    }
    refuse(wrong)?;
    Ok(found)
}

fn refuse(mut wrong: Vec<String>) -> anyhow::Result<()> {
    if wrong.is_empty() {
        return Ok(());
    }
    let more = wrong.len().saturating_sub(WRONG_SHOWN);
    wrong.truncate(WRONG_SHOWN);
    if more > 0 {
        wrong.push(format!("and {more} more"));
    }
    bail!(CliError::Refused(format!(
        "{}; nothing was changed",
        wrong.join("; ")
    )))
}
