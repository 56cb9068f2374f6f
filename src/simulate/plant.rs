//! Effects of a rate on the load, on the jobs' durations, and on a provider.
//!
//! A resource shares its processors among all runnable tasks. Its load is the number of those,
//! working or waiting, and the number of waiting ones is Sakasegawa's approximation for a queue
//! with `c` servers,
//!
//! ```text
//! waiting = rho^sqrt(2 (c + 1)) / (1 - rho),      rho = (background + rate * cost) / c
//! ```
//!
//! A job takes its base time and, on each resource, its cost stretched by `load / (c * rho)`. The
//! jobs in flight are limited by the workers' concurrency, so that a resource near saturation slows
//! the jobs rather than filling up without end. (H. Sakasegawa, "An approximation formula", Ann.
//! Inst. Statist. Math. 29, 1977.)

/// Highest utilization of a resource over a second.
const FULL: f64 = 0.999;

/// The 99th percentile of a job's time on a shared resource, as a multiple of its mean (exponential
/// service).
const P99: f64 = 4.6;

/// One resource at one second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    /// Number of processors.
    pub cores: f64,
    /// Work of others, in cores.
    pub background: f64,
    /// Cost of one job, in core-seconds.
    pub cost: f64,
}

impl Machine {
    /// Returns the number of runnable tasks when jobs run at `rate` per second.
    pub fn load(&self, rate: f64) -> f64 {
        let rho = self.rho(rate);
        self.cores * rho + rho.powf((2.0 * (self.cores + 1.0)).sqrt()) / (1.0 - rho)
    }

    /// Returns the duration of work as a multiple of that on an idle machine.
    pub fn stretch(&self, rate: f64) -> f64 {
        let busy = self.cores * self.rho(rate);
        if busy <= 0.0 {
            1.0
        } else {
            self.load(rate) / busy
        }
    }

    /// Returns the 99th percentile of the time that a job spends here, in seconds.
    pub fn p99_s(&self, rate: f64) -> f64 {
        P99 * self.cost * self.stretch(rate)
    }

    fn rho(&self, rate: f64) -> f64 {
        ((self.background + rate * self.cost) / self.cores).clamp(0.0, FULL)
    }
}

/// Returns the duration of a job at `rate`, in seconds.
pub fn duration_s(machines: &[Machine], base_s: f64, rate: f64) -> f64 {
    base_s
        + machines
            .iter()
            .map(|machine| machine.cost * machine.stretch(rate))
            .sum::<f64>()
}

/// Returns the 99th percentile of the duration of a job at `rate`, in seconds.
///
/// It is the base time, which is the same for all jobs, plus the 99th percentile of the time on
/// each resource, `4.6 cost stretch` (exponential service: `-ln 0.01 = 4.6`). With several
/// resources it is an upper bound, as if a job that is slow on one were slow on all.
pub fn duration_p99_s(machines: &[Machine], base_s: f64, rate: f64) -> f64 {
    base_s
        + machines
            .iter()
            .map(|machine| machine.p99_s(rate))
            .sum::<f64>()
}

/// Returns the relative standard deviation of the 99th percentile as measured from `n` such times.
///
/// The standard deviation of a quantile `q` of `n` exponential times is `sqrt(q / ((1 - q) n))`
/// means, which are `sqrt(99 / n) / 4.6` of the percentile.
pub fn p99_noise(n: f64) -> f64 {
    (99.0 / n.max(1.0)).sqrt() / P99
}

/// Returns the achieved rate if `wanted` is allowed and at most `in_flight` jobs run at a time: the
/// greatest rate whose jobs fit.
pub fn achieved(machines: &[Machine], base_s: f64, in_flight: f64, wanted: f64) -> f64 {
    let fits = |rate: f64| rate * duration_s(machines, base_s, rate) <= in_flight;
    greatest(wanted, fits)
}

/// Returns the greatest rate up to `most` for which `fits` is true; a greater rate must never fit
/// better.
pub fn greatest(most: f64, fits: impl Fn(f64) -> bool) -> f64 {
    if fits(most) {
        return most;
    }
    let (mut low, mut high) = (0.0, most);
    for _ in 0..40 {
        let middle = 0.5 * (low + high);
        if fits(middle) {
            low = middle
        } else {
            high = middle
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    const MACHINE: Machine = Machine {
        cores: 16.0,
        background: 0.6,
        cost: 0.01,
    };

    #[test]
    fn far_from_full_the_load_is_what_works() {
        assert!(
            (MACHINE.load(100.0) - 1.6).abs() < 0.01,
            "{}",
            MACHINE.load(100.0)
        );
        assert!((MACHINE.stretch(100.0) - 1.0).abs() < 0.01);
    }

    #[test]
    fn the_slowest_hundredth_takes_the_base_time_and_a_multiple_of_the_rest() {
        let (mean, p99) = (
            duration_s(&[MACHINE], 0.02, 100.0),
            duration_p99_s(&[MACHINE], 0.02, 100.0),
        );
        assert!(
            ((p99 - 0.02) / (mean - 0.02) - 4.6).abs() < 1e-9,
            "{p99} {mean}"
        );
        assert!((p99_noise(9900.0) - 0.1 / 4.6).abs() < 1e-9 && p99_noise(20.0) > 0.4);
    }

    #[test]
    fn near_full_it_grows_without_bound_and_the_workers_places_stop_it() {
        assert!(MACHINE.load(1500.0) > 20.0);
        let rate = achieved(&[MACHINE], 0.02, 64.0, 1e6);
        assert!(rate < 1540.0, "{rate}");
        assert!((rate * duration_s(&[MACHINE], 0.02, rate) / 64.0 - 1.0).abs() < 1e-3);
        assert_eq!(achieved(&[MACHINE], 0.02, 64.0, 50.0), 50.0);
    }
}
