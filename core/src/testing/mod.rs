//! A queue for your own tests: run due jobs in this thread through your real handlers, and inspect
//! the enqueued ones.
//!
//! [`TestQueue::in_memory`] needs no server. [`TestQueue::on`] works on a database of your test's
//! own, so that jobs that your code enqueues in its transactions run too. Neither needs Redis: no
//! job waits for a throttle. Time is virtual: [`TestQueue::advance`] moves it, and
//! [`TestQueue::drain`] moves it as far as retries and scheduled jobs need.
//!
//! ```
//! # use flyball_core as flyball;
//! use flyball::jobs::{Context, HandlerError, Kinds, NewJob};
//! use flyball::testing::TestQueue;
//! use serde_json::json;
//!
//! # #[derive(serde::Serialize, serde::Deserialize)]
//! struct Greeting { name: String }
//!
//! async fn greet(greeting: Greeting, _: Context) -> Result<(), HandlerError> {
//!     if greeting.name.is_empty() {
//!         return Err(HandlerError::dead("nobody to greet"));
//!     }
//!     Ok(())
//! }
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! let mut kinds = Kinds::default();
//! kinds.register_typed("greet", greet);
//! let queue = TestQueue::in_memory(kinds);
//!
//! queue.enqueue(NewJob::new("greet", json!({"name": "Ada"}))).await?;
//! queue.assert_enqueued("greet", json!({"args": {"name": "Ada"}})).await;
//!
//! let report = queue.run_due().await?;
//! assert_eq!(report.completed(), 1);
//! queue.refute_enqueued("greet", json!({})).await;
//! # Ok::<(), flyball::testing::Error>(())
//! # }).unwrap();
//! ```

mod backing;
mod clock;
mod error;
mod keys;
mod memory;
mod postgres;
mod queue;
mod report;

pub use error::Error;
pub use postgres::enqueued_in;
pub use queue::TestQueue;
pub use report::{JobRun, Report};
