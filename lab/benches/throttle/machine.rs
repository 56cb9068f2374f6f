//! The machine of a measurement, without which its figures mean nothing.

use std::fs;

use crate::report::Report;
use crate::world::World;

/// Prints the machine and the versions.
pub fn describe(report: Report, world: &World) -> anyhow::Result<()> {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
        .map_or("unknown", |(_, name)| name);
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let server: String = redis::cmd("INFO")
        .arg("server")
        .query(&mut world.redis()?)?;
    let version = server
        .lines()
        .find_map(|line| line.strip_prefix("redis_version:"))
        .unwrap_or("unknown");
    let bullet = if report.markdown { "- " } else { "" };
    report.say(&format!("{bullet}machine: {}, {cores} cores", model.trim()));
    report.say(&format!(
        "{bullet}server: Redis {version} on this machine by a unix socket"
    ));
    load(report);
    Ok(())
}

/// Prints the load of the machine; before and after a run it shows how far the wall clock can be
/// trusted.
pub fn load(report: Report) {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let three: Vec<&str> = text.split_whitespace().take(3).collect();
    report.say(&format!(
        "{}load average: {}",
        if report.markdown { "- " } else { "" },
        three.join(" ")
    ));
}
