//! Checks of the workers, of jobs that nobody serves, of housekeeping and of schedules.

use super::super::{output, pause};
use super::finding::{Finding, Findings};
use crate::api::served;
use crate::app::built_in_kinds;
use crate::config::Settings;
use crate::cron::Schedules;
use crate::jobs::postgres::NeededKey;
use crate::jobs::serving::{UnservedJobs, differences, differing_settings};
use crate::jobs::{Error, Queue, WorkerCapabilities, secret};

/// The most findings of one kind that are listed.
pub(super) const LISTED: usize = 10;

/// Checks the live workers, that one can do more than hand out jobs, and the jobs that none serves.
pub(super) async fn check_workers(settings: &Settings, queue: &Queue, report: &mut Findings) {
    const CHECK: &str = "workers";
    let mut findings = Vec::new();
    match read_workers(settings, queue, &mut findings).await {
        Ok(workers) if workers.is_empty() => findings.push(Finding::warn(
            CHECK,
            "none is live, so no job runs",
            served::START_ONE,
        )),
        Ok(workers) if workers.iter().all(|worker| worker.is_broker) => {
            findings.push(Finding::warn(CHECK, served::NO_RUNNER, served::START_ONE));
        }
        Ok(workers) if findings.is_empty() => {
            let live = workers.iter().filter(|worker| !worker.is_broker).count();
            findings.push(Finding::ok(
                CHECK,
                format!("{live} live, all answer and serve the same"),
            ));
        }
        Ok(_) => {}
        Err(_) => findings.push(Finding::fail(
            CHECK,
            "their rows cannot be read",
            "see the log of Postgres for the refused statement",
        )),
    }
    report.extend(findings);
}

async fn read_workers(
    settings: &Settings,
    queue: &Queue,
    findings: &mut Vec<Finding>,
) -> Result<Vec<WorkerCapabilities>, Error> {
    const CHECK: &str = "workers";
    if let Some(pause) = queue.paused().await? {
        findings.push(Finding::warn(
            CHECK,
            format!("no job starts: everything is {}", pause::sentence(&pause)),
            "end the pause: flyball resume",
        ));
    }
    let workers = queue.serving().await?;
    for worker in workers
        .iter()
        .filter(|worker| !worker.is_fresh)
        .take(LISTED)
    {
        findings.push(Finding::warn(
            CHECK,
            format!("{} ({}) has sent no heartbeat for 5 s", worker.name, worker.id),
            "see whether its host is overloaded or cut off; its jobs run elsewhere when its time to live is over",
        ));
    }
    for failing in queue.claim_failures().await?.into_iter().take(LISTED) {
        findings.push(Finding::fail(
            CHECK,
            format!(
                "{} ({}) cannot claim jobs: {}",
                failing.worker, failing.worker_id, failing.error
            ),
            "remove the cause that the error names; the worker goes on by itself",
        ));
    }
    for difference in differences(&workers).into_iter().take(LISTED) {
        let todo = "if that is not intended, give all the same settings";
        findings.push(Finding::warn(CHECK, difference, todo));
    }
    if let Ok(kinds) = built_in_kinds(settings, None) {
        let own = kinds.settings();
        let subjects: Vec<String> = own.keys().cloned().collect();
        let others = queue.settings_of_others(0, &subjects).await?;
        for differing in differing_settings(&own, &others).into_iter().take(LISTED) {
            findings.push(Finding::fail(
                CHECK,
                differing,
                "make the settings the same, or stop the other worker; with these settings none starts",
            ));
        }
    }
    for needed in queue.needed_keys().await? {
        if let Some(finding) = key_missing(&needed, &workers) {
            findings.push(finding);
        }
    }
    for unserved in queue.unserved().await?.iter().take(LISTED) {
        findings.push(not_served(unserved));
    }
    Ok(workers)
}

/// Returns the finding about a key that jobs to come need and that no live worker has.
fn key_missing(needed: &NeededKey, workers: &[WorkerCapabilities]) -> Option<Finding> {
    let capability = secret::capability_of(&needed.id);
    let has = |worker: &WorkerCapabilities| worker.capabilities.contains_key(&capability);
    if workers.iter().any(has) {
        return None;
    }
    let NeededKey {
        id,
        example,
        values,
    } = needed;
    Some(Finding::fail(
        "workers",
        format!(
            "no live worker has the key {id}, with which {values} secret arguments are encrypted, such as those of {example}"
        ),
        "add that key to FLYBALL_SECRET_KEYS of the workers",
    ))
}

/// Returns a number of jobs for people, such as `1 job`.
pub(super) fn counted(jobs: i64) -> String {
    output::jobs(usize::try_from(jobs).unwrap_or_default())
}

fn not_served(one: &UnservedJobs) -> Finding {
    let (jobs, throttle) = (counted(one.jobs), &one.throttle);
    let what = match &one.kind {
        Some(kind) => format!("kind {kind}, throttle {throttle}"),
        None => format!("throttle {throttle}"),
    };
    Finding::fail(
        "workers",
        format!("no live worker serves {jobs} of {what}"),
        one.remedy.clone(),
    )
}

/// Checks that some process creates the days ahead and empties those past their retention.
pub(super) async fn check_housekeeping(settings: &Settings, queue: &Queue, report: &mut Findings) {
    const CHECK: &str = "housekeeping";
    let kept_days = settings.retention_days;
    let Ok(overdue) = queue.overdue_housekeeping(kept_days).await else {
        report.add(Finding::fail(
            CHECK,
            "the partitions of the queue cannot be read",
            "see the log of Postgres for the refused statement",
        ));
        return;
    };
    let todo = "start a worker, and see its log and pg_locks for who holds it up";
    if overdue.missing_days > 0 {
        report.add(Finding::fail(
            CHECK,
            format!(
                "{} of the next 3 days have no partition, which workers create a week ahead",
                overdue.missing_days
            ),
            todo,
        ));
    }
    if overdue.unpruned_days > 0 {
        report.add(Finding::warn(
            CHECK,
            format!(
                "{} days of jobs that are kept for {kept_days} were not emptied",
                overdue.unpruned_days
            ),
            todo,
        ));
    }
    if overdue.missing_days == 0 && overdue.unpruned_days == 0 {
        report.add(Finding::ok(
            CHECK,
            "the days ahead are there, and old ones were emptied",
        ));
    }
}

/// Checks that no schedule has a problem.
pub(super) async fn check_schedules(queue: &Queue, report: &mut Findings) {
    const CHECK: &str = "schedules";
    let Ok(schedules) = Schedules::of(queue).list().await else {
        report.add(Finding::fail(
            CHECK,
            "they cannot be read",
            "see the log of Postgres for the refused statement",
        ));
        return;
    };
    let problems: Vec<Finding> = schedules
        .iter()
        .filter(|schedule| !schedule.paused)
        .filter_map(|schedule| {
            let seen = format!("{}: {}", schedule.name, schedule.problem.as_ref()?);
            let todo = "set it again if it is wrong, or pause and resume it when the cause is gone";
            Some(Finding::warn(CHECK, seen, todo))
        })
        .take(LISTED)
        .collect();
    if problems.is_empty() {
        let seen = format!("{} exist, and none has a problem", schedules.len());
        report.add(Finding::ok(CHECK, seen));
    }
    report.extend(problems);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_job_is_told_in_the_singular() {
        let told = |jobs| {
            not_served(&UnservedJobs {
                throttle: "sms".to_owned(),
                kind: Some("render".to_owned()),
                needs: Vec::new(),
                jobs,
                since: None,
                remedy: "start one".to_owned(),
            })
            .seen
        };
        let one = "no live worker serves 1 job of kind render, throttle sms";
        assert_eq!(told(1), one);
        assert_eq!(told(7), one.replace("1 job", "7 jobs"));
    }
}
