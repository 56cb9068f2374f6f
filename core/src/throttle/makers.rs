//! The patterns that make throttles on first use, within the bound of their number.

use super::Name;
use super::caller_knobs::bounds_reached;
use super::on_demand::maker_of;
use super::tenant::tenant_of;

/// The patterns among all throttles, and the owners for whom none is made any more.
#[derive(Clone, Debug, Default)]
pub struct Makers {
    patterns: Vec<Name>,
    /// The tenants that have `made_max` throttles or more; `None` for the shared ones.
    full: Vec<Option<String>>,
    made_max: usize,
}

impl Makers {
    /// Finds them among the names of all throttles, of which `made_max` may be made on first use.
    pub fn of(names: &[Name], made_max: usize) -> Self {
        let patterns = names.iter().filter(|name| name.is_pattern());
        let full = bounds_reached(names, made_max).into_iter();
        Self {
            patterns: patterns.cloned().collect(),
            full: full.map(|(of, _)| of.map(str::to_owned)).collect(),
            made_max,
        }
    }

    /// Returns the pattern from which the first request for its tokens would make a throttle that
    /// does not exist; `None` if none does.
    pub fn pattern_of(&self, name: &Name) -> Option<&Name> {
        let owner = tenant_of(name.as_str());
        maker_of(name, &self.patterns, || {
            self.made_max == 0 || self.full.iter().any(|of| of.as_deref() == owner)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_makes_throttles_until_its_owner_has_as_many_as_allowed() {
        let names = ["default", "gcal:*", "gcal:1", "notify:*", "tenant:acme/*"];
        let names = names.map(|name| Name::or_pattern(name).unwrap());
        let made = |name: &str, made_max| {
            let makers = Makers::of(&names, made_max);
            let pattern = makers.pattern_of(&Name::new(name).unwrap());
            pattern.map(|pattern| pattern.as_str().to_owned())
        };
        assert_eq!(made("gcal:2", 4), Some("gcal:*".to_owned()));
        assert_eq!(made("gcal:2", 3), None, "three shared ones exist");
        assert_eq!(made("hooks", 4), None);
        let of_acme = Some("tenant:acme/*".to_owned());
        assert_eq!(made("tenant:acme/a", 2), of_acme);
        for made_max in [0, 3] {
            let of_messages = Some("notify:*".to_owned());
            assert_eq!(made("notify:acme", made_max), of_messages, "{made_max}");
        }
        assert_eq!(made("tenant:acme/a", 0), None);
    }
}
