//! The types of digest in the rules file.

use serde_json::Value;

use super::digest::{BELOW, COLLECTS, DigestTexts, DigestType, DigestWindow, OVERFLOWS};
use super::rule_fields::{NAME_BYTES, seconds};
use super::text_bytes::text_bytes;
use crate::cron::{Expression, Timing};
use crate::input::Reader;
use crate::outbound::template;

/// The longest text of a digest, in bytes.
const TEXT_BYTES: usize = 65_536;

/// The longest texts of a digest together, in bytes of JSON: they leave room for items.
const TEXTS_BYTES: usize = 200_000;

/// The most items of a digest.
const ITEMS_MAX: i64 = 1000;

/// Reads a type of digest.
pub(super) fn digest(mut fields: Reader<'_>, name: &str) -> Option<DigestType> {
    let template = required(&mut fields, "template", "the template of the digest");
    let category = required(&mut fields, "category", "the category of the digest");
    let window = window(&mut fields);
    let min_items = fields.whole("min_items", 1..=ITEMS_MAX, "").unwrap_or(1);
    let max_items = fields.whole("max_items", 1..=ITEMS_MAX, "").unwrap_or(50);
    if min_items > max_items {
        let message = format!("must be at most max_items, {max_items}, not {min_items}");
        fields.wrong("min_items", message);
    }
    let close_at_items = fields.whole("close_at_items", 2..=ITEMS_MAX, "");
    let leading = fields.flag("leading").unwrap_or(false);
    let quiet_for = seconds(&mut fields, "quiet_for_s", 1.0);
    if quiet_for.is_some() && !leading {
        fields.wrong("quiet_for_s", "must be left out unless leading is true");
    }
    // Every field is read before one that is missing ends this, so that all problems are reported.
    let overflow = fields.choice("overflow", &OVERFLOWS).unwrap_or_default();
    let below = fields.choice("below", &BELOW).unwrap_or_default();
    let collects = fields.choice("collects", &COLLECTS).unwrap_or_default();
    let dedup_items = fields.flag("dedup_items").unwrap_or(false);
    let per_actor = fields.flag("per_actor").unwrap_or(false);
    let templates = templates(&mut fields);
    let usual = DigestTexts::default();
    let texts = DigestTexts {
        subject: text(&mut fields, "subject").unwrap_or(usual.subject),
        body: text(&mut fields, "body").unwrap_or(usual.body),
        html: text(&mut fields, "html"),
    };
    let bytes = text_bytes(&texts.template("email"));
    if bytes > TEXTS_BYTES {
        let message = format!(
            "must have at most {TEXTS_BYTES} bytes of JSON together with subject and html, not {bytes}"
        );
        fields.wrong("body", message);
    }
    Some(DigestType {
        name: name.to_owned(),
        template: template?,
        category: category?,
        window: window?,
        min_items: min_items as usize,
        max_items: max_items as usize,
        overflow,
        below,
        leading,
        quiet_for,
        dedup_items,
        close_at_items: close_at_items.map(|items| items as usize),
        templates,
        collects,
        per_actor,
        texts,
    })
}

/// Reads a text of a digest, which is a template.
fn text(fields: &mut Reader<'_>, name: &str) -> Option<String> {
    let text = fields.text(name, 1..=TEXT_BYTES)?;
    if let Err(error) = template::check(&text) {
        fields.wrong(name, error);
    }
    Some(text)
}

fn required(fields: &mut Reader<'_>, name: &str, what: &str) -> Option<String> {
    if fields.get(name).is_none() {
        fields.missing(name, what);
    }
    fields.text(name, 1..=NAME_BYTES)
}

fn window(fields: &mut Reader<'_>) -> Option<DigestWindow> {
    let at = fields.text("at", 1..=crate::cron::expression::MAX_BYTES);
    let has_span = fields.get("window_s").is_some();
    let window = seconds(fields, "window_s", 1.0);
    let max_open = seconds(fields, "max_open_s", 1.0);
    match (at, window, max_open) {
        (Some(_), ..) if has_span || max_open.is_some() => {
            fields.wrong(
                "at",
                "must be left out beside window_s and max_open_s, or these beside it",
            );
            None
        }
        (Some(at), ..) => match Expression::parse(&at) {
            // A digest that never closes keeps its items for ever. Any zone shows it.
            Ok(expression) => match Timing::new(&at, "UTC") {
                Ok(_) => Some(DigestWindow::Timed(expression)),
                Err(problem) => {
                    fields.wrong("at", problem.message);
                    None
                }
            },
            Err(error) => {
                fields.wrong("at", format!("must be a cron expression: {error}"));
                None
            }
        },
        (None, Some(window), None) => Some(DigestWindow::Fixed(window)),
        (None, Some(window), Some(max_open)) if window <= max_open => {
            Some(DigestWindow::Sliding { window, max_open })
        }
        (None, Some(_), Some(_)) => {
            fields.wrong("max_open_s", "must be at least window_s");
            None
        }
        (None, None, _) => {
            if !has_span {
                fields.missing("window_s", "a number of seconds, unless there is at");
            }
            None
        }
    }
}

fn templates(fields: &mut Reader<'_>) -> Vec<String> {
    let Some(value) = fields.take("templates") else {
        return Vec::new();
    };
    let name = |item: &Value| {
        let name = item.as_str()?;
        (1..=NAME_BYTES)
            .contains(&name.len())
            .then(|| name.to_owned())
    };
    let names = value
        .as_array()
        .and_then(|items| items.iter().map(name).collect());
    names.unwrap_or_else(|| {
        let allowed = "a list of names of templates";
        fields.refuse_items("templates", allowed, &value, |item| name(item).is_some());
        Vec::new()
    })
}
