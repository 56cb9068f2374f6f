//! The machine of a measurement, without which its figures mean nothing.

use std::fs;
use std::io::{Seek, Write};
use std::path::Path;
use std::time::Instant;

use flyball::jobs::Queue;

use crate::report::{Report, median};

/// Prints the machine and the versions.
pub async fn describe(report: Report, queue: &Queue, dir: &Path) -> anyhow::Result<()> {
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
    let version: String = sqlx::query_scalar("select split_part(version(), ' on ', 1)")
        .fetch_one(&queue.pool)
        .await?;
    let buffers: String = sqlx::query_scalar("show shared_buffers")
        .fetch_one(&queue.pool)
        .await?;
    let commit: String = sqlx::query_scalar("show synchronous_commit")
        .fetch_one(&queue.pool)
        .await?;
    let bullet = if report.markdown { "- " } else { "" };
    report.say(&format!(
        "{bullet}machine: {}, {cores} cores, {:.0} GiB",
        model.trim(),
        memory_kib / 1024.0 / 1024.0
    ));
    report.say(&format!(
        "{bullet}servers: {version}, shared_buffers {buffers}, synchronous_commit {commit}, all on this machine by unix sockets"
    ));
    report.say(&format!(
        "{bullet}fdatasync of 8 KiB: {:.0} µs (median of 200)",
        fsync_us(dir)?
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

fn fsync_us(dir: &Path) -> anyhow::Result<f64> {
    let mut file = tempfile::tempfile_in(dir)?;
    let block = [0u8; 8192];
    let mut times = Vec::new();
    for _ in 0..200 {
        file.rewind()?;
        file.write_all(&block)?;
        let begun = Instant::now();
        file.sync_data()?;
        times.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    Ok(median(times))
}
