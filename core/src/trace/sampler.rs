//! The decision whether a trace is recorded. Pure.

use super::TraceParent;

/// The names of samplers in `OTEL_TRACES_SAMPLER`.
pub const NAMES: [&str; 6] = [
    "always_on",
    "always_off",
    "traceidratio",
    "parentbased_always_on",
    "parentbased_always_off",
    "parentbased_traceidratio",
];

/// The bits of a trace's id that decide, so that all programs decide alike.
const DECIDING_BITS: u64 = (1 << 56) - 1;

/// The decision whether a trace is recorded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampler {
    /// The share of new traces that is recorded, 0 to 1.
    ratio: f64,
    /// True if a trace that another program began follows its decision.
    follows_parent: bool,
}

impl Default for Sampler {
    fn default() -> Self {
        Self {
            ratio: 1.0,
            follows_parent: true,
        }
    }
}

impl Sampler {
    /// Returns the sampler of a name, with its argument, the ratio; `Err` says what is allowed.
    pub fn named(name: &str, argument: Option<&str>) -> Result<Self, String> {
        let (rule, follows_parent) = match name.strip_prefix("parentbased_") {
            Some(rule) => (rule, true),
            None => (name, false),
        };
        let ratio =
            match rule {
                "always_on" => 1.0,
                "always_off" => 0.0,
                "traceidratio" => {
                    argument.map_or(Ok(1.0), |text| {
                        let ratio = text.trim().parse::<f64>().ok();
                        ratio.filter(|ratio| (0.0..=1.0).contains(ratio)).ok_or_else(|| {
                    format!("OTEL_TRACES_SAMPLER_ARG must be a number from 0 to 1, not {text:?}")
                })
                    })?
                }
                _ => {
                    return Err(format!(
                        "OTEL_TRACES_SAMPLER must be one of {}, not {name:?}",
                        NAMES.join(", ")
                    ));
                }
            };
        Ok(Self {
            ratio,
            follows_parent,
        })
    }

    /// Returns true if a span of this trace is recorded.
    pub fn samples(&self, parent: Option<TraceParent>, trace_id: u128) -> bool {
        if let Some(parent) = parent.filter(|_| self.follows_parent) {
            return parent.is_sampled();
        }
        let deciding = (trace_id as u64) & DECIDING_BITS;
        // As a float, the highest number is rounded up past every ratio.
        self.ratio >= 1.0 || (deciding as f64) < self.ratio * (DECIDING_BITS as f64 + 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_of_another_program_follows_its_decision_if_the_sampler_says_so() {
        let parent = TraceParent::root(7, 7);
        for (name, on, off, new) in [
            ("parentbased_always_on", true, false, true),
            ("parentbased_always_off", true, false, false),
            ("always_on", true, true, true),
            ("always_off", false, false, false),
        ] {
            let sampler = Sampler::named(name, None).unwrap();
            let decided = (
                sampler.samples(Some(parent.sampled(true)), 7),
                sampler.samples(Some(parent.sampled(false)), 7),
                sampler.samples(None, 7),
            );
            assert_eq!(decided, (on, off, new), "{name}");
        }
    }

    #[test]
    fn a_ratio_records_its_share_of_the_new_traces() {
        let quarter = Sampler::named("traceidratio", Some("0.25")).unwrap();
        let step = u128::from(DECIDING_BITS) / 1000;
        let recorded = (0..1000)
            .filter(|n| quarter.samples(None, n * step + step / 2))
            .count();
        assert_eq!(recorded, 250);
        let all = Sampler::named("traceidratio", Some("1")).unwrap();
        assert!(all.samples(None, u128::MAX));
    }

    #[test]
    fn an_unknown_sampler_and_a_ratio_out_of_range_are_refused() {
        assert!(
            Sampler::named("jaeger_remote", None)
                .unwrap_err()
                .contains("parentbased_traceidratio")
        );
        for wrong in ["1.5", "-0.1", "NaN", "half"] {
            let error = Sampler::named("traceidratio", Some(wrong)).unwrap_err();
            assert!(error.contains("0 to 1"), "{error}");
        }
    }
}
