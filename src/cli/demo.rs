//! `flyball demo`.

use std::process::ExitCode;

use crate::app::{App, Roles};
use crate::config::Settings;
use crate::demo::{self, AppHandle, AppSettings, DemoOptions, PlotOptions};
use crate::jobs::Kinds;

/// Run a demo on a dashboard: a reindex of real documents under a governor, then a message campaign
///
/// Starts a private Postgres, Redis and Prometheus, a search store, the API, workers and the
/// governor; loads 117,659 documents; indexes them through the throttle `reindex`; makes them ten
/// times more expensive to index after a while. Then it sends 20,000 messages over a pool of
/// accounts; blocks one, suspends one, and halves the quota of all. Runs until Ctrl-C, or with
/// --headless for a number of seconds.
///
/// Exit codes: 0 success; 69 a required program is not installed (the output says which); 1 any
/// other failure.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    options: DemoOptions,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Draw the chart of a report
    Plot(PlotOptions),
}

/// Grace time of the demo's worker, in seconds: short, because a demo should end at once, and its
/// reindex resumes from the same place.
const GRACE_S: f64 = 0.5;

/// Time to live of the demo's worker, in seconds: short, because a demo that was killed should go
/// on soon after it is started again.
const WORKER_TTL_S: f64 = 8.0;

pub(super) async fn run(args: Args, settings: Settings) -> anyhow::Result<ExitCode> {
    if let Some(Command::Plot(options)) = args.command {
        demo::plot::plot(&options)?;
        return Ok(ExitCode::SUCCESS);
    }
    demo::run(args.options, async |wanted: AppSettings| {
        start(settings, wanted).await
    })
    .await?;
    Ok(ExitCode::SUCCESS)
}

async fn start(settings: Settings, wanted: AppSettings) -> anyhow::Result<AppHandle> {
    let settings = Settings {
        database_url: wanted.database_url,
        redis_url: wanted.redis_url,
        prometheus_url: wanted.prometheus_url,
        listen: wanted.listen,
        knobs_dir: wanted.knobs_dir.display().to_string(),
        allow_private_urls: true,
        grace_s: GRACE_S,
        worker_ttl_s: WORKER_TTL_S,
        // The pools and indexes of a settings file are real, and have no part in a demo.
        pools: wanted.pools,
        reindex: wanted.reindex,
        ..settings
    };
    let app = App::start(&settings, Roles::ALL, Kinds::default()).await?;
    let url = app
        .address
        .map_or_else(String::new, |address| format!("http://{address}"));
    Ok(AppHandle {
        url,
        queue: app.queue.clone(),
        throttles: app.throttles.clone(),
        stop: Box::pin(app.stop()),
    })
}
