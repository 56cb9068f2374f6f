//! The caps over which messages are refused, in the form that SQL reads.

use serde_json::{Map, Value, json};

use super::caps::{CapRules, CapWindow};
use super::digest::Collects;
use super::quiet::QUIET_MODES;
use super::rules::{CategoryRules, OverCap, RecipientRules};
use crate::providers::Channel;

/// The name of no category: its rules are those of categories that are not listed.
const NOT_LISTED: &str = "";

/// Returns the caps of each category that refuses messages over one of them, with its mode in quiet
/// hours; `null` for a category that refuses none. And the templates whose messages are collected.
/// `flyball.refuse_capped` reads it.
pub fn refusing_caps(rules: &RecipientRules) -> Value {
    let listed = rules
        .categories()
        .map(|(name, category)| (name.to_owned(), refusing(rules, name, category)));
    let collecting = rules
        .digests()
        .filter(|kind| kind.collects == Collects::All);
    json!({
        "collected": collecting.flat_map(|kind| &kind.templates).collect::<Vec<_>>(),
        "categories": listed.collect::<Map<String, Value>>(),
        "other": refusing(rules, NOT_LISTED, rules.category(NOT_LISTED)),
    })
}

fn refusing(rules: &RecipientRules, name: &str, category: &CategoryRules) -> Value {
    let refuses = category.over_cap == OverCap::Refuse;
    let actor_refuses = category.over_actor_cap == OverCap::Refuse;
    if !refuses && !actor_refuses {
        return Value::Null;
    }
    let by_channel = Channel::WORDS
        .iter()
        .map(|(word, channel)| ((*word).to_owned(), listed(&rules.caps(name, *channel))));
    let quiet_on = Channel::WORDS.iter().map(|(word, channel)| {
        let mode = category.quiet_mode(*channel);
        let known = QUIET_MODES.iter().find(|(_, known)| *known == mode);
        ((*word).to_owned(), json!(known.map(|(word, _)| word)))
    });
    json!({
        "quiet": quiet_on.collect::<Map<String, Value>>(),
        "has_presets": !category.presets.is_empty(),
        "caps": by_channel.collect::<Map<String, Value>>(),
        "refuses": refuses,
        "actor_caps": listed(&category.actor_caps),
        "actor_refuses": actor_refuses,
    })
}

fn listed(caps: &CapRules) -> Value {
    let each = caps.0.iter().map(|rule| {
        let span_s = match rule.window {
            CapWindow::Rolling(span_s) => Some(span_s),
            CapWindow::LocalDay => None,
        };
        json!({"rule": format!("{} {rule}", rule.name), "most": rule.most, "span_s": span_s})
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_categories_that_refuse_have_caps() {
        let caps = refusing_caps(&super::super::rules::defaults());
        assert_eq!(
            caps["categories"]["security"]["caps"]["sms"],
            json!([
                {"rule": "per_day 20 per 1d", "most": 20, "span_s": 86_400},
                {"rule": "per_hour 5 per 1h", "most": 5, "span_s": 3600},
            ])
        );
        assert_eq!(caps["categories"]["security"]["refuses"], true);
        assert_eq!(caps["categories"]["security"]["quiet"]["sms"], "hold");
        assert_eq!(caps["categories"]["security"]["has_presets"], false);
        assert_eq!(caps["categories"]["marketing"], Value::Null);
        assert_eq!(caps["other"], Value::Null);
    }
}
