//! The background loops of a process: one that ends early ends the process.

use std::sync::Arc;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::{knob_backup, made_throttles, share};
use crate::jobs::Queue;
use crate::runner;
use crate::service::TaskSupervisor;
use crate::throttle::Store;
use crate::throttle::admission::TenantLimits;
use crate::throttle::postgres::KnobRecord;

/// The running loops, and the token that ends them.
#[derive(Default)]
pub(super) struct Loops {
    pub(super) vital: TaskSupervisor,
    pub(super) cancel: CancellationToken,
    pub(super) tasks: Vec<JoinHandle<()>>,
}

impl Loops {
    /// Starts a loop, which ends when [`Self::stop`] is cancelled.
    pub(super) fn spawn(
        &mut self,
        name: &'static str,
        work: impl Future<Output = ()> + Send + 'static,
    ) {
        let task = self.vital.spawn(name, self.stop(), work);
        self.tasks.push(task);
    }

    /// Returns a token that is cancelled when the process stops.
    pub(super) fn stop(&self) -> CancellationToken {
        self.cancel.child_token()
    }

    /// Starts the loops that record knobs, and that delete throttles which were made on first use.
    pub(super) fn keep_knobs(
        &mut self,
        queue: &Queue,
        throttles: &Arc<dyn Store>,
        limits: TenantLimits,
    ) {
        let record = || KnobRecord::new(queue.pool.clone());
        let keep = knob_backup::run(throttles.clone(), record(), self.stop());
        self.spawn("keep knobs", keep);
        let made = made_throttles::run(throttles.clone(), record(), limits, self.stop());
        self.spawn("made throttles", made);
    }

    /// Starts the loops of a process without a worker. Workers measure the queue's depth, and know
    /// how many of them share a rate; this one must do both itself.
    pub(super) fn replace_worker(&mut self, queue: &Queue, throttles: &Arc<dyn Store>) {
        let depth = runner::keep_depth(queue.clone(), self.stop());
        self.spawn("depth", depth);
        let share = share::run(throttles.clone(), queue.clone(), self.stop());
        self.spawn("share", share);
    }
}
