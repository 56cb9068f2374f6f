//! Many random plants: figures of each controller, in the mean and at the fifth percentile.

use super::compare::compare;
use super::contender::Contender;
use super::random_plant;
use super::scenario::{InvalidScenario, Scenario};
use super::score::Score;
use crate::governor::ControllerTuning;

/// Reversals per hour above which a knob that also swings counts as unstable.
const UNSTABLE_REVERSALS: f64 = 30.0;
/// Swing of a knob above which it counts as unstable, in nats.
const UNSTABLE_SWING: f64 = 0.5;
/// Overload below which plants are not compared, in seconds: that much is negligible in hours.
const NEGLIGIBLE_S: f64 = 1.0;

/// The scores of one plant, in the order of the contenders.
#[derive(Clone, Debug, serde::Serialize)]
pub struct PlantScores {
    /// Number of the plant.
    pub plant: u64,
    /// The plant, in one line.
    pub about: String,
    /// Scores, one per contender.
    pub scores: Vec<Score>,
}

/// Figures of one controller over all plants.
#[derive(Clone, Debug, serde::Serialize)]
pub struct RandomRow {
    /// Name of the controller.
    pub controller: &'static str,
    /// Share of the possible jobs that ran: the mean of the plants.
    pub used: f64,
    /// The same at the fifth percentile of the plants.
    pub used_p5: f64,
    /// Use relative to the oracle's: the mean of the plants. `None` without the oracle.
    pub of_oracle: Option<f64>,
    /// The same at the fifth percentile of the plants.
    pub of_oracle_p5: Option<f64>,
    /// Overload relative to that of the bare `pid` crate: the geometric mean of the plants. `None`
    /// without it.
    pub overload_of_pid: Option<f64>,
    /// Overload in seconds x setpoints, the mean of the plants.
    pub overload_s: f64,
    /// Plants on which the knob swung by more than half a nat and turned more than 30 times an
    /// hour.
    pub unstable: usize,
}

/// Runs every contender on the plants `0..plants` of the series `seed`, under `law` if one is
/// given.
pub fn scores(
    contenders: &[Contender],
    law: Option<&ControllerTuning>,
    seed: u64,
    plants: u64,
) -> Result<Vec<PlantScores>, InvalidScenario> {
    let scenarios: Vec<Scenario> = (0..plants)
        .map(|n| {
            let plant = random_plant::draw(seed, n)?;
            Ok(match law {
                Some(law) => plant.under(law.clone()),
                None => plant,
            })
        })
        .collect::<Result<_, _>>()?;
    let rows = compare(&scenarios, contenders, seed, 1);
    Ok(scenarios
        .into_iter()
        .zip(rows.chunks(contenders.len().max(1)))
        .enumerate()
        .map(|(n, (scenario, rows))| PlantScores {
            plant: n as u64,
            about: scenario.about,
            scores: rows.iter().map(|row| row.mean).collect(),
        })
        .collect())
}

/// Returns one row per contender.
pub fn rows(contenders: &[Contender], plants: &[PlantScores]) -> Vec<RandomRow> {
    let index_of = |wanted| contenders.iter().position(|one| *one == wanted);
    let (oracle, pid) = (index_of(Contender::Oracle), index_of(Contender::Pid));
    let each = |n: usize, of: &dyn Fn(&Score) -> f64| -> Vec<f64> {
        plants.iter().map(|plant| of(&plant.scores[n])).collect()
    };
    let row = |n: usize| {
        let used = each(n, &|score| score.throughput);
        let of_oracle = oracle.map(|oracle| {
            let possible = each(oracle, &|score| score.throughput.max(1e-9));
            used.iter()
                .zip(possible)
                .map(|(used, possible)| used / possible)
                .collect::<Vec<f64>>()
        });
        let overload = each(n, &|score| score.overload_s);
        RandomRow {
            controller: contenders[n].name(),
            used: mean(&used),
            used_p5: percentile(&used, 0.05),
            of_oracle: of_oracle.as_deref().map(mean),
            of_oracle_p5: of_oracle.as_deref().map(|all| percentile(all, 0.05)),
            overload_of_pid: pid.map(|pid| {
                let logs: Vec<f64> = overload
                    .iter()
                    .zip(each(pid, &|score| score.overload_s))
                    .map(|(own, pid)| (own.max(NEGLIGIBLE_S) / pid.max(NEGLIGIBLE_S)).ln())
                    .collect();
                mean(&logs).exp()
            }),
            overload_s: mean(&overload),
            unstable: plants
                .iter()
                .filter(|plant| {
                    let score = plant.scores[n];
                    score.oscillation > UNSTABLE_SWING && score.reversals > UNSTABLE_REVERSALS
                })
                .count(),
        }
    };
    (0..contenders.len()).map(row).collect()
}

/// Returns the plants with the lowest use by the contender number `n`, the lowest first.
pub fn worst(plants: &[PlantScores], n: usize, most: usize) -> Vec<&PlantScores> {
    let mut worst: Vec<&PlantScores> = plants.iter().collect();
    worst.sort_by(|a, b| a.scores[n].throughput.total_cmp(&b.scores[n].throughput));
    worst.truncate(most);
    worst
}

fn mean(all: &[f64]) -> f64 {
    all.iter().sum::<f64>() / all.len().max(1) as f64
}

/// Returns the value below which the share `q` of the values lies (nearest rank).
fn percentile(all: &[f64], q: f64) -> f64 {
    let mut sorted = all.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (q * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plant(plant: u64, used: [f64; 2], overload: [f64; 2]) -> PlantScores {
        let score = |n: usize| Score {
            throughput: used[n],
            overload_s: overload[n],
            ..Score::default()
        };
        PlantScores {
            plant,
            about: String::new(),
            scores: vec![score(0), score(1)],
        }
    }

    #[test]
    fn use_is_compared_plant_by_plant_with_the_oracle() {
        let plants = [
            plant(0, [0.4, 0.8], [0.0, 0.0]),
            plant(1, [0.9, 0.9], [0.0, 0.0]),
        ];
        let rows = rows(&[Contender::Flyball, Contender::Oracle], &plants);
        assert_eq!(rows[0].of_oracle, Some(0.75));
        assert_eq!((rows[0].used_p5, rows[0].of_oracle_p5), (0.4, Some(0.5)));
        assert_eq!(
            (rows[1].of_oracle, rows[1].overload_of_pid),
            (Some(1.0), None)
        );
        assert_eq!(worst(&plants, 0, 1)[0].plant, 0);
    }

    #[test]
    fn overload_is_the_geometric_mean_and_less_than_a_second_is_negligible() {
        let plants = [
            plant(0, [1.0, 1.0], [10.0, 40.0]),
            plant(1, [1.0, 1.0], [0.1, 0.5]),
        ];
        let rows = rows(&[Contender::Flyball, Contender::Pid], &plants);
        assert!((rows[0].overload_of_pid.unwrap() - 0.5).abs() < 1e-12);
    }

    #[test]
    fn the_oracle_uses_most_of_what_is_possible_on_random_plants() {
        let contenders = [Contender::Oracle, Contender::Fixed];
        let plants = scores(&contenders, None, 3, 20).unwrap();
        let rows = rows(&contenders, &plants);
        assert!(
            rows[0].used > 0.8 && rows[0].used > rows[1].used,
            "{rows:?}"
        );
    }
}
