//! CPU time and memory of other processes, read from `/proc`.
//!
//! On a shared machine the wall clock depends on the neighbours as much as on us, so every rate is
//! also given per second of CPU time.

use std::fs;

/// The clock ticks per second in which Linux reports times to user space, whatever its own rate.
const TICKS_PER_S: f64 = 100.0;

/// The processes whose CPU is counted.
#[derive(Clone, Debug)]
pub struct Servers {
    /// The process id of the postmaster; its children, ended ones too, are counted with it.
    pub postmaster: u32,
    /// The process id of Redis.
    pub redis: u32,
}

/// Seconds of CPU, user and system together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cpu {
    /// The time of Postgres with all its processes.
    pub postgres_s: f64,
    /// The time of the processes that claim, run and finish.
    pub flyball_s: f64,
    pub redis_s: f64,
}

impl std::ops::Sub for Cpu {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            postgres_s: self.postgres_s - before.postgres_s,
            flyball_s: self.flyball_s - before.flyball_s,
            redis_s: self.redis_s - before.redis_s,
        }
    }
}

impl Servers {
    /// Returns the CPU time spent so far by the servers and by the processes `flyball`.
    pub fn spent(&self, flyball: &[u32]) -> Cpu {
        let backends: f64 = children(self.postmaster).into_iter().map(spent_s).sum();
        Cpu {
            postgres_s: backends + spent_s(self.postmaster) + reaped_s(self.postmaster),
            flyball_s: flyball.iter().map(|pid| spent_s(*pid)).sum(),
            redis_s: spent_s(self.redis),
        }
    }
}

/// Returns the CPU time of a process and its children, in seconds.
pub fn tree_s(pid: u32) -> f64 {
    spent_s(pid) + children(pid).into_iter().map(spent_s).sum::<f64>()
}

/// Returns the peak and the present resident memory of a process, in MiB.
pub fn resident_mib(pid: u32) -> (f64, f64) {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name));
        let kib: Option<f64> = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
        kib.unwrap_or(f64::NAN) / 1024.0
    };
    (field("VmHWM:"), field("VmRSS:"))
}

/// Returns the CPU time of a process, in seconds.
///
/// The scheduler's own count is exact to the nanosecond but forgets threads that have ended; clock
/// ticks are coarse and remember them. The larger of the two is nearer to the truth.
fn spent_s(pid: u32) -> f64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten();
    let exact: Option<Vec<f64>> = tasks
        .map(|task| {
            let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
            text.split_whitespace().next()?.parse::<f64>().ok()
        })
        .collect();
    (exact.unwrap_or_default().iter().sum::<f64>() / 1e9).max(ticks_s(pid, [11, 12]))
}

/// Returns the CPU time of the ended children of a process, in seconds.
fn reaped_s(pid: u32) -> f64 {
    ticks_s(pid, [13, 14])
}

/// Returns the sum of two fields of `/proc/PID/stat`, counted from the one after the name, in
/// seconds.
fn ticks_s(pid: u32, fields: [usize; 2]) -> f64 {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name is in parentheses and may contain anything.
    let after = text.rsplit(')').next().unwrap_or_default();
    let values: Vec<&str> = after.split_whitespace().collect();
    let ticks: f64 = fields
        .iter()
        .filter_map(|field| values.get(*field)?.parse::<f64>().ok())
        .sum();
    ticks / TICKS_PER_S
}

fn children(pid: u32) -> Vec<u32> {
    match fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")) {
        Ok(text) => text
            .split_whitespace()
            .filter_map(|word| word.parse().ok())
            .collect(),
        Err(_) => scanned_children(pid),
    }
}

/// Finds the children of a process by each process' parent, for kernels without a list of children.
fn scanned_children(pid: u32) -> Vec<u32> {
    let is_child = |child: &u32| {
        let text = fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
        text.rsplit(')')
            .next()
            .and_then(|after| after.split_whitespace().nth(1)?.parse().ok())
            == Some(pid)
    };
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(is_child)
        .collect()
}
