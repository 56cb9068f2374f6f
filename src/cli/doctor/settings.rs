//! Checks of the settings, of the files that they name, and of the limits of a process.

use std::path::Path;

use super::finding::{Finding, Findings};
use super::judge;
use crate::app;
use crate::config::Settings;
use crate::throttle::KnobsFile;

const CHECK: &str = "settings";

/// Checks everything with which a server would refuse to start before it reaches one; returns the
/// knobs files that can be used.
pub(super) async fn check(settings: &Settings, report: &mut Findings) -> Vec<KnobsFile> {
    let faults = app::unusable(settings).await;
    let is_well = faults.is_empty();
    for fault in faults {
        // A file has a line for each fault.
        for seen in super::super::exit::message(&fault.error).lines() {
            report.add(Finding::fail(CHECK, seen, fault.todo));
        }
    }
    let folder = settings.knobs_folder().ok();
    let files = folder.and_then(|folder| app::read_knobs(folder).ok());
    let files = files.unwrap_or_default();
    if is_well {
        let seen = match settings.origin.file() {
            "" => format!("defaults and environment, {} knobs files", files.len()),
            file => format!("{}, {} knobs files", file_name(file), files.len()),
        };
        report.add(Finding::ok(CHECK, seen));
    }
    for (seen, todo) in app::warnings(settings) {
        report.add(Finding::warn(CHECK, seen, todo));
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
