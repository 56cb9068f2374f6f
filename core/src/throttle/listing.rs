//! The throttles of a store as last listed. Asks for throttles that do not exist come as often as
//! their clients like, and a list costs the store a read of every throttle.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use tokio::sync::{Mutex, MutexGuard};

use super::admission::is_of_admission;
use super::api_limit::is_of_the_api;
use super::on_demand::maker_of;
use super::tenant::tenant_of;
use super::{Error, KnobProblem, Name, Store};

/// The time for which a list is used before the store is asked again.
const LISTED_FOR: Duration = Duration::from_secs(1);

/// The list of one store, which one caller at a time reads.
#[derive(Default)]
pub struct Listing(Mutex<ListedThrottles>);

#[derive(Default)]
struct ListedThrottles {
    read_at: Option<Instant>,
    /// The last time at which the store did not answer, and the reason.
    lost: Option<(Instant, String)>,
    patterns: Vec<Name>,
    /// The throttles that count towards a bound, by the tenant that owns them.
    counted: BTreeMap<Option<String>, BTreeSet<Name>>,
}

impl Listing {
    /// Returns the patterns that the store knows.
    pub(super) async fn patterns(&self, store: &dyn Store) -> Result<Vec<Name>, Error> {
        Ok(self.read(store).await?.patterns.clone())
    }

    /// Returns the pattern from which the first request for its tokens would make a throttle that
    /// does not exist; `None` if none fits, or `made_max` such ones exist.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be read.
    pub async fn pattern_of(
        &self,
        store: &dyn Store,
        name: &Name,
        made_max: usize,
    ) -> Result<Option<Name>, Error> {
        let listed = self.read(store).await?;
        let owner = tenant_of(name.as_str()).map(ToOwned::to_owned);
        let known = listed.counted.get(&owner).map_or(0, BTreeSet::len);
        Ok(maker_of(name, &listed.patterns, || known >= made_max).cloned())
    }

    /// Counts a throttle that is to be made on first use, or refuses it where there are `made_max`
    /// such ones.
    pub(super) async fn admit(
        &self,
        store: &dyn Store,
        name: &Name,
        made_max: usize,
    ) -> Result<(), Error> {
        let mut listed = self.read(store).await?;
        let owner = tenant_of(name.as_str()).map(ToOwned::to_owned);
        let counted = listed.counted.entry(owner).or_default();
        if counted.contains(name) {
            return Ok(());
        }
        refuse_too_many(name, counted.len(), made_max)?;
        if is_counted(name) {
            counted.insert(name.clone());
        }
        Ok(())
    }

    async fn read(&self, store: &dyn Store) -> Result<MutexGuard<'_, ListedThrottles>, Error> {
        let asked_at = Instant::now();
        let mut listed = self.0.lock().await;
        // A caller that waited for a list that failed does not wait for another one.
        if let Some((at, reason)) = &listed.lost
            && *at >= asked_at
        {
            return Err(Error::Lost(reason.clone()));
        }
        if listed.read_at.is_none_or(|at| at.elapsed() >= LISTED_FOR) {
            match store.names().await {
                Ok(names) => *listed = ListedThrottles::of(names),
                Err(error) => {
                    if let Error::Lost(reason) = &error {
                        listed.lost = Some((Instant::now(), reason.clone()));
                    }
                    return Err(error);
                }
            }
        }
        Ok(listed)
    }
}

impl ListedThrottles {
    fn of(names: Vec<Name>) -> Self {
        let mut listed = Self {
            read_at: Some(Instant::now()),
            ..Self::default()
        };
        for name in names {
            if name.is_pattern() {
                listed.patterns.push(name.clone());
            }
            if is_counted(&name) {
                let owner = tenant_of(name.as_str()).map(ToOwned::to_owned);
                listed.counted.entry(owner).or_default().insert(name);
            }
        }
        listed
    }
}

/// Refuses a further throttle where there are `made_max` such ones or more, of the `known` that
/// count with it: those of one tenant count together, so that no tenant uses up the bound of the
/// others.
fn refuse_too_many(name: &Name, known: usize, made_max: usize) -> Result<(), Error> {
    if known < made_max {
        return Ok(());
    }
    let of_whom = match tenant_of(name.as_str()) {
        Some(tenant) => format!(" of tenant {tenant}"),
        None => String::new(),
    };
    let message = format!(
        "{name} was not made: there are {known} throttles{of_whom}, and with {made_max} or more (setting throttles_created_max) none is made on first use; create it with: flyball throttle set {name} rps=10"
    );
    Err(Error::Invalid(vec![KnobProblem {
        field: "throttle".to_owned(),
        message,
    }]))
}

/// Returns true for a throttle that counts towards a bound: all but those of the API and of the
/// admission of messages.
pub(super) fn is_counted(name: &Name) -> bool {
    !is_of_admission(name.as_str()) && !is_of_the_api(name.as_str())
}
