//! Knobs that another program has written into Redis, as LimitLion does: found, and taken into our keeping.

use std::collections::BTreeMap;

use super::{Change, Error, Status, Store};

/// True if nobody has written these knobs through Flyball yet.
pub fn is_foreign(status: &Status) -> bool {
    !status.raw.contains_key("seq")
}

/// Makes the throttle ours: what its hash lacks is added, its rate stays, and it vanishes no more. Refuses if somebody turns `rps`
/// meanwhile.
pub async fn adopt(store: &dyn Store, found: &Status, by: &str, why: &str) -> Result<(Change, Status), Error> {
    let mode = found.raw.get("mode").cloned().unwrap_or_else(|| found.knobs.mode.as_str().to_owned());
    let change = Change {
        fields: BTreeMap::from([("mode".to_owned(), Some(mode))]),
        if_rps: Some(found.raw.get("rps").cloned().unwrap_or_default()),
        by: by.to_owned(),
        why: why.to_owned(),
        ..Change::default()
    };
    let (_, after) = store.set(&found.name, &change).await?;
    store.keep(&found.name).await?;
    Ok((change, after))
}
