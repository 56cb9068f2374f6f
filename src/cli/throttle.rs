//! `flyball throttle list|show|set|pause|resume|import-limitlion|script`.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::bail;
use serde_json::{Value, json};

use super::exit::CliError;
use super::output::say;
use super::signed::AuditArgs;
use super::{connect, output, when};
use crate::api::throttles::delete::{Kept, take_away};
use crate::config::Settings;
use crate::throttle::{
    Change, Error, Knobs, LUA_TEXT, MAX_PAUSE, Name, Status, Store, check_key, foreign,
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
    /// Delete a throttle; its jobs wait until it is created again
    Delete {
        /// The name
        name: String,
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
        #[arg(long, requires = "key")]
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
    match command {
        Command::List { all, json } => list(&store, all, json).await?,
        Command::Show { name, json } => {
            let name = Name::new(name)?;
            let Some(status) = store.status(&name).await? else {
                bail!(Error::Unknown(name))
            };
            if json {
                output::json(&status)?
            } else {
                show(&status)?
            }
        }
        Command::Set {
            name,
            knobs,
            until,
            signed,
        } => {
            let mut given = parse(&knobs)?;
            if let Some(until) = until {
                by_hand_until(&mut given, until)?;
            }
            let fields = Knobs::check(&given).map_err(Error::Invalid)?;
            change(
                &store,
                &settings,
                &name,
                fields,
                signed,
                true,
                "throttle.set",
            )
            .await?;
        }
        Command::Script => {}
        Command::ImportLimitlion { yes, signed } => import(&store, &settings, yes, &signed).await?,
        Command::Delete { name, signed } => {
            delete(&store, &settings, &Name::new(name)?, &signed).await?
        }
        Command::Pause {
            name,
            key: Some(key),
            seconds,
            signed,
        } => {
            let seconds = seconds.unwrap_or_default();
            if !(seconds > 0.0 && seconds <= MAX_PAUSE.as_secs_f64()) {
                let most = MAX_PAUSE.as_secs();
                bail!(CliError::Refused(format!(
                    "--seconds is {seconds}; allowed is more than 0 and at most {most} (30 days)"
                )));
            }
            check_key(&key).map_err(|message| CliError::Refused(format!("--key: {message}")))?;
            let name = known(&store, &name).await?;
            let until = store
                .pause_key(
                    &name,
                    &key,
                    std::time::Duration::from_secs_f64(seconds),
                    &signed.why,
                )
                .await?;
            let until = jiff::Timestamp::from_millisecond(until)?;
            note_key(
                &settings,
                "key.pause",
                &name,
                &signed,
                json!({ "key": key, "seconds": seconds, "until": until }),
            )
            .await;
            if signed.json {
                output::json(&json!({ "throttle": name, "key": key, "until": until }))?;
            } else {
                say!("key {key:?} of {name} is paused until {until:.0}");
            }
        }
        Command::Resume {
            name,
            key: Some(key),
            signed,
        } => {
            check_key(&key).map_err(|message| CliError::Refused(format!("--key: {message}")))?;
            let name = known(&store, &name).await?;
            let known = store.look(&name, std::slice::from_ref(&key)).await?;
            let forgot = known.first().and_then(|state| state.learned_rps);
            let resumed = store.resume_key(&name, &key).await?;
            note_key(
                &settings,
                "key.resume",
                &name,
                &signed,
                json!({ "key": key, "resumed": resumed }),
            )
            .await;
            if signed.json {
                output::json(
                    &json!({ "throttle": name, "key": key, "resumed": resumed, "forgot_rps": forgot }),
                )?;
            } else if let Some(rps) = forgot {
                say!("key {key:?} of {name} is resumed; its learned rate of {rps:.3}/s is reset");
            } else if resumed {
                say!("key {key:?} of {name} is resumed");
            } else {
                say!("key {key:?} of {name} was not paused");
            }
        }
        Command::Pause { name, signed, .. } => {
            let fields = BTreeMap::from([("paused".to_owned(), Some("1".to_owned()))]);
            change(
                &store,
                &settings,
                &name,
                fields,
                signed,
                false,
                "throttle.pause",
            )
            .await?;
        }
        Command::Resume { name, signed, .. } => {
            let fields = BTreeMap::from([("paused".to_owned(), Some("0".to_owned()))]);
            change(
                &store,
                &settings,
                &name,
                fields,
                signed,
                false,
                "throttle.resume",
            )
            .await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(store: &Arc<dyn Store>, with_limits: bool, json: bool) -> anyhow::Result<()> {
    let mut all = Vec::new();
    for name in store.names().await? {
        all.extend(store.status(&name).await?);
    }
    if json {
        return output::json(&json!({ "throttles": all }));
    }
    let header = [
        "THROTTLE", "RPS", "BURST", "WINDOW", "MODE", "PARENT", "BY", "NOTE",
    ];
    let (limits, work): (Vec<_>, Vec<_>) = all
        .iter()
        .partition(|status| !with_limits && status.name.as_str().starts_with("api:"));
    output::table(&header, work.into_iter().map(row))?;
    if !limits.is_empty() {
        say!(
            "and {} limits of the API, api:*; --all lists them",
            limits.len()
        );
    }
    Ok(())
}

fn row(status: &Status) -> Vec<String> {
    let knobs = &status.knobs;
    vec![
        status.name.to_string(),
        output::rate(status.effective_rps),
        knobs.burst.to_string(),
        format!("{} s", knobs.window),
        mode(status),
        knobs
            .parent
            .as_ref()
            .map(Name::to_string)
            .unwrap_or_default(),
        knobs.by.clone(),
        note(status),
    ]
}

fn mode(status: &Status) -> String {
    serde_json::to_value(status.knobs.mode)
        .ok()
        .and_then(|mode| mode.as_str().map(str::to_owned))
        .unwrap_or_default()
}

fn note(status: &Status) -> String {
    let mut notes = Vec::new();
    if status.knobs.paused {
        notes.push("paused".to_owned());
    }
    if status.lease_lapsed {
        notes.push("the governor's lease has expired; safe_rps is in force".to_owned());
    }
    notes.extend(
        status
            .problems
            .iter()
            .map(|problem| format!("{}: {}", problem.field, problem.message)),
    );
    notes.join("; ")
}

fn show(status: &Status) -> anyhow::Result<()> {
    say!("{:<15} {}", "throttle", status.name);
    say!("{:<15} {}", "in force", output::rate(status.effective_rps));
    let (edit, knobs): (Vec<_>, Vec<_>) = status
        .raw
        .iter()
        .partition(|(field, _)| EDIT.contains(&field.as_str()));
    for (field, value) in knobs.into_iter().chain(edit) {
        let time = value
            .parse()
            .ok()
            .filter(|_| TIMES.contains(&field.as_str()))
            .and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
        match time {
            Some(time) => say!("{field:<15} {time:.0}"),
            None => say!("{field:<15} {value}"),
        }
    }
    if !note(status).is_empty() {
        say!("{:<15} {}", "note", note(status));
    }
    Ok(())
}

/// Fields about the last edit of the knobs, shown behind them.
const EDIT: [&str; 6] = ["at", "by", "why", "seq", "term", "valid_until"];

/// Fields that hold times, in unix milliseconds.
const TIMES: [&str; 3] = ["at", "valid_until", "manual_until_ms"];

fn parse(knobs: &[String]) -> anyhow::Result<BTreeMap<String, Value>> {
    let mut fields = BTreeMap::new();
    for knob in knobs {
        let Some((name, text)) = knob.split_once('=') else {
            bail!(CliError::Refused(format!(
                "{knob:?} is not KNOB=VALUE; for instance rps=50"
            )));
        };
        let value = Knobs::value_of(name, text);
        if fields.insert(name.to_owned(), value).is_some() {
            bail!(CliError::Refused(format!(
                "{name:?} is given twice; give each knob once"
            )));
        }
    }
    Ok(fields)
}

/// Adds the mode manual with its end.
fn by_hand_until(
    given: &mut BTreeMap<String, Value>,
    until: jiff::Timestamp,
) -> anyhow::Result<()> {
    if until <= when::now() {
        bail!(CliError::Refused(format!(
            "--until {until:.0} is in the past; allowed is a time in the future"
        )));
    }
    let mode = given
        .entry("mode".to_owned())
        .or_insert_with(|| json!("manual"));
    if *mode != json!("manual") {
        bail!(CliError::Refused(format!(
            "--until ends the mode manual, but mode is {mode}; use only one of them"
        )));
    }
    if given
        .insert("manual_until_ms".to_owned(), json!(until.as_millisecond()))
        .is_some()
    {
        bail!(CliError::Refused(
            "--until and manual_until_ms set the same knob; use only one of them".to_owned()
        ));
    }
    Ok(())
}

/// Lists the throttles that other programs have written, and with `yes` takes them over.
async fn import(
    store: &Arc<dyn Store>,
    settings: &Settings,
    yes: bool,
    signed: &AuditArgs,
) -> anyhow::Result<()> {
    let mut found = Vec::new();
    for name in store.search().await? {
        match Name::new(name.as_str()) {
            Ok(known) => found.extend(import_one(store, settings, &known, yes, signed).await?),
            Err(error) => found.push(ForeignHash::refused(name, &error)),
        }
    }
    if signed.json {
        return output::json(&json!({ "adopted": yes, "throttles": found }));
    }
    if found.is_empty() {
        say!("every throttle in Redis already belongs to Flyball");
        return Ok(());
    }
    let rows = found.iter().map(|one| {
        let fields = ["rps", "burst", "window"]
            .map(|field| one.knobs.get(field).cloned().unwrap_or_default());
        [
            vec![output::clipped(&one.name, SHOWN_NAME)],
            fields.to_vec(),
            vec![one.note.clone()],
        ]
        .concat()
    });
    output::table(&["THROTTLE", "RPS", "BURST", "WINDOW", "NOTE"], rows)?;
    if !yes {
        say!("nothing was changed; add --yes to import them");
    }
    Ok(())
}

/// Characters of a name that a table shows: anybody can have written a longer one.
const SHOWN_NAME: usize = 60;

/// A hash that another program has written.
#[derive(serde::Serialize)]
struct ForeignHash {
    name: String,
    knobs: BTreeMap<String, String>,
    expires_in_s: Option<f64>,
    adopted: bool,
    note: String,
}

impl ForeignHash {
    fn refused(name: String, why: &dyn std::fmt::Display) -> Self {
        let note = format!("it cannot be imported: {why}");
        Self {
            name,
            knobs: BTreeMap::new(),
            expires_in_s: None,
            adopted: false,
            note,
        }
    }
}

async fn import_one(
    store: &Arc<dyn Store>,
    settings: &Settings,
    name: &Name,
    yes: bool,
    signed: &AuditArgs,
) -> anyhow::Result<Option<ForeignHash>> {
    // A hash may have expired since it was found.
    let Some(status) = store.status(name).await?.filter(foreign::is_foreign) else {
        return Ok(None);
    };
    if !yes || status.raw.is_empty() {
        let note = note(&status);
        let (name, expires_in_s) = (name.to_string(), status.expires_in_s);
        return Ok(Some(ForeignHash {
            name,
            knobs: status.raw,
            expires_in_s,
            adopted: false,
            note,
        }));
    }
    match foreign::adopt(&**store, &status, &signed.by, &signed.why).await {
        Ok((change, after)) => {
            note_audit(
                settings,
                &crate::api::AuditEntry::turned("throttle.import", &change, Some(&status), &after),
            )
            .await;
            let note = "imported".to_owned();
            Ok(Some(ForeignHash {
                name: name.to_string(),
                knobs: after.raw,
                expires_in_s: None,
                adopted: true,
                note,
            }))
        }
        Err(lost @ Error::Lost(_)) => Err(lost.into()),
        Err(error) => Ok(Some(ForeignHash::refused(name.to_string(), &error))),
    }
}

/// Deletes a throttle and writes the audit entry.
async fn delete(
    store: &Arc<dyn Store>,
    settings: &Settings,
    name: &Name,
    signed: &AuditArgs,
) -> anyhow::Result<()> {
    // A name that is not there is told even where Postgres is away.
    if store.status(name).await?.is_none() {
        bail!(CliError::NotFound(Kept::Unknown(name.clone()).to_string()));
    }
    let queue = connect::queue(settings).await?;
    let before = match take_away(&**store, &queue, name).await {
        Ok(before) => before,
        Err(unknown @ Kept::Unknown(_)) => bail!(CliError::NotFound(unknown.to_string())),
        Err(parent @ Kept::Parent { .. }) => bail!(CliError::Refused(parent.to_string())),
        Err(Kept::Throttles(error)) => return Err(error.into()),
        Err(Kept::Queue(error)) => return Err(error.into()),
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
        return output::json(&serde_json::json!({ "name": name, "result": "deleted" }));
    }
    say!("{name} is deleted; a file in the knobs folder would create it again at the next start");
    Ok(())
}

async fn change(
    store: &Arc<dyn Store>,
    settings: &Settings,
    name: &str,
    fields: BTreeMap<String, Option<String>>,
    signed: AuditArgs,
    create: bool,
    action: &str,
) -> anyhow::Result<()> {
    let name = Name::new(name)?;
    let json = signed.json;
    let change = Change {
        fields,
        by: signed.by,
        why: signed.why,
        create,
        ..Change::default()
    };
    let (before, after) = store.set(&name, &change).await?;
    note_audit(
        settings,
        &crate::api::AuditEntry::turned(action, &change, before.as_ref(), &after),
    )
    .await;
    if json {
        output::json(&after)
    } else {
        show(&after)
    }
}

/// Returns the name of a throttle, which must exist.
async fn known(store: &Arc<dyn Store>, name: &str) -> anyhow::Result<Name> {
    let name = Name::new(name)?;
    match store.status(&name).await? {
        Some(_) => Ok(name),
        None => bail!(Error::Unknown(name)),
    }
}

async fn note_key(
    settings: &Settings,
    action: &str,
    throttle: &Name,
    signed: &AuditArgs,
    after: Value,
) {
    let mut entry = crate::api::AuditEntry::now(
        signed.by.clone(),
        action,
        throttle.to_string(),
        signed.why.clone(),
    );
    entry.after = Some(after);
    note_audit(settings, &entry).await;
}

/// Writes an entry of the audit log, which is in Postgres; a failure is only a warning, because a
/// knob must stay turnable while Postgres is away.
async fn note_audit(settings: &Settings, entry: &crate::api::AuditEntry) {
    let written = async {
        let queue = connect::queue(settings).await?;
        anyhow::Ok(crate::api::postgres::write_audit(&queue.pool, entry).await?)
    };
    if let Err(error) = written.await {
        eprintln!(
            "flyball: writing the audit log failed: {}",
            super::exit::message(&error)
        );
    }
}
