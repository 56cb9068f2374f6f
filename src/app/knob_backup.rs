//! Records all knobs in Postgres and restores them when Redis comes up empty, or with an older copy
//! of them. Knobs that were deleted in a Redis that is not empty stay deleted.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use crate::service::{LoopOptions, periodic};
use crate::throttle::api_limit::is_of_the_api;
use crate::throttle::on_demand::MADE_FROM;
use crate::throttle::postgres::KnobRecord;
use crate::throttle::restored::{AUTHOR, is_restored, restored_because};
use crate::throttle::{self, Change, Name, Store, WrittenKnobs, rules};

/// Longest time that an emptied Redis stays empty, and the longest delay until SQL readers of the
/// record see a turned knob.
const BACKUP_INTERVAL: Duration = Duration::from_secs(1);

/// Longest time between two readings of the record while Redis holds all that was recorded.
const REREAD_EVERY: Duration = Duration::from_secs(10);

/// Fields that change with every write, or with the resource behind the throttle, and are not worth
/// restoring.
const PASSING: &[&str] = &[
    "seq",
    "term",
    "at",
    "written",
    "capacity",
    "capacity_reason",
];

/// The fields among them that are recorded all the same, because they tell an older copy from a
/// newer one.
const DATED: [&str; 2] = ["seq", "at"];

/// Knobs of a Redis that came back with a snapshot, and of one that came back empty, in messages.
const OLDER: &str = "an older copy";
const ANEW: &str = "a copy made on first use";

pub(super) async fn run(store: Arc<dyn Store>, record: KnobRecord, cancel: CancellationToken) {
    let kept = Arc::new(tokio::sync::Mutex::new((
        RecordedKnobs::default(),
        UnrecordedKnobs::new(),
    )));
    periodic(
        LoopOptions {
            name: "keep knobs",
            every: BACKUP_INTERVAL,
            wake: None,
        },
        cancel,
        || {
            let (store, record, kept) = (store.clone(), record.clone(), kept.clone());
            async move {
                let (kept, reported) = &mut *kept.lock().await;
                let odd = tick(&*store, &record, kept).await?;
                // Each problem is logged once, for as long as it stays the same.
                odd.iter()
                    .filter(|(name, why)| reported.get(*name) != Some(*why))
                    .for_each(log_failure);
                *reported = odd;
                anyhow::Ok(())
            }
        },
    )
    .await;
}

/// The knobs of throttles, by their fields.
type KnobFields = BTreeMap<Name, BTreeMap<String, String>>;

/// The knobs of a throttle as this process recorded or found them.
struct SavedKnobs {
    /// A hash of the fields in Redis.
    hash: u64,
    /// A hash of those that are recorded.
    recorded: u64,
    /// The reason why some are not.
    left_out: Option<String>,
}

/// The record, as far as this process knows it.
#[derive(Default)]
pub(super) struct RecordedKnobs {
    saved: HashMap<Name, SavedKnobs>,
    /// The record as last read, with the time.
    read: Option<(Instant, Arc<KnobFields>)>,
}

impl RecordedKnobs {
    /// Returns the record: as last read, while all that it names is in Redis, which has `names`.
    async fn load(
        &mut self,
        record: &KnobRecord,
        names: Option<&BTreeSet<Name>>,
    ) -> anyhow::Result<Arc<KnobFields>> {
        if let (Some((at, kept)), Some(names)) = (&self.read, names)
            && at.elapsed() < REREAD_EVERY
            && kept.keys().all(|name| names.contains(name))
        {
            return Ok(kept.clone());
        }
        let kept: KnobFields = record.load().await?.into_iter().collect();
        self.forget_lost(&kept);
        let kept = Arc::new(kept);
        self.read = Some((Instant::now(), kept.clone()));
        Ok(kept)
    }

    /// Forgets the throttles that the record lacks, or has otherwise, as after a failover of Postgres
    /// to a copy that is behind: they are recorded again.
    fn forget_lost(&mut self, kept: &KnobFields) {
        self.saved.retain(|name, saved| {
            let fields = kept.get(name);
            fields.is_some_and(|fields| hash_of(fields) == saved.recorded)
        });
    }
}

/// Returns the fields of a throttle that are worth restoring.
fn lasting(fields: &BTreeMap<String, String>) -> impl Iterator<Item = (&String, &String)> {
    let all = fields.iter();
    all.filter(|(field, _)| !PASSING.contains(&field.as_str()))
}

/// Returns a hash of the fields of a throttle that are worth restoring.
fn hash_of(fields: &BTreeMap<String, String>) -> u64 {
    let mut hasher = DefaultHasher::new();
    lasting(fields).for_each(|field| field.hash(&mut hasher));
    hasher.finish()
}

/// Throttles whose knobs could not be recorded or restored, with the reasons.
pub(super) type UnrecordedKnobs = BTreeMap<Name, String>;

/// Logs one problem.
pub(super) fn log_failure((name, why): (&Name, &String)) {
    tracing::warn!(throttle.name = %name, why, "some knobs cannot be recorded or restored; those of the other throttles are");
}

/// The longest text of a field that is recorded, in bytes.
const LONGEST_TEXT: usize = 4096;

/// Most fields of one throttle that are recorded.
const MAX_FIELDS: usize = 200;

/// Selects the fields that can be recorded: without NUL, which Postgres cannot store, and within
/// the limits of size and number. Knobs come before other fields.
fn recordable(raw: BTreeMap<String, String>) -> (BTreeMap<String, String>, Option<String>) {
    let all = raw.len();
    let fits = |text: &str| !text.contains('\0') && text.len() <= LONGEST_TEXT;
    let (knobs, others): (Vec<_>, Vec<_>) = raw
        .into_iter()
        .filter(|(field, text)| fits(field) && fits(text))
        .partition(|(field, _)| rules::knob(field).is_some());
    let kept: BTreeMap<String, String> = knobs.into_iter().chain(others).take(MAX_FIELDS).collect();
    let left_out = all - kept.len();
    let why = format!(
        "{left_out} fields hold a NUL, are longer than {LONGEST_TEXT} bytes or are too many; they are not recorded"
    );
    (kept, (left_out > 0).then_some(why))
}

/// Returns what happens without the throttle.
fn now_that_gone(name: &Name) -> &'static str {
    match is_of_the_api(name.as_str()) {
        true => "the throttle limits no request until the next start",
        false => "the jobs of the throttle wait",
    }
}

/// Restores missing knobs, then records changed ones.
///
/// A throttle whose knobs cannot be recorded or restored is returned and does not affect the
/// others; a store that cannot be reached is an error at the end.
pub(super) async fn tick(
    store: &dyn Store,
    record: &KnobRecord,
    recorded: &mut RecordedKnobs,
) -> anyhow::Result<UnrecordedKnobs> {
    let (names, mut failed) = match store.names().await {
        Ok(names) => (Some(names.into_iter().collect::<BTreeSet<Name>>()), None),
        Err(error) => (None, Some(error)),
    };
    let kept = recorded.load(record, names.as_ref()).await?;
    let mut known: BTreeSet<Name> = kept.keys().cloned().collect();
    known.extend(names.into_iter().flatten());
    // Patterns come last: a throttle that is asked for as soon as its pattern is back would be made
    // again, with the knobs of the pattern in place of its own.
    let (patterns, others): (Vec<Name>, Vec<Name>) = known.into_iter().partition(Name::is_pattern);
    let all: Vec<Name> = others.into_iter().chain(patterns).collect();
    let written = store.written_knobs(&all).await;
    let mut round = BackupRound {
        store,
        record,
        recorded,
        newest: None,
        odd: UnrecordedKnobs::new(),
    };
    for (name, written) in all.into_iter().zip(written) {
        let current = match written {
            Ok(written) => round.restored(&name, written, kept.get(&name)).await?,
            Err(error) => Err(error),
        };
        match current {
            Ok(Some(written)) => round.save(name, written).await?,
            // It has no knobs, or somebody was faster, which the next round sees.
            Ok(None) | Err(throttle::Error::Conflict { .. }) => {}
            Err(error @ throttle::Error::Lost(_)) => failed = Some(error),
            Err(error) => {
                round.odd.insert(name, error.to_string());
            }
        }
    }
    let odd = round.odd;
    failed.map_or(Ok(odd), |error| Err(error.into()))
}

/// The knobs of a throttle as they are in Redis, `None` if it has none; or the error of the store.
type CurrentKnobs = Result<Option<WrittenKnobs>, throttle::Error>;

/// One round over all throttles. Its methods fail if the record cannot be read or written, or a key
/// cannot be kept from expiring.
struct BackupRound<'a> {
    store: &'a dyn Store,
    record: &'a KnobRecord,
    recorded: &'a mut RecordedKnobs,
    /// The record as read again in this round, once that was needed.
    newest: Option<KnobFields>,
    odd: UnrecordedKnobs,
}

impl BackupRound<'_> {
    /// Restores the knobs of a throttle if Redis has none, or older ones, and returns the present
    /// ones.
    async fn restored(
        &mut self,
        name: &Name,
        written: Option<WrittenKnobs>,
        recorded: Option<&BTreeMap<String, String>>,
    ) -> anyhow::Result<CurrentKnobs> {
        match (written, recorded) {
            (None, None) => Ok(Ok(None)),
            (None, Some(fields)) => self.restore_missing(name, fields).await,
            (Some(written), Some(fields))
                if is_behind(&written.fields, fields) || is_made_again(&written.fields, fields) =>
            {
                self.restore_older(name, written).await
            }
            (Some(written), _) => Ok(Ok(Some(written))),
        }
    }

    /// Restores knobs that Redis lacks, or forgets them if somebody deleted them there.
    async fn restore_missing(
        &mut self,
        name: &Name,
        fields: &BTreeMap<String, String>,
    ) -> anyhow::Result<CurrentKnobs> {
        match was_taken_away(self.store, name).await {
            Ok(true) => {
                self.record.forget(name).await?;
                self.recorded.saved.remove(name);
                self.recorded.read = None;
                tracing::warn!(throttle.name = %name, "the knobs were deleted in Redis; {}", now_that_gone(name));
                Ok(Ok(None))
            }
            Ok(false) => {
                // The mark that the knobs are recorded is lost as well.
                self.recorded.saved.remove(name);
                match restore(self.store, name, fields).await {
                    Err(throttle::Error::Conflict { .. }) => self.restore_made(name, fields).await,
                    restored => Ok(restored.map(Some)),
                }
            }
            Err(error) => Ok(Err(error)),
        }
    }

    /// Replaces knobs that somebody has written in this moment, if they were made on first use.
    async fn restore_made(
        &mut self,
        name: &Name,
        fields: &BTreeMap<String, String>,
    ) -> anyhow::Result<CurrentKnobs> {
        let mut read = self.store.written_knobs(std::slice::from_ref(name)).await;
        match read.pop() {
            Some(Ok(Some(written))) if is_made_again(&written.fields, fields) => {
                self.restore_older(name, written).await
            }
            Some(Err(error)) => Ok(Err(error)),
            _ => Ok(Ok(None)),
        }
    }

    /// Replaces knobs in Redis that are older than the recorded ones.
    async fn restore_older(
        &mut self,
        name: &Name,
        written: WrittenKnobs,
    ) -> anyhow::Result<CurrentKnobs> {
        // Another process may have recorded what was read here.
        if self.newest.is_none() {
            self.newest = Some(self.record.load().await?.into_iter().collect());
        }
        let newest = self.newest.as_ref().and_then(|newest| newest.get(name));
        let Some(fields) = newest else {
            return Ok(Ok(Some(written)));
        };
        let what = if is_behind(&written.fields, fields) {
            OLDER
        } else if is_made_again(&written.fields, fields) {
            match self.store.is_kept(name).await {
                Ok(false) => ANEW,
                // The throttle was deleted before it was made.
                Ok(true) => return Ok(Ok(Some(written))),
                Err(error) => return Ok(Err(error)),
            }
        } else {
            return Ok(Ok(Some(written)));
        };
        let restored = bring_forward(self.store, name, fields, &written.fields, what).await;
        Ok(restored.map(Some))
    }

    /// Records the knobs of a throttle if they have changed.
    async fn save(&mut self, name: Name, written: WrittenKnobs) -> anyhow::Result<()> {
        // A key that is not a hash has no knobs to record; those recorded before stay.
        if written.fields.is_empty() {
            return Ok(());
        }
        // Keys that another program lets expire, and that were never written through Flyball, are
        // left alone.
        let expires = written.expires;
        if expires && !written.fields.contains_key("seq") {
            return Ok(());
        }
        let hash = hash_of(&written.fields);
        if let Some(saved) = self.recorded.saved.get(&name)
            && saved.hash == hash
        {
            if let Some(why) = &saved.left_out {
                self.odd.insert(name.clone(), why.clone());
            }
            if expires {
                self.store.persist(&name).await?;
            }
            return Ok(());
        }
        let (mut fields, left_out) = recordable(written.fields);
        fields.retain(|field, _| {
            !PASSING.contains(&field.as_str()) || DATED.contains(&field.as_str())
        });
        if let Some(why) = self.record.save(&name, &fields).await? {
            self.odd.insert(name, why);
            return Ok(());
        }
        self.store.persist(&name).await?;
        if let Some(why) = &left_out {
            self.odd.insert(name.clone(), why.clone());
        }
        let saved = SavedKnobs {
            hash,
            recorded: hash_of(&fields),
            left_out,
        };
        if let Some((_, kept)) = &mut self.recorded.read {
            Arc::make_mut(kept).insert(name.clone(), fields);
        }
        self.recorded.saved.insert(name, saved);
        Ok(())
    }
}

/// Returns the number in a field of a throttle.
fn number(fields: &BTreeMap<String, String>, field: &str) -> Option<u64> {
    fields.get(field)?.parse().ok()
}

/// Returns true if the knobs in Redis are an older copy of the recorded ones: less was changed
/// through Flyball, and the last time was no later. A throttle that was made again is no copy.
fn is_behind(stands: &BTreeMap<String, String>, recorded: &BTreeMap<String, String>) -> bool {
    let both = |field: &str| Some((number(stands, field)?, number(recorded, field)?));
    let is_less = both("seq").is_some_and(|(here, recorded)| here < recorded);
    is_less && both("at").is_some_and(|(here, recorded)| here <= recorded)
}

/// Returns true if a throttle was made by itself after its knobs were recorded, as on first use in
/// a Redis that was emptied: the knobs of which it was made must not replace those that people set.
fn is_made_again(stands: &BTreeMap<String, String>, recorded: &BTreeMap<String, String>) -> bool {
    let is_by_us = stands.get("by").is_some_and(|by| by == AUTHOR);
    let is_made = stands.contains_key(MADE_FROM);
    let is_own = match number(stands, "seq") {
        Some(1) => is_by_us || is_made,
        // Another caller may have brought other knobs in the same second.
        Some(_) => is_by_us && is_made,
        None => false,
    };
    is_own
        && !is_restored(stands)
        && number(stands, "at") > number(recorded, "at")
        && hash_of(stands) != hash_of(recorded)
}

/// Returns true if somebody deleted recorded knobs in a Redis that was not emptied.
async fn was_taken_away(store: &dyn Store, name: &Name) -> Result<bool, throttle::Error> {
    // Restored knobs are there before they are kept.
    Ok(store.is_kept(name).await? && store.status(name).await?.is_none())
}

/// Replaces the knobs `stands` of a throttle by the recorded ones, because they are `what`.
async fn bring_forward(
    store: &dyn Store,
    name: &Name,
    recorded: &BTreeMap<String, String>,
    stands: &BTreeMap<String, String>,
    what: &str,
) -> Result<WrittenKnobs, throttle::Error> {
    let removed = lasting(stands).map(|(field, _)| (field.clone(), None));
    let texts = lasting(recorded).map(|(field, text)| (field.clone(), Some(text.clone())));
    let change = Change {
        // Of two with the same name, the recorded one stays.
        fields: removed.chain(texts).collect(),
        if_seq: number(stands, "seq"),
        by: AUTHOR.to_owned(),
        why: restored_because(&format!("Redis had {what} of the knobs"), recorded),
        restores: true,
        ..Change::default()
    };
    let (_, after) = store.set(name, &change).await?;
    tracing::warn!(throttle.name = %name, "Redis had {what} of the knobs, and those from Postgres have been restored");
    Ok(after.into())
}

async fn restore(
    store: &dyn Store,
    name: &Name,
    fields: &BTreeMap<String, String>,
) -> Result<WrittenKnobs, throttle::Error> {
    let change = Change {
        fields: lasting(fields)
            .map(|(field, text)| (field.clone(), Some(text.clone())))
            .collect(),
        by: AUTHOR.to_owned(),
        why: restored_because("the knobs were missing in Redis", fields),
        // One that was made on first use since has a number: its knobs must not stay beside these.
        if_seq: Some(0),
        create: true,
        absent_only: true,
        restores: true,
        ..Change::default()
    };
    let (_, after) = store.set(name, &change).await?;
    tracing::warn!(throttle.name = %name, "the knobs were missing in Redis and have been restored from Postgres");
    Ok(after.into())
}

#[cfg(test)]
#[path = "knob_backup_tests.rs"]
mod tests;
