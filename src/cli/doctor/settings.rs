//! Checks of the settings, of the files that they name, and of the limits of a process.

use std::path::Path;

use super::finding::{Finding, Findings};
use super::judge;
use crate::app;
use crate::config::Settings;
use crate::throttle::KnobsFile;

const CHECK: &str = "settings";

/// Checks the settings' files; returns the knobs files that can be used.
pub(super) fn check(settings: &Settings, report: &mut Findings) -> Vec<KnobsFile> {
    let mut is_well = true;
    let mut refuse = |report: &mut Findings, seen: String, todo: &str| {
        is_well = false;
        report.add(Finding::fail(CHECK, seen, todo));
    };
    if let Err(error) = settings.tokens() {
        refuse(
            report,
            error.to_string(),
            "correct the place of the token's secret",
        );
    }
    if let Err(error) = app::secret_keys() {
        let error = super::super::exit::message(&error);
        refuse(
            report,
            error,
            "correct the variable; flyball secret-key prints a key",
        );
    }
    if let Err(error) = settings.pools() {
        refuse(report, error.to_string(), "correct the pool's settings");
    }
    if let Err(error) = super::super::rules_file::of_settings(settings) {
        refuse(
            report,
            super::super::exit::message(&error),
            "correct the file of recipients' rules",
        );
    }
    let read = settings
        .knobs_folder()
        .map_err(anyhow::Error::from)
        .and_then(app::read_knobs);
    let files = match read {
        Ok(files) => files,
        Err(error) => {
            let todo = "correct the knobs file";
            refuse(report, super::super::exit::message(&error), todo);
            Vec::new()
        }
    };
    if let Err(error) = app::policies(&files) {
        let todo = "correct the table [governor] or [[signal]]";
        refuse(report, super::super::exit::message(&error), todo);
    }
    if is_well {
        let seen = match settings.origin.file() {
            "" => format!("defaults and environment, {} knobs files", files.len()),
            file => format!("{}, {} knobs files", file_name(file), files.len()),
        };
        report.add(Finding::ok(CHECK, seen));
    }
    let unknown = settings.unknown_in_environment();
    for unknown in unknown.into_iter().chain(settings.unknown_parameters()) {
        let todo = "correct its name, or remove it";
        report.add(Finding::warn(CHECK, unknown, todo));
    }
    files
}

/// Checks the limits of a process.
pub(super) fn check_limits(settings: &Settings, report: &mut Findings) {
    report.add(judge::open_files(
        app::open_files(),
        settings.http_connections,
    ));
}

/// Names the file at which a setting points, without its folder's parents.
fn file_name(path: &str) -> String {
    let name = Path::new(path).file_name();
    name.map_or_else(
        || path.to_owned(),
        |name| name.to_string_lossy().into_owned(),
    )
}
