//! The options of the demo's commands.

use std::path::PathBuf;

/// Show Flyball: a real reindex under a governor, then a campaign of messages, on a dashboard.
///
/// Starts a private Postgres, Redis and Prometheus, a search store, the API, workers and the
/// governor; loads 117,659 documents; indexes them through the throttle `reindex`; makes them ten
/// times more expensive to index after a while. Then it sends 20,000 messages over a pool of
/// accounts; blocks one, suspends one, and halves the quota of all. Runs until Ctrl-C, or with
/// --headless for a number of seconds.
///
/// Exit codes: 0 success; 69 a required program is not installed (the output says which); 1 any
/// other failure.
#[derive(Clone, Debug, clap::Args)]
pub struct DemoOptions {
    /// Directory for everything that the demo makes.
    #[arg(long, value_name = "DIR", default_value = ".flyball/demo")]
    pub dir: PathBuf,

    /// Run for --seconds without a browser, then end.
    #[arg(long)]
    pub headless: bool,

    /// Act to show; both of a headless run share --seconds, two fifths to three.
    #[arg(long, value_enum, default_value = "both")]
    pub act: Act,

    /// Duration of a headless run, from the first document or message on.
    #[arg(long, value_name = "N", default_value_t = 180.0, value_parser = seconds)]
    pub seconds: f64,

    /// Write figures to this file (JSON) at the end, and a chart beside it (SVG).
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,

    /// Time at which the documents become ten times harder, in seconds; default 75, or after 40 %
    /// of the act when headless.
    #[arg(long, value_name = "N", value_parser = seconds)]
    pub harder_after: Option<f64>,

    /// Off: the rate stays at --rps, for comparison.
    #[arg(long, value_enum, default_value = "on")]
    pub governor: GovernorSwitch,

    /// Documents per second: the initial rate with the governor, the constant rate without.
    #[arg(long, value_name = "R", value_parser = rate)]
    pub rps: Option<f64>,

    /// Remove the data of an earlier demo in --dir first.
    #[arg(long)]
    pub fresh: bool,

    /// Address of the API and the dashboard.
    #[arg(
        long,
        env = "FLYBALL_LISTEN",
        value_name = "ADDRESS",
        default_value = "127.0.0.1:8080"
    )]
    pub listen: String,

    /// Directory with WordNet's files data.noun, data.verb, data.adj and data.adv, where they are
    /// not found by themselves.
    #[arg(long, env = "FLYBALL_WORDNET_DIR", value_name = "DIR")]
    pub corpus: Option<PathBuf>,

    /// Use this Postgres and start none.
    #[arg(long, env = "DATABASE_URL", hide_env_values = true, value_name = "URL")]
    pub database_url: Option<String>,

    /// Use this Redis and start none.
    #[arg(long, env = "REDIS_URL", hide_env_values = true, value_name = "URL")]
    pub redis_url: Option<String>,

    /// Use this Prometheus and start none; it must scrape the search store.
    #[arg(
        long,
        env = "PROMETHEUS_URL",
        hide_env_values = true,
        value_name = "URL"
    )]
    pub prometheus_url: Option<String>,
}

impl DemoOptions {
    /// Returns the seconds from the first document to the harder ones.
    pub fn harder_after_s(&self) -> f64 {
        self.harder_after.unwrap_or(if self.headless {
            0.4 * self.reindex_s()
        } else {
            75.0
        })
    }

    /// Returns the seconds of a headless run that belong to the reindex.
    pub fn reindex_s(&self) -> f64 {
        if self.act == Act::Both {
            0.4 * self.seconds
        } else {
            self.seconds
        }
    }

    /// Returns the seconds of a headless run that belong to the campaign.
    pub fn campaign_s(&self) -> f64 {
        if self.act == Act::Both {
            0.6 * self.seconds
        } else {
            self.seconds
        }
    }
}

/// The acts of the demo.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Act {
    /// First the reindex, then the campaign.
    Both,
    /// A reindex whose documents become harder.
    Reindex,
    /// A campaign of messages over a pool of accounts whose quota is halved.
    Campaign,
}

/// On or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum GovernorSwitch {
    /// The governor turns the rate.
    On,
    /// The rate stays constant.
    Off,
}

/// The demo's search store, as a process of its own.
///
/// Speaks Elasticsearch's _bulk, _count, _doc and _search. Prints one line of JSON with its URL
/// when it is ready, and stops when its standard input closes.
#[derive(Clone, Debug, clap::Args)]
pub struct StoreOptions {
    /// Directory for its data.
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,

    /// Address to listen on; port 0 takes that of the last run, or a free one.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    pub listen: String,

    /// Use this Postgres as the engine and start none.
    #[arg(long, value_name = "URL")]
    pub database_url: Option<String>,

    /// Engine connections: the number of concurrent bulk requests; others queue.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub cores: u32,

    /// Bulk requests that may queue; the documents of further ones are rejected with 429.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(0..=10_000))]
    pub queue: u32,
}

/// Draw the chart of a demo's report.
#[derive(Clone, Debug, clap::Args)]
pub struct PlotOptions {
    /// The report of a governed run.
    #[arg(long, value_name = "FILE")]
    pub report: PathBuf,

    /// The report of a run to compare with, usually without a governor.
    #[arg(long, value_name = "FILE")]
    pub against: Option<PathBuf>,

    /// File for the SVG.
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
}

fn seconds(text: &str) -> Result<f64, String> {
    number(text, 1.0, 86_400.0)
}

fn rate(text: &str) -> Result<f64, String> {
    number(text, 0.0, 100_000.0)
}

fn number(text: &str, least: f64, most: f64) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if (least..=most).contains(&number) => Ok(number),
        _ => Err(format!(
            "{text:?} is not allowed: a number from {least} to {most}"
        )),
    }
}
