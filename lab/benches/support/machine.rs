//! The machine of a measurement, without which its figures mean nothing.

use std::fs;

use super::report::Report;

/// Prints the machine.
pub fn describe(report: Report) {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
        .map_or("unknown", |(_, name)| name);
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let memory_kib: f64 = fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| text.lines().next()?.split_whitespace().nth(1)?.parse().ok())
        .unwrap_or(f64::NAN);
    report.bullet(&format!(
        "machine: {}, {cores} cores, {:.0} GiB",
        model.trim(),
        memory_kib / 1024.0 / 1024.0
    ));
}

/// Prints the load of the machine; before and after a run it shows how far the wall clock can be
/// trusted.
pub fn load(report: Report) {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let three: Vec<&str> = text.split_whitespace().take(3).collect();
    report.bullet(&format!("load average: {}", three.join(" ")));
}
