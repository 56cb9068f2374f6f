use super::*;
use crate::calibrate::pulse::{Move, Pulse, Shape};
use crate::control::ewma::smooth;

/// Even noise from -1 to 1, the same in every run.
struct Noise(u32);

impl Noise {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f64::from(self.0 >> 8) / f64::from(1u32 << 23) - 1.0
    }
}

struct FittedPeak {
    fit: Fit,
    peak: f64,
}

const BACKGROUND: f64 = 0.25;

/// Plays the whole test on a plant of this lag, dead time and cost: a background that swings by 12
/// % within two minutes, a noisy run queue seen through the exporter's average, scrapes every 15 s,
/// visible after 22 s. Returns `None` if the test ended early or has no fit.
fn play(lag_s: f64, dead_s: u32, cost: f64, seed: u32) -> Option<FittedPeak> {
    let mut noise = Noise(seed);
    let start = 0.15 / cost;
    let mut pulse =
        Pulse::new(Shape::default(), start, (start / 100.0, start * 100.0), 0.0).unwrap();
    let mut rates = vec![start; dead_s as usize + 1];
    let (mut rate, mut swing, mut average, mut peak) =
        (start, 0.0, BACKGROUND + cost * start, 0.0f64);
    let (mut taken, mut samples, mut stretches): (Vec<LoadSample>, Vec<LoadSample>, Vec<Stretch>) =
        Default::default();
    for second in 1..8000u32 {
        let now = f64::from(second);
        rates.push(rate);
        swing += -swing / 120.0 + 0.12 * (2.0f64 / 120.0).sqrt() * 1.73 * noise.next();
        let load = BACKGROUND * (1.0 + swing) + cost * rates[rates.len() - 1 - dead_s as usize];
        average = smooth(
            average,
            load * (1.0 + 1.5 * noise.next()).max(0.0),
            1.0,
            lag_s,
        );
        if second % 15 == 7 {
            peak = peak.max(average);
            taken.push(LoadSample {
                at: now,
                x: average,
            });
        }
        stretches.push(Stretch {
            until: now,
            rps: rate,
        });
        let visible = taken
            .iter()
            .take_while(|sample| sample.at + 22.0 <= now)
            .count();
        let fresh: Vec<LoadSample> = taken.drain(..visible).collect();
        samples.extend(&fresh);
        match pulse.next(now, &fresh) {
            Move::Stay => {}
            Move::Set(wanted) => rate = wanted,
            Move::Abort(_) => return None,
            Move::Done => {
                return Some(FittedPeak {
                    fit: fit(&samples, &stretches)?,
                    peak,
                });
            }
        }
    }
    None
}

/// Plays the test with some seeds; returns the number that finished, their sorted lags and rates
/// (as shares of the true one), and the highest peak.
fn many(seeds: u32, lag_s: f64, dead_s: u32, cost: f64) -> (usize, Vec<f64>, Vec<f64>, f64) {
    let found: Vec<FittedPeak> = (1..=seeds)
        .filter_map(|seed| play(lag_s, dead_s, cost, seed * 7919))
        .collect();
    let sorted = |of: &dyn Fn(&Fit) -> f64| {
        let mut all: Vec<f64> = found.iter().map(|found| of(&found.fit)).collect();
        all.sort_by(f64::total_cmp);
        all
    };
    let truth = (1.0 - BACKGROUND) / cost;
    let peak = found.iter().map(|found| found.peak).fold(0.0, f64::max);
    (
        found.len(),
        sorted(&|fit| fit.lag_s),
        sorted(&|fit| fit.rate_at_setpoint / truth),
        peak,
    )
}

#[test]
fn lag_and_rate_are_found_whatever_a_job_costs() {
    let plants = [
        (20, 60.0, 0, 0.01),
        (3, 60.0, 0, 0.1),
        (3, 60.0, 0, 0.001),
        (20, 15.0, 0, 0.01),
        (20, 150.0, 0, 0.01),
        (20, 60.0, 30, 0.01),
    ];
    for (seeds, lag_s, dead_s, cost) in plants {
        let (finished, lags, rates, peak) = many(seeds, lag_s, dead_s, cost);
        let at = |all: &[f64], share: f64| all[((all.len() - 1) as f64 * share).round() as usize];
        println!(
            "| lag {lag_s}, dead time {dead_s}, cost {cost} | {finished}/{seeds} | {:.0} ({:.0}-{:.0}) | {:.2} ({:.2}-{:.2}) | {peak:.2} |",
            at(&lags, 0.5),
            at(&lags, 0.1),
            at(&lags, 0.9),
            at(&rates, 0.5),
            at(&rates, 0.1),
            at(&rates, 0.9)
        );
        // Percentiles of a few seeds are their extremes.
        let low = if seeds < 20 { lag_s / 3.0 } else { lag_s / 2.0 };
        let high = 3.3 * lag_s;
        assert!(
            20 * finished >= 13 * seeds as usize,
            "{finished} of {seeds} finished"
        );
        assert!(
            at(&lags, 0.5) >= 0.6 * lag_s && at(&lags, 0.5) <= 1.7 * lag_s,
            "{lags:?}"
        );
        assert!(
            at(&lags, 0.1) >= low.min(lag_s - 13.0) && at(&lags, 0.9) <= high,
            "{lags:?}"
        );
        assert!((at(&rates, 0.5) - 1.0).abs() <= 0.1, "{rates:?}");
        let (slowest, fastest) = if seeds < 20 { (0.6, 1.5) } else { (0.75, 1.25) };
        assert!(
            at(&rates, 0.1) >= slowest && at(&rates, 0.9) <= fastest,
            "{rates:?}"
        );
        assert!(peak < 1.6, "{peak}");
    }
}

#[test]
fn without_noise_the_plant_is_found_as_it_is() {
    let (b, c, lag_s) = (0.3, 0.02, 30.0);
    let rate = |t: f64| {
        if ((t / 120.0) as u32).is_multiple_of(2) {
            20.0
        } else {
            10.0
        }
    };
    let stretches: Vec<Stretch> = (1..1500)
        .map(f64::from)
        .map(|until| Stretch {
            until,
            rps: rate(until),
        })
        .collect();
    let mut average = b + c * 20.0;
    let samples: Vec<LoadSample> = stretches
        .iter()
        .map(|stretch| {
            average = smooth(average, b + c * stretch.rps, 1.0, lag_s);
            LoadSample {
                at: stretch.until,
                x: average,
            }
        })
        .filter(|sample| (sample.at as u32).is_multiple_of(15))
        .collect();

    let fit = fit(&samples, &stretches).unwrap();

    assert_eq!((fit.lag_s, fit.dead_time_s), (30.0, 0.0), "{fit:?}");
    assert!(
        (fit.cost / c - 1.0).abs() < 0.01 && (fit.background - b).abs() < 0.01,
        "{fit:?}"
    );
    assert!(
        (fit.rate_at_setpoint - 35.0).abs() < 0.5 && fit.noise < 0.01 && fit.cost_error < 0.01,
        "{fit:?}"
    );
}

#[test]
fn what_cannot_decide_says_nothing() {
    let samples: Vec<LoadSample> = (0..100)
        .map(|n| LoadSample {
            at: f64::from(n) * 15.0,
            x: 0.5,
        })
        .collect();
    let still = vec![Stretch {
        until: 1500.0,
        rps: 20.0,
    }];
    assert_eq!(fit(&samples, &still), None, "the rate stood still");
    assert_eq!(fit(&samples[..5], &still), None, "few samples");
    assert_eq!(fit(&[], &still), None);
    assert_eq!(fit(&samples, &[]), None);
    let moved: Vec<Stretch> = (1..1500)
        .map(|n| Stretch {
            until: f64::from(n),
            rps: f64::from(n / 200 % 2),
        })
        .collect();
    assert_eq!(fit(&samples, &moved), None, "the load does not answer");
}
