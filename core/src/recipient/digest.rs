//! Digests: items of one type for one recipient that go as one message.
//!
//! An item belongs to the digest into which it was put, whatever its time. A digest that may not go
//! out stays open and collects.

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::cron::Expression;

/// The type of digest of messages that were held in quiet hours.
pub const COALESCED: &str = "while-you-were-away";

/// The body of a digest to a webhook, whose driver takes nothing but JSON.
const WEBHOOK_BODY: &str = r#"{"items": {{ items|tojson }}, "totalCount": {{ totalCount }}, "hasMore": {{ hasMore|tojson }} }"#;

/// The time during which a digest is open.
#[derive(Clone, Debug, PartialEq)]
pub enum DigestWindow {
    /// So long from the first item on.
    Fixed(SignedDuration),
    /// So long from the last item on, and never longer than `max_open` from the first.
    Sliding {
        window: SignedDuration,
        max_open: SignedDuration,
    },
    /// Until the next of the times of a cron expression, by the clock of the recipient.
    Timed(Expression),
}

/// The treatment of items beyond the maximum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DigestOverflow {
    /// They are counted and not shown.
    #[default]
    Count,
    /// They go in further messages.
    Split,
}

/// The treatment of fewer items than the minimum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BelowMinimum {
    /// Each goes alone, by its own template.
    #[default]
    Individual,
    /// They go as a digest all the same.
    One,
}

/// The messages that a type collects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Collects {
    /// All that name it or whose template it lists.
    #[default]
    All,
    /// Messages that are over a cap.
    OverCap,
}

/// The ways to treat items beyond the maximum, by name.
pub const OVERFLOWS: [(&str, DigestOverflow); 2] = [
    ("count", DigestOverflow::Count),
    ("split", DigestOverflow::Split),
];

/// The ways to treat fewer items than the minimum, by name.
pub const BELOW: [(&str, BelowMinimum); 2] = [
    ("individual", BelowMinimum::Individual),
    ("one", BelowMinimum::One),
];

/// The messages that a type can collect, by name.
pub const COLLECTS: [(&str, Collects); 2] =
    [("all", Collects::All), ("over_cap", Collects::OverCap)];

/// A type of digest.
#[derive(Clone, Debug, PartialEq)]
pub struct DigestType {
    pub name: String,
    /// The template of the digest; items that go alone have their own.
    pub template: String,
    /// The category of the digest.
    pub category: String,
    pub window: DigestWindow,
    /// The fewest items of a digest.
    pub min_items: usize,
    /// The most items of one message.
    pub max_items: usize,
    pub overflow: DigestOverflow,
    pub below: BelowMinimum,
    /// True if the first item goes at once, outside of the digest.
    pub leading: bool,
    /// The time since the last message after which an item goes at once again; the window if
    /// absent.
    pub quiet_for: Option<SignedDuration>,
    /// True if an item that equals a recent one is a duplicate.
    pub dedup_items: bool,
    /// The number of items with which a digest closes early.
    pub close_at_items: Option<usize>,
    /// The templates whose messages it collects.
    pub templates: Vec<String>,
    pub collects: Collects,
    /// True if each actor has a digest of its own.
    pub per_actor: bool,
    pub texts: DigestTexts,
}

/// The texts of the messages of digests: templates over `items`, the data of each, `totalCount` and
/// `hasMore`.
#[derive(Clone, Debug, PartialEq)]
pub struct DigestTexts {
    pub subject: String,
    pub body: String,
    pub html: Option<String>,
}

impl Default for DigestTexts {
    fn default() -> Self {
        Self {
            subject: "{{ totalCount }} updates".to_owned(),
            // A value that is not there is an error in a template, also in a condition. A text
            // message and a push have room for some lines.
            body: "{{ totalCount }} updates{% for item in items %}{% if loop.index <= 10 %}\n- {{ \
                item.text if item.text is defined else item.title if item.title is defined else item \
                }}{% endif %}{% endfor %}{% if hasMore or items|length > 10 %}\n...{% endif %}"
                .to_owned(),
            html: None,
        }
    }
}

impl DigestTexts {
    /// Returns the template of a message of a channel: the texts, and for a webhook the data as
    /// JSON. The SQL function `flyball.record_requeued` makes the same.
    pub fn template(&self, channel: &str) -> Value {
        if channel == "webhook" {
            return json!({"body": WEBHOOK_BODY});
        }
        let mut template = json!({"body": self.body});
        if matches!(channel, "email" | "push" | "inapp") {
            template["subject"] = self.subject.clone().into();
        }
        if let Some(html) = self.html.as_ref().filter(|_| channel == "email") {
            template["html"] = html.clone().into();
        }
        template
    }
}

/// An open digest of a recipient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenDigest {
    pub opened_at: Timestamp,
    pub closes_at: Timestamp,
    /// The number of items.
    pub items: usize,
}

impl OpenDigest {
    /// Keeps the digest open until its message may go.
    pub fn put_off(&mut self, until: Timestamp) {
        self.closes_at = self.closes_at.max(until);
    }
}

/// The place of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// It goes at once, and an empty digest is open for those that follow.
    Leads(OpenDigest),
    /// It is in this digest, new or with a new time.
    Joins(OpenDigest),
}

/// A message of a closed digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DigestMessage<T> {
    /// Some of its items.
    Digest {
        items: Vec<T>,
        /// The number of all items.
        total_count: usize,
        /// True if there are items behind these.
        has_more: bool,
    },
    /// An item alone.
    Single(T),
}

impl DigestType {
    /// Returns the place of an item that comes at `now`; `zone` is the recipient's.
    pub fn arrival(&self, open: Option<&OpenDigest>, now: Timestamp, zone: &TimeZone) -> Arrival {
        let Some(open) = open else {
            let digest = |items, closes_at| OpenDigest {
                opened_at: now,
                closes_at,
                items,
            };
            return match self.leading {
                true => Arrival::Leads(digest(0, self.wakes_at(now, zone))),
                false => Arrival::Joins(self.counted(digest(1, self.closes_at(now, zone)), now)),
            };
        };
        let mut joined = OpenDigest {
            items: open.items + 1,
            ..*open
        };
        // An empty digest of a type in which no item leads is one whose items were withdrawn.
        if open.items == 0 && (self.quiet_for.is_some() || !self.leading) {
            joined.opened_at = now;
            joined.closes_at = self.closes_at(now, zone);
        }
        if let DigestWindow::Sliding { window, max_open } = &self.window {
            let slid = later(now, *window).min(later(joined.opened_at, *max_open));
            joined.put_off(slid);
        }
        Arrival::Joins(self.counted(joined, now))
    }

    /// Returns the empty digest that stays open after one was closed, so that an item soon after it
    /// does not go at once.
    pub fn after_close(&self, now: Timestamp) -> Option<OpenDigest> {
        let quiet_for = self.quiet_for.filter(|_| self.leading)?;
        Some(OpenDigest {
            opened_at: now,
            closes_at: later(now, quiet_for),
            items: 0,
        })
    }

    /// Returns the messages of a closed digest of `total` items, of which `items` are the first in
    /// the order in which they came: [`DigestType::shown_max`], or all that a few messages hold.
    ///
    /// A message has room for `room` bytes of items. What is beyond goes as `overflow` says, and an
    /// item that has no room in any message goes alone.
    pub fn close<T>(
        &self,
        items: Vec<T>,
        total: usize,
        room: usize,
        bytes_of: impl Fn(&T) -> usize,
    ) -> Vec<DigestMessage<T>> {
        if self.goes_alone(total) {
            return items.into_iter().map(DigestMessage::Single).collect();
        }
        let (fitting, large): (Vec<T>, Vec<T>) =
            items.into_iter().partition(|item| bytes_of(item) <= room);
        let total_count = total.saturating_sub(large.len());
        let mut messages: Vec<DigestMessage<T>> =
            large.into_iter().map(DigestMessage::Single).collect();
        let (mut rest, mut left) = (fitting.into_iter().peekable(), total_count);
        loop {
            let (mut items, mut used) = (Vec::new(), 0_usize);
            while items.len() < self.max_items.max(1)
                && let Some(item) = rest.next_if(|item| used.saturating_add(bytes_of(item)) <= room)
            {
                used += bytes_of(&item);
                items.push(item);
            }
            let is_counted = self.overflow == DigestOverflow::Count;
            // Items that are only counted are told even if none can be shown.
            if items.is_empty() && !(is_counted && left > 0) {
                return messages;
            }
            left = left.saturating_sub(items.len());
            messages.push(DigestMessage::Digest {
                items,
                total_count,
                has_more: left > 0,
            });
            if is_counted {
                return messages;
            }
        }
    }

    /// Returns the number of items of a digest of `total` whose contents its messages need.
    pub fn shown_max(&self, total: usize) -> usize {
        match self.is_one_message(total) {
            true => total.min(self.max_items),
            false => total,
        }
    }

    /// Returns the most items of a first part of a digest of `total`, so that the rest is no digest
    /// of fewer items than the minimum; 0 if there is no such part.
    pub fn part_max(&self, total: usize) -> usize {
        let rest = match self.goes_alone(total) {
            true => 1,
            false => self.min_items.max(1),
        };
        total.saturating_sub(rest)
    }

    /// Returns true if so many items make one message, whatever they are.
    pub fn is_one_message(&self, total: usize) -> bool {
        self.overflow == DigestOverflow::Count && !self.goes_alone(total)
    }

    /// Returns true if each of so many items goes alone.
    pub fn goes_alone(&self, items: usize) -> bool {
        items < self.min_items && self.below == BelowMinimum::Individual
    }

    /// Returns the time at which a digest closes that opens at `now`.
    pub fn closes_at(&self, now: Timestamp, zone: &TimeZone) -> Timestamp {
        match &self.window {
            DigestWindow::Fixed(window) => later(now, *window),
            DigestWindow::Sliding { window, max_open } => later(now, *window.min(max_open)),
            DigestWindow::Timed(times) => times.next_after(zone, now).unwrap_or(Timestamp::MAX),
        }
    }

    /// Returns the time until which items do not go at once after one that did.
    fn wakes_at(&self, now: Timestamp, zone: &TimeZone) -> Timestamp {
        self.quiet_for
            .map_or_else(|| self.closes_at(now, zone), |wait| later(now, wait))
    }

    /// Closes a digest that has enough items.
    fn counted(&self, mut digest: OpenDigest, now: Timestamp) -> OpenDigest {
        if self.close_at_items.is_some_and(|most| digest.items >= most) {
            digest.closes_at = now;
        }
        digest
    }
}

/// Returns the time that is `by` later.
pub(super) fn later(at: Timestamp, by: SignedDuration) -> Timestamp {
    at.checked_add(by).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
#[path = "digest_tests.rs"]
mod tests;
