//! Makes throttles on first use, of the knobs that callers bring along.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::listing::{Listing, is_counted};
use super::on_demand::{CALLER, KnobTexts, MADE_FROM, best_pattern, follow, inherited_by, make};
use super::tenant::tenant_of;
use super::{Error, Name, Store};

/// The time for which a caller's knobs are not compared again.
const DECLARED_FOR: Duration = Duration::from_secs(60);

/// The most throttles whose callers' knobs are remembered.
const REMEMBERED_MAX: usize = 10_000;

/// The time without a call after which knobs give way to others that callers still bring.
const REPLACED_AFTER: Duration = Duration::from_secs(600);

/// The most different knobs of one throttle's callers; further ones do not count.
const DIFFERENT_MAX: usize = 8;

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
    Ok(status.map(|status| (pattern.clone(), inherited_by(name, &status.raw))))
}

/// Returns the fields that a new throttle gets of the pattern that fits `name`; `None` if no pattern
/// fits or the throttle exists.
pub async fn fields_of_pattern(
    store: &dyn Store,
    name: &Name,
    patterns: &[Name],
) -> Result<Option<BTreeMap<String, Option<String>>>, Error> {
    let Some((pattern, knobs)) = pattern_of(store, name, patterns).await? else {
        return Ok(None);
    };
    if store.status(name).await?.is_some() {
        return Ok(None);
    }
    Ok(Some(make(pattern.as_str(), &knobs).fields))
}

/// The knobs that callers of one throttle bring along. The newest set counts. Callers that differ
/// must not take turns, because the rate would change with each call.
struct BroughtKnobs {
    /// All of them, each with the time of its last call; the first of them count.
    all: Vec<(KnobTexts, Instant)>,
    /// The time at which the store was asked last.
    checked_at: Instant,
}

impl BroughtKnobs {
    fn new(knobs: &KnobTexts, now: Instant) -> Self {
        Self {
            all: vec![(knobs.clone(), now)],
            checked_at: now,
        }
    }

    /// Notes a call; returns true if its knobs are to count from now on.
    fn note(&mut self, knobs: &KnobTexts, now: Instant) -> bool {
        let is_old = |at: Instant| now.duration_since(at) >= REPLACED_AFTER;
        let counts_no_more = is_old(self.all[0].1);
        match self.all.iter().position(|(known, _)| known == knobs) {
            Some(place) => {
                self.all[place].1 = now;
                place > 0 && counts_no_more
            }
            None => self.all.len() < DIFFERENT_MAX || self.all.iter().any(|(_, at)| is_old(*at)),
        }
    }

    /// Makes knobs count.
    fn prefer(&mut self, knobs: &KnobTexts, now: Instant) {
        self.all
            .retain(|(known, at)| known != knobs && now.duration_since(*at) < REPLACED_AFTER);
        self.all.insert(0, (knobs.clone(), now));
    }
}

/// The knobs that callers bring along with their calls.
#[derive(Default)]
pub struct CallerKnobs {
    declared: Mutex<BTreeMap<Name, BroughtKnobs>>,
    listing: Listing,
}

impl CallerKnobs {
    /// Makes the throttle of a caller's knobs if there is none, and passes a change of them on.
    /// Knobs set in the store take precedence, those of a pattern that fits among them.
    ///
    /// Of callers that bring different knobs, the last that began counts: knobs are passed on when
    /// they are new to this process, or if the others were not brought for ten minutes. The store
    /// is asked at most once a minute for each throttle, unless the knobs are new; and for the list
    /// of its throttles at most once a second, however many of them do not exist.
    pub async fn declare(
        &self,
        store: &dyn Store,
        name: &Name,
        knobs: &KnobTexts,
        made_max: usize,
    ) -> Result<(), Error> {
        let mut is_new = true;
        if let Some(brought) = self.declared.lock().get_mut(name) {
            is_new = brought.note(knobs, Instant::now());
            if !is_new && brought.checked_at.elapsed() < DECLARED_FOR {
                return Ok(());
            }
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
                is_new = true;
            }
            Some(status)
                if is_new && status.raw.get(MADE_FROM).is_some_and(|from| from == CALLER) =>
            {
                if let Some(change) = follow(&status.raw, knobs) {
                    match store.set(name, &change).await {
                        Ok(_) => {}
                        // Another change was faster; with the next call these count.
                        Err(Error::Conflict { .. }) => return Ok(()),
                        Err(error) => return Err(error),
                    }
                }
            }
            Some(_) => {}
        }
        let (mut declared, now) = (self.declared.lock(), Instant::now());
        if declared.len() >= REMEMBERED_MAX && !declared.contains_key(name) {
            declared.clear();
        }
        let brought = declared
            .entry(name.clone())
            .or_insert_with(|| BroughtKnobs::new(knobs, now));
        brought.checked_at = now;
        if is_new {
            brought.prefer(knobs, now);
        }
        Ok(())
    }

    /// Forgets a throttle that the store no longer knows.
    pub fn forget(&self, name: &Name) {
        self.declared.lock().remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rps(number: u32) -> KnobTexts {
        KnobTexts::from([("rps".to_owned(), number.to_string())])
    }

    /// Brings knobs at a second, and returns true if they count from then on.
    fn bring(brought: &mut BroughtKnobs, number: u32, at: Instant) -> bool {
        let is_new = brought.note(&rps(number), at);
        if is_new {
            brought.prefer(&rps(number), at);
        }
        is_new
    }

    #[test]
    fn of_callers_that_differ_the_last_that_began_counts_while_it_calls() {
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let mut brought = BroughtKnobs::new(&rps(5), begun);

        let calls = [
            (5, 1, false),
            (7, 2, true),
            (5, 3, false),
            (7, 4, false),
            (5, 500, false),
        ];
        for (number, second, counts) in calls {
            assert_eq!(bring(&mut brought, number, at(second)), counts, "{second}");
        }
        // The one with 7 has ended.
        assert!(!bring(&mut brought, 5, at(603)));
        assert!(bring(&mut brought, 5, at(604)));
        assert!(bring(&mut brought, 7, at(605)), "it is forgotten and new");
    }

    #[test]
    fn only_some_knobs_are_remembered_and_further_ones_do_not_count() {
        let begun = Instant::now();
        let mut brought = BroughtKnobs::new(&rps(0), begun);
        for number in 1..8 {
            assert!(bring(&mut brought, number, begun));
        }
        assert!(!bring(&mut brought, 8, begun));
        assert_eq!(brought.all.len(), DIFFERENT_MAX);
        assert!(bring(&mut brought, 8, begun + REPLACED_AFTER));
        assert_eq!(brought.all.len(), 1);
    }
}
