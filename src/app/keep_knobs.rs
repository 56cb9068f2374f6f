//! Keeps a record of all knobs in Postgres and puts them back when Redis comes up empty.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::service::{Pace, periodic};
use crate::throttle::postgres::Record;
use crate::throttle::{Change, Name, Store};

/// How long an emptied Redis may stay empty.
const EVERY: Duration = Duration::from_secs(2);

/// Fields that change with every write and say nothing worth restoring.
const PASSING: &[&str] = &["seq", "term", "at"];

pub(super) async fn run(store: Arc<dyn Store>, record: Record, cancel: CancellationToken) {
    let saved = Arc::new(tokio::sync::Mutex::new(BTreeMap::new()));
    periodic(Pace { name: "keep knobs", every: EVERY, wake: None }, cancel, || {
        let (store, record, saved) = (store.clone(), record.clone(), saved.clone());
        async move { tick(&*store, &record, &mut *saved.lock().await).await }
    })
    .await;
}

/// Restores what is missing, then records what has changed.
pub(super) async fn tick(
    store: &dyn Store,
    record: &Record,
    saved: &mut BTreeMap<Name, BTreeMap<String, String>>,
) -> anyhow::Result<()> {
    let mut known: BTreeSet<Name> = store.names().await?.into_iter().collect();
    for (name, fields) in record.load().await? {
        if store.status(&name).await?.is_some() {
            continue;
        }
        let fields = fields.into_iter().filter(|(field, _)| !PASSING.contains(&field.as_str()));
        let change = Change {
            fields: fields.map(|(field, text)| (field, Some(text))).collect(),
            by: "flyball".to_owned(),
            why: "restored: the knobs were missing in Redis".to_owned(),
            create: true,
            absent_only: true,
            ..Change::default()
        };
        store.set(&name, &change).await?;
        tracing::warn!(throttle.name = %name, "the knobs were missing in Redis and have been restored from Postgres");
        known.insert(name);
    }
    for name in known {
        let Some(status) = store.status(&name).await? else { continue };
        // A key that is no hash has no knobs to keep; those kept before stay.
        if status.raw.is_empty() {
            continue;
        }
        let mut fields = status.raw;
        fields.retain(|field, _| !PASSING.contains(&field.as_str()));
        if saved.get(&name) != Some(&fields) {
            record.save(&name, &fields).await?;
            saved.insert(name, fields);
        }
    }
    Ok(())
}
