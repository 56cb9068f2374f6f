//! Zones that change their clocks, for tests that look at each.

use std::collections::BTreeSet;

use jiff::Timestamp;
use jiff::tz::{TimeZone, db};

/// Returns the number of zones that change their clocks in 2025 to 2027, and one of each clock with
/// the times of its changes.
pub fn changing_zones() -> (usize, Vec<(TimeZone, Vec<Timestamp>)>) {
    let year = |text: &str| text.parse::<Timestamp>().unwrap();
    let (begin, end) = (year("2025-01-01T00:00:00Z"), year("2028-01-01T00:00:00Z"));
    let mut seen = BTreeSet::new();
    let (mut changing, mut zones) = (0, Vec::new());
    for name in db().available() {
        let zone = TimeZone::get(name.as_str()).unwrap();
        let changes: Vec<(Timestamp, i32)> = zone
            .following(begin)
            .map(|change| (change.timestamp(), change.offset().seconds()))
            .take_while(|(at, _)| *at < end)
            .collect();
        if changes.is_empty() {
            continue;
        }
        changing += 1;
        // Zones with the same clock need no second look.
        if seen.insert((zone.to_offset(begin).seconds(), changes.clone())) {
            let times = changes.iter().map(|(at, _)| *at).collect();
            zones.push((zone, times));
        }
    }
    (changing, zones)
}
