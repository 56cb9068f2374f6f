//! `flyball calibrate`.

use std::io::{BufRead as _, IsTerminal as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use futures_util::FutureExt as _;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::exit::CliError;
use super::given_text::text_of_file;
use super::output::{say, tell};
use super::{connect, output};
use crate::app;
use crate::calibrate::margins::{Margins, margins};
use crate::calibrate::outcome::Preflight;
use crate::calibrate::{CalibrationError, CalibrationResult, CalibrationSession, Fit, Shape, edit};
use crate::config::Settings;
use crate::governor::policy::ControllerTuning;
use crate::throttle::Name;

/// Largest factor between a fitted lag and the policy's at which they agree, because noise hides
/// smaller differences.
const AGREES: f64 = 1.5;
/// Largest relative error of a cost that counts as found; the lag would be even less certain.
const COST_ERROR_MAX: f64 = 0.25;

#[derive(clap::Args)]
#[command(
    after_help = "The rate is changed until the load is at 60 % of its setpoint, then varied by a factor \
of 1.4 around that. The breaker is active all the time, min and max are respected, and the rate is restored \
at the end, on Ctrl-C, when the terminal closes and on every error. Calibration is optional: it gives confidence, and finds a wrong lag.

Examples:
  flyball calibrate reindex                    asks before it starts; writes nothing
  flyball calibrate reindex --yes --write      corrects lag_s in knobs/reindex.toml if it is wrong"
)]
pub(super) struct Args {
    /// The throttle's name
    throttle: String,
    /// Signal to calibrate; without it the first load of the policy
    #[arg(long, value_name = "NAME")]
    signal: Option<String>,
    /// Seconds of each half period of the test; the search before it uses steps of three eighths of
    /// that
    #[arg(long, value_name = "SECONDS", default_value_t = 240, allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(4..=1800))]
    pulse_s: u32,
    /// Half periods of the test, alternately above and below
    #[arg(long, value_name = "N", default_value_t = 6, allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(2..=20))]
    halves: u32,
    /// Start without asking for confirmation
    #[arg(long)]
    yes: bool,
    /// Write the measured lag into the knobs file, if it differs
    #[arg(long)]
    write: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(args: Args, settings: Settings) -> anyhow::Result<ExitCode> {
    let name = Name::new(args.throttle.as_str())?;
    let path = Path::new(&settings.knobs_dir).join(format!("{name}.toml"));
    let (_, policy) = super::replay::policy(&path)?;
    let store = connect::throttles(&settings).await?;
    let shape = Shape::of(f64::from(args.pulse_s), args.halves);
    let law = policy.law.clone();
    let session = CalibrationSession::new(
        store,
        app::prometheus_sources(&settings)?,
        name,
        policy,
        args.signal.as_deref(),
        shape,
    )
    .map_err(refused)?;
    // Without a terminal the consent must be given before the throttle is observed.
    let can_ask = std::io::stdin().is_terminal();
    if !args.yes && !can_ask {
        bail!(CliError::Refused(
            "confirmation requires a terminal; add --yes to start the test".to_owned()
        ));
    }
    let survey = session.survey().await.map_err(refused)?;
    print_plan(&args, &survey, &session);
    if !args.yes && !agreed().await? {
        bail!(CliError::Refused(
            "not started; nothing was changed".to_owned()
        ));
    }
    let cancel = CancellationToken::new();
    let interrupts = interrupts(cancel.clone())?;
    let ended = session.run(&cancel, &mut |step| tell!("{step}")).await;
    interrupts.abort();
    let ended = ended.map_err(refused)?;
    if let Some(why) = &ended.early {
        bail!("the test ended early: {why}. {}", ended.knob);
    }
    let Some(fit) = ended.fit.filter(|fit| fit.cost_error <= COST_ERROR_MAX) else {
        bail!(
            "the response of the load to the rate was too weak to measure. {}",
            ended.knob
        );
    };
    let about = session.signal();
    let wanted =
        (fit.lag_s.max(about.lag_s) > AGREES * fit.lag_s.min(about.lag_s)).then_some(fit.lag_s);
    let writing = wanted
        .filter(|_| args.write)
        .map(|lag_s| write_lag(&path, &about.name, lag_s));
    let summary = CalibrationSummary {
        fit,
        ended: &ended,
        law: &law,
        lag_s: about.lag_s,
        wanted,
        written: matches!(writing, Some(Ok(()))),
        path: &path,
    };
    if args.json {
        summary.json(&about.name)
    } else {
        summary.print(&about.name)
    }?;
    // What half an hour of testing found is printed also if it cannot be written.
    writing.transpose()?;
    Ok(ExitCode::SUCCESS)
}

fn print_plan(args: &Args, survey: &Preflight, session: &CalibrationSession) {
    let minutes = |s: f64| format!("{:.0}", (s / 60.0).ceil());
    tell!(
        "Test of {} by the signal {}: the rate is {:.3} jobs per second now, the load {:.2} of its setpoint.",
        args.throttle,
        session.signal().name,
        survey.rps,
        survey.load
    );
    tell!(
        "It takes {} to {} minutes and sets at most {:.3} jobs per second (min {}, max {}). It \
         ends at once above 1.5 setpoints, where the breaker would trip, and if the knob is \
         changed; then the rate is restored.",
        minutes(survey.lengths_s.0),
        minutes(survey.lengths_s.1),
        survey.most_rps,
        survey.bounds.0,
        survey.bounds.1
    );
}

/// Asks the person at the terminal for consent.
async fn agreed() -> anyhow::Result<bool> {
    output::note("Start it? [y/N] ");
    let answer = tokio::task::spawn_blocking(|| {
        let mut line = String::new();
        std::io::stdin().lock().read_line(&mut line).map(|_| line)
    });
    let answer = answer.await?.context("reading the answer")?;
    Ok(matches!(
        answer.trim().to_ascii_lowercase().as_str(),
        "y" | "yes"
    ))
}

/// Makes Ctrl-C, SIGTERM and the SIGHUP of a terminal that closes end the test in order from here
/// on.
fn interrupts(cancel: CancellationToken) -> anyhow::Result<tokio::task::JoinHandle<()>> {
    let (mut interrupt, mut terminate) = (
        signal(SignalKind::interrupt())?,
        signal(SignalKind::terminate())?,
    );
    // A test that was started by nohup outlives its terminal.
    let mut hangup = match app::ignores_hangup() {
        true => None,
        false => Some(signal(SignalKind::hangup())?),
    };
    let interrupted = async move {
        let hung_up = async {
            match &mut hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hung_up => {}
        }
        cancel.cancel();
    };
    Ok(tokio::spawn(interrupted.boxed()))
}

/// Sets the lag of a signal in the knobs file as it is now: a person may have edited it during the
/// test.
fn write_lag(path: &Path, signal: &str, lag_s: f64) -> anyhow::Result<()> {
    let text = text_of_file(path)?;
    let edited = edit::set_lag(&text, signal, lag_s).map_err(|reason| {
        CliError::Refused(format!("cannot write {}: {reason}", path.display()))
    })?;
    replace(path, &edited)
}

/// Replaces a file by a text in one step, keeping the file's permissions.
fn replace(path: &Path, text: &str) -> anyhow::Result<()> {
    let context = || format!("writing {}", path.display());
    let real = path.canonicalize().with_context(context)?;
    let beside = PathBuf::from(format!("{}.new", real.display()));
    std::fs::write(&beside, text).with_context(context)?;
    let rights = std::fs::metadata(&real)
        .with_context(context)?
        .permissions();
    std::fs::set_permissions(&beside, rights).with_context(context)?;
    std::fs::rename(&beside, &real).with_context(context)
}

fn refused(refusal: CalibrationError) -> anyhow::Error {
    match refusal {
        CalibrationError::State(why) => CliError::Refused(why).into(),
        CalibrationError::Store(error) => error.into(),
        CalibrationError::Signal(error) => error.into(),
    }
}

/// The output at the end of a test.
struct CalibrationSummary<'a> {
    fit: Fit,
    ended: &'a CalibrationResult,
    law: &'a ControllerTuning,
    /// The lag in the policy, in seconds.
    lag_s: f64,
    /// The lag that the policy should have if its own is wrong, in seconds.
    wanted: Option<f64>,
    written: bool,
    path: &'a Path,
}

impl CalibrationSummary<'_> {
    fn margins(&self, lag_s: f64) -> Margins {
        margins(
            &self.fit,
            self.law,
            lag_s,
            self.ended.spacing_s,
            self.ended.late_s,
        )
    }

    fn json(&self, signal: &str) -> anyhow::Result<()> {
        let (now, then) = (
            self.margins(self.lag_s),
            self.margins(self.wanted.unwrap_or(self.lag_s)),
        );
        output::json(&json!({
            "signal": signal,
            "found": self.fit,
            "spacing_s": self.ended.spacing_s,
            "late_s": self.ended.late_s,
            "policy": { "lag_s": self.lag_s, "margins": now },
            "proposed": { "lag_s": self.wanted, "margins": then },
            "written": self.written,
            "knob": self.ended.knob,
        }))
    }

    fn print(&self, signal: &str) -> anyhow::Result<()> {
        let fit = &self.fit;
        let row =
            |name: &str, value: String, what: &str| vec![name.to_owned(), value, what.to_owned()];
        let rows = [
            row(
                "lag",
                format!("{:.0} s", fit.lag_s),
                "averaging time of the exporter; accurate in its order of magnitude",
            ),
            row(
                "dead time",
                format!("{:.0} s", fit.dead_time_s),
                "hard to distinguish from a lag under noise",
            ),
            row(
                "share",
                format!("{:.0} %", 100.0 * fit.share),
                "of the load that our jobs caused during the test",
            ),
            row(
                "rate at setpoint",
                format!("{} /s", output::number(fit.rate_at_setpoint)),
                "accurate within 20 %",
            ),
            row(
                "noise",
                format!("{:.0} %", 100.0 * fit.noise),
                "of the setpoint",
            ),
            row(
                "background",
                format!("{:.2}", fit.background),
                "setpoints, caused by other callers",
            ),
            row(
                "samples",
                fit.samples.to_string(),
                &format!(
                    "every {:.0} s, read {:.0} s late",
                    self.ended.spacing_s, self.ended.late_s
                ),
            ),
        ];
        output::table(&["FOUND", "", ""], rows)?;
        let words = |m: Margins| {
            format!(
                "gain margin {:.1}, phase margin {:.0} degrees",
                m.gain, m.phase_deg
            )
        };
        say!(
            "The policy says lag_s = {} for {signal}: {}, without the predictor.",
            self.lag_s,
            words(self.margins(self.lag_s))
        );
        match (self.wanted, self.written) {
            (None, _) => say!("That agrees with the measurement; there is nothing to write."),
            (Some(lag_s), true) => {
                say!(
                    "Written into {}: lag_s = {lag_s} ({}). Restart the governor to use it.",
                    self.path.display(),
                    words(self.margins(lag_s))
                );
            }
            (Some(lag_s), false) => {
                say!(
                    "--write would write into {}: lag_s = {lag_s} ({}).",
                    self.path.display(),
                    words(self.margins(lag_s))
                );
            }
        }
        output::line(&self.ended.knob)
    }
}
