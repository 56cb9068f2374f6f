//! `flyball simulate`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};

use super::exit::CliError;
use super::given_text::text_of_file;
use super::output;
use super::output::say;
use crate::governor::Policy;
use crate::simulate::compare::{self, ComparisonRow, Sum};
use crate::simulate::disturbance::Disturbance;
use crate::simulate::{Contender, Scenario, library, plot, random_table};

#[derive(clap::Args)]
#[command(
    after_help = "Scenarios are knobs files with tables that describe the plant; those in scenarios/ are built in.

Columns: over: seconds x setpoints of the load average above the setpoint (refused: seconds x share
of refused work); peak: the highest value from the step on; back: seconds from the step until the
load was below 1.1 setpoints for half a minute; recovered: seconds until the start of a minute with
80 % of the possible rate and a load below 1.15 setpoints; used: share of the possible jobs that ran,
at most 100 % in each second; raw: jobs over possible jobs, above 100 at the price of overload; swing:
standard deviation of the knob's logarithm around its five-minute mean; turns: reversals of the knob by
more than a fifth, per hour. The possible jobs are those of a controller that knows the plant at every
second. Figures are means over the days.

Examples:
  flyball simulate --all --seeds 20               every scenario, twenty days each
  flyball simulate S1 S13 --svg pictures          two of them, with a picture of the first day of each
  flyball simulate mine.toml --set gain=1.2       your own plant, with another gain
  flyball simulate --all --set durations=false    the benefit of one part of the controller
  flyball simulate --random 400 --seed 1          400 random plants, compared with an oracle that is 35 s late"
)]
pub(super) struct Args {
    /// Names of scenarios, or files
    #[arg(value_name = "SCENARIO", required_unless_present_any = ["all", "list", "random"])]
    scenarios: Vec<String>,
    /// All built-in scenarios, without M1 to M6, which take five days each
    #[arg(long, conflicts_with = "scenarios")]
    all: bool,
    /// Draw N random plants instead, one day each; --seed chooses the series
    #[arg(long, value_name = "N", conflicts_with_all = ["scenarios", "all", "list", "seeds", "svg", "policy", "set"], value_parser = clap::value_parser!(u64).range(1..=10_000))]
    random: Option<u64>,
    /// List the built-in scenarios and exit
    #[arg(long)]
    list: bool,
    /// Number of simulated days per scenario
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    seeds: u64,
    /// Seed of the first day; the same seed gives the same day
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Controllers to compare: flyball, pid, aimd, fixed, oracle (knows the plant, 35 s late)
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "flyball,pid,aimd,fixed", default_value_if("random", clap::builder::ArgPredicate::IsPresent, "flyball,pid,oracle"), value_parser = contender)]
    controllers: Vec<Contender>,
    /// A knobs file whose [governor] table overrides that of the scenarios
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// One key of [governor], such as gain=1.2; repeatable
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Write a chart of the first day of each scenario to this directory
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,
    /// Print the tables as Markdown
    #[arg(long, conflicts_with = "json")]
    markdown: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if let Some(plants) = args.random {
        return random(args, plants);
    }
    let mut known = library::scenarios()?;
    known.extend(library::mail_scenarios()?);
    if args.list && args.json {
        let all: Vec<_> = known
            .iter()
            .map(|s| serde_json::json!({ "name": s.name, "about": s.about }))
            .collect();
        output::json(&serde_json::json!({ "scenarios": all }))?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.list {
        output::table(
            &["NAME", "WHAT HAPPENS"],
            known.iter().map(|s| vec![s.name.clone(), s.about.clone()]),
        )?;
        return Ok(ExitCode::SUCCESS);
    }
    let wanted: Vec<(String, String)> = if args.all {
        library::FILES
            .iter()
            .map(|(file, text)| ((*file).to_owned(), (*text).to_owned()))
            .collect()
    } else {
        args.scenarios
            .iter()
            .map(|name| find(name, &known))
            .collect::<anyhow::Result<_>>()?
    };
    let law = law(args)?;
    let mut scenarios = Vec::new();
    for (file, text) in &wanted {
        let scenario = Scenario::parse(text, file)?;
        scenarios.push(match &law {
            Some(law) => scenario.under(law.clone()),
            None => scenario,
        });
    }

    let rows = compare::compare(&scenarios, &args.controllers, args.seed, args.seeds);
    let sums = compare::sums(&rows);
    if let Some(directory) = &args.svg {
        draw_all(directory, &scenarios, args.seed)?;
    }
    if args.json {
        output::json(
            &serde_json::json!({ "days": args.seeds, "first_day": args.seed, "rows": rows, "sums": sums }),
        )?;
    } else {
        tables(&scenarios, &rows, &sums, args)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Number of plants that are listed with the lowest use.
const WORST_PLANTS: usize = 10;

fn random(args: &Args, plants: u64) -> anyhow::Result<ExitCode> {
    let scores = random_table::scores(&args.controllers, law(args)?.as_ref(), args.seed, plants)?;
    let rows = random_table::rows(&args.controllers, &scores);
    if args.json {
        output::json(&serde_json::json!({ "seed": args.seed, "rows": rows, "plants": scores }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let percent = |value: f64| format!("{:.1}", 100.0 * value);
    let ratio =
        |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"));
    let header = [
        "controller",
        "used %",
        "used % (p5)",
        "of oracle",
        "of oracle (p5)",
        "over s",
        "overload, x pid",
        "unstable",
    ];
    let cells = rows.iter().map(|row| {
        vec![
            row.controller.to_owned(),
            percent(row.used),
            percent(row.used_p5),
            ratio(row.of_oracle),
            ratio(row.of_oracle_p5),
            format!("{:.0}", row.overload_s),
            ratio(row.overload_of_pid),
            row.unstable.to_string(),
        ]
    });
    print(args, &header, cells)?;
    say!("");
    let mut header = vec!["plant".to_owned()];
    header.extend(
        args.controllers
            .iter()
            .map(|one| format!("{} %", one.name())),
    );
    header.push("what it is".to_owned());
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    let worst = random_table::worst(&scores, 0, WORST_PLANTS);
    let cells = worst.into_iter().map(|plant| {
        let mut cells = vec![plant.plant.to_string()];
        cells.extend(plant.scores.iter().map(|score| percent(score.throughput)));
        cells.push(plant.about.clone());
        cells
    });
    print(args, &header, cells)?;
    say!("");
    say!(
        "{plants} plants of seed {}, two hours each; the distribution is in docs/governor.md",
        args.seed
    );
    Ok(ExitCode::SUCCESS)
}

fn contender(name: &str) -> Result<Contender, String> {
    let names = Contender::ALL.map(Contender::name);
    Contender::ALL
        .into_iter()
        .find(|one| one.name() == name)
        .ok_or_else(|| format!("allowed are {}", names.join(",")))
}

/// Returns the file of a scenario and its text, by its name or as a path.
fn find(name: &str, known: &[Scenario]) -> anyhow::Result<(String, String)> {
    if let Some(n) = known
        .iter()
        .position(|scenario| scenario.name.eq_ignore_ascii_case(name))
    {
        let mut files = library::FILES.iter().chain(library::MAIL_FILES);
        if let Some((file, text)) = files.nth(n) {
            return Ok(((*file).to_owned(), (*text).to_owned()));
        }
    }
    if !Path::new(name).exists() {
        let names: Vec<&str> = known
            .iter()
            .map(|scenario| scenario.name.as_str())
            .collect();
        bail!(CliError::NotFound(format!(
            "there is no scenario and no file {name:?}; use a file or one of {}",
            names.join(", ")
        )));
    }
    Ok((name.to_owned(), text_of_file(Path::new(name))?))
}

/// Returns the law that replaces the scenarios' own, if one is given.
fn law(args: &Args) -> anyhow::Result<Option<crate::governor::ControllerTuning>> {
    if args.policy.is_none() && args.set.is_empty() {
        return Ok(None);
    }
    let text = match &args.policy {
        None => String::new(),
        Some(path) => {
            let text = text_of_file(path)?;
            // Faults of the file are reported with its name and their lines.
            Policy::parse(&text, &path.display().to_string())?;
            text
        }
    };
    let mut file: toml::Table = text.parse().context("reading the policy")?;
    // Only the law is taken from the file, because the scenario has signals of its own.
    let mut table = match file.remove("governor") {
        Some(toml::Value::Table(table)) => table,
        _ => toml::Table::new(),
    };
    for set in &args.set {
        let one: toml::Table = match set.parse() {
            Ok(one) => one,
            Err(_) => bail!(CliError::Refused(format!(
                "--set {set:?} is not KEY=VALUE, such as gain=1.2"
            ))),
        };
        table.extend(one);
    }
    let signal = "[[signal]]\nname = \"load\"\nquery = \"load\"\nsetpoint = 1\n";
    let whole = format!("{signal}[governor]\n{table}");
    match Policy::parse(&whole, "--set") {
        Ok(policy) => Ok(policy.map(|policy| policy.law)),
        Err(refused) => {
            // Line numbers of the text made here would mislead; the key names the place.
            let faults: Vec<String> = refused
                .0
                .iter()
                .map(|fault| format!("--set: {}: {}", fault.key, fault.reason))
                .collect();
            bail!(CliError::Refused(faults.join("\n")))
        }
    }
}

fn draw_all(directory: &Path, scenarios: &[Scenario], seed: u64) -> anyhow::Result<()> {
    std::fs::create_dir_all(directory)
        .with_context(|| format!("making {}", directory.display()))?;
    for scenario in scenarios {
        let weather = Disturbance::draw(scenario, seed);
        let governed = crate::simulate::run(scenario, &weather, Contender::Flyball);
        let other = crate::simulate::run(scenario, &weather, Contender::Pid);
        let svg = plot::draw(scenario, &governed, (Contender::Pid.name(), &other))
            .map_err(anyhow::Error::msg)?;
        let name: String = scenario
            .name
            .to_lowercase()
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
            .collect();
        let path = directory.join(format!("{name}.svg"));
        std::fs::write(&path, svg).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

fn tables(
    scenarios: &[Scenario],
    rows: &[ComparisonRow],
    sums: &[Sum],
    args: &Args,
) -> anyhow::Result<()> {
    let header = [
        "scenario",
        "controller",
        "over s",
        "peak",
        "back s",
        "recovered s",
        "used %",
        "raw %",
        "swing",
        "turns/h",
    ];
    let cells = rows.iter().map(|row| {
        let score = &row.mean;
        let seconds = |value: Option<f64>| {
            value.map_or_else(|| "-".to_owned(), |value| format!("{value:.0}"))
        };
        let percent = |value: f64| format!("{:.1}", 100.0 * value);
        let peak = if row.refusals {
            "-".to_owned()
        } else {
            format!("{:.2}", score.peak)
        };
        vec![
            row.scenario.clone(),
            row.controller.to_owned(),
            format!(
                "{:.0}{}",
                score.overload_s,
                if row.refusals { " refused" } else { "" }
            ),
            peak,
            seconds(score.back_s),
            seconds(score.recovered_s),
            percent(score.throughput),
            percent(score.raw),
            format!("{:.3}", score.oscillation),
            format!("{:.0}", score.reversals),
        ]
    });
    print(args, &header, cells)?;
    say!("");
    let header = [
        "controller",
        "overload, x pid",
        "used % (mean)",
        "used % (worst)",
        "S8 spread",
    ];
    let cells = sums.iter().map(|sum| {
        let maybe = |value: Option<f64>| {
            value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"))
        };
        vec![
            sum.controller.to_owned(),
            maybe(sum.overload_of_pid),
            format!("{:.1}", 100.0 * sum.throughput),
            format!("{:.1} ({})", 100.0 * sum.worst.0, sum.worst.1),
            maybe(sum.gain_spread),
        ]
    });
    print(args, &header, cells)?;
    let virtual_s: u64 = scenarios.iter().map(|scenario| scenario.duration_s).sum();
    let hours = (virtual_s * args.seeds * args.controllers.len() as u64) as f64 / 3600.0;
    say!("");
    say!(
        "{} days of each scenario, from day {}: {hours:.0} hours of virtual time",
        args.seeds,
        args.seed
    );
    Ok(())
}

fn print(
    args: &Args,
    header: &[&str],
    rows: impl Iterator<Item = Vec<String>>,
) -> anyhow::Result<()> {
    if !args.markdown {
        return output::table(
            &header
                .iter()
                .map(|name| name.to_uppercase())
                .collect::<Vec<_>>()
                .iter()
                .map(String::as_str)
                .collect::<Vec<_>>(),
            rows,
        );
    }
    say!("| {} |", header.join(" | "));
    say!("|{}", "---|".repeat(header.len()));
    for row in rows {
        say!("| {} |", row.join(" | "));
    }
    Ok(())
}
