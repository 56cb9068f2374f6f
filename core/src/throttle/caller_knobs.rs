//! Makes throttles on first use, of the knobs that callers bring along.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::on_demand::{CALLER, KnobTexts, MADE_FROM, follow, make};
use super::rules::KnobProblem;
use super::{Error, Name, Store};

/// The time for which a caller's knobs are not compared again.
const DECLARED_FOR: Duration = Duration::from_secs(60);

/// The most throttles whose callers' knobs are remembered.
const REMEMBERED_MAX: usize = 10_000;

/// Makes a throttle, unless it exists or there are `made_max` throttles already, if that is given.
pub async fn make_in(
    store: &dyn Store,
    name: &Name,
    from: &str,
    knobs: &KnobTexts,
    made_max: Option<usize>,
) -> Result<(), Error> {
    if let Some(made_max) = made_max {
        let known = store.names().await?.len();
        if known >= made_max {
            let message = format!(
                "{name} was not made: there are {known} throttles, and with {made_max} or more (setting throttles_created_max) none is made on first use; create it with: flyball throttle set {name} rps=10"
            );
            return Err(Error::Invalid(vec![KnobProblem {
                field: "throttle".to_owned(),
                message,
            }]));
        }
    }
    store.set(name, &make(from, knobs)).await?;
    tracing::info!(throttle.name = %name, from, "a throttle was made on first use");
    Ok(())
}

/// The knobs that callers bring along with their calls.
#[derive(Default)]
pub struct CallerKnobs {
    declared: Mutex<BTreeMap<Name, (KnobTexts, Instant)>>,
}

impl CallerKnobs {
    /// Makes the throttle of a caller's knobs if there is none, and passes a change of them on.
    /// Knobs set in the store take precedence.
    ///
    /// The store is asked at most once a minute for each throttle, unless the knobs change.
    pub async fn declare(
        &self,
        store: &dyn Store,
        name: &Name,
        knobs: &KnobTexts,
        made_max: usize,
    ) -> Result<(), Error> {
        let is_fresh = self
            .declared
            .lock()
            .get(name)
            .is_some_and(|(known, at)| known == knobs && at.elapsed() < DECLARED_FOR);
        if is_fresh {
            return Ok(());
        }
        match store.status(name).await? {
            None => make_in(store, name, CALLER, knobs, Some(made_max)).await?,
            Some(status) if status.raw.get(MADE_FROM).is_some_and(|from| from == CALLER) => {
                if let Some(change) = follow(&status.raw, knobs) {
                    match store.set(name, &change).await {
                        // Another caller was faster.
                        Ok(_) | Err(Error::Conflict { .. }) => {}
                        Err(error) => return Err(error),
                    }
                }
            }
            Some(_) => {}
        }
        let mut declared = self.declared.lock();
        if declared.len() >= REMEMBERED_MAX {
            declared.clear();
        }
        declared.insert(name.clone(), (knobs.clone(), Instant::now()));
        Ok(())
    }

    /// Forgets a throttle that the store no longer knows.
    pub fn forget(&self, name: &Name) {
        self.declared.lock().remove(name);
    }
}
