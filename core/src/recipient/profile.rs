//! The profile of a recipient, and the defaults that a tenant has for its recipients.

use std::collections::{BTreeMap, BTreeSet};

use jiff::civil::{Date, Time, Weekday};
use jiff::tz::TimeZone;
use serde_json::{Map, Value};

use super::local_time::clock;
use super::preferences::{Preference, Preferences, Topic};
use super::quiet::{DATES_MAX, NoHours, QuietHours, Weekdays};
use crate::cron::schedule::is_zone_name;
use crate::input::wording::{any_of, unknown};
use crate::input::{Issue, Reader, pointer};
use crate::providers::{Channel, Recipient};

/// The fields of a profile.
pub const PROFILE_FIELDS: [&str; 5] = [
    "addresses",
    "time_zone",
    "device_time_zone",
    "quiet_hours",
    "preferences",
];

/// Fields of a profile that name a time zone.
pub const ZONE_FIELDS: [&str; 2] = ["time_zone", "device_time_zone"];

/// The fields of quiet hours.
const QUIET_FIELDS: [&str; 5] = ["start", "end", "all_day", "weekdays", "dates"];

/// The fields of preferences.
const PREFERENCE_FIELDS: [&str; 3] = ["all", "categories", "templates"];

/// The most choices in each of them.
pub const CHOICES_MAX: usize = 200;

/// The longest name of a template or category, in bytes.
pub const NAME_BYTES: usize = 128;

/// The longest address, in bytes.
pub const ADDRESS_BYTES: usize = 2048;

/// The length of a date as YYYY-MM-DD, in bytes.
const DATE_BYTES: usize = 10;

const WEEKDAYS: [(&str, Weekday); 7] = [
    ("mon", Weekday::Monday),
    ("tue", Weekday::Tuesday),
    ("wed", Weekday::Wednesday),
    ("thu", Weekday::Thursday),
    ("fri", Weekday::Friday),
    ("sat", Weekday::Saturday),
    ("sun", Weekday::Sunday),
];

/// A profile. The defaults of a tenant are one without addresses.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Profile {
    pub addresses: BTreeMap<Channel, Recipient>,
    pub zone: Option<TimeZone>,
    /// The zone of the device, which counts first for pushes.
    pub device_zone: Option<TimeZone>,
    pub quiet: BTreeMap<Channel, QuietHours>,
    pub preferences: Preferences,
}

impl Profile {
    /// Reads a profile, or lists everything that is wrong with it. No message shows an address.
    pub fn parse(value: &Value) -> Result<Self, Vec<Issue>> {
        let (profile, issues) = Self::readable(value);
        match issues.is_empty() {
            true => Ok(profile),
            false => Err(issues),
        }
    }

    /// Reads what can be read of a profile, and lists everything that is wrong with the rest.
    pub fn readable(value: &Value) -> (Self, Vec<Issue>) {
        let mut issues = Vec::new();
        let profile = Reader::of(value, "", &PROFILE_FIELDS, &mut issues)
            .map(|fields| read(fields.null_is_absent()));
        (profile.unwrap_or_default(), issues)
    }

    /// Returns the zone of a channel; `None` if it is unknown.
    pub fn zone_of(&self, channel: Channel) -> Option<&TimeZone> {
        let device = self.device_zone.as_ref();
        device
            .filter(|_| channel == Channel::Push)
            .or(self.zone.as_ref())
    }

    /// Returns the zone of a channel, or else that of the defaults; `None` if neither is known.
    pub fn zone_or<'a>(&'a self, defaults: &'a Self, channel: Channel) -> Option<&'a TimeZone> {
        self.zone_of(channel).or_else(|| defaults.zone_of(channel))
    }
}

fn read(mut fields: Reader<'_>) -> Profile {
    let addresses = match fields.take("addresses") {
        None => Map::new(),
        Some(Value::Object(map)) => map,
        // The value is not shown, because it may be an address.
        Some(_) => {
            fields.wrong(
                "addresses",
                "must be an object with an address for each channel",
            );
            Map::new()
        }
    };
    let mut profile = Profile {
        zone: zone(&mut fields, "time_zone"),
        device_zone: zone(&mut fields, "device_time_zone"),
        ..Profile::default()
    };
    for (name, value) in addresses {
        let at = pointer("/addresses", &name);
        let Some(channel) = channel(&mut fields, &at, &name) else {
            continue;
        };
        if channel == Channel::InApp {
            fields.wrong_at(&at, "must be left out: the inbox is found by the id");
            continue;
        }
        let text = value.as_str().filter(|text| text.len() <= ADDRESS_BYTES);
        match text.map(|text| Recipient::parse(channel, text)) {
            Some(Ok(address)) => _ = profile.addresses.insert(channel, address),
            Some(Err(message)) => fields.wrong_at(&at, message),
            None => {
                let allowed = format!("must be a text of at most {ADDRESS_BYTES} bytes");
                fields.wrong_at(&at, allowed);
            }
        }
    }
    for (name, value) in object(&mut fields, "quiet_hours", "quiet hours for each channel") {
        let at = pointer("/quiet_hours", &name);
        if let Some(channel) = channel(&mut fields, &at, &name)
            && let Some(hours) = fields
                .nested(&value, &at, &QUIET_FIELDS)
                .and_then(quiet_hours)
        {
            profile.quiet.insert(channel, hours);
        }
    }
    if let Some(choices) = fields.take("preferences")
        && let Some(part) = fields.nested(&choices, "/preferences", &PREFERENCE_FIELDS)
    {
        profile.preferences = preferences(part);
    }
    profile
}

/// Takes an object of any fields.
fn object(fields: &mut Reader<'_>, name: &str, what: &str) -> Map<String, Value> {
    match fields.take(name) {
        None => Map::new(),
        Some(Value::Object(map)) => map,
        Some(other) => {
            fields.refuse(name, &format!("an object with {what}"), &other);
            Map::new()
        }
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

/// Reads the name of a zone, which is kept as a name, so that the rules of the zone may change.
fn zone(fields: &mut Reader<'_>, name: &str) -> Option<TimeZone> {
    let text = fields.text(name, 1..=NAME_BYTES)?;
    let zone = TimeZone::get(&text).ok().filter(|_| is_zone_name(&text));
    if zone.is_none() {
        let allowed = "the IANA name of a time zone, such as Europe/Berlin";
        fields.refuse(name, allowed, &Value::from(text));
    }
    zone
}

/// Reads the quiet hours of a channel.
pub fn quiet_hours(mut fields: Reader<'_>) -> Option<QuietHours> {
    let all_day = fields.flag("all_day").unwrap_or(false);
    let (start, end) = (time(&mut fields, "start"), time(&mut fields, "end"));
    let weekdays = weekdays(&mut fields);
    let (dates, all_read) = dates(&mut fields);
    let made = match (start, end) {
        (None, None) if all_day || !dates.is_empty() => {
            // Dates alone leave the weekdays as they are.
            let none = Weekdays::of([]);
            let usual = if all_day { Weekdays::ALL } else { none };
            QuietHours::all_day(weekdays.unwrap_or(usual), dates)
        }
        (Some(start), Some(end)) if !all_day => {
            QuietHours::daily(start, end, weekdays.unwrap_or(Weekdays::ALL), dates)
        }
        // The dates are reported already.
        (None, None) if !all_read => return None,
        _ if all_day => {
            fields.wrong(
                "all_day",
                "must be left out beside start and end, or these beside it",
            );
            return None;
        }
        (start, _) => {
            let lacks = if start.is_some() { "end" } else { "start" };
            if fields.get(lacks).is_none() {
                fields.missing(lacks, CLOCK);
            }
            return None;
        }
    };
    match made {
        Ok(hours) => Some(hours),
        Err(NoHours::Empty) => {
            fields.wrong(
                "end",
                "must differ from start; write all_day for days that are quiet as a whole",
            );
            None
        }
        Err(NoHours::Endless) => {
            fields.wrong(
                "weekdays",
                "must leave a day: to get nothing at all, opt out",
            );
            None
        }
        Err(NoHours::TooManyDates) => {
            fields.wrong("dates", format!("must be at most {DATES_MAX} dates"));
            None
        }
    }
}

/// The form of a time of day, for messages.
const CLOCK: &str = "a time of day as HH:MM, from 00:00 to 23:59";

fn time(fields: &mut Reader<'_>, name: &str) -> Option<Time> {
    let value = fields.get(name)?.clone();
    let time = value.as_str().and_then(clock);
    if time.is_none() {
        fields.refuse(name, CLOCK, &value);
    }
    time
}

fn weekdays(fields: &mut Reader<'_>) -> Option<Weekdays> {
    let value = fields.take("weekdays")?;
    let day = |item: &Value| {
        let known = WEEKDAYS.iter().find(|(word, _)| item == word);
        known.map(|(_, day)| *day)
    };
    let days = value.as_array().filter(|items| !items.is_empty());
    let days = days.and_then(|items| items.iter().map(day).collect::<Option<Vec<_>>>());
    if days.is_none() {
        let words = any_of(&WEEKDAYS.map(|(word, _)| word));
        let allowed = format!("a list of {words}");
        fields.refuse_items("weekdays", &allowed, &value, |item| day(item).is_some());
    }
    days.map(Weekdays::of)
}

/// Reads dates. Returns those that can be read, and true if these are all.
fn dates(fields: &mut Reader<'_>) -> (BTreeSet<Date>, bool) {
    let Some(value) = fields.take("dates") else {
        return (BTreeSet::new(), true);
    };
    // Other forms of a date are no days to `flyball.is_quiet`.
    let date = |item: &Value| {
        item.as_str()
            .filter(|text| text.len() == DATE_BYTES)?
            .parse::<Date>()
            .ok()
    };
    let items = value.as_array();
    let read: Vec<Option<Date>> = items.into_iter().flatten().map(date).collect();
    let all_read = items.is_some() && read.iter().all(Option::is_some);
    if !all_read {
        let allowed = "a list of dates, such as 2026-12-25";
        fields.refuse_items("dates", allowed, &value, |item| date(item).is_some());
    }
    (read.into_iter().flatten().collect(), all_read)
}

/// Reads preferences: `true` or `false`, or these for each channel, for all messages, for each
/// category and for each template.
fn preferences(mut fields: Reader<'_>) -> Preferences {
    let mut found = Vec::new();
    if let Some(value) = fields.take("all") {
        choices(&mut fields, "/all", Topic::All, &value, &mut found);
    }
    for (part, topic) in [
        ("categories", Topic::Category as fn(String) -> Topic),
        ("templates", Topic::Template as fn(String) -> Topic),
    ] {
        let given = object(&mut fields, part, "true or false for each name");
        if given.len() > CHOICES_MAX {
            fields.wrong(part, format!("must have at most {CHOICES_MAX} names"));
            continue;
        }
        for (name, value) in given {
            let at = pointer(&format!("/{part}"), &name);
            if name.is_empty() || name.len() > NAME_BYTES || name.contains('\0') {
                let form = format!("must have a name of 1 to {NAME_BYTES} bytes without NUL");
                fields.wrong_at(&at, form);
            }
            choices(&mut fields, &at, topic(name), &value, &mut found);
        }
    }
    Preferences(found)
}

fn choices(
    fields: &mut Reader<'_>,
    at: &str,
    topic: Topic,
    value: &Value,
    found: &mut Vec<Preference>,
) {
    let choice = |channel, wanted| Preference {
        topic: topic.clone(),
        channel,
        wanted,
    };
    match value {
        Value::Bool(wanted) => found.push(choice(None, *wanted)),
        Value::Object(each) => {
            for (name, value) in each {
                let at = pointer(at, name);
                match (channel(fields, &at, name), value.as_bool()) {
                    (Some(channel), Some(wanted)) => found.push(choice(Some(channel), wanted)),
                    (_, None) => fields.wrong_at(&at, "must be true or false"),
                    (None, _) => {}
                }
            }
        }
        _ => fields.wrong_at(
            at,
            "must be true or false, or one of these for each channel",
        ),
    }
}

#[cfg(test)]
#[path = "profile_tests.rs"]
mod tests;
