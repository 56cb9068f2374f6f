//! The store's load: the number of running and queued bulk requests, as an exponential average.

/// The time constant of the average, in seconds.
///
/// A load average of one minute would be too slow for a demo of three.
pub const AVERAGED_OVER_S: f64 = 5.0;

/// A load average over a level that changes at known times.
///
/// The level is constant between two changes, so the average is exact however often it is read:
/// `average(t + dt) = level + (average(t) - level) × exp(-dt / 5 s)`.
#[derive(Clone, Debug)]
pub struct Load {
    cores: u32,
    level: u32,
    average: f64,
    busy_s: f64,
    at_s: f64,
}

impl Load {
    /// Creates the load of an idle store with `cores` engine connections, at `now_s`.
    pub fn new(cores: u32, now_s: f64) -> Self {
        Self {
            cores,
            level: 0,
            average: 0.0,
            busy_s: 0.0,
            at_s: now_s,
        }
    }

    /// Records the arrival of a request.
    pub fn enter(&mut self, now_s: f64) {
        self.settle(now_s);
        self.level += 1;
    }

    /// Records the answer to a request.
    pub fn leave(&mut self, now_s: f64) {
        self.settle(now_s);
        self.level = self.level.saturating_sub(1);
    }

    /// Returns the number of running and queued requests.
    pub fn level(&self) -> u32 {
        self.level
    }

    /// Returns the average at `now_s`.
    pub fn average(&mut self, now_s: f64) -> f64 {
        self.settle(now_s);
        self.average
    }

    /// Returns the working time of all engine connections together, in seconds.
    pub fn busy_s(&mut self, now_s: f64) -> f64 {
        self.settle(now_s);
        self.busy_s
    }

    fn settle(&mut self, now_s: f64) {
        let dt = (now_s - self.at_s).max(0.0);
        let level = f64::from(self.level);
        self.average = level + (self.average - level) * (-dt / AVERAGED_OVER_S).exp();
        self.busy_s += f64::from(self.level.min(self.cores)) * dt;
        self.at_s = self.at_s.max(now_s);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_average_reaches_63_percent_of_a_step_after_its_time_constant() {
        let mut load = Load::new(2, 100.0);
        load.enter(100.0);

        assert!((load.average(105.0) - 0.632).abs() < 1e-3);
        assert!((load.average(130.0) - 1.0).abs() < 5e-3);
    }

    #[test]
    fn reading_it_often_changes_nothing() {
        let (mut seldom, mut often) = (Load::new(2, 0.0), Load::new(2, 0.0));
        for load in [&mut seldom, &mut often] {
            load.enter(1.0);
            load.enter(1.0);
        }
        for step in 0..900 {
            often.average(1.0 + f64::from(step) / 100.0);
        }

        assert!((seldom.average(10.0) - often.average(10.0)).abs() < 1e-9);
    }

    #[test]
    fn busy_seconds_count_engine_connections_and_not_the_queue() {
        let mut load = Load::new(2, 0.0);
        for _ in 0..5 {
            load.enter(0.0);
        }

        assert!((load.busy_s(3.0) - 6.0).abs() < 1e-9);
        assert_eq!(load.level(), 5);
    }

    #[test]
    fn a_clock_that_stands_or_turns_back_does_no_harm() {
        let mut load = Load::new(1, 10.0);
        load.enter(10.0);
        let before = load.average(12.0);

        assert_eq!(load.average(11.0), before);
        assert!(load.average(13.0) > before);
    }
}
