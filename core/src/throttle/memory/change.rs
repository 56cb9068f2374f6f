//! Changes of knobs in memory.

use std::collections::BTreeMap;

use super::{MemoryStore, Throttle, Throttles, parents, put};
use crate::throttle::new_name::check_new_name;
use crate::throttle::rules::number;
use crate::throttle::{Change, Error, Knobs, Name, Status, direct_change, rules};

impl MemoryStore {
    pub(super) fn write(
        throttles: &mut Throttles,
        name: &Name,
        change: &Change,
        now: i64,
    ) -> Result<(Option<Status>, Status), Error> {
        change.check_parent(name)?;
        change.check_pause(name)?;
        change.check_concurrency(name)?;
        let stands = throttles.get(name).cloned().unwrap_or_default();
        let exists = !stands.raw.is_empty();
        if !exists && !change.create {
            return Err(Error::Unknown(name.clone()));
        }
        if !exists {
            check_new_name(change, name)?;
        }
        let earlier = stands.raw.knobs();
        check_conditions(name, change, &stands, &earlier)?;
        let mut raw = stands.raw.texts();
        let applied = apply(&mut raw, change, &stands);
        let (changed, resumed) = (applied.is_change || !exists, applied.resumes);
        let bound = |raw: &BTreeMap<String, String>, field, default| {
            raw.get(field)
                .and_then(|text| number(field, text))
                .unwrap_or(default)
        };
        let (min, max) = (bound(&raw, "min", 0.1), bound(&raw, "max", 1000.0));
        let touched = ["min", "max"]
            .iter()
            .any(|field| raw.get(*field) != stands.raw.get(*field));
        if min > max && touched {
            return Err(Error::Invalid(vec![rules::min_above_max(min, max)]));
        }
        let throttle = throttles.entry(name.clone()).or_default();
        if changed {
            let safe = raw
                .get("safe_rps")
                .cloned()
                .unwrap_or_else(|| "1".to_owned());
            for (field, text) in [
                ("rps", safe),
                ("burst", "1".to_owned()),
                ("window", "1".to_owned()),
            ] {
                raw.entry(field.to_owned()).or_insert(text);
            }
            put(&mut raw, "seq", Some((earlier.seq + 1).to_string()));
            put(&mut raw, "at", Some(now.div_euclid(1000).to_string()));
            put(&mut raw, "by", Some(change.by.clone()));
            put(&mut raw, "why", Some(change.why.clone()));
            let written = direct_change::written(&raw);
            put(&mut raw, direct_change::WRITTEN, Some(written));
            if let Some(term) = change.term {
                put(&mut raw, "term", Some(term.to_string()));
            }
            let stopped_after = Knobs::read(&raw).0.effective_rps(now).is_stopped();
            if stopped_after || (exists && earlier.effective_rps(now).is_stopped()) {
                throttle.bucket.drain(now as f64, stopped_after);
            }
            let later = Knobs::read(&raw).0;
            let is_limited_again = exists
                && earlier.effective_rps(now).is_unlimited()
                && later.effective_rps(now).rate().is_some();
            // A manual resume begins with an empty bucket and without a debt, because no debt
            // outlives a time without a limit. The effect of a refusal ends with the pause.
            let resumed = resumed && !later.paused;
            if resumed || is_limited_again {
                throttle.bucket.forgive(now as f64);
            }
            if resumed {
                throttle.refusal = None;
            }
            throttle.raw = raw.into();
        }
        let before =
            exists.then(|| Status::read(name.clone(), stands.raw.texts(), &throttle.meter, now));
        let after = Status::read(name.clone(), throttle.raw.texts(), &throttle.meter, now);
        Ok((before, after.with_parents(&parents(throttles))))
    }
}

/// Refuses a change whose conditions do not hold any more.
fn check_conditions(
    name: &Name,
    change: &Change,
    stands: &Throttle,
    earlier: &Knobs,
) -> Result<(), Error> {
    let conflict = |what: String| {
        Err(Error::Conflict {
            name: name.clone(),
            what,
        })
    };
    if let Some(seq) = change.if_seq.filter(|seq| *seq != earlier.seq) {
        return conflict(format!("seq is {}, not {seq}", earlier.seq));
    }
    if let Some(term) = change.term.filter(|term| earlier.term > *term) {
        return conflict(format!(
            "term {} has written since term {term}",
            earlier.term
        ));
    }
    let rps = stands.raw.get("rps").map_or("", String::as_str);
    if let Some(expected) = change.if_rps.as_deref().filter(|expected| *expected != rps) {
        return conflict(format!(
            "rps is {}, not {}",
            rules::cut(if rps.is_empty() { "missing" } else { rps }),
            rules::cut(expected)
        ));
    }
    let slots = stands.raw.get("concurrency").map_or("", String::as_str);
    if let Some(expected) = change
        .if_concurrency
        .as_deref()
        .filter(|expected| *expected != slots && change.if_rps.is_none())
    {
        let slots = if slots.is_empty() { "missing" } else { slots };
        return conflict(format!(
            "concurrency is {}, not {}",
            rules::cut(slots),
            rules::cut(expected)
        ));
    }
    let mode = stands.raw.get("mode").map(String::as_str);
    if let Some(expected) = change.if_mode.as_deref()
        && mode != Some(expected)
    {
        return conflict(format!("mode is no longer {expected}"));
    }
    Ok(())
}

/// The result of a change of fields.
struct AppliedChange {
    /// True if a field was written.
    is_change: bool,
    /// True if the knob `paused` was.
    resumes: bool,
}

/// Writes the fields of a change, and removes those that it makes void.
fn apply(raw: &mut BTreeMap<String, String>, change: &Change, stands: &Throttle) -> AppliedChange {
    let (mut is_change, mut resumes) = (false, false);
    for (field, text) in &change.fields {
        if change.absent_only && stands.raw.contains_key(field) {
            continue;
        }
        is_change = true;
        resumes |= field == "paused";
        put(raw, field, text.clone());
        if field == "mode" && raw.get("mode").is_some_and(|mode| mode != "auto") {
            raw.remove("valid_until");
        }
    }
    // A change of `capacity` includes its reason, so the old reason goes.
    if change.fields.contains_key("capacity")
        && !change.fields.contains_key("capacity_reason")
        && !change.absent_only
    {
        raw.remove("capacity_reason");
    }
    // A change of `mode` cancels the end of the old one.
    if change.fields.contains_key("mode")
        && !change.fields.contains_key("manual_until_ms")
        && !change.absent_only
    {
        raw.remove("manual_until_ms");
    }
    AppliedChange { is_change, resumes }
}
