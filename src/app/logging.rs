//! Log lines on standard error.

use std::ffi::OsStr;
use std::io::IsTerminal;

use tracing_subscriber::filter::{ParseError, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::config::{self, LogFormat, Settings};

/// Starts logging as the settings say; a second call changes nothing.
pub fn start_logging(settings: &Settings) -> anyhow::Result<()> {
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        // A line that cannot be written, because the disk is full or nobody reads, is lost. A
        // report of that would go to the same standard error, and panic.
        .log_internal_errors(false)
        .with_ansi(
            std::io::stderr().is_terminal()
                && allows_colours(std::env::var_os("NO_COLOR").as_deref()),
        );
    let logged = tracing_subscriber::registry().with(filter(settings)?);
    let _ = match settings.log_format {
        LogFormat::Text => logged.with(lines.with_target(false)).try_init(),
        LogFormat::Json => logged.with(lines.json().flatten_event(true)).try_init(),
    };
    Ok(())
}

/// Returns true unless the variable `NO_COLOR` asks for none: any text but an empty one does
/// (<https://no-color.org>).
fn allows_colours(no_color: Option<&OsStr>) -> bool {
    no_color.is_none_or(OsStr::is_empty)
}

/// Refuses a filter that cannot be used.
pub(super) fn check(settings: &Settings) -> Result<(), config::Error> {
    filter(settings).map(drop)
}

fn filter(settings: &Settings) -> Result<Targets, config::Error> {
    targets(&settings.log).map_err(|error| {
        let message = format!(
            "must be error, warn, info, debug, trace, off, or a filter such as flyball=debug,sqlx=warn, not {:?} ({error})",
            settings.log
        );
        config::Error::at("FLYBALL_LOG (setting log)", message)
    })
}

fn targets(log: &str) -> Result<Targets, ParseError> {
    let mut wanted: Vec<&str> = log.split(',').map(str::trim).collect();
    wanted.retain(|part| !part.is_empty());
    let is_quiet = wanted.iter().any(|part| {
        let quiet = ["off", "error"];
        quiet.iter().any(|level| part.eq_ignore_ascii_case(level))
    });
    // Postgres' notices are logged as info and say nothing that an operator needs.
    if !log.contains("sqlx") && !is_quiet {
        wanted.push("sqlx=warn");
    }
    // As traces it writes every frame, with the tokens and messages in it. It has no warnings.
    wanted.push("tungstenite=warn");
    wanted.join(",").parse()
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn frames_of_connections_are_logged_at_no_level() {
        for log in ["trace", "trace,tungstenite=trace", "flyball=trace, trace"] {
            let targets = targets(log).unwrap();
            assert!(targets.would_enable("flyball::api", &Level::TRACE), "{log}");
            for level in [Level::DEBUG, Level::TRACE] {
                let is_logged = targets.would_enable("tungstenite::protocol", &level);
                assert!(!is_logged, "{log} {level}");
            }
        }
    }

    #[test]
    fn any_text_of_no_color_asks_for_no_colours() {
        let allows = |text: Option<&str>| allows_colours(text.map(OsStr::new));
        assert!(allows(None) && allows(Some("")));
        assert!(!allows(Some("1")) && !allows(Some("0")));
    }

    #[test]
    fn the_driver_of_postgres_is_as_quiet_as_all_else() {
        let warns = |log: &str| {
            let settings = Settings {
                log: log.to_owned(),
                ..Settings::defaults()
            };
            let filter = filter(&settings).unwrap();
            filter.would_enable("sqlx::query", &tracing::Level::WARN)
        };
        assert!(warns("info") && warns("warn") && warns("flyball=debug"));
        assert!(!warns("off") && !warns("Error") && !warns("flyball=debug,off"));
    }
}
