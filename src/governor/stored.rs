//! Stored states of earlier forms.

use serde_json::Value;

use super::policy::{Policy, SignalKind};

/// The present form of a stored state.
pub(super) const FORM: u32 = 2;

/// Brings a stored state to the present form; one of an unknown form is returned as it is.
///
/// In form 1 a signal held the numbers of both control laws side by side.
pub(super) fn upgraded(mut stored: Value, policy: &Policy) -> Value {
    if stored["form"] == 1 {
        upgrade_from_1(&mut stored, policy);
        if let Some(shadow) = stored.pointer_mut("/shadow/own") {
            upgrade_from_1(shadow, policy);
        }
    }
    stored
}

fn upgrade_from_1(state: &mut Value, policy: &Policy) {
    let Some(fields) = state.as_object_mut() else {
        return;
    };
    fields.insert("form".to_owned(), FORM.into());
    for (old, new) in [("tripped", "last_trip"), ("watch", "overrides")] {
        if let Some(value) = fields.remove(old) {
            fields.insert(new.to_owned(), value);
        }
    }
    if let Some(watch) = fields.get_mut("overrides").and_then(Value::as_object_mut)
        && let Some(last) = watch.remove("hand")
    {
        watch.insert("last".to_owned(), last);
    }
    let signals = fields.get_mut("signals").and_then(Value::as_array_mut);
    for signal in signals.into_iter().flatten() {
        let kind = signal["name"]
            .as_str()
            .and_then(|name| Some(policy.signal(name)?.kind));
        let mut controller = signal.clone();
        let law = if kind == Some(SignalKind::Ratio) {
            controller["integral"] = signal["pid"]["integral"].clone();
            controller["last_refused_at"] = signal["last_bad"].clone();
            "quota"
        } else {
            "pid"
        };
        signal["controller"] = serde_json::json!({ law: controller });
    }
}

#[cfg(test)]
#[path = "stored_tests.rs"]
mod tests;
