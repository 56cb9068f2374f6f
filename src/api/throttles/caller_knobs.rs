//! The knobs that a request for tokens brings along.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::api::http::caller::Caller;
use crate::api::http::fields::ObjectReader;
use crate::api::http::limits::is_of_the_api;
use crate::throttle::on_demand::KnobTexts;
use crate::throttle::tenant::is_made_by;
use crate::throttle::{Knobs, Name};

/// The knobs that a caller may bring.
const CALLER_KNOBS: [&str; 7] = [
    "rps",
    "burst",
    "window",
    "key_rps",
    "key_burst",
    "windows",
    "key_windows",
];

/// Reads the knobs of which the throttle is made if it does not exist.
pub fn knobs_of(
    fields: &mut ObjectReader<'_>,
    caller: &Caller,
    throttle: &Name,
) -> Option<KnobTexts> {
    let given: BTreeMap<String, Value> = CALLER_KNOBS
        .into_iter()
        .filter_map(|knob| Some((knob.to_owned(), fields.take(knob)?)))
        .collect();
    let first = given.keys().next()?.clone();
    if !given.contains_key("rps") {
        let message = "makes a throttle only together with rps, which is missing";
        fields.wrong(&first, message.to_owned());
        return None;
    }
    if is_of_the_api(throttle.as_str()) {
        fields.wrong(
            "rps",
            "must be left out: throttles of the API itself are not made on first use".to_owned(),
        );
        return None;
    }
    if let Some(tenant) = &caller.tenant
        && !is_made_by(throttle.as_str(), tenant)
    {
        let message = format!(
            "must be left out: of the throttles of tenant {tenant}, those named tenant:{tenant}/<name> are made on first use"
        );
        fields.wrong("rps", message);
        return None;
    }
    match Knobs::check(&given) {
        Ok(texts) => {
            let texts = texts.into_iter();
            Some(
                texts
                    .filter_map(|(knob, text)| Some((knob, text?)))
                    .collect(),
            )
        }
        Err(problems) => {
            for problem in problems {
                fields.wrong(&problem.field, problem.message);
            }
            None
        }
    }
}
