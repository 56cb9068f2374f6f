//! A broker: the loops that claim jobs for remote workers which ask for the same, from start to orderly
//! stop.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::broker_state::BrokerState;
use super::count;
use crate::jobs::remote::RemoteOffer;
use crate::jobs::{Error, Kinds, Queue};
use crate::runner::dispatch::{self, Stopping};
use crate::runner::shared::{Config, WorkerContext};
use crate::runner::{WorkerMetrics, heartbeat, maintenance, report_completions, settle};
use crate::service::{LoopOptions, TaskSupervisor, periodic};
use crate::throttle::Store;

const MAINTENANCE_EVERY: Duration = Duration::from_secs(2);

/// Longest wait for each part of a broker that stops.
const FAREWELL: Duration = Duration::from_secs(5);

/// A running broker.
pub(super) struct Broker {
    pub(super) shared: Arc<WorkerContext>,
    stopping: Stopping,
    living: CancellationToken,
    tasks: Vec<JoinHandle<()>>,
    dispatcher: JoinHandle<()>,
}

impl Broker {
    /// Registers the broker and starts its loops.
    pub(super) async fn start(
        offer: RemoteOffer,
        kinds: Kinds,
        (mut config, queue): (Config, Queue),
        throttles: Arc<dyn Store>,
        metrics: WorkerMetrics,
        vital: &TaskSupervisor,
    ) -> Result<Self, Error> {
        config.name = "broker".to_owned();
        config.serves.throttles.clone_from(&offer.throttles);
        // A broker always looks before it takes, because its lanes hold jobs of others as well.
        config.serves.kinds.clone_from(&offer.kinds);
        config.serves.pools.clear();
        // Ends are written at once, because their callers wait for the answer.
        let (ends, _) = mpsc::channel(1);
        let (differences, to_settle) = mpsc::channel(settle::IN_HAND);
        let mut shared = WorkerContext::new(
            config,
            queue,
            throttles.clone(),
            kinds,
            metrics,
            (ends, differences),
        );
        shared.broker = Some(BrokerState::new(offer, Instant::now()));
        let shared = Arc::new(shared);
        shared.register().await?;
        shared.hold_shards().await?;
        // The slots of jobs that nobody counts are taken before the first claim.
        count::count_once(&shared).await?;
        let stopping = Stopping::default();
        let living = CancellationToken::new();
        let requested = || stopping.requested.clone();
        let dispatcher = vital.spawn(
            "dispatch to remote workers",
            requested(),
            dispatch::dispatch(shared.clone(), stopping.clone()),
        );
        let tasks = vec![
            vital.spawn(
                "hold_shards",
                requested(),
                maintenance::hold_shards(shared.clone(), None, requested()),
            ),
            vital.spawn(
                "maintenance of a broker",
                requested(),
                return_lost_claims(shared.clone(), requested()),
            ),
            vital.spawn(
                "learn costs",
                requested(),
                maintenance::learn_costs(shared.clone(), requested()),
            ),
            vital.spawn(
                "count remote jobs",
                requested(),
                count::count(shared.clone(), requested()),
            ),
            vital.spawn(
                "answers",
                living.clone(),
                report_completions::report_completions(shared.clone(), living.clone()),
            ),
            vital.spawn(
                "heartbeat",
                living.clone(),
                heartbeat::beat(shared.clone(), living.clone()),
            ),
            vital.spawn(
                "settle",
                living.clone(),
                settle::settle_all(throttles, to_settle),
            ),
        ];
        Ok(Self {
            shared,
            stopping,
            living,
            tasks,
            dispatcher,
        })
    }

    /// Stops the broker in order. Jobs that remote workers hold stay theirs: another broker counts them
    /// from now on, and until then the last report holds their slots.
    pub(super) async fn stop(self) {
        let Self {
            shared,
            stopping,
            living,
            tasks,
            mut dispatcher,
        } = self;
        if let Some(broker) = &shared.broker {
            broker.polls.close(true);
        }
        stopping.requested.cancel();
        if tokio::time::timeout(FAREWELL, stopping.settled.cancelled())
            .await
            .is_err()
        {
            stopping.hurried.cancel();
            stopping.settled.cancelled().await;
        }
        shared.tasks.close();
        let _ = tokio::time::timeout(FAREWELL, shared.tasks.wait()).await;
        if shared
            .broker
            .as_ref()
            .is_none_or(|broker| broker.counted() == 0)
        {
            stopping.over.cancel();
            let _ = tokio::time::timeout(FAREWELL, &mut dispatcher).await;
        }
        dispatcher.abort();
        living.cancel();
        let id = shared.worker_id.load(std::sync::atomic::Ordering::Acquire);
        let queue = shared.queue.clone();
        // The settler ends when the last sender is dropped.
        drop(shared);
        for task in tasks {
            let _ = tokio::time::timeout(FAREWELL, task).await;
        }
        if !matches!(
            tokio::time::timeout(FAREWELL, queue.retire(id)).await,
            Ok(Ok(_))
        ) {
            tracing::debug!("signing off a broker failed; its time to live ends it");
        }
    }
}

/// Gives back jobs of claims whose answer was lost.
async fn return_lost_claims(shared: Arc<WorkerContext>, cancel: CancellationToken) {
    let pace = LoopOptions {
        name: "maintenance of a broker",
        every: MAINTENANCE_EVERY,
        wake: None,
    };
    periodic(pace, cancel, || {
        let shared = shared.clone();
        async move {
            maintenance::return_uncertain(&shared).await?;
            maintenance::give_back_forgotten(&shared).await
        }
    })
    .await;
}
