//! Many days of many scenarios, and their totals.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::contender::Contender;
use super::disturbance::Disturbance;
use super::run::run;
use super::scenario::Scenario;
use super::score::Score;
use crate::governor::Actuator;

/// One row of the table: a controller in a scenario, as the mean of all days.
#[derive(Clone, Debug, serde::Serialize)]
pub struct ComparisonRow {
    /// Name of the scenario.
    pub scenario: String,
    /// Name of the controller.
    pub controller: &'static str,
    /// True if overload counts refusals of a provider and not load.
    pub refusals: bool,
    /// True if the governor was given wrong dynamics; such rows are reported, but left out of the
    /// sums.
    pub wrong_dynamics: bool,
    /// True if the scenario is about one part of the law: durations that say nothing (N), a queue
    /// (Q), or complaints (M). Such rows are reported, but left out of the sums, which are about the rest.
    pub one_part: bool,
    /// True if the knob limits concurrency; such rows are reported, but left out of the sums, which
    /// are about rates.
    pub slots: bool,
    /// Mean of all days.
    pub mean: Score,
    /// Highest overload and lowest throughput of any day.
    pub worst: (f64, f64),
}

impl ComparisonRow {
    /// Returns true if the row is part of the sums.
    fn counts(&self) -> bool {
        !self.wrong_dynamics && !self.slots && !self.one_part
    }
}

/// Totals of one controller over all scenarios.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Sum {
    /// Name of the controller.
    pub controller: &'static str,
    /// Overload relative to that of the bare `pid` crate: the geometric mean of the scenarios.
    /// `None` if either is missing.
    pub overload_of_pid: Option<f64>,
    /// Mean throughput, as a share of the oracle's.
    pub throughput: f64,
    /// Lowest throughput of any scenario, and the scenario's name.
    pub worst: (f64, String),
    /// Ratio of the highest to the lowest overload in the scenarios named S8: the influence of the
    /// plant's gain.
    pub gain_spread: Option<f64>,
}

/// Runs every contender through every scenario on the days `first` to `first + days`, on all
/// processors.
pub fn compare(
    scenarios: &[Scenario],
    contenders: &[Contender],
    first: u64,
    days: u64,
) -> Vec<ComparisonRow> {
    let tasks: Vec<(usize, u64)> = (0..scenarios.len())
        .flat_map(|n| (0..days).map(move |day| (n, first.wrapping_add(day))))
        .collect();
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done: Vec<(usize, Contender, Score)> = Vec::new();
        while let Some(&(n, day)) = tasks.get(next.fetch_add(1, Ordering::Relaxed)) {
            let disturbance = Disturbance::draw(&scenarios[n], day);
            for &contender in contenders {
                done.push((
                    n,
                    contender,
                    Score::of(&scenarios[n], &run(&scenarios[n], &disturbance, contender)),
                ));
            }
        }
        done
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let scores: Vec<_> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        // A panic in a thread is already reported on standard error, but its days would be missing,
        // so the panic goes on here.
        running
            .into_iter()
            .flat_map(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
            .collect()
    });
    let row = |n: usize, contender: Contender| {
        let mut of: Vec<Score> = Vec::new();
        of.extend(
            scores
                .iter()
                .filter(|(m, who, _)| (*m, *who) == (n, contender))
                .map(|(_, _, score)| *score),
        );
        // Threads end in any order, on which sums of floats must not depend.
        of.sort_by(|a, b| {
            a.overload_s
                .total_cmp(&b.overload_s)
                .then(a.raw.total_cmp(&b.raw))
        });
        let scenario = &scenarios[n];
        ComparisonRow {
            scenario: scenario.name.clone(),
            controller: contender.name(),
            refusals: scenario.quota.is_some(),
            wrong_dynamics: scenario.name.starts_with('D'),
            one_part: scenario.name.starts_with(['M', 'N', 'Q']),
            slots: scenario.policy.law.actuator == Actuator::Concurrency,
            mean: Score::mean(&of),
            worst: (
                of.iter().map(|score| score.overload_s).fold(0.0, f64::max),
                of.iter()
                    .map(|score| score.throughput)
                    .fold(f64::INFINITY, f64::min),
            ),
        }
    };
    (0..scenarios.len())
        .flat_map(|n| contenders.iter().map(move |c| (n, *c)))
        .map(|(n, c)| row(n, c))
        .collect()
}

/// Adds up the rows, one sum per controller, in the order of the rows.
pub fn sums(rows: &[ComparisonRow]) -> Vec<Sum> {
    let mut controllers: Vec<&'static str> = Vec::new();
    for row in rows.iter().filter(|row| row.counts()) {
        if !controllers.contains(&row.controller) {
            controllers.push(row.controller);
        }
    }
    let of = |controller: &'static str| {
        rows.iter()
            .filter(move |row| row.controller == controller && row.counts())
    };
    let pid = Contender::Pid.name();
    let sum = |controller: &'static str| {
        let ratios: Vec<f64> = of(controller)
            .filter(|row| !row.refusals)
            .filter_map(|row| {
                let pid = of(pid).find(|other| other.scenario == row.scenario)?;
                // A second of overload in hours is negligible: without this floor a scenario that
                // no controller can overload would decide.
                Some((row.mean.overload_s.max(1.0) / pid.mean.overload_s.max(1.0)).ln())
            })
            .collect();
        let throughputs: Vec<f64> = of(controller).map(|row| row.mean.throughput).collect();
        let worst = of(controller).min_by(|a, b| a.mean.throughput.total_cmp(&b.mean.throughput));
        let gains = of(controller)
            .filter(|row| row.scenario.starts_with("S8"))
            .map(|row| row.mean.overload_s);
        let (least, most) = gains
            .clone()
            .fold((f64::INFINITY, 0.0f64), |(least, most), s| {
                (least.min(s), most.max(s))
            });
        Sum {
            controller,
            overload_of_pid: (!ratios.is_empty())
                .then(|| (ratios.iter().sum::<f64>() / ratios.len() as f64).exp()),
            throughput: throughputs.iter().sum::<f64>() / throughputs.len().max(1) as f64,
            worst: worst.map_or((0.0, String::new()), |row| {
                (row.mean.throughput, row.scenario.clone())
            }),
            gain_spread: (gains.count() > 1).then(|| most / least.max(1.0)),
        }
    };
    controllers.into_iter().map(sum).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_days_give_the_same_table_whatever_thread_runs_them() {
        let scenarios: Vec<Scenario> = super::super::library::scenarios()
            .unwrap()
            .into_iter()
            .filter(|s| s.name == "S5" || s.name == "S6")
            .collect();
        let table = || {
            serde_json::to_string(&compare(
                &scenarios,
                &[Contender::Flyball, Contender::Pid],
                0,
                3,
            ))
            .unwrap()
        };
        assert_eq!(table(), table());
    }

    #[test]
    fn sums_leave_refusals_and_wrong_dynamics_out_of_the_overload() {
        let row = |scenario: &str, controller, overload_s, throughput, refusals, wrong_dynamics| {
            ComparisonRow {
                scenario: scenario.to_owned(),
                controller,
                refusals,
                wrong_dynamics,
                one_part: false,
                slots: false,
                mean: Score {
                    overload_s,
                    throughput,
                    ..Score::default()
                },
                worst: (0.0, 0.0),
            }
        };
        let rows = [
            row("S1", "flyball", 25.0, 0.9, false, false),
            row("S1", "pid", 100.0, 0.8, false, false),
            row("S6", "flyball", 900.0, 0.5, true, false),
            row("S6", "pid", 1.0, 0.5, true, false),
            row("D1", "flyball", 900.0, 0.1, false, true),
            row("D1", "pid", 1.0, 0.1, false, true),
        ];
        let sums = sums(&rows);
        assert_eq!(sums.len(), 2);
        assert!((sums[0].overload_of_pid.unwrap() - 0.25).abs() < 1e-12);
        assert!(
            (sums[0].throughput - 0.7).abs() < 1e-12,
            "a quota's throughput counts"
        );
        assert_eq!(sums[0].worst, (0.5, "S6".to_owned()));
        assert_eq!(sums[0].gain_spread, None);
    }
}
