//! The workers behind a throttle's jobs, and the age of the counts of these jobs, in sentences.

use std::time::Duration;

use crate::governor::explain::seconds;
use crate::jobs::Count;
use crate::jobs::postgres::Depths;

/// The age from which counts say little about the present. A process that counts a quiet queue is
/// done within ten seconds.
const OLD: Duration = Duration::from_secs(30);

/// The command that starts a process which counts jobs.
pub const START_ONE: &str = "start one: flyball serve";

/// Says what stands still while only workers in other programs are live.
pub const NO_RUNNER: &str = "no process has the role runner, so no scheduled job or retry becomes \
     ready, and jobs of workers in other programs that died are not given back";

/// Returns true if the counts say little about the present, or if there are none.
pub fn are_old(counts: &Depths) -> bool {
    counts.age.is_none_or(|age| age > OLD)
}

/// Describes old counts, and that nobody keeps them; `None` for new ones.
pub fn age_of(counts: &Depths) -> Option<String> {
    if !are_old(counts) {
        return None;
    }
    let told = match counts.age {
        Some(age) => format!("were last counted {} ago", seconds(age.as_secs_f64())),
        None => "have not been counted yet".to_owned(),
    };
    Some(match counts.is_kept {
        true => told,
        false => format!("{told}: no live process counts them; {START_ONE}"),
    })
}

/// Describes jobs that no live worker serves; `None` for a number that is unknown.
pub fn unserved(ready: Option<Count>, remedy: &str) -> String {
    match ready.filter(|ready| ready.jobs > 0) {
        Some(Count {
            jobs: 1,
            more: false,
        }) => format!("1 job waits and does not start, because {remedy}."),
        Some(ready) => format!("{ready} jobs wait and none starts, because {remedy}."),
        None => format!("No job starts, because {remedy}."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_say_their_age_once_they_are_old_and_whether_anyone_keeps_them() {
        let told = |age: Option<u64>, is_kept| {
            age_of(&Depths {
                age: age.map(Duration::from_secs),
                is_kept,
                ..Depths::default()
            })
        };
        assert_eq!(told(Some(9), false), None);
        assert_eq!(
            told(Some(90), true).unwrap(),
            "were last counted 90 s ago",
            "a walk over a long queue takes its time"
        );
        assert_eq!(
            told(Some(28_800), false).unwrap(),
            "were last counted 8 h ago: no live process counts them; start one: flyball serve"
        );
        assert_eq!(told(None, true).unwrap(), "have not been counted yet");
    }

    #[test]
    fn jobs_without_a_worker_are_told_with_their_number_and_the_remedy() {
        let told = |ready: Option<(i64, bool)>| {
            let ready = ready.map(|(jobs, more)| Count { jobs, more });
            unserved(ready, "no worker is live; start one")
        };
        assert_eq!(
            told(Some((2000, false))),
            "2000 jobs wait and none starts, because no worker is live; start one."
        );
        assert!(told(Some((10_000, true))).starts_with("10000+ jobs wait"));
        assert!(told(Some((1, false))).starts_with("1 job waits and does not start"));
        assert!(told(None).starts_with("No job starts, because no worker is live"));
    }
}
