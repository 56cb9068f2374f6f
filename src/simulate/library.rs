//! The scenarios that come with the program.

use super::scenario::{InvalidScenario, Scenario};

/// Names and contents of the scenario files, in the order of the table.
pub const FILES: &[(&str, &str)] = &[
    ("s1.toml", include_str!("../../scenarios/s1.toml")),
    ("s1x30.toml", include_str!("../../scenarios/s1x30.toml")),
    ("s2.toml", include_str!("../../scenarios/s2.toml")),
    ("s3.toml", include_str!("../../scenarios/s3.toml")),
    ("s4.toml", include_str!("../../scenarios/s4.toml")),
    ("s5.toml", include_str!("../../scenarios/s5.toml")),
    ("s6.toml", include_str!("../../scenarios/s6.toml")),
    ("s7.toml", include_str!("../../scenarios/s7.toml")),
    ("s8-x0_1.toml", include_str!("../../scenarios/s8-x0_1.toml")),
    ("s8-x0_3.toml", include_str!("../../scenarios/s8-x0_3.toml")),
    ("s8-x1.toml", include_str!("../../scenarios/s8-x1.toml")),
    ("s8-x3.toml", include_str!("../../scenarios/s8-x3.toml")),
    ("s8-x10.toml", include_str!("../../scenarios/s8-x10.toml")),
    ("s9.toml", include_str!("../../scenarios/s9.toml")),
    ("s10.toml", include_str!("../../scenarios/s10.toml")),
    ("s11.toml", include_str!("../../scenarios/s11.toml")),
    ("s12.toml", include_str!("../../scenarios/s12.toml")),
    ("s13.toml", include_str!("../../scenarios/s13.toml")),
    ("c1.toml", include_str!("../../scenarios/c1.toml")),
    ("c2.toml", include_str!("../../scenarios/c2.toml")),
    ("n1.toml", include_str!("../../scenarios/n1.toml")),
    ("n2.toml", include_str!("../../scenarios/n2.toml")),
    ("q1.toml", include_str!("../../scenarios/q1.toml")),
    ("d1.toml", include_str!("../../scenarios/d1.toml")),
    ("d2.toml", include_str!("../../scenarios/d2.toml")),
    ("d3.toml", include_str!("../../scenarios/d3.toml")),
    ("d4.toml", include_str!("../../scenarios/d4.toml")),
];

/// Names and contents of scenarios about complaints. Each takes five days, so they are no part of
/// all scenarios.
pub const MAIL_FILES: &[(&str, &str)] = &[
    ("m1.toml", include_str!("../../scenarios/m1.toml")),
    ("m2.toml", include_str!("../../scenarios/m2.toml")),
    ("m3.toml", include_str!("../../scenarios/m3.toml")),
    ("m4.toml", include_str!("../../scenarios/m4.toml")),
    ("m5.toml", include_str!("../../scenarios/m5.toml")),
    ("m6.toml", include_str!("../../scenarios/m6.toml")),
];

/// Returns all scenarios.
pub fn scenarios() -> Result<Vec<Scenario>, InvalidScenario> {
    parsed(FILES)
}

/// Returns the scenarios about complaints.
pub fn mail_scenarios() -> Result<Vec<Scenario>, InvalidScenario> {
    parsed(MAIL_FILES)
}

fn parsed(files: &[(&str, &str)]) -> Result<Vec<Scenario>, InvalidScenario> {
    files
        .iter()
        .map(|(file, text)| Scenario::parse(text, file))
        .collect()
}
