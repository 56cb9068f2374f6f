//! `flyball why`.

use std::path::Path;
use std::process::ExitCode;

use anyhow::bail;

use super::exit::Failure;
use super::output::say;
use super::{connect, output};
use crate::app;
use crate::config::Settings;
use crate::jobs::Queue;
use crate::throttle::{Name, Store};

#[derive(clap::Args)]
#[command(after_help = "Examples:
  flyball why reindex          why the throttle reindex runs at its rate
  flyball why --job 42         why job 42 waits, and until when")]
pub(super) struct Args {
    /// The throttle's name
    #[arg(required_unless_present = "job")]
    throttle: Option<String>,
    /// A job's number instead
    #[arg(long, value_name = "ID", conflicts_with = "throttle")]
    job: Option<i64>,
    /// Also list the last decisions of the governor, newest first
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(i64).range(0..=1000), conflicts_with = "job")]
    decisions: i64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(args: Args, settings: Settings) -> anyhow::Result<ExitCode> {
    let queue = connect::queue(&settings).await?;
    let throttles = connect::throttles(&settings).await?;
    match (args.job, args.throttle) {
        (Some(id), _) => job(&queue, &*throttles, id, args.json).await?,
        (None, throttle) => {
            let name = Name::new(throttle.unwrap_or_default())?;
            let status = throttles.status(&name).await?;
            let journal = app::Journalled::new(&queue, &app::read_knobs(Path::new(&settings.knobs_dir))?.1);
            let sentence = journal.sentence(&name, status.as_ref()).await?;
            let decisions = crate::governor::Journal::new(queue.pool.clone()).recent(Some(name.as_str()), args.decisions).await?;
            if args.json {
                output::json(&serde_json::json!({ "throttle": name, "sentence": sentence, "decisions": decisions }))?;
            } else {
                say!("{sentence}");
                let header = ["AT", "RPS", "BEFORE", "LIMITING", "REASON"];
                let rows = decisions.iter().map(|one| {
                    let (rps, before) = (output::rate(one.rps), output::rate(one.previous_rps));
                    vec![format!("{:.0}", one.at), rps, before, one.limiting.clone(), one.reason.clone()]
                });
                if args.decisions > 0 {
                    output::table(&header, rows)?;
                }
            }
            if status.is_none() {
                return Ok(ExitCode::from(3));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn job(queue: &Queue, throttles: &dyn Store, id: i64, json: bool) -> anyhow::Result<()> {
    let Some(detail) = queue.get(id).await? else {
        bail!(Failure::NotFound(format!("there is no job {id}")));
    };
    let waiting = crate::api::why_job_waits(queue, throttles, &detail).await;
    if json {
        return output::json(&serde_json::json!({ "id": id, "state": detail.summary.state, "waiting": waiting }));
    }
    match waiting {
        Some(waiting) => {
            let until = waiting.until.map_or_else(String::new, |until| format!("; until {until:.0}"));
            say!("job {id} waits: {}{until}", waiting.reason);
        }
        None => say!("job {id} does not wait: it is {}", super::job::word(detail.summary.state)),
    }
    Ok(())
}
