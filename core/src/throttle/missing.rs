//! The words on a throttle that does not exist: how to create it, or that none can have its name.

use super::Name;
use super::admission::is_of_admission;
use super::api_limit::is_of_the_api;
use super::name::state_part;
use crate::input::wording::similar;

/// The remedy for a job whose throttle cannot exist.
pub const ANOTHER_THROTTLE: &str =
    "give the job another throttle with: flyball job update ID --throttle NAME";

/// Returns the part of a name for which no throttle of this name can be made, such as `lane` of
/// `mail:lane`. The names that tenants and the settings of an API give to Flyball's own throttles
/// are left alone.
pub fn refused_part(throttle: &str) -> Option<&str> {
    let is_own = is_of_admission(throttle) || is_of_the_api(throttle);
    state_part(throttle).filter(|_| !is_own)
}

/// Says that a throttle does not exist; `how` follows the name and tells how to create it, unless
/// none can have the name.
pub fn no_throttle(throttle: &str, how: &str) -> String {
    match refused_part(throttle) {
        Some(part) => format!(
            "there is no throttle {throttle}, and none can have this name: under the part {part} the throttle named before it stores the state of its keys"
        ),
        None => format!("there is no throttle {throttle}{how}"),
    }
}

/// Says the same of the throttle of a waiting job, which needs another one if none can have the
/// name.
pub fn no_throttle_of_job(throttle: &str, how: &str) -> String {
    let missing = no_throttle(throttle, how);
    match refused_part(throttle) {
        Some(_) => format!("{missing}; {ANOTHER_THROTTLE}"),
        None => missing,
    }
}

/// Returns the throttle among `names` that is nearly called so, and may have been meant; a pattern
/// only for a pattern.
pub fn nearly_called<'a>(name: &str, names: &'a [Name]) -> Option<&'a str> {
    let is_pattern = name.ends_with('*');
    let alike = names.iter().filter(|one| one.is_pattern() == is_pattern);
    let others: Vec<&str> = alike
        .map(Name::as_str)
        .filter(|other| *other != name)
        .collect();
    similar(name, &others)
}

/// Returns what makes a throttle of a pattern, as the words behind its name.
pub fn made_from(pattern: &str) -> String {
    format!(" yet; the first request for its tokens makes it, from {pattern}")
}

/// Returns the command that creates a throttle, as the words behind its name.
pub(super) fn create_it(throttle: &str) -> String {
    format!("; create it with: flyball throttle set {throttle} rps=10")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::throttle::Error;

    #[test]
    fn nobody_is_told_to_create_a_throttle_that_none_can_be() {
        let mail = Error::Unknown(Name::new("mail").unwrap()).to_string();
        assert_eq!(
            mail,
            "there is no throttle mail; create it with: flyball throttle set mail rps=10"
        );
        assert_eq!(
            no_throttle_of_job("mail", " yet"),
            "there is no throttle mail yet"
        );

        let lane = Error::Unknown(Name::new("mail:lane").unwrap()).to_string();
        assert!(
            lane.contains("none can have this name") && !lane.contains("create"),
            "{lane}"
        );
        let job = no_throttle_of_job("mail:lane", "; create it");
        assert_eq!(job, format!("{lane}; {ANOTHER_THROTTLE}"));
        let own = no_throttle("notify:lane", "; create it");
        assert_eq!(own, "there is no throttle notify:lane; create it");
    }

    #[test]
    fn a_name_that_may_have_been_meant_is_no_pattern() {
        let names = ["gcal:*", "hooks", "mail"].map(|name| Name::or_pattern(name).unwrap());
        for (name, meant) in [
            ("hoks", Some("hooks")),
            ("gcal:1", None),
            ("gcal*", Some("gcal:*")),
            ("mail", None),
        ] {
            assert_eq!(nearly_called(name, &names), meant, "{name}");
        }
    }
}
