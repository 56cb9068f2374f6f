//! The servers of a measurement and their disk, without which its figures mean nothing.

use std::io::{Seek, Write};
use std::path::Path;
use std::time::Instant;

use flyball::jobs::Queue;

use crate::machine;
use crate::report::{Report, median};

/// Prints the machine, the servers and the speed of the disk.
pub async fn describe(report: Report, queue: &Queue, dir: &Path) -> anyhow::Result<()> {
    machine::describe(report);
    let version: String = sqlx::query_scalar("select split_part(version(), ' on ', 1)")
        .fetch_one(&queue.pool)
        .await?;
    let buffers: String = sqlx::query_scalar("show shared_buffers")
        .fetch_one(&queue.pool)
        .await?;
    let commit: String = sqlx::query_scalar("show synchronous_commit")
        .fetch_one(&queue.pool)
        .await?;
    report.bullet(&format!(
        "servers: {version}, shared_buffers {buffers}, synchronous_commit {commit}, all on this \
         machine by unix sockets"
    ));
    report.bullet(&format!(
        "fdatasync of 8 KiB: {:.0} µs (median of 200)",
        fsync_us(dir)?
    ));
    machine::load(report);
    Ok(())
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
