//! The batching of concurrent requests of connections into one statement.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::jobs::Error;
use crate::postgres::Db;
use crate::service::{BatchBroken, Batcher};

/// The most requests in one statement.
const BATCH_MAX: usize = 128;

/// The shortest time between statements while requests keep coming.
const BATCH_EVERY: Duration = Duration::from_millis(2);

/// The requests of one tenant among those that wait for a statement: half of what one takes, so that
/// those of others find room in the next.
pub(super) const TENANT_MAX: usize = BATCH_MAX / 2;

/// The bytes of data for which a publication counts as one more of these: Postgres is at work with
/// a few that are large as long as with many.
const COUNTED_BYTES: usize = 16 * 1024;

/// The call that answers a batch.
type BatchCall<T, R> =
    fn(Db, Arc<Vec<T>>) -> futures_util::future::BoxFuture<'static, Result<Vec<R>, Error>>;

/// Returns a batcher of one kind of requests. One that Postgres cannot read fails alone.
pub(super) fn batcher<T, R>(db: &Db, call: BatchCall<T, R>) -> Batcher<T, Result<R, Error>>
where
    T: Clone + Send + Sync + 'static,
    R: Send + 'static,
{
    let db = db.clone();
    Batcher::paced(BATCH_MAX, BATCH_EVERY, move |items: Vec<T>| {
        let db = db.clone();
        Box::pin(async move {
            let items = Arc::new(items);
            match call(db.clone(), items.clone()).await {
                Ok(results) => results.into_iter().map(Ok).collect(),
                Err(error) if error.blames_a_row() && items.len() > 1 => {
                    each_alone(&db, call, &items).await
                }
                Err(error) => items
                    .iter()
                    .map(|_| Err(Error::Lost(error.to_string())))
                    .collect(),
            }
        })
    })
}

/// Asks again for each request of a batch of which one cannot be answered, so that the others, which
/// may be of other tenants, are. Nothing of the batch was committed.
async fn each_alone<T: Clone, R>(
    db: &Db,
    call: BatchCall<T, R>,
    items: &[T],
) -> Vec<Result<R, Error>> {
    let mut results = Vec::with_capacity(items.len());
    for item in items {
        let answer = call(db.clone(), Arc::new(vec![item.clone()])).await;
        let first = |found: Vec<R>| found.into_iter().next();
        let none = || Error::Lost("the statement has no answer".to_owned());
        results.push(answer.and_then(|found| first(found).ok_or_else(none)));
    }
    results
}

/// Returns the publications for which one with this data counts.
pub(super) fn counted(data: &Value) -> usize {
    1 + bytes_of(data) / COUNTED_BYTES
}

/// Returns the bytes of data, near enough.
fn bytes_of(data: &Value) -> usize {
    match data {
        Value::Null | Value::Bool(_) | Value::Number(_) => 8,
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(|item| 1 + bytes_of(item)).sum(),
        Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| name.len() + bytes_of(value))
            .sum(),
    }
}

/// Returns the answer to a request whose batch broke off.
pub(super) fn lost<R>(broken: BatchBroken) -> Result<R, Error> {
    Err(Error::Lost(broken.to_string()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_publication_counts_by_its_size() {
        let text = "x".repeat(COUNTED_BYTES);
        for (data, publications) in [
            (json!(1), 1),
            (json!({"text": "short", "numbers": [1, 2, 3]}), 1),
            (json!(text), 2),
            (json!([text, {"deep": [text, text]}]), 4),
        ] {
            assert_eq!(counted(&data), publications);
        }
    }
}
