//! `flyball replay`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};

use super::exit::CliError;
use super::given_text::text_of_file;
use super::output::say;
use super::{output, when};
use crate::app;
use crate::config::Settings;
use crate::governor::{Actuator, Bounds, Policy};
use crate::replay::report::replayed;
use crate::replay::run::Figures;
use crate::replay::{self, Recording, ReplayReport};
use crate::throttle::Knobs;
use crate::throttle::file::KnobsFile;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  flyball replay --policy knobs/reindex.toml --from 24h
  flyball replay --policy knobs/reindex.toml --file incident.csv --svg incident.svg

A file has rows of time, signal, value and rate: CSV with that header, or one JSON object per line.")]
pub(super) struct Args {
    /// Knobs file with the policy and the bounds `min`, `max` and `safe_rps`; its name is that of
    /// the throttle
    #[arg(long, value_name = "FILE")]
    policy: PathBuf,
    /// Read the recording from a file instead of Prometheus
    #[arg(long, value_name = "FILE", conflicts_with_all = ["from", "to", "step", "rate"])]
    file: Option<PathBuf>,
    /// Start of the range in Prometheus: a time such as 2026-11-20T14:00:00Z, or a span before now
    /// such as 24h
    #[arg(long, value_name = "TIME", default_value = "6h", value_parser = when::ago)]
    from: jiff::Timestamp,
    /// End of the range in Prometheus; now by default
    #[arg(long, value_name = "TIME", value_parser = when::ago)]
    to: Option<jiff::Timestamp>,
    /// Seconds between values of queries that are not plain selectors
    #[arg(long, value_name = "SECONDS", default_value_t = 15, allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=300))]
    step: u32,
    /// PromQL for the achieved rate, in jobs per second; by default Flyball's own metric of the
    /// throttle
    #[arg(long, value_name = "QUERY")]
    rate: Option<String>,
    /// Seconds from a sample's time until the governor reads it
    #[arg(long, value_name = "SECONDS", default_value_t = 5, allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(0..=600))]
    delay: u32,
    /// Write a chart of the replay to this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(args: Args, settings: Settings) -> anyhow::Result<ExitCode> {
    let (file, policy) = policy(&args.policy)?;
    if policy.law.actuator != Actuator::Rps {
        let what = "its governor sets concurrency, and a replay is about rates; remove actuator \
                    from [governor] to replay";
        bail!(CliError::Refused(format!(
            "{}: {what}",
            args.policy.display()
        )));
    }
    let throttle = file.name.as_str();
    let record = match &args.file {
        Some(path) => from_file(path, &policy)?,
        None => from_prometheus(&args, &settings, throttle, &policy).await?,
    };
    let (knobs, _) = Knobs::read(&file.fields);
    let bounds = Bounds {
        min: knobs.min,
        max: knobs.max,
        safe_rps: knobs.safe_rps.number(),
    };
    let setting = replay::ReplaySettings {
        bounds,
        delay_s: f64::from(args.delay),
    };
    let report = replay::replay(throttle, &policy, &setting, &record)
        .map_err(|problem| refused(&args, &problem))?;
    if let Some(path) = &args.svg {
        let svg =
            replay::plot::svg(&report).map_err(|reason| anyhow::anyhow!("drawing: {reason}"))?;
        std::fs::write(path, svg).with_context(|| format!("writing {}", path.display()))?;
    }
    if args.json {
        output::json(&report)?
    } else {
        print_report(&report)?
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads the knobs file at `path`, and the policy in it.
pub(super) fn policy(path: &Path) -> anyhow::Result<(KnobsFile, Policy)> {
    let text = text_of_file(path)?;
    let policy = Policy::parse(&text, &path.display().to_string())?;
    let file = KnobsFile::parse(path, text)?;
    match policy {
        Some(policy) => Ok((file, policy)),
        None => bail!(CliError::Refused(format!(
            "{} has no [[signal]], so there is no policy to replay",
            path.display()
        ))),
    }
}

fn from_file(path: &Path, policy: &Policy) -> anyhow::Result<Recording> {
    let text = text_of_file(path)?;
    let known: Vec<&str> = replayed(policy)
        .iter()
        .map(|signal| signal.name.as_str())
        .collect();
    Recording::parse(&text, &known)
        .map_err(|problem| CliError::Refused(format!("{}: {problem}", path.display())).into())
}

async fn from_prometheus(
    args: &Args,
    settings: &Settings,
    throttle: &str,
    policy: &Policy,
) -> anyhow::Result<Recording> {
    let seconds = |at: jiff::Timestamp| at.as_microsecond() as f64 / 1e6;
    let to = args.to.unwrap_or_else(when::now);
    if args.from >= to {
        bail!(CliError::Refused(format!(
            "--from {} is not before --to {to}; the range is empty",
            args.from
        )));
    }
    let query = args
        .rate
        .clone()
        .unwrap_or_else(|| replay::prometheus::rate_query(throttle));
    let sources = app::prometheus_sources(settings)?;
    sources.check(policy)?;
    let range = (seconds(args.from), seconds(to));
    Ok(replay::prometheus::record(&sources, policy, &query, range, f64::from(args.step)).await?)
}

fn refused(args: &Args, problem: &replay::RecordingProblem) -> CliError {
    let place = args
        .file
        .as_ref()
        .map_or_else(String::new, |path| format!("{}: ", path.display()));
    CliError::Refused(format!("{place}{problem}"))
}

fn print_report(report: &ReplayReport) -> anyhow::Result<()> {
    let at = |t: f64| {
        jiff::Timestamp::from_second(t as i64).map_or_else(|_| t.to_string(), |t| t.to_string())
    };
    let hours = (report.to - report.from) / 3600.0;
    say!(
        "{}: {} to {} ({hours:.1} h), {}",
        report.throttle,
        at(report.from),
        at(report.to),
        report.signals.join(", ")
    );
    let columns = report.would_be.iter().map(|variant| match variant.share {
        Some(share) => format!("WOULD BE ({:.0} % OURS)", 100.0 * share),
        None => "WOULD BE".to_owned(),
    });
    let header: Vec<String> = ["", "RECORDED"]
        .map(str::to_owned)
        .into_iter()
        .chain(columns)
        .collect();
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    let all = || {
        std::iter::once(&report.recorded)
            .chain(report.would_be.iter().map(|variant| &variant.figures))
    };
    let row = |name: &str, of: &dyn Fn(&Figures) -> String| {
        std::iter::once(name.to_owned())
            .chain(all().map(of))
            .collect()
    };
    let unknown = || "-".to_owned();
    let rows: Vec<Vec<String>> = vec![
        row("jobs", &|f| format!("{:.0}", f.jobs)),
        row("overload, setpoint seconds", &|f| {
            format!("{:.0}", f.overload_s)
        }),
        row("  above 1.2 setpoints", &|f| {
            format!("{:.0}", f.overload_20_s)
        }),
        row("peak, setpoints", &|f| format!("{:.2}", f.peak)),
        row("trips", &|f| {
            f.trips.map_or_else(unknown, |n| n.to_string())
        }),
        row("stopped, s", &|f| {
            f.stopped_s.map_or_else(unknown, |s| format!("{s:.0}"))
        }),
    ];
    output::table(&header, rows)?;
    report.notes.iter().try_for_each(output::line)
}
