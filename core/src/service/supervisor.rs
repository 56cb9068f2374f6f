//! Supervision of loops that a process needs: an unexpected end, by a panic for instance, is
//! reported to the composition root.

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// A supervisor of loops. A half-dead process looks healthy and does nothing, so it should end and
/// be restarted.
#[derive(Clone, Debug)]
pub struct TaskSupervisor {
    lost: watch::Sender<Option<&'static str>>,
}

impl Default for TaskSupervisor {
    fn default() -> Self {
        Self {
            lost: watch::Sender::new(None),
        }
    }
}

impl TaskSupervisor {
    /// Spawns `work` as a task, which may end only after `cancel` fired.
    pub fn spawn(
        &self,
        name: &'static str,
        cancel: CancellationToken,
        work: impl Future<Output = ()> + Send + 'static,
    ) -> JoinHandle<()> {
        self.spawn_boxed(name, cancel, work.boxed())
    }

    /// Spawns a loop whose type is erased: of each type of a task the compiler makes two hundred
    /// functions.
    fn spawn_boxed(
        &self,
        name: &'static str,
        cancel: CancellationToken,
        work: BoxFuture<'static, ()>,
    ) -> JoinHandle<()> {
        let lost = self.lost.clone();
        tokio::spawn(async move {
            let panicked = AssertUnwindSafe(work).catch_unwind().await.is_err();
            if panicked || !cancel.is_cancelled() {
                tracing::error!(service = name, panicked, "a loop ended unexpectedly");
                lost.send_if_modified(|first| first.is_none() && first.replace(name).is_none());
            }
        })
    }

    /// Waits until a loop has ended unexpectedly, and returns its name.
    pub async fn lost(&self) -> &'static str {
        let mut lost = self.lost.subscribe();
        match lost.wait_for(Option::is_some).await.map(|name| *name) {
            Ok(Some(name)) => name,
            // The sender is a field of `self`, so the channel cannot close.
            _ => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_loop_that_panics_or_just_ends_is_reported_and_one_that_was_asked_to_end_is_not() {
        let (vital, cancel) = (TaskSupervisor::default(), CancellationToken::new());
        cancel.cancel();
        vital.spawn("obedient", cancel, async {}).await.unwrap();
        assert_eq!(vital.lost().now_or_never(), None);

        vital.spawn("clumsy", CancellationToken::new(), async {
            panic!("a test's panic")
        });
        assert_eq!(vital.lost().await, "clumsy");
        vital
            .spawn("lazy", CancellationToken::new(), async {})
            .await
            .unwrap();
        assert_eq!(vital.lost().await, "clumsy", "the first is the cause");
    }
}
