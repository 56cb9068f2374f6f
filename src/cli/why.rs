//! `flyball why`.

use std::process::ExitCode;

use anyhow::bail;
use serde_json::json;

use super::exit::{self, CliError};
use super::output::say;
use super::{connect, output};
use crate::admission;
use crate::api::{add_limits, waits_at_pool};
use crate::app;
use crate::config::Settings;
use crate::jobs::{Kinds, Queue};
use crate::notify::Deliveries;
use crate::notify::recipient::KIND;
use crate::recipient::explain::MessageExplanation;
use crate::throttle::{Name, Store};

mod history;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  flyball why reindex          why the throttle reindex runs at its rate
  flyball why reindex --history=20   and its last 20 decisions, with every term
  flyball why --job 42         why job 42 waits, and until when
  flyball why --message 42     the gate that holds message 42, and what comes after")]
pub(super) struct Args {
    /// The throttle's name
    #[arg(required_unless_present_any = ["job", "message"])]
    throttle: Option<String>,
    /// Explain the wait of this job instead
    #[arg(long, value_name = "ID", conflicts_with = "throttle")]
    job: Option<i64>,
    /// Explain the wait of this message instead: its gates, and what comes after them
    #[arg(long, value_name = "ID", conflicts_with_all = ["throttle", "job"])]
    message: Option<i64>,
    /// Also list the governor's last decisions with all terms, newest first; all stored ones
    /// without a number
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true, default_missing_value = "1000",
          allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(1..=1000), conflicts_with_all = ["job", "message"])]
    history: Option<i64>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(args: Args, settings: Settings) -> anyhow::Result<ExitCode> {
    let queue = connect::queue(&settings).await?;
    if let Some(id) = args.message {
        return message(&queue, &settings, id, args.json).await;
    }
    let throttles = connect::throttles(&settings).await?;
    match (args.job, args.throttle) {
        (Some(id), _) => {
            let kinds = app::built_in_kinds(&settings, None)?;
            job((&queue, &*throttles, &kinds), &settings, id, args.json).await?;
        }
        (None, throttle) => {
            let name = Name::or_pattern(throttle.unwrap_or_default())?;
            let status = throttles.status(&name).await?;
            let journal = app::JournalReader::new(
                &queue,
                &throttles,
                &app::policies(&app::read_knobs(settings.knobs_folder()?)?)?,
            )
            .with_made_max(settings.throttles_created_max);
            let sentence = journal.sentence(&name, status.as_ref(), true).await?;
            let history = args.history.unwrap_or(0);
            let decisions = crate::governor::Journal::new(queue.pool.clone())
                .recent(Some(name.as_str()), history)
                .await?;
            if args.json {
                let now = status
                    .as_ref()
                    .map_or_else(|| 0.0, |status| status.at_us as f64 / 1e6);
                let governor = journal.view(&name, now).await?;
                // The sentence tells them without their fields.
                let mut unserved = queue.unserved().await?;
                unserved.retain(|one| one.throttle == name.as_str());
                let answer = json!({ "throttle": name, "sentence": sentence, "governor": governor, "decisions": decisions, "unserved": unserved });
                output::json(&answer)?;
            } else {
                say!("{sentence}");
                if args.history.is_some() {
                    history::show(&decisions)?;
                }
            }
            if status.is_none() {
                return Ok(ExitCode::from(exit::NOT_FOUND));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn message(
    queue: &Queue,
    settings: &Settings,
    id: i64,
    json: bool,
) -> anyhow::Result<ExitCode> {
    let Some(mut explained) = connect::gates(queue, settings)?.explain(id, None).await? else {
        bail!(CliError::NotFound(format!("there is no message {id}")));
    };
    let pause = match explained.state.as_str() {
        "queued" => admission::Batches::new(queue.clone()).pause_of(id).await?,
        _ => None,
    };
    // The gates explain without Redis as well.
    if let Some(pause) = pause {
        crate::api::add_pause(&mut explained, &pause);
    } else if explained.state == "queued"
        && let Ok(throttles) = connect::throttles(settings).await
    {
        if let Some(waiting) = admission::waiting(queue, &*throttles, id).await? {
            crate::api::add_admission(&mut explained, &waiting);
        } else if let Some(detail) = queue.get(id).await? {
            let kinds = app::built_in_kinds(settings, None)?;
            let stores = (queue, &*throttles, &kinds);
            crate::api::add_wait_of_job(&mut explained, stores, &detail, true).await;
        }
    }
    add_accounts(queue, settings, &mut explained).await;
    if json {
        output::json(&explained)?;
    } else {
        say!("{}", explained.sentence);
    }
    Ok(ExitCode::SUCCESS)
}

async fn job(
    stores: (&Queue, &dyn Store, &Kinds),
    settings: &Settings,
    id: i64,
    json: bool,
) -> anyhow::Result<()> {
    let Some(detail) = stores.0.get(id).await? else {
        bail!(CliError::NotFound(format!("there is no job {id}")));
    };
    let mut waiting = crate::api::why_job_waits(stores, &detail, true).await;
    if let Some(waits) = &mut waiting
        && detail.summary.kind == KIND
        && let Some(pool) = super::pool::seen(settings, &detail.summary.throttle).await
    {
        add_limits(&mut waits.reason, &pool, true);
    }
    if json {
        return output::json(
            &serde_json::json!({ "id": id, "state": detail.summary.state, "waiting": waiting }),
        );
    }
    match waiting {
        Some(waiting) => {
            let until = waiting
                .until
                .map_or_else(String::new, |until| format!("; until {until:.0}"));
            say!("job {id} waits: {}{until}", waiting.reason);
        }
        None => say!(
            "job {id} does not wait: it is {}",
            detail.summary.state.as_str()
        ),
    }
    Ok(())
}

/// Adds the limits of its pool's accounts to the explanation of a message that waits there.
async fn add_accounts(queue: &Queue, settings: &Settings, explained: &mut MessageExplanation) {
    if waits_at_pool(explained)
        && let Ok(Some(message)) = Deliveries::new(&queue.pool).find(explained.id, None).await
        && let Some(pool) = super::pool::seen(settings, &message.pool).await
    {
        add_limits(&mut explained.sentence, &pool, true);
    }
}
