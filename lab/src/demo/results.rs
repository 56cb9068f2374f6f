//! The files that a run leaves: figures as JSON, and a picture beside each.

use std::path::Path;

use anyhow::Context;

use super::knobs::{self, THROTTLE};
use super::narrate::print_line;
use super::pass::{BATCH_DOCS, CONCURRENCY, Pass};
use super::report::{DemoReport, Machine, RunSettings, measure};
use super::run::AppHandle;
use super::tally::Campaign;
use super::watch::{StoreClient, StoreWatch};
use super::{DemoOptions, GovernorSwitch, campaign_plot, plot, postgres, store};

/// The number of the store's engine connections.
const STORE_CORES: u32 = 2;

/// Writes the figures of the first act.
#[expect(
    clippy::too_many_arguments,
    reason = "everything that a run consists of, used once"
)]
pub(super) async fn report_reindex(
    options: &DemoOptions,
    path: &Path,
    app: &AppHandle,
    watch: &StoreWatch,
    store: &StoreClient,
    pass: &Pass,
    file: &knobs::File,
    (began_s, harder_s, end_s): (f64, f64, f64),
    began_at: jiff::Timestamp,
) -> anyhow::Result<()> {
    let pool = &app.queue.pool;
    let samples = watch.samples();
    let until_s = samples.last().map_or(end_s, |s| s.t_s).min(end_s);
    let setpoint = file.signal[0].setpoint;
    let (mut documents, load, course) = measure(&samples, began_s, harder_s, until_s, setpoint);
    documents.corpus = postgres::count(pool).await? as u64;
    documents.in_index = store.count(&pass.index).await?;
    let report = DemoReport {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        began_at: began_at.to_string(),
        settings: RunSettings {
            governor: if options.governor == GovernorSwitch::On {
                "on"
            } else {
                "off"
            }
            .to_owned(),
            seconds: until_s - began_s,
            harder_after_s: options.harder_after_s(),
            rps: options.rps.unwrap_or(file.knobs.rps),
            setpoint,
            store_cores: STORE_CORES,
            load_averaged_over_s: store::load::AVERAGED_OVER_S,
            batch_docs: BATCH_DOCS,
            concurrency: CONCURRENCY,
        },
        machine: machine(),
        documents,
        load,
        trips: postgres::trips(pool, THROTTLE, began_at.as_microsecond() as f64 / 1e6).await?,
        course,
    };
    println!("{}", report.summary());
    write_report(path, &report)
}

fn write_report(path: &Path, report: &DemoReport) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(report)?;
    std::fs::write(path, text + "\n").with_context(|| format!("writing {}", path.display()))?;
    let picture = path.with_extension("svg");
    plot::draw(report, None, &picture)?;
    print_line(&format!(
        "the report is in {}, its chart in {}",
        path.display(),
        picture.display()
    ));
    Ok(())
}

/// Writes the figures of the second act.
pub(super) fn write_campaign(path: &Path, campaign: &Campaign) -> anyhow::Result<()> {
    let (file, picture) = (
        path.with_extension("campaign.json"),
        path.with_extension("campaign.svg"),
    );
    let text = serde_json::to_string_pretty(campaign)?;
    std::fs::write(&file, text + "\n").with_context(|| format!("writing {}", file.display()))?;
    campaign_plot::draw(campaign, &picture)?;
    print_line(&format!(
        "the campaign's figures are in {}, their chart in {}",
        file.display(),
        picture.display()
    ));
    Ok(())
}

fn machine() -> Machine {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    Machine::new(cores, &read("/proc/cpuinfo"), &read("/proc/meminfo"))
}
