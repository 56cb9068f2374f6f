//! Knobs that another program wrote into Redis, as LimitLion does, and their adoption.

use std::collections::BTreeMap;

use super::{Change, Error, Status, Store};

/// Returns true if these knobs were never written through Flyball.
pub fn is_foreign(status: &Status) -> bool {
    !status.raw.contains_key("seq")
}

/// Adopts a throttle: adds what its hash lacks, keeps its rate and removes its time to live. Fails
/// if `rps` changes meanwhile.
pub async fn adopt(
    store: &dyn Store,
    found: &Status,
    by: &str,
    why: &str,
) -> Result<(Change, Status), Error> {
    let mode = found
        .raw
        .get("mode")
        .cloned()
        .unwrap_or_else(|| found.knobs.mode.as_str().to_owned());
    let change = Change {
        fields: BTreeMap::from([("mode".to_owned(), Some(mode))]),
        if_rps: Some(found.raw.get("rps").cloned().unwrap_or_default()),
        by: by.to_owned(),
        why: why.to_owned(),
        ..Change::default()
    };
    let (_, after) = store.set(&found.name, &change).await?;
    store.persist(&found.name).await?;
    Ok((change, after))
}
