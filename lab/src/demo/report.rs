//! The figures of a run.

use serde::{Deserialize, Serialize};

/// The multiple of the setpoint above which a load counts as overload.
pub const OVERLOAD: f64 = 1.2;
/// The time over which the rate is averaged, in seconds.
const RATE_OVER_S: f64 = 2.0;

/// One observation of the store and the throttle.
#[derive(Clone, Debug, PartialEq)]
pub struct StoreSample {
    /// Seconds since the watch began.
    pub t_s: f64,
    pub load: f64,
    /// Documents indexed by the store since it started.
    pub documents: f64,
    /// The effective rate of the throttle, in documents per second; -1 for unlimited, `None` if it
    /// could not be read.
    pub rps: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DemoReport {
    pub version: String,
    /// The time of the first document, RFC 3339.
    pub began_at: String,
    pub settings: RunSettings,
    /// The machine and the build of the run.
    pub machine: Machine,
    pub documents: Documents,
    pub load: LoadFigures,
    /// The number of times the breaker opened.
    pub trips: i64,
    /// The course of the run, about two points per second.
    pub course: Vec<Point>,
}

/// The settings of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunSettings {
    /// The governor's switch, `on` or `off`.
    pub governor: String,
    /// The measured time, in seconds.
    pub seconds: f64,
    /// The time from the first document to the harder ones, in seconds.
    pub harder_after_s: f64,
    /// The rate at the beginning, in documents per second; without a governor, the rate all the
    /// time.
    pub rps: f64,
    /// The load that the governor holds.
    pub setpoint: f64,
    /// The number of the store's engine connections.
    pub store_cores: u32,
    /// The time constant of the store's load average, in seconds.
    pub load_averaged_over_s: f64,
    /// The most documents in one bulk request.
    pub batch_docs: usize,
    /// The most bulk requests in flight.
    pub concurrency: usize,
}

/// The machine and the build of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The number of processors that the process may use.
    pub cores: usize,
    /// The model name of the processors, or `unknown`.
    pub cpu: String,
    /// The memory in GB, if the system reports it.
    pub memory_gb: Option<f64>,
    /// Operating system and architecture.
    pub system: String,
    /// `debug` or `release`.
    pub build: String,
}

/// Counts of the indexed documents.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Documents {
    /// Documents in the corpus.
    pub corpus: u64,
    /// Documents indexed during the measured time, by the store's own count.
    pub indexed: u64,
    /// Documents indexed before they became harder.
    pub easy: u64,
    /// Documents indexed after they became harder.
    pub hard: u64,
    /// Documents in the last index at the end, by its `_count`.
    pub in_index: u64,
}

/// Statistics of the store's load during a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoadFigures {
    /// Mean over time.
    pub mean: f64,
    /// Mean before the documents became harder.
    pub mean_easy: f64,
    /// Mean after the documents became harder.
    pub mean_hard: f64,
    /// The highest load.
    pub peak: f64,
    /// Seconds above 1.2 setpoints.
    pub seconds_above_1_2: f64,
}

/// One point of a run's course.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Seconds since the first document.
    pub t_s: f64,
    pub load: f64,
    /// Documents indexed per second, over the last 2 s.
    pub rate: f64,
    /// The effective rate of the throttle, in documents per second; -1 for unlimited.
    pub rps: Option<f64>,
}

/// Returns the documents, the load and the course between `from_s` and `to_s`.
///
/// Documents are harder from `harder_s` on. All times are those of the samples, in seconds.
pub fn measure(
    samples: &[StoreSample],
    from_s: f64,
    harder_s: f64,
    to_s: f64,
    setpoint: f64,
) -> (Documents, LoadFigures, Vec<Point>) {
    let seen: Vec<_> = samples
        .iter()
        .filter(|s| (from_s..=to_s).contains(&s.t_s))
        .collect();
    let mut load = LoadFigures {
        mean: 0.0,
        mean_easy: 0.0,
        mean_hard: 0.0,
        peak: 0.0,
        seconds_above_1_2: 0.0,
    };
    let (mut easy_s, mut hard_s) = (0.0, 0.0);
    for pair in seen.windows(2) {
        // Between two samples, the load counts as that of the later one.
        let (dt, now) = (pair[1].t_s - pair[0].t_s, pair[1]);
        let (sum, time) = if now.t_s <= harder_s {
            (&mut load.mean_easy, &mut easy_s)
        } else {
            (&mut load.mean_hard, &mut hard_s)
        };
        *sum += now.load * dt;
        *time += dt;
        load.peak = load.peak.max(now.load);
        load.seconds_above_1_2 += if now.load > OVERLOAD * setpoint {
            dt
        } else {
            0.0
        };
    }
    load.mean = (load.mean_easy + load.mean_hard) / (easy_s + hard_s).max(1e-9);
    load.mean_easy /= f64::max(easy_s, 1e-9);
    load.mean_hard /= f64::max(hard_s, 1e-9);
    let look_at = |t_s: f64| {
        seen.iter()
            .rev()
            .find(|s| s.t_s <= t_s)
            .or(seen.first())
            .copied()
    };
    let at = |t_s: f64| look_at(t_s).map_or(0.0, |s| s.documents);
    let between = |from: f64, to: f64| (at(to) - at(from)).max(0.0) as u64;
    let documents = Documents {
        corpus: 0,
        indexed: between(from_s, to_s),
        easy: between(from_s, harder_s.min(to_s)),
        hard: between(harder_s.min(to_s), to_s),
        in_index: 0,
    };
    let point = |s: &StoreSample| {
        // The divisor is the real time between the two samples, a little more than `RATE_OVER_S`.
        let earlier = look_at((s.t_s - RATE_OVER_S).max(from_s)).unwrap_or(s);
        let rate = (s.documents - earlier.documents).max(0.0) / (s.t_s - earlier.t_s).max(0.25);
        Point {
            t_s: round(s.t_s - from_s),
            load: round(s.load),
            rate: round(rate),
            rps: s.rps.map(round),
        }
    };
    (
        documents,
        load,
        seen.iter().copied().step_by(2).map(point).collect(),
    )
}

fn round(number: f64) -> f64 {
    (number * 1000.0).round() / 1000.0
}

impl DemoReport {
    /// Formats the figures as a few lines of text.
    pub fn summary(&self) -> String {
        let (d, l, s) = (&self.documents, &self.load, &self.settings);
        format!(
            "governor {}: {} documents in {:.0} s ({} before they became harder, {} after)\n\
             load mean {:.2}, peak {:.2}, {:.1} s above {:.2} (1.2 x the setpoint); breaker trips: {}",
            s.governor,
            d.indexed,
            s.seconds,
            d.easy,
            d.hard,
            l.mean,
            l.peak,
            l.seconds_above_1_2,
            OVERLOAD * s.setpoint,
            self.trips
        )
    }
}

impl Machine {
    /// Describes the machine by Linux's `/proc/cpuinfo` and `/proc/meminfo`; elsewhere both are
    /// empty.
    pub fn new(cores: usize, cpuinfo: &str, meminfo: &str) -> Self {
        let field = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let memory =
            field(meminfo, "MemTotal").and_then(|m| m.split(' ').next()?.parse::<f64>().ok());
        Self {
            cores,
            cpu: field(cpuinfo, "model name").unwrap_or_else(|| "unknown".to_owned()),
            memory_gb: memory.map(|kb| (kb / 1e5).round() / 10.0),
            system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            build: if cfg!(debug_assertions) {
                "debug"
            } else {
                "release"
            }
            .to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run() -> Vec<StoreSample> {
        // 100 documents a second at load 1 for 10 s, then 10 a second at load 3.
        (0..=80)
            .map(|n| {
                let t_s = f64::from(n) / 4.0;
                let documents = if t_s <= 10.0 {
                    100.0 * t_s
                } else {
                    1000.0 + 10.0 * (t_s - 10.0)
                };
                StoreSample {
                    t_s,
                    load: if t_s <= 10.0 { 1.0 } else { 3.0 },
                    documents,
                    rps: Some(100.0),
                }
            })
            .collect()
    }

    #[test]
    fn documents_and_load_are_distinguished_before_and_after() {
        let (documents, load, course) = measure(&run(), 0.0, 10.0, 20.0, 1.0);

        assert_eq!(
            (documents.indexed, documents.easy, documents.hard),
            (1100, 1000, 100)
        );
        assert!(
            (load.mean_easy - 1.0).abs() < 1e-9
                && (load.mean_hard - 3.0).abs() < 1e-9
                && (load.mean - 2.0).abs() < 1e-9
        );
        assert!((load.seconds_above_1_2 - 10.0).abs() < 1e-9 && load.peak == 3.0);
        assert!((course[10].rate - 100.0).abs() < 1e-6 && (course[39].rate - 10.0).abs() < 1e-6);
    }

    #[test]
    fn a_time_in_which_nothing_was_seen_counts_with_the_next_load() {
        let mut samples = run();
        samples.retain(|s| !(12.0..15.0).contains(&s.t_s));

        let (_, load, _) = measure(&samples, 0.0, 10.0, 20.0, 1.0);

        assert!((load.seconds_above_1_2 - 10.0).abs() < 1e-9);
    }

    #[test]
    fn the_rate_is_right_however_the_samples_fall() {
        let sample = |n: u32| StoreSample {
            t_s: f64::from(n) * 0.27,
            load: 1.0,
            documents: f64::from(n) * 27.0,
            rps: None,
        };
        let samples: Vec<_> = (0..100).map(sample).collect();

        let (_, _, course) = measure(&samples, 0.0, 10.0, 20.0, 1.0);

        assert!(course.len() > 2, "{}", course.len());
        assert!(course.iter().skip(1).all(|p| (p.rate - 100.0).abs() < 1e-6));
    }

    #[test]
    fn a_run_without_samples_has_no_figures_and_does_not_divide_by_zero() {
        let (documents, load, course) = measure(&[], 0.0, 1.0, 2.0, 1.0);

        assert_eq!(documents.indexed, 0);
        assert!(load.mean.is_finite() && course.is_empty());
    }

    #[test]
    fn the_machine_is_read_where_the_system_reports() {
        let machine = Machine::new(
            2,
            "processor : 0\nmodel name\t: Some CPU @ 2 GHz\n",
            "MemTotal:       24000000 kB\n",
        );

        assert_eq!(
            (machine.cpu.as_str(), machine.memory_gb),
            ("Some CPU @ 2 GHz", Some(24.0))
        );
        assert_eq!(Machine::new(2, "", "").memory_gb, None);
    }
}
