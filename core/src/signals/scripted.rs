//! A fixed series of samples that become visible after a delay: a signal without a server.

use super::Reading;

/// A series that is fixed beforehand.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scripted {
    samples: Vec<Reading>,
    delay_s: f64,
}

impl Scripted {
    /// Creates a series of samples `(at, value)`, each visible `delay_s` after its own time.
    pub fn new(samples: impl IntoIterator<Item = (f64, f64)>, delay_s: f64) -> Self {
        let mut samples: Vec<_> = samples
            .into_iter()
            .map(|(at, value)| Reading { value, at })
            .collect();
        samples.sort_by(|a, b| a.at.total_cmp(&b.at));
        Self { samples, delay_s }
    }

    /// Returns the samples that are visible at `now` and younger than `window_s`, oldest first, as
    /// a range query does.
    pub fn readings(&self, now: f64, window_s: f64) -> Vec<Reading> {
        let visible = |r: &&Reading| r.at + self.delay_s <= now && r.at > now - window_s;
        self.samples.iter().filter(visible).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_visible_after_the_delay_and_until_the_window_passes() {
        let script = Scripted::new([(15.0, 2.0), (0.0, 1.0)], 20.0);
        assert_eq!(script.readings(19.0, 60.0), []);
        assert_eq!(script.readings(35.0, 60.0).len(), 2);
        assert_eq!(
            script.readings(70.0, 60.0),
            [Reading {
                value: 2.0,
                at: 15.0
            }]
        );
    }
}
