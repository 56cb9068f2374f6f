//! `flyball throttle`.

mod audit;
mod import;
mod knobs;
mod name;
mod show;
mod tokens;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::bail;
use serde_json::json;

use self::audit::{note_audit, note_key};
use self::import::import;
use self::knobs::{manual_until, parse};
use self::name::known;
use self::show::{list, show};
use super::exit::{self, CliError};
use super::output::say;
use super::signed::AuditArgs;
use super::{connect, missing_throttles, output, when};
use crate::api::throttles::delete::{NotDeleted, jobs_wait, take_away};
use crate::config::Settings;
use crate::throttle::{
    Change, Error, Knobs, LUA_TEXT, MAX_PAUSE, Name, Store, check_key, nearly_called,
};

#[derive(clap::Subcommand)]
pub(super) enum Command {
    /// List all throttles with their rates
    List {
        /// Include the limits of the API itself, api:*
        #[arg(long)]
        all: bool,
        /// Print JSON, of all throttles
        #[arg(long)]
        json: bool,
    },
    /// Show one throttle: its knobs and their problems
    Show {
        /// The name
        name: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Set knobs, e.g. flyball throttle set reindex rps=50 mode=manual; creates the throttle if it
    /// does not exist
    Set {
        /// The name
        name: String,
        /// Knobs as NAME=VALUE; an empty value removes an optional knob
        #[arg(required = true, value_name = "KNOB=VALUE")]
        knobs: Vec<String>,
        /// Control manually until this time, or for a span such as 30m; then the governor restores
        /// the previous mode
        #[arg(long, value_name = "TIME", value_parser = when::ahead)]
        until: Option<jiff::Timestamp>,
        #[command(flatten)]
        signed: AuditArgs,
    },
    /// Take tokens; ends with 75 if they are not granted now
    Acquire(tokens::TokensWanted),
    /// Show whether tokens could be taken, and take none; ends with 75 if not
    Peek(tokens::TokensWanted),
    /// Return tokens that no work used
    Return(tokens::TokensUnused),
    /// Charge or return the difference between the tokens taken and the real cost
    Settle(tokens::TokensSettled),
    /// Report that another server asked to slow down: the key waits, in all processes
    Refused(tokens::RefusalArgs),
    /// Report how work ended, which opens a key after a refusal
    Ended(tokens::EndsArgs),
    /// Print the Lua script with which any program takes tokens directly from Redis
    Script,
    /// List the throttles that LimitLion or another program has written to Redis, and import them
    ImportLimitlion {
        /// Import them; without this they are only listed
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        signed: AuditArgs,
    },
    /// Delete a throttle; one with waiting jobs only with --force
    Delete {
        /// The name
        name: String,
        /// Delete it although jobs wait for it: they wait until it is created again
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        signed: AuditArgs,
    },
    /// Stop a throttle, or one key of it, until it is resumed
    Pause {
        /// The name
        name: String,
        /// Pause only this key
        #[arg(long, requires = "seconds")]
        key: Option<String>,
        /// Duration in seconds, up to 2592000 (30 days); keys only
        #[arg(long, requires = "key", allow_negative_numbers = true)]
        seconds: Option<f64>,
        #[command(flatten)]
        signed: AuditArgs,
    },
    /// Resume a throttle, or one key of it; a throttle starts with an empty bucket
    Resume {
        /// The name
        name: String,
        /// Resume only this key
        #[arg(long)]
        key: Option<String>,
        #[command(flatten)]
        signed: AuditArgs,
    },
}

pub(super) async fn run(command: Command, settings: Settings) -> anyhow::Result<ExitCode> {
    if matches!(command, Command::Script) {
        output::text(LUA_TEXT)?;
        return Ok(ExitCode::SUCCESS);
    }
    let store = connect::throttles(&settings).await?;
    match carry_out(command, &store, &settings).await {
        Ok(code) => Ok(code),
        Err(error) => {
            let made_max = settings.throttles_created_max;
            Err(missing_throttles::explained(error, &*store, made_max).await)
        }
    }
}

async fn carry_out(
    command: Command,
    store: &Arc<dyn Store>,
    settings: &Settings,
) -> anyhow::Result<ExitCode> {
    match command {
        Command::List { all, json } => list(store, all, json).await?,
        Command::Show { name, json } => show_one(store, name, json).await?,
        Command::Set {
            name,
            knobs,
            until,
            signed,
        } => {
            let edit = KnobEdit::set(&knobs, until)?;
            change(store, settings, &name, edit, signed).await?;
        }
        Command::Script => {}
        Command::Acquire(wanted) => return granted(tokens::take(store, wanted, false).await?),
        Command::Peek(wanted) => return granted(tokens::take(store, wanted, true).await?),
        Command::Return(unused) => tokens::give_back(store, unused).await?,
        Command::Settle(settled) => tokens::settle(store, settled).await?,
        Command::Refused(refused) => tokens::refused(store, refused).await?,
        Command::Ended(ended) => tokens::ended(store, ended).await?,
        Command::ImportLimitlion { yes, signed } => import(store, settings, yes, &signed).await?,
        Command::Delete {
            name,
            force,
            signed,
        } => {
            let name = Name::or_pattern(name)?;
            delete(store, settings, &name, force, &signed).await?
        }
        Command::Pause {
            name,
            key,
            seconds,
            signed,
        } => match key {
            Some(key) => {
                let seconds = seconds.unwrap_or_default();
                pause_key(store, settings, &name, &key, seconds, &signed).await?;
            }
            None => {
                let edit = KnobEdit::paused("throttle.pause", "1");
                change(store, settings, &name, edit, signed).await?;
            }
        },
        Command::Resume { name, key, signed } => match key {
            Some(key) => resume_key(store, settings, &name, &key, &signed).await?,
            None => {
                let edit = KnobEdit::paused("throttle.resume", "0");
                change(store, settings, &name, edit, signed).await?;
            }
        },
    }
    Ok(ExitCode::SUCCESS)
}

async fn show_one(store: &Arc<dyn Store>, name: String, json: bool) -> anyhow::Result<()> {
    let name = Name::or_pattern(name)?;
    let Some(status) = store.status(&name).await? else {
        bail!(Error::Unknown(name))
    };
    if json {
        return output::json(&status);
    }
    show(&status)
}

/// Returns the exit code of a request for tokens, so that a script can tell and try again later.
fn granted(is_granted: bool) -> anyhow::Result<ExitCode> {
    Ok(match is_granted {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(exit::TRY_LATER),
    })
}

/// Pauses one key of a throttle.
async fn pause_key(
    store: &Arc<dyn Store>,
    settings: &Settings,
    name: &str,
    key: &str,
    seconds: f64,
    signed: &AuditArgs,
) -> anyhow::Result<()> {
    if !(seconds > 0.0 && seconds <= MAX_PAUSE.as_secs_f64()) {
        let most = MAX_PAUSE.as_secs();
        bail!(CliError::Refused(format!(
            "--seconds is {seconds}; allowed is more than 0 and at most {most} (30 days)"
        )));
    }
    check_key(key).map_err(|message| CliError::Refused(format!("--key: {message}")))?;
    let name = known(store, name).await?;
    let until = store
        .pause_key(
            &name,
            key,
            std::time::Duration::from_secs_f64(seconds),
            &signed.why,
        )
        .await?;
    let until = jiff::Timestamp::from_millisecond(until)?;
    note_key(
        settings,
        "key.pause",
        &name,
        signed,
        json!({ "key": key, "seconds": seconds, "until": until }),
    )
    .await;
    if signed.json {
        output::json(&json!({ "throttle": name, "key": key, "until": until }))?;
    } else {
        say!("key {key:?} of {name} is paused until {until:.0}");
    }
    Ok(())
}

/// Resumes one key of a throttle, and resets its learned rate.
async fn resume_key(
    store: &Arc<dyn Store>,
    settings: &Settings,
    name: &str,
    key: &str,
    signed: &AuditArgs,
) -> anyhow::Result<()> {
    check_key(key).map_err(|message| CliError::Refused(format!("--key: {message}")))?;
    let name = known(store, name).await?;
    let known = store.look(&name, &[key.to_owned()]).await?;
    let forgot = known.first().and_then(|state| state.learned_rps);
    let on_trial = known.first().is_some_and(|state| state.probing);
    let was_paused = store.resume_key(&name, key).await?;
    let resumed = was_paused || on_trial;
    note_key(
        settings,
        "key.resume",
        &name,
        signed,
        json!({ "key": key, "resumed": resumed }),
    )
    .await;
    if signed.json {
        output::json(
            &json!({ "throttle": name, "key": key, "resumed": resumed, "forgot_rps": forgot }),
        )?;
    } else if let Some(rps) = forgot {
        say!("key {key:?} of {name} is resumed; its learned rate of {rps:.3}/s is reset");
    } else if was_paused {
        say!("key {key:?} of {name} is resumed");
    } else if on_trial {
        say!("key {key:?} of {name} is resumed; it was on trial after a refusal");
    } else {
        say!("key {key:?} of {name} was not paused");
    }
    Ok(())
}

/// Deletes a throttle and writes the audit entry.
async fn delete(
    store: &Arc<dyn Store>,
    settings: &Settings,
    name: &Name,
    force: bool,
    signed: &AuditArgs,
) -> anyhow::Result<()> {
    // An unknown name is reported even while Postgres is unreachable.
    if store.status(name).await?.is_none() {
        bail!(CliError::NotFound(
            NotDeleted::Unknown(name.clone()).to_string()
        ));
    }
    let queue = connect::queue(settings).await?;
    let (before, waiting) = match take_away(&**store, &queue, name, force).await {
        Ok(taken) => taken,
        Err(unknown @ NotDeleted::Unknown(_)) => bail!(CliError::NotFound(unknown.to_string())),
        Err(kept @ (NotDeleted::Parent { .. } | NotDeleted::Waiting { .. })) => {
            bail!(CliError::Refused(kept.told("--force")))
        }
        Err(NotDeleted::Throttles(error)) => return Err(error.into()),
        Err(NotDeleted::Queue(error)) => return Err(error.into()),
    };
    let mut entry = crate::api::AuditEntry::now(
        signed.by.clone(),
        "throttle.delete",
        name.to_string(),
        signed.why.clone(),
    );
    entry.before = Some(serde_json::to_value(&before.raw)?);
    crate::api::postgres::write_audit(&queue.pool, &entry).await?;
    if signed.json {
        return output::json(&json!({ "name": name, "result": "deleted", "waiting": waiting }));
    }
    if waiting.jobs > 0 || waiting.more {
        say!("{} until {name} is created again", jobs_wait(waiting));
    }
    say!("{name} is deleted; a file in the knobs folder would create it again at the next start");
    Ok(())
}

/// A change of knobs, with its name in the audit log.
struct KnobEdit {
    action: &'static str,
    fields: BTreeMap<String, Option<String>>,
    /// True if a throttle that does not exist is created.
    create: bool,
}

impl KnobEdit {
    /// Sets knobs, given as NAME=VALUE, and creates the throttle if it does not exist.
    fn set(knobs: &[String], until: Option<jiff::Timestamp>) -> anyhow::Result<Self> {
        let mut given = parse(knobs)?;
        if let Some(until) = until {
            manual_until(&mut given, until)?;
        }
        Ok(Self {
            action: "throttle.set",
            fields: Knobs::check(&given).map_err(Error::Invalid)?,
            create: true,
        })
    }

    /// Sets the knob `paused` of a throttle that exists.
    fn paused(action: &'static str, value: &str) -> Self {
        Self {
            action,
            fields: BTreeMap::from([("paused".to_owned(), Some(value.to_owned()))]),
            create: false,
        }
    }
}

async fn change(
    store: &Arc<dyn Store>,
    settings: &Settings,
    name: &str,
    edit: KnobEdit,
    signed: AuditArgs,
) -> anyhow::Result<()> {
    let name = Name::or_pattern(name)?;
    let json = signed.json;
    let change = Change {
        fields: edit.fields,
        by: signed.by,
        why: signed.why,
        create: edit.create,
        ..Change::default()
    };
    let (before, after) = store.set(&name, &change).await?;
    note_audit(
        settings,
        &crate::api::AuditEntry::turned(edit.action, &change, before.as_ref(), &after),
    )
    .await;
    if json {
        return output::json(&after);
    }
    if before.is_none() {
        let words = created(&**store, &name).await;
        say!("{words}");
    }
    show(&after)
}

/// Describes a throttle that did not exist, beside the one that may have been meant.
async fn created(store: &dyn Store, name: &Name) -> String {
    let names = store.names().await.unwrap_or_default();
    match nearly_called(name.as_str(), &names) {
        Some(other) => format!("created throttle {name}; there is also {other}"),
        None => format!("created throttle {name}"),
    }
}
