//! The batching of concurrent requests of connections into one statement.

use std::time::Duration;

use crate::jobs::Error;
use crate::postgres::Db;
use crate::service::{BatchPanicked, Batcher};

/// The most requests in one statement.
const BATCH_MAX: usize = 128;

/// The shortest time between statements while requests keep coming.
const BATCH_EVERY: Duration = Duration::from_millis(2);

/// The call that answers a batch.
type BatchCall<T, R> =
    fn(Db, Vec<T>) -> futures_util::future::BoxFuture<'static, Result<Vec<R>, Error>>;

/// Returns a batcher of one kind of requests.
pub(super) fn batcher<T, R>(db: &Db, call: BatchCall<T, R>) -> Batcher<T, Result<R, Error>>
where
    T: Send + 'static,
    R: Send + 'static,
{
    let db = db.clone();
    Batcher::paced(BATCH_MAX, BATCH_EVERY, move |items: Vec<T>| {
        let db = db.clone();
        Box::pin(async move {
            let asked = items.len();
            match call(db, items).await {
                Ok(results) => results.into_iter().map(Ok).collect(),
                Err(error) => (0..asked)
                    .map(|_| Err(Error::Lost(error.to_string())))
                    .collect(),
            }
        })
    })
}

/// Returns the answer to a request whose batch broke off.
pub(super) fn lost<R>(broken: BatchPanicked) -> Result<R, Error> {
    Err(Error::Lost(broken.to_string()))
}
