//! Presets of quiet hours that the law of a country asks for. They are a mechanism and no legal
//! advice.

use jiff::civil::time;
use jiff::tz::TimeZone;

use super::quiet::{Quiet, QuietHours, QuietRule, Weekdays};
use crate::providers::Channel;

/// A preset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuietPreset {
    /// Text messages to numbers of the United States only from 08:00 to 21:00 of the recipient.
    UsTcpa,
}

/// The presets and their names.
pub const QUIET_PRESETS: [(&str, QuietPreset); 1] = [("us-tcpa", QuietPreset::UsTcpa)];

/// The beginning of the numbers of the United States, Canada and some islands.
const NORTH_AMERICA: &str = "+1";

/// The zones of numbers whose area code is that of an island far from the others.
const TERRITORIES: [(&str, &[&str]); 6] = [
    ("+1671", &["Pacific/Guam"]),
    ("+1670", &["Pacific/Saipan"]),
    ("+1684", &["Pacific/Pago_Pago"]),
    ("+1340", &["America/St_Thomas"]),
    ("+1787", &["America/Puerto_Rico"]),
    ("+1939", &["America/Puerto_Rico"]),
];

/// The zones of all other numbers. An area code tells the state in which a number was bought, and
/// not where its owner lives, so the time must suit every zone.
const STATES_AND_PROVINCES: &[&str] = &[
    "America/St_Johns",
    "America/Halifax",
    "America/New_York",
    "America/Chicago",
    "America/Denver",
    "America/Phoenix",
    "America/Regina",
    "America/Los_Angeles",
    "America/Anchorage",
    "America/Adak",
    "Pacific/Honolulu",
];

impl QuietPreset {
    /// Returns its name.
    pub fn as_str(self) -> &'static str {
        let known = QUIET_PRESETS.iter().find(|(_, preset)| *preset == self);
        known.map_or("", |(word, _)| word)
    }

    /// Adds the rules of the preset for an address. With an unknown zone, those of every zone of
    /// the number's country hold.
    pub fn add_to(
        self,
        quiet: &mut Quiet,
        channel: Channel,
        address: &str,
        zone: Option<&TimeZone>,
    ) {
        let Self::UsTcpa = self;
        if channel != Channel::Sms || !address.starts_with(NORTH_AMERICA) {
            return;
        }
        let Ok(hours) = QuietHours::daily(
            time(21, 0, 0, 0),
            time(8, 0, 0, 0),
            Weekdays::ALL,
            Default::default(),
        ) else {
            return;
        };
        let zones: Vec<TimeZone> = match zone {
            Some(zone) => vec![zone.clone()],
            None => zones_of(address)
                .iter()
                .filter_map(|name| TimeZone::get(name).ok())
                .collect(),
        };
        for zone in zones {
            let mut rule = QuietRule::new(hours.clone(), zone);
            rule.name = format!("{} {}", self.as_str(), rule.name);
            quiet.0.push(rule);
        }
    }
}

fn zones_of(number: &str) -> &'static [&'static str] {
    TERRITORIES
        .iter()
        .find(|(area, _)| number.starts_with(area))
        .map_or(STATES_AND_PROVINCES, |(_, zones)| *zones)
}

#[cfg(test)]
mod tests {
    use jiff::{SignedDuration, Timestamp};

    use super::*;

    fn quiet(number: &str, zone: Option<&str>) -> Quiet {
        let mut quiet = Quiet::default();
        let zone = zone.map(|zone| TimeZone::get(zone).unwrap());
        QuietPreset::UsTcpa.add_to(&mut quiet, Channel::Sms, number, zone.as_ref());
        quiet
    }

    fn next(quiet: &Quiet, at: &str) -> String {
        let awake = quiet.next_allowed(at.parse().unwrap());
        awake.at.unwrap().to_string()
    }

    #[test]
    fn a_known_zone_gets_its_own_hours() {
        let chicago = quiet("+13125550100", Some("America/Chicago"));
        assert_eq!(
            next(&chicago, "2026-06-10T02:00:00Z"),
            "2026-06-10T13:00:00Z"
        );
        assert_eq!(
            next(&chicago, "2026-06-10T01:59:59Z"),
            "2026-06-10T01:59:59Z"
        );
        assert!(chicago.0[0].name.starts_with("us-tcpa 21:00-08:00"));
    }

    #[test]
    fn an_unknown_zone_gets_the_hours_that_suit_every_zone_of_the_country() {
        let unknown = quiet("+13125550100", None);
        // 08:00 in Honolulu in winter and summer.
        for at in ["2026-01-15T12:00:00Z", "2026-07-15T12:00:00Z"] {
            let day = &at[..10];
            assert_eq!(next(&unknown, at), format!("{day}T18:00:00Z"));
        }
        // From 21:00 in St. John's, in summer 23:30Z.
        assert!(unknown.is_quiet("2026-07-15T23:30:00Z".parse().unwrap()));
        assert!(!unknown.is_quiet("2026-07-15T23:29:59Z".parse().unwrap()));
        let guam = quiet("+16715550100", None);
        assert_eq!(next(&guam, "2026-01-15T12:00:00Z"), "2026-01-15T22:00:00Z");
    }

    #[test]
    fn every_day_has_hours_that_suit_every_zone() {
        let unknown = quiet("+13125550100", None);
        let mut at: Timestamp = "2025-01-01T00:00:00Z".parse().unwrap();
        for _ in 0..1095 {
            let next = unknown.next_allowed(at).at.unwrap();
            assert!(
                next.duration_since(at) < SignedDuration::from_hours(24),
                "{at}"
            );
            at = at.checked_add(SignedDuration::from_hours(24)).unwrap();
        }
    }

    #[test]
    fn numbers_of_other_countries_and_other_channels_are_not_concerned() {
        assert_eq!(quiet("+4915550100", None).0.len(), 0);
        let mut mail = Quiet::default();
        QuietPreset::UsTcpa.add_to(&mut mail, Channel::Email, "a@example.com", None);
        assert_eq!(mail.0.len(), 0);
    }

    #[test]
    fn every_zone_is_known() {
        let zones = TERRITORIES
            .iter()
            .flat_map(|(_, zones)| *zones)
            .chain(STATES_AND_PROVINCES);
        for zone in zones {
            assert!(TimeZone::get(zone).is_ok(), "{zone}");
        }
    }
}
