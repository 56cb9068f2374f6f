//! Makes throttles on first use, of the knobs that callers bring along.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::listing::{Listing, is_counted};
use super::on_demand::{CALLER, KnobTexts, MADE_FROM, best_pattern, follow, inherited, make};
use super::tenant::tenant_of;
use super::{Error, Name, Store};

/// The time for which a caller's knobs are not compared again.
const DECLARED_FOR: Duration = Duration::from_secs(60);

/// The most throttles whose callers' knobs are remembered.
const REMEMBERED_MAX: usize = 10_000;

/// Makes a throttle, unless it exists.
pub async fn make_in(
    store: &dyn Store,
    name: &Name,
    from: &str,
    knobs: &KnobTexts,
) -> Result<(), Error> {
    store.set(name, &make(from, knobs)).await?;
    tracing::info!(throttle.name = %name, from, "a throttle was made on first use");
    Ok(())
}

/// Returns the number of throttles of each tenant, `None` for the shared ones, that has `made_max`
/// or more, so that none is made on first use.
pub fn bounds_reached(names: &[Name], made_max: usize) -> Vec<(Option<&str>, usize)> {
    let mut counts: BTreeMap<Option<&str>, usize> = BTreeMap::new();
    for name in names.iter().filter(|name| is_counted(name)) {
        *counts.entry(tenant_of(name.as_str())).or_default() += 1;
    }
    let mut reached: Vec<(Option<&str>, usize)> = counts.into_iter().collect();
    reached.retain(|(_, count)| made_max > 0 && *count >= made_max);
    reached
}

/// Returns the pattern that fits `name`, with the knobs that its throttles get.
pub async fn pattern_of(
    store: &dyn Store,
    name: &Name,
    patterns: &[Name],
) -> Result<Option<(Name, KnobTexts)>, Error> {
    let Some(pattern) = best_pattern(name, patterns) else {
        return Ok(None);
    };
    let status = store.status(pattern).await?;
    Ok(status.map(|status| (pattern.clone(), inherited(&status.raw))))
}

/// The knobs that callers bring along with their calls.
#[derive(Default)]
pub struct CallerKnobs {
    declared: Mutex<BTreeMap<Name, (KnobTexts, Instant)>>,
    listing: Listing,
}

impl CallerKnobs {
    /// Makes the throttle of a caller's knobs if there is none, and passes a change of them on.
    /// Knobs set in the store take precedence, those of a pattern that fits among them.
    ///
    /// The store is asked at most once a minute for each throttle, unless the knobs change; and for
    /// the list of its throttles at most once a second, however many of them do not exist.
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
            None => {
                self.listing.admit(store, name, made_max).await?;
                let patterns = self.listing.patterns(store).await?;
                match pattern_of(store, name, &patterns).await? {
                    Some((pattern, knobs)) => {
                        make_in(store, name, pattern.as_str(), &knobs).await?;
                    }
                    None => make_in(store, name, CALLER, knobs).await?,
                }
            }
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
