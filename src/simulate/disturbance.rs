//! All quantities that a run cannot influence, drawn once from the seed, so that every controller
//! meets the same day.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::scenario::Scenario;

/// Interval at which the load average samples the run queue, in seconds.
pub const SAMPLE_S: u64 = 5;

/// The day of one resource, second by second.
#[derive(Clone, Debug)]
pub struct Day {
    /// Work of others, in cores.
    pub background: Vec<f64>,
    /// Cost of one job, in core-seconds.
    pub cost: Vec<f64>,
    /// A uniform and a standard normal draw for every [`SAMPLE_S`].
    pub noise: Vec<(f64, f64)>,
}

/// The time of a scrape, and the time at which it becomes visible, in seconds; `None` if it is
/// lost.
pub type Scrape = (f64, Option<f64>);

/// All draws of a day.
#[derive(Clone, Debug)]
pub struct Disturbance {
    /// Days, by resource.
    pub days: Vec<Day>,
    /// Scrapes in the order of their times, the same for all resources because one Prometheus makes
    /// them.
    pub scrapes: Vec<Scrape>,
    /// Standard normal draws for the mean duration of each tick's jobs, one for every second.
    pub durations: Vec<f64>,
    /// Factors on the jobs' own duration, one for every second; empty unless it walks.
    pub answers: Vec<f64>,
    /// Factors on the drain of the queue, one for every second; empty without noise.
    pub drains: Vec<f64>,
}

/// Duration of the correlation of a drain's noise, in seconds.
const DRAIN_S: f64 = 60.0;

impl Disturbance {
    /// Draws the day of `scenario` with the number `seed`.
    pub fn draw(scenario: &Scenario, seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let seconds = scenario.duration_s as usize + 1;
        let days = scenario
            .resources
            .iter()
            .map(|resource| {
                let keep = (-1.0 / resource.noise_s).exp();
                let (mut walk, mut wander) = (normal(&mut rng), 0.0);
                let step = resource.cost_walk / 3600f64.sqrt();
                let bursts = bursts(&mut rng, resource.bursts_per_hour, seconds as f64);
                let mut day = Day {
                    background: Vec::new(),
                    cost: Vec::new(),
                    noise: Vec::new(),
                };
                for second in 0..seconds {
                    let t = second as f64;
                    walk = walk * keep + normal(&mut rng) * (1.0 - keep * keep).sqrt();
                    wander += step * normal(&mut rng);
                    let burst = bursts
                        .iter()
                        .filter(|&&at| t >= at && t < at + resource.burst_s)
                        .count() as f64
                        * resource.burst;
                    day.background.push(
                        (resource.background.at(t) * (1.0 + resource.noise * walk) + burst)
                            .max(0.0),
                    );
                    day.cost
                        .push(resource.cost * resource.cost_factor.at(t) * f64::exp(wander));
                    if (second as u64).is_multiple_of(SAMPLE_S) {
                        day.noise.push((uniform(&mut rng), normal(&mut rng)));
                    }
                }
                day
            })
            .collect();
        let durations = (0..seconds).map(|_| normal(&mut rng)).collect();
        let scrapes = scrapes(scenario, &mut rng);
        // Later additions draw last: the days of older scenarios stay the same.
        Self {
            days,
            scrapes,
            durations,
            answers: answers(scenario, seconds, &mut rng),
            drains: drains(scenario, seconds, &mut rng),
        }
    }
}

fn answers(scenario: &Scenario, seconds: usize, rng: &mut StdRng) -> Vec<f64> {
    let (step, mut wander) = (scenario.jobs.answer_walk / 3600f64.sqrt(), 0.0);
    let walk = |_| {
        wander += step * normal(rng);
        f64::exp(wander)
    };
    if step > 0.0 {
        (0..seconds).map(walk).collect()
    } else {
        Vec::new()
    }
}

fn drains(scenario: &Scenario, seconds: usize, rng: &mut StdRng) -> Vec<f64> {
    let noise = scenario.queue.as_ref().map_or(0.0, |queue| queue.noise);
    let (keep, mut walk) = ((-1.0 / DRAIN_S).exp(), 0.0);
    let factor = |_| {
        walk = walk * keep + normal(rng) * (1.0 - keep * keep).sqrt();
        (1.0 + noise * walk).max(0.0)
    };
    if noise > 0.0 {
        (0..seconds).map(factor).collect()
    } else {
        Vec::new()
    }
}

fn scrapes(scenario: &Scenario, rng: &mut StdRng) -> Vec<Scrape> {
    let exporter = &scenario.exporter;
    let mut at = uniform(rng) * exporter.scrape_s;
    let mut scrapes = Vec::new();
    while at < scenario.duration_s as f64 {
        let blind = exporter
            .outages
            .iter()
            .any(|&(from, to)| at >= from && at < to);
        let lost = uniform(rng) < exporter.lost;
        let delay = exporter.delay_s.0 + uniform(rng) * (exporter.delay_s.1 - exporter.delay_s.0);
        scrapes.push((at, (!blind && !lost).then_some(at + delay)));
        at += exporter.scrape_s;
    }
    scrapes
}

/// Returns the times of bursts that come `per_hour`, independent of each other.
fn bursts(rng: &mut StdRng, per_hour: f64, seconds: f64) -> Vec<f64> {
    let mut times = Vec::new();
    if per_hour > 0.0 {
        let mut t = 0.0;
        loop {
            t -= (1.0 - uniform(rng)).ln() * 3600.0 / per_hour;
            if t >= seconds {
                break;
            }
            times.push(t);
        }
    }
    times
}

fn uniform(rng: &mut StdRng) -> f64 {
    rng.random::<f64>()
}

/// Returns a standard normal draw (Box and Muller's transform).
fn normal(rng: &mut StdRng) -> f64 {
    (-2.0 * (1.0 - uniform(rng)).ln()).sqrt() * (std::f64::consts::TAU * uniform(rng)).cos()
}
