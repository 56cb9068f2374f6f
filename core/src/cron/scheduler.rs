//! The keeper of schedules: due occurrences become jobs. Every worker process runs it, without a
//! leader.

use tokio_util::sync::CancellationToken;

use super::postgres::{Advanced, Due, Error};
use super::{Schedules, Timing};
use crate::service::{DueWork, LoopOptions, UNWOKEN_EVERY, periodic_unless_watched};

/// Creates the jobs of due occurrences until `cancel` fires. The worker that looks for due work
/// wakes it.
pub async fn run_schedules(schedules: Schedules, due: DueWork, cancel: CancellationToken) {
    periodic_unless_watched(
        LoopOptions {
            name: "cron",
            every: UNWOKEN_EVERY,
            wake: Some(due.schedules.clone()),
        },
        due,
        cancel,
        || tick(&schedules),
    )
    .await;
}

/// Checks the due schedules once.
///
/// A schedule that fails must not hold up the others; the first failure is returned at the end.
pub(crate) async fn tick(schedules: &Schedules) -> Result<(), Error> {
    let mut failed = None;
    for due in schedules.due().await? {
        if let Some(problem) = &due.unreadable {
            tracing::warn!(schedule.name = %due.schedule.name, problem, "a schedule creates no jobs");
            failed = failed.or(schedules.set_aside(&due, problem).await.err());
            continue;
        }
        match one(schedules, &due).await {
            Ok(Some(advanced)) => log_result(&due, &advanced),
            // Another worker was faster.
            Ok(None) => {}
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    failed.map_or(Ok(()), Err)
}

async fn one(
    schedules: &Schedules,
    Due {
        schedule,
        now,
        due_at,
        ..
    }: &Due,
) -> Result<Option<Advanced>, Error> {
    let timing = match Timing::new(&schedule.expression, &schedule.time_zone) {
        Ok(timing) => timing,
        Err(bad) => {
            let problem = format!("{}: {}", bad.field, bad.message);
            return schedules.advance(schedule, &[], None, Some(&problem)).await;
        }
    };
    let occurrences = due_at
        .map(|due_at| timing.due(due_at, *now, schedule.catch_up))
        .unwrap_or_default();
    let Some(next_at) = timing.next_after(*now) else {
        return schedules
            .advance(
                schedule,
                &occurrences,
                None,
                Some("expression: has no further occurrence"),
            )
            .await;
    };
    schedules
        .advance(schedule, &occurrences, Some(next_at), None)
        .await
}

fn log_result(due: &Due, advanced: &Advanced) {
    let name = &due.schedule.name;
    if let Some(problem) = &advanced.refused {
        let made = advanced.made;
        // It is tried again each minute.
        if due.schedule.next_at.is_none() && due.schedule.problem.as_ref() == Some(problem) {
            tracing::debug!(schedule.name = %name, problem, made, "a schedule still has its problem");
            return;
        }
        tracing::warn!(schedule.name = %name, problem, made, "an occurrence of a schedule creates no job");
    } else if advanced.skipped > 0 {
        tracing::info!(schedule.name = %name, skipped = advanced.skipped, "the last job of a schedule is unfinished; no other job was created");
    } else if advanced.made > 0 {
        tracing::debug!(schedule.name = %name, made = advanced.made, "a schedule created jobs");
    }
}
