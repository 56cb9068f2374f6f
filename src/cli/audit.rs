//! `flyball audit` and `flyball failures`: the first things to read at night.

use std::process::ExitCode;

use serde_json::{Value, json};

use super::given_text::filled;
use super::{connect, output};
use crate::api::AuditEntry;
use crate::config::Settings;
use crate::jobs::FailedAttempt;

#[derive(clap::Args)]
pub(super) struct Args {
    /// Only those of this tenant
    #[arg(long, value_parser = filled)]
    tenant: Option<String>,
    /// Maximum number of results
    #[arg(long, default_value_t = 20, allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(1..=1000))]
    limit: i64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn audit(args: Args, settings: Settings) -> anyhow::Result<ExitCode> {
    let queue = connect::lists(&settings).await?;
    let tenant = args.tenant.as_deref();
    let entries = crate::api::postgres::read_audit(&queue.pool, tenant, args.limit).await?;
    if args.json {
        output::json(&json!({ "entries": entries }))?;
    } else {
        let header = ["AT", "ACTOR", "ACTION", "SUBJECT", "CHANGE", "WHY"];
        output::table(&header, entries.iter().map(entry))?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn failures(args: Args, settings: Settings) -> anyhow::Result<ExitCode> {
    let queue = connect::lists(&settings).await?;
    let failures = queue.failures(args.tenant.as_deref(), args.limit).await?;
    if args.json {
        output::json(&json!({ "failures": failures }))?;
    } else {
        let header = [
            "AT", "JOB", "KIND", "THROTTLE", "KEY", "ATTEMPT", "OUTCOME", "ERROR",
        ];
        output::table(&header, failures.iter().map(failure))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn entry(one: &AuditEntry) -> Vec<String> {
    let shown = |value: &Option<Value>| value.as_ref().map_or_else(String::new, Value::to_string);
    let change = match &one.before {
        Some(_) => format!("{} to {}", shown(&one.before), shown(&one.after)),
        None => shown(&one.after),
    };
    let actor = match &one.token {
        Some(token) => format!("{} (token {token})", one.actor),
        None => one.actor.clone(),
    };
    vec![
        format!("{:.0}", one.at),
        actor,
        one.action.clone(),
        one.subject.clone(),
        output::clipped(&change, 100),
        output::clipped(&one.why, 60),
    ]
}

fn failure(one: &FailedAttempt) -> Vec<String> {
    vec![
        format!("{:.0}", one.at),
        one.job_id.to_string(),
        one.kind.clone(),
        one.throttle.clone(),
        one.key.clone(),
        one.attempt.to_string(),
        one.outcome.clone(),
        output::clipped(one.error.as_deref().unwrap_or_default(), 80),
    ]
}
