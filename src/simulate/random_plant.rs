//! Plants drawn at random, so that the law is judged on plants that it was not tuned for.
//!
//! The distribution, one draw per plant; `~log` is uniform in the logarithm:
//!
//! | quantity | distribution |
//! |---|---|
//! | resources, each with one load signal | 1 (60 %), 2 (30 %), 3 (10 %) |
//! | processors | 1 to 64 ~log |
//! | setpoint | 0.2 to 0.9 of the processors |
//! | background | 0.1 to 0.5 of the setpoint, another value after a step or ramp |
//! | noise of the background | 2 to 25 %, correlated over 20 to 600 s ~log |
//! | bursts | 0 to 8 per hour, 0.05 to 0.3 of the setpoint, 10 to 120 s |
//! | cost of a job | 0.1 ms to 1 s of a processor ~log, walking by 0 to 50 % per hour |
//! | change of the cost | a factor of 1/3 to 3 ~log at some minute (60 %) |
//! | load average | 1 s (15 %), else 5 to 300 s ~log |
//! | lag in the policy | the average, wrong by a factor of 1/4 to 4 ~log, at most 300 s |
//! | scrape interval | 5 to 60 s |
//! | delay of a scrape | 0 to 60 s, jitter 0 to 10 s |
//! | lost scrapes | 0 to 30 % |
//! | exporter can be probed | 30 % |
//! | hours with a short queue | demand of 0.2 to 0.8 of the first rate for 20 to 40 minutes (40 %) |
//! | durations reported by workers | 70 % |

use std::fmt::Write;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::scenario::{InvalidScenario, Scenario};

/// Virtual time of a random plant, in minutes.
const MINUTES: f64 = 120.0;

/// Returns plant number `n` of the series `seed`.
pub fn draw(seed: u64, n: u64) -> Result<Scenario, InvalidScenario> {
    Scenario::parse(&text(seed, n), &format!("random plant {n} of seed {seed}"))
}

/// Returns the scenario file of plant number `n` of the series `seed`.
pub fn text(seed: u64, n: u64) -> String {
    let mut dice = Dice(StdRng::seed_from_u64(
        seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ n,
    ));
    let resources = match dice.uniform(0.0, 1.0) {
        p if p < 0.6 => 1,
        p if p < 0.9 => 2,
        _ => 3,
    };
    let first_cost = dice.log_uniform(1e-4, 1.0);
    let mut rate = None;
    let mut tables = String::new();
    let average_s = match dice.chance(0.15) {
        true => 1.0,
        false => dice.log_uniform(5.0, 300.0),
    };
    let mut base_s = dice.log_uniform(0.005, 1.0);
    for resource in 0..resources {
        let cores = dice.log_uniform(1.0, 64.0);
        let setpoint = cores * dice.uniform(0.2, 0.9);
        let background = setpoint * dice.uniform(0.1, 0.5);
        let room = setpoint - background;
        // The first resource fixes the rate; the others leave a little more room at that rate.
        let rate = *rate.get_or_insert(room / first_cost);
        let cost = match resource {
            0 => first_cost,
            _ => room / rate * dice.uniform(0.5, 1.0),
        };
        base_s += cost;
        write_resource(
            &mut tables,
            &mut dice,
            resource,
            [cores, setpoint, background, cost],
        );
        let lag_s = (average_s * dice.log_uniform(0.25, 4.0)).min(300.0);
        let _ = write!(
            tables,
            "[[signal]]\nname = \"r{resource}-load\"\nquery = \"r{resource}:load\"\nsetpoint = {setpoint}\nlag_s = {lag_s}\n\n"
        );
    }
    let rate = rate.unwrap_or(1.0);
    let delay_s = dice.uniform(0.0, 60.0);
    let start = rate * dice.uniform(0.3, 1.2);
    let in_flight = (rate * base_s * dice.uniform(3.0, 20.0))
        .ceil()
        .clamp(4.0, 1e6);
    let mut text = format!(
        "[scenario]\nname = \"R{n}\"\nabout = \"{resources} resources, {first_cost:.2e} s a job, averages of {average_s:.0} s\"\n\
         minutes = {MINUTES}\n\n[knobs]\nrps = {start}\nmin = {}\nmax = {}\nsafe_rps = {}\n\n\
         [exporter]\naverage_s = {average_s}\nnoise = {}\nscrape_s = {}\ndelay_s = [{delay_s}, {}]\nlost = {}\nprobe = {}\n\n",
        rate / 1000.0,
        20.0 * rate,
        start / 4.0,
        dice.uniform(0.0, 1.0),
        dice.uniform(5.0, 60.0),
        delay_s + dice.uniform(0.0, 10.0),
        dice.uniform(0.0, 0.3),
        dice.chance(0.3),
    );
    let _ = write!(
        text,
        "[jobs]\nbase_s = {base_s}\nin_flight = {in_flight}\ndurations = {}\n",
        dice.chance(0.7)
    );
    if dice.chance(0.4) {
        let (from, low) = (dice.uniform(10.0, 70.0), rate * dice.uniform(0.2, 0.8));
        let to = from + dice.uniform(20.0, 40.0);
        let _ = writeln!(
            text,
            "demand = [[0, 1e9], [{from}, 1e9], [{from}, {low}], [{to}, {low}], [{to}, 1e9]]"
        );
    }
    text.push('\n');
    text + &tables
}

/// Writes the table of one resource with `[cores, setpoint, background, cost]`.
fn write_resource(
    into: &mut String,
    dice: &mut Dice,
    resource: usize,
    [cores, setpoint, background, cost]: [f64; 4],
) {
    let later = setpoint * dice.uniform(0.1, 0.5);
    let from = dice.uniform(15.0, 90.0);
    let to = from
        + match dice.chance(0.5) {
            true => 0.0,
            false => dice.uniform(5.0, 25.0),
        };
    let _ = write!(
        into,
        "[[resource]]\nname = \"r{resource}\"\ncores = {cores}\ncost = {cost}\n\
         background = [[0, {background}], [{from}, {background}], [{to}, {later}]]\n\
         noise = {}\nnoise_s = {}\nbursts_per_hour = {}\nburst = {}\nburst_s = {}\ncost_walk = {}\n",
        dice.uniform(0.02, 0.25),
        dice.log_uniform(20.0, 600.0),
        dice.uniform(0.0, 8.0),
        setpoint * dice.uniform(0.05, 0.3),
        dice.uniform(10.0, 120.0),
        dice.uniform(0.0, 0.5),
    );
    if dice.chance(0.6) {
        let (at, factor) = (dice.uniform(15.0, 90.0), dice.log_uniform(1.0 / 3.0, 3.0));
        let _ = writeln!(into, "cost_factor = [[0, 1], [{at}, 1], [{at}, {factor}]]");
    }
    into.push('\n');
}

struct Dice(StdRng);

impl Dice {
    fn uniform(&mut self, from: f64, to: f64) -> f64 {
        from + (to - from) * self.0.random::<f64>()
    }

    fn log_uniform(&mut self, from: f64, to: f64) -> f64 {
        self.uniform(from.ln(), to.ln()).exp()
    }

    fn chance(&mut self, share: f64) -> bool {
        self.uniform(0.0, 1.0) < share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_plant_is_a_sound_scenario_and_the_same_number_is_the_same_plant() {
        for n in 0..300 {
            draw(7, n).unwrap();
        }
        assert_eq!(text(7, 3), text(7, 3));
        assert_ne!(text(7, 3), text(8, 3));
        assert_ne!(text(7, 3), text(7, 4));
    }

    #[test]
    fn plants_cover_the_published_ranges() {
        let plants: Vec<Scenario> = (0..300).map(|n| draw(1, n).unwrap()).collect();
        let range = |of: &dyn Fn(&Scenario) -> f64| {
            plants
                .iter()
                .map(of)
                .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| {
                    (low.min(x), high.max(x))
                })
        };
        let (low, high) = range(&|plant| plant.resources[0].cores);
        assert!(low < 1.2 && high > 55.0 && low >= 1.0 && high <= 64.0);
        let (low, high) = range(&|plant| plant.resources[0].cost);
        assert!(low < 2e-4 && high > 0.5 && low >= 1e-4 && high <= 1.0);
        let (low, high) = range(&|plant| plant.policy.signals[0].lag_s / plant.exporter.average_s);
        assert!(low < 0.3 && high > 3.5 && low >= 0.2 && high <= 4.01);
        let short = plants.iter().filter(|plant| {
            plant.jobs.demand.at(5400.0) < 1e9 || plant.jobs.demand.at(3000.0) < 1e9
        });
        assert!(short.count() > 50, "hours with a short queue");
    }
}
