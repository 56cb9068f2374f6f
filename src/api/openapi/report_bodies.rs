//! The bodies of programs that report about tokens, and of operators' changes of kinds and pools,
//! with the limits with which they are read.

use serde_json::json;

use super::bodies::{Body, body, with_signed};
use super::values::{flag, number, one_of, or_null, text, whole, with_default};
use crate::api::jobs::input::{COST_MAX, KEY_BYTES_MAX, SPAN_MAX_S};
use crate::api::pools::UNSENT_MAX;
use crate::api::throttles::acquire::WANT_MAX;
use crate::api::work::endings::ERROR_BYTES_MAX;
use crate::throttle::{MAX_PAUSE, Scope};

pub(super) fn report_bodies() -> Vec<Body> {
    vec![
        body(
            "RealCost",
            vec![
                ("key", text(0..=KEY_BYTES_MAX)),
                ("charged", number(0.0..=COST_MAX)),
                ("cost", number(0.0..=COST_MAX)),
            ],
            &["charged", "cost"],
        ),
        body(
            "ServerRefusal",
            vec![
                ("key", text(0..=KEY_BYTES_MAX)),
                ("retry_after_s", number(0.0..=MAX_PAUSE.as_secs_f64())),
                ("scope", or_null(one_of(&Scope::WORDS))),
                ("overloaded", flag()),
                ("error", text(0..=ERROR_BYTES_MAX)),
            ],
            &[],
        ),
        Body {
            more: json!({
                "anyOf": [
                    { "required": ["succeeded"], "properties": { "succeeded": { "minimum": 1 } } },
                    { "required": ["failed"], "properties": { "failed": { "minimum": 1 } } },
                ],
                "dependentRequired": { "remaining": ["reset_s"], "reset_s": ["remaining"] },
            }),
            ..body(
                "WorkEnds",
                vec![
                    ("key", text(0..=KEY_BYTES_MAX)),
                    ("succeeded", with_default(whole(0..=WANT_MAX), json!(0))),
                    ("failed", with_default(whole(0..=WANT_MAX), json!(0))),
                    ("tokens", number(0.0..=COST_MAX)),
                    ("begun_ago_s", number(0.0..=SPAN_MAX_S)),
                    ("remaining", number(0.0..=COST_MAX)),
                    ("reset_s", number(0.0..=SPAN_MAX_S)),
                ],
                &[],
            )
        },
        body(
            "UnsentMessages",
            with_signed(vec![(
                "limit",
                with_default(whole(1..=UNSENT_MAX), json!(UNSENT_MAX)),
            )]),
            &[],
        ),
        body("KindBody", with_signed(vec![("public", flag())]), &[]),
    ]
}
