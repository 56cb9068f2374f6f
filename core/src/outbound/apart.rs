//! Runs template renderings on a few threads, so that hostile templates delay one another and not
//! the threads that resolve names.
//!
//! A rendering checks the clock itself and ends in time; none is abandoned while it runs.

use std::time::{Duration, Instant};

use tokio::sync::Semaphore;

/// Longest time of one rendering.
pub const TEMPLATE_TIMEOUT: Duration = Duration::from_secs(5);

/// Most renderings that run at once.
const MAX_CONCURRENT_RENDERS: usize = 4;

static THREADS: Semaphore = Semaphore::const_new(MAX_CONCURRENT_RENDERS);

/// The deadline of a rendering.
#[derive(Clone, Copy, Debug)]
pub struct RenderDeadline(Instant);

impl RenderDeadline {
    /// Returns true once the deadline has passed.
    pub fn is_over(self) -> bool {
        Instant::now() >= self.0
    }
}

/// Runs a rendering on a separate thread, where it blocks no other task; `None` if it panicked.
pub async fn apart<T: Send + 'static>(
    work: impl FnOnce(RenderDeadline) -> T + Send + 'static,
) -> Option<T> {
    // The semaphore is never closed.
    let permit = THREADS.acquire().await.ok()?;
    let working = tokio::task::spawn_blocking(move || {
        let done = work(RenderDeadline(Instant::now() + TEMPLATE_TIMEOUT));
        drop(permit);
        done
    });
    working.await.ok()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use serde_json::json;

    use super::super::template;
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_hostile_template_ends_within_its_time_and_so_does_its_thread() {
        let rows: Vec<u32> = (0..6000).collect();
        let data = Arc::new(json!({"big": "\"".repeat(120_000), "r": rows}));
        let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let hostile = "{% for i in r %}{{ big|tojson|tojson|length }}{% endfor %}";
        let each = (0..12).map(|_| {
            let (data, running, most) = (data.clone(), running.clone(), most.clone());
            tokio::spawn(apart(move |until| {
                most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                let rendered = template::render(hostile, &data, move || until.is_over());
                running.fetch_sub(1, Ordering::SeqCst);
                rendered
            }))
        });
        let each: Vec<_> = each.collect();
        // Names are still resolved meanwhile, on threads of the same kind.
        let found = tokio::time::timeout(
            Duration::from_secs(30),
            tokio::net::lookup_host("localhost:0"),
        )
        .await;
        assert!(found.unwrap().unwrap().next().is_some());
        for one in each {
            assert!(one.await.unwrap().unwrap().is_err());
        }
        assert_eq!(running.load(Ordering::SeqCst), 0, "no thread goes on");
        assert!(most.load(Ordering::SeqCst) <= MAX_CONCURRENT_RENDERS);
    }
}
