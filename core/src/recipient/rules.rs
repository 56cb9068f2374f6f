//! The rules for recipients, from a TOML file: caps, quiet modes, categories, digests, dedup
//! windows.

use std::collections::BTreeMap;

use jiff::SignedDuration;
use serde_json::{Map, Value};

use super::caps::{CapRule, CapRules, FORM, SENDERS_LONGEST_S};
use super::digest::DigestType;
use super::digest_rules::digest;
use super::presets::{QUIET_PRESETS, QuietPreset};
use super::quiet::{QUIET_MODES, QuietMode};
use super::release::Release;
use super::rule_fields::{NAME_BYTES, seconds};
use super::rules_origin::RulesOrigin;
use crate::input::wording::{any_of, must_be, must_be_one_of, unknown};
use crate::input::{FileError, FileProblem, Reader, TomlDocument, pointer};
use crate::providers::Channel;

/// The default rules with their explanations.
pub const DEFAULT_RULES: &str = include_str!("../recipients.toml");

/// The keys at the top of the file.
pub const TOP_KEYS: [&str; 5] = [
    "release_share",
    "release_spread_max_s",
    "fallback",
    "categories",
    "digests",
];

/// The keys of the fallback.
pub const FALLBACK_KEYS: [&str; 5] = ["caps", "over_cap", "valid_for_s", "quiet", "dedup_window_s"];

/// The keys of a category.
pub const CATEGORY_KEYS: [&str; 11] = [
    "mandatory",
    "caps",
    "fallback_caps",
    "over_cap",
    "valid_for_s",
    "actor_caps",
    "over_actor_cap",
    "quiet",
    "quiet_on",
    "quiet_presets",
    "dedup_window_s",
];

/// The keys of a type of digest.
pub const DIGEST_KEYS: [&str; 19] = [
    "template",
    "category",
    "window_s",
    "max_open_s",
    "at",
    "min_items",
    "max_items",
    "overflow",
    "below",
    "leading",
    "quiet_for_s",
    "dedup_items",
    "close_at_items",
    "templates",
    "collects",
    "per_actor",
    "subject",
    "body",
    "html",
];

/// The most caps that hold together.
const CAPS_MAX: usize = 8;

/// The longest span of a release, in seconds.
const SPREAD_MAX_S: f64 = 7200.0;

/// The treatment of a message over a cap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OverCap {
    /// It waits until there is room.
    Hold,
    /// It ends as capped.
    Drop,
    /// It is not accepted.
    Refuse,
    /// It is collected by the type, or by the one that lists its template; without either it waits.
    Digest(Option<String>),
}

/// The forms of the treatment, for messages.
const OVER_CAPS: &str = "hold, drop, refuse, digest, or digest: and the name of a type of digest";

/// The rules of one category.
#[derive(Clone, Debug, PartialEq)]
pub struct CategoryRules {
    /// True if nobody can opt out.
    pub mandatory: bool,
    caps: BTreeMap<Channel, CapRules>,
    /// True if channels without caps have those of the fallback.
    has_fallback: bool,
    pub over_cap: OverCap,
    /// The longest time for which a cap holds a message.
    pub valid_for: SignedDuration,
    /// The caps for each recipient and actor.
    pub actor_caps: CapRules,
    pub over_actor_cap: OverCap,
    quiet: QuietMode,
    quiet_on: BTreeMap<Channel, QuietMode>,
    pub presets: Vec<QuietPreset>,
    pub dedup_window: SignedDuration,
}

impl CategoryRules {
    /// Returns the treatment of messages in quiet hours.
    pub fn quiet_mode(&self, channel: Channel) -> QuietMode {
        self.quiet_on.get(&channel).copied().unwrap_or(self.quiet)
    }
}

/// All rules.
#[derive(Clone, Debug, PartialEq)]
pub struct RecipientRules {
    pub origin: RulesOrigin,
    pub release: Release,
    fallback_caps: CapRules,
    /// The rules of categories that are not listed.
    other: CategoryRules,
    categories: BTreeMap<String, CategoryRules>,
    digests: BTreeMap<String, DigestType>,
}

impl RecipientRules {
    /// Parses the text of a rules file over the defaults, or lists everything that is wrong with
    /// it.
    pub fn parse(file: &str, text: &str) -> Result<Self, FileError> {
        let not_toml = |error| FileError(vec![FileProblem::not_toml(file, error)]);
        let document = TomlDocument::parse(text).map_err(not_toml)?;
        let mut value = TomlDocument::parse(DEFAULT_RULES).map_err(not_toml)?.value;
        merge(&mut value, document.value.clone());
        let mut issues = Vec::new();
        let rules = Reader::of(&value, "", &TOP_KEYS, &mut issues).and_then(read);
        match rules {
            Some(rules) if issues.is_empty() => Ok(Self {
                origin: RulesOrigin::of(file, text, &document),
                ..rules
            }),
            _ => Err(FileError(FileProblem::located(file, &document, issues))),
        }
    }

    /// Returns the rules of a category.
    pub fn category(&self, name: &str) -> &CategoryRules {
        self.categories.get(name).unwrap_or(&self.other)
    }

    /// Returns the caps of a category on a channel.
    pub fn caps(&self, category: &str, channel: Channel) -> CapRules {
        let rules = self.category(category);
        match rules.caps.get(&channel) {
            Some(caps) => caps.clone(),
            // An inbox interrupts nobody.
            None if channel == Channel::InApp => CapRules::default(),
            None if rules.has_fallback => self.fallback_caps.clone(),
            None => CapRules::default(),
        }
    }

    /// Returns true if a category has caps of its own on a channel, in place of the fallback's.
    pub fn has_caps(&self, category: &str, channel: Channel) -> bool {
        self.category(category).caps.contains_key(&channel)
    }

    /// Returns the longest time for which a message makes others duplicates.
    pub fn longest_dedup(&self) -> SignedDuration {
        let windows = self.all_categories().map(|rules| rules.dedup_window);
        windows.max().unwrap_or_default()
    }

    /// Returns the longest window of a cap, in seconds, and at least that of a sender's own cap.
    pub fn longest_cap_s(&self) -> i64 {
        let of_rules = |rules: &CapRules| rules.0.iter().map(CapRule::span_s).max();
        let categories = self.all_categories();
        let of_categories = categories.flat_map(|rules| {
            let channels = rules.caps.values().filter_map(of_rules);
            channels.chain(of_rules(&rules.actor_caps))
        });
        let fallback = of_rules(&self.fallback_caps);
        of_categories
            .chain(fallback)
            .fold(SENDERS_LONGEST_S, i64::max)
    }

    fn all_categories(&self) -> impl Iterator<Item = &CategoryRules> {
        self.categories.values().chain([&self.other])
    }

    /// Returns a type of digest.
    pub fn digest(&self, name: &str) -> Option<&DigestType> {
        self.digests.get(name)
    }

    /// Returns the categories that are listed, by name.
    pub fn categories(&self) -> impl Iterator<Item = (&str, &CategoryRules)> {
        self.categories
            .iter()
            .map(|(name, rules)| (name.as_str(), rules))
    }

    /// Returns the types of digest, by name.
    pub fn digests(&self) -> impl Iterator<Item = &DigestType> {
        self.digests.values()
    }

    /// Returns the type that lists a template.
    pub fn digest_of_template(&self, template: &str) -> Option<&DigestType> {
        let mut types = self.digests.values();
        types.find(|kind| kind.templates.iter().any(|listed| listed == template))
    }
}

/// Puts the given values over the defaults. The caps of a channel and a type of digest replace
/// those of the defaults as a whole.
fn merge(to: &mut Value, given: Value) {
    merge_at(to, given, &mut Vec::new());
}

fn merge_at(to: &mut Value, given: Value, path: &mut Vec<String>) {
    let whole = match path.as_slice() {
        [digests, _type] if digests == "digests" => true,
        [.., caps, _channel] if caps == "caps" => true,
        [.., last] => last == "actor_caps" || (path.len() == 2 && last == "caps"),
        [] => false,
    };
    match (to, given) {
        (Value::Object(to), Value::Object(given)) if !whole => {
            for (name, value) in given {
                path.push(name.clone());
                merge_at(to.entry(name).or_insert(Value::Null), value, path);
                path.pop();
            }
        }
        (to, given) => *to = given,
    }
}

fn read(mut fields: Reader<'_>) -> Option<RecipientRules> {
    let share = fields.positive("release_share", 1.0, "");
    let spread = fields.number("release_spread_max_s", 0.0..=SPREAD_MAX_S, " seconds");
    let categories = table(&mut fields, "categories");
    let digests = table(&mut fields, "digests");
    let mut types = BTreeMap::new();
    for (name, value) in &digests {
        let at = pointer("/digests", name);
        check_name(&mut fields, &at, name);
        let kind = fields
            .nested(value, &at, &DIGEST_KEYS)
            .and_then(|part| digest(part, name));
        types.extend(kind.map(|kind| (name.clone(), kind)));
    }
    one_type_each(&mut fields, &types);
    let names: Vec<&str> = digests.keys().map(String::as_str).collect();
    let fallback = fields.part("fallback", &FALLBACK_KEYS).map(|mut part| {
        let caps = caps_of(&mut part, "caps");
        (caps, category(part, &names, None))
    });
    let (fallback_caps, other) = fallback?;
    let mut listed = BTreeMap::new();
    for (name, value) in &categories {
        let at = pointer("/categories", name);
        check_name(&mut fields, &at, name);
        let rules = fields
            .nested(value, &at, &CATEGORY_KEYS)
            .map(|part| category(part, &names, Some(&other)));
        listed.extend(rules.map(|rules| (name.clone(), rules)));
    }
    Some(RecipientRules {
        origin: RulesOrigin::default(),
        release: Release {
            share: share?,
            spread_max: SignedDuration::from_secs_f64(spread?),
        },
        fallback_caps,
        other,
        categories: listed,
        digests: types,
    })
}

/// Refuses a template that two types list.
fn one_type_each(fields: &mut Reader<'_>, types: &BTreeMap<String, DigestType>) {
    let mut seen = BTreeMap::new();
    for (name, kind) in types {
        for template in &kind.templates {
            if let Some(other) = seen.insert(template, name).filter(|other| *other != name) {
                let at = format!("{}/templates", pointer("/digests", name));
                let message = format!("must not list {template:?}, which the type {other} lists");
                fields.wrong_at(&at, message);
            }
        }
    }
}

fn check_name(fields: &mut Reader<'_>, at: &str, name: &str) {
    if name.is_empty() || name.len() > NAME_BYTES {
        fields.wrong_at(at, format!("must have a name of 1 to {NAME_BYTES} bytes"));
    }
}

/// Takes a table of any names.
fn table(fields: &mut Reader<'_>, name: &str) -> Map<String, Value> {
    match fields.take(name) {
        None => Map::new(),
        Some(Value::Object(map)) => map,
        Some(other) => {
            fields.refuse(name, "a table", &other);
            Map::new()
        }
    }
}

/// Reads caps: a rule for each name.
fn caps_of(fields: &mut Reader<'_>, name: &str) -> CapRules {
    let given = table(fields, name);
    caps_at(fields, &pointer("", name), &given)
}

fn caps_at(fields: &mut Reader<'_>, at: &str, given: &Map<String, Value>) -> CapRules {
    if given.len() > CAPS_MAX {
        fields.wrong_at(at, format!("must have at most {CAPS_MAX} caps"));
    }
    let mut rules = Vec::new();
    for (name, value) in given {
        let at = pointer(at, name);
        check_name(fields, &at, name);
        match value.as_str().and_then(|text| CapRule::parse(name, text)) {
            Some(rule) => rules.push(rule),
            None => fields.wrong_at(&at, must_be(FORM, value)),
        }
    }
    CapRules(rules)
}

/// Reads the rules of a category; without `other` those of the fallback.
fn category(
    mut fields: Reader<'_>,
    types: &[&str],
    other: Option<&CategoryRules>,
) -> CategoryRules {
    let by_channel = if other.is_some() {
        table(&mut fields, "caps")
    } else {
        Map::new()
    };
    let mut caps = BTreeMap::new();
    for (name, value) in &by_channel {
        let at = pointer("/caps", name);
        let Some(channel) = channel(&mut fields, &at, name) else {
            continue;
        };
        match value {
            Value::Object(given) => _ = caps.insert(channel, caps_at(&mut fields, &at, given)),
            found => {
                let message = must_be("a table with a cap for each name", found);
                fields.wrong_at(&at, message);
            }
        }
    }
    let actor_caps = caps_of(&mut fields, "actor_caps");
    let over_cap = over_cap(&mut fields, "over_cap", types);
    let over_actor_cap = self::over_cap(&mut fields, "over_actor_cap", types);
    let valid_for = seconds(&mut fields, "valid_for_s", 1.0);
    let dedup_window = seconds(&mut fields, "dedup_window_s", 0.0);
    let quiet = fields.choice("quiet", &QUIET_MODES);
    let quiet_on = quiet_on(&mut fields);
    let presets = presets(&mut fields);
    let mandatory = fields.flag("mandatory").unwrap_or(false);
    let has_fallback = fields.flag("fallback_caps").unwrap_or(true);
    let over_cap = over_cap
        .or_else(|| Some(other?.over_cap.clone()))
        .unwrap_or(OverCap::Hold);
    // Absent fields were reported: the defaults have everything.
    CategoryRules {
        mandatory,
        caps,
        has_fallback,
        over_actor_cap: over_actor_cap.unwrap_or_else(|| over_cap.clone()),
        over_cap,
        valid_for: valid_for
            .or_else(|| Some(other?.valid_for))
            .unwrap_or_default(),
        actor_caps,
        quiet: quiet.or_else(|| Some(other?.quiet)).unwrap_or_default(),
        quiet_on,
        presets,
        dedup_window: dedup_window
            .or_else(|| Some(other?.dedup_window))
            .unwrap_or_default(),
    }
}

fn channel(fields: &mut Reader<'_>, at: &str, name: &str) -> Option<Channel> {
    let known = Channel::WORDS.iter().find(|(word, _)| *word == name);
    if known.is_none() {
        let words = Channel::WORDS.map(|(word, _)| word);
        fields.wrong_at(at, unknown(name, "channel", &words));
    }
    known.map(|(_, channel)| *channel)
}

fn over_cap(fields: &mut Reader<'_>, name: &str, types: &[&str]) -> Option<OverCap> {
    let value = fields.take(name)?;
    match value.as_str() {
        Some("hold") => return Some(OverCap::Hold),
        Some("drop") => return Some(OverCap::Drop),
        Some("refuse") => return Some(OverCap::Refuse),
        Some("digest") => return Some(OverCap::Digest(None)),
        Some(text) => {
            if let Some(kind) = text.strip_prefix("digest:") {
                if types.contains(&kind) {
                    return Some(OverCap::Digest(Some(kind.to_owned())));
                }
                let message = unknown(kind, "type of digest", types);
                fields.wrong(name, format!("{kind:?} {message}"));
                return None;
            }
        }
        None => {}
    }
    fields.refuse(name, OVER_CAPS, &value);
    None
}

fn quiet_on(fields: &mut Reader<'_>) -> BTreeMap<Channel, QuietMode> {
    let given = table(fields, "quiet_on");
    let mut modes = BTreeMap::new();
    for (name, value) in &given {
        let at = pointer("/quiet_on", name);
        let channel = channel(fields, &at, name);
        let mode = QUIET_MODES.iter().find(|(word, _)| value == word);
        match (channel, mode) {
            (Some(channel), Some((_, mode))) => _ = modes.insert(channel, *mode),
            (_, None) => {
                let words = QUIET_MODES.map(|(word, _)| word);
                let message = must_be_one_of(&words, value);
                fields.wrong_at(&at, message);
            }
            (None, Some(_)) => {}
        }
    }
    modes
}

fn presets(fields: &mut Reader<'_>) -> Vec<QuietPreset> {
    let Some(value) = fields.take("quiet_presets") else {
        return Vec::new();
    };
    let preset = |item: &Value| {
        let known = QUIET_PRESETS.iter().find(|(word, _)| item == word);
        known.map(|(_, preset)| *preset)
    };
    let presets = value
        .as_array()
        .and_then(|items| items.iter().map(preset).collect());
    presets.unwrap_or_else(|| {
        let words = any_of(&QUIET_PRESETS.map(|(word, _)| word));
        let allowed = format!("a list of {words}");
        fields.refuse_items("quiet_presets", &allowed, &value, |item| {
            preset(item).is_some()
        });
        Vec::new()
    })
}

/// Returns the default rules, for tests.
#[cfg(test)]
pub(super) fn defaults() -> RecipientRules {
    RecipientRules::parse("recipients.toml", "").unwrap()
}

#[cfg(test)]
#[path = "rules_tests.rs"]
mod tests;
