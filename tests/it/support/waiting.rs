//! Waits for conditions. No other part of the tests polls.

use std::future::Future;
use std::time::{Duration, Instant};

/// Polls `f` until it returns `Some`; panics with `what` after `within`.
pub async fn eventually<T, F, Fut>(what: &str, within: Duration, f: F) -> T
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Option<T>>,
{
    match poll(within, f).await {
        Some(answer) => answer,
        None => panic!("{what}: not within {within:?}"),
    }
}

/// Polls `f` until it returns `Some`: after 10 ms, then ever more rarely, up to every 100 ms.
/// Returns `None` after `within`.
///
/// Many tests poll a database at the same time; polling more often would slow down the code under
/// test.
pub async fn poll<T, F, Fut>(within: Duration, mut f: F) -> Option<T>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Option<T>>,
{
    let asked = async {
        let mut pause = Duration::from_millis(10);
        loop {
            if let Some(answer) = f().await {
                return answer;
            }
            tokio::time::sleep(pause).await;
            pause = pause.mul_f64(1.1).min(Duration::from_millis(100));
        }
    };
    tokio::time::timeout(within, asked).await.ok()
}

/// Blocks the thread until the condition holds; panics with `what` after `within`.
pub fn block_until(what: &str, within: Duration, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + within;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}: not within {within:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
