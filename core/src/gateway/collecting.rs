//! The collector: moves what was published into the history, as the limits of tenants allow.
//!
//! Messages of tenants within their limits go at once. Messages of tenants at their limit go in
//! steps. The others wait while a step moves its messages, and for no other part of it.

use std::time::Duration;

use tokio::time::Instant;

use super::collect_round::{CollectRound, ROUND_MAX, RoundStep};
use super::postgres::{self, CollectOutcome, TenantGrant, WaitingPublications};
use super::service::Gateway;
use crate::jobs::Error;

/// The messages of a tenant that are moved in one transaction.
const COLLECTED_MAX: u32 = 500;

/// The pause before a step is tried again while a collector of another process is at work.
const STEP_RETRY: Duration = Duration::from_millis(3);

impl Gateway {
    /// Collects until nothing is left that may go now, of tenants that are not at their limit.
    pub(super) async fn collect_round(&self) -> Result<(), Error> {
        let mut round = CollectRound::begin(Instant::now().into_std());
        loop {
            let outcome = self.collect().await?;
            if let CollectOutcome::Collected { moved, grants } = &outcome {
                self.note_moved(*moved);
                if grants.iter().any(|grant| grant.wait.is_some()) {
                    self.has_limited.notify_one();
                }
            }
            match round.note(&outcome, Instant::now().into_std()) {
                RoundStep::Look => {}
                RoundStep::Wait(pause) => tokio::select! {
                    () = tokio::time::sleep(pause) => {}
                    () = self.due.publications.notified() => {}
                },
                RoundStep::Done => return Ok(()),
                RoundStep::Anew { is_held } => {
                    if is_held {
                        tracing::warn!(
                            "another session of Postgres keeps the lock of collectors; messages of \
                             channels wait until it lets go"
                        );
                    }
                    self.due.publications.notify_one();
                    return Ok(());
                }
            }
        }
    }

    async fn collect(&self) -> Result<CollectOutcome, Error> {
        let _collecting = self.collecting.lock().await;
        let passed_over = self.limited.lock().tenants();
        let admit = |waiting: Vec<WaitingPublications>| {
            let admitted = self.admit(waiting);
            Box::pin(admitted) as futures_util::future::BoxFuture<'_, Vec<TenantGrant>>
        };
        let histories = self.limits.history_rules();
        postgres::collect(&self.db, COLLECTED_MAX, &passed_over, &admit, &histories).await
    }

    /// Moves what waits for the limits of tenants, step by step, until none is at its limit or the
    /// round has lasted long enough.
    pub(super) async fn pace_round(&self) -> Result<(), Error> {
        let began = Instant::now();
        while began.elapsed() < ROUND_MAX {
            let next = self.limited.lock().next(Instant::now().into_std());
            let Some(next) = next else {
                return Ok(());
            };
            if next.tenants.is_empty() {
                tokio::select! {
                    () = tokio::time::sleep(next.wait) => {}
                    () = self.has_limited.notified() => {}
                }
                continue;
            }
            let waiting = postgres::waiting_of(&self.db, &next.tenants, COLLECTED_MAX).await?;
            let grants = self.admit(waiting).await;
            self.note_moved(self.collect_granted(&grants).await?);
            let unlimited = grants.iter().filter(|grant| grant.wait.is_none());
            for grant in unlimited {
                self.limited.lock().clear(&grant.tenant);
                // Messages published since the count are left to the other loop.
                self.due.publications.notify_one();
            }
        }
        // The next round begins at once.
        self.has_limited.notify_one();
        Ok(())
    }

    async fn collect_granted(&self, grants: &[TenantGrant]) -> Result<u64, Error> {
        let histories = self.limits.history_rules();
        loop {
            let collecting = self.collecting.lock().await;
            let moved = postgres::collect_granted(&self.db, grants, &histories).await?;
            drop(collecting);
            match moved {
                Some(moved) => return Ok(moved),
                None => tokio::time::sleep(STEP_RETRY).await,
            }
        }
    }

    fn note_moved(&self, moved: u64) {
        if moved > 0 {
            self.metrics.collected(moved);
            self.due.channel_messages.notify_one();
        }
    }
}
