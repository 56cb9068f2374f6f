//! The key names of a throttle, chosen so that on a cluster all its keys lie in one hash slot.
//!
//! Redis hashes the part of a key between its first `{` and the next `}`, or the whole key if there
//! is no such part. A name with a hash tag therefore has all its keys in one slot by itself. On a
//! cluster, the other keys of a name without one take the key of its knobs as their tag:
//! `{throttle:mail:knobs}:bucket`. The knobs keep the name that people and LimitLion know.

use crate::throttle::{KnobProblem, Name};

/// The last part of the key that holds the knobs.
pub(super) const KNOBS: &str = "knobs";

/// The names of keys under one prefix.
pub(super) struct Layout {
    prefix: String,
    is_cluster: bool,
}

/// A key of ours, as the pieces of its name.
pub(super) struct Key<'a>([&'a str; 8]);

impl Layout {
    pub(super) fn new(prefix: &str, is_cluster: bool) -> Self {
        Self {
            prefix: prefix.to_owned(),
            is_cluster,
        }
    }

    /// Returns a key of a throttle: `part` is the kind of its content, for instance `lane:`, and
    /// `key` is the rate-limit key or empty.
    pub(super) fn key<'a>(&'a self, throttle: &'a Name, part: &'a str, key: &'a str) -> Key<'a> {
        let (prefix, throttle) = (self.prefix.as_str(), throttle.as_str());
        if part == KNOBS || !self.is_cluster || has_tag(&[prefix, throttle]) {
            return Key([prefix, "throttle:", throttle, ":", part, key, "", ""]);
        }
        Key([
            "{",
            prefix,
            "throttle:",
            throttle,
            ":",
            "knobs}:",
            part,
            key,
        ])
    }

    /// Returns the key of the set of names.
    pub(super) fn names(&self) -> String {
        format!("{}throttle:names", self.prefix)
    }

    /// Returns the key of a test write, stored in the slot of the set of names.
    pub(super) fn alive(&self) -> String {
        if self.is_cluster {
            format!("{{{}}}:alive", self.names())
        } else {
            format!("{}:alive", self.names())
        }
    }

    /// Returns the common beginning and end of all knob keys.
    pub(super) fn around_names(&self) -> (String, &'static str) {
        (format!("{}throttle:", self.prefix), ":knobs")
    }

    /// Returns the slot of a throttle; always 0 without a cluster.
    pub(super) fn slot(&self, throttle: &Name) -> u16 {
        self.slot_of(|| self.key(throttle, KNOBS, "").to_string())
    }

    /// Returns the slot of the set of names.
    pub(super) fn names_slot(&self) -> u16 {
        self.slot_of(|| self.names())
    }

    fn slot_of(&self, key: impl FnOnce() -> String) -> u16 {
        if self.is_cluster { slot(&key()) } else { 0 }
    }

    /// Refuses a name whose braces would spread its keys over several slots.
    pub(super) fn check(&self, throttle: &Name) -> Result<(), KnobProblem> {
        let texts = [self.prefix.as_str(), throttle.as_str()];
        if !self.is_cluster || has_tag(&texts) || !texts.iter().any(|text| text.contains('}')) {
            return Ok(());
        }
        let message = format!(
            "{throttle} with the prefix {:?} contains braces without a hash tag: on Redis Cluster the first must be a {{, with \
             something between it and its }}, for instance {{notify}}:sms, or there must be none",
            self.prefix
        );
        Err(KnobProblem {
            field: "name".to_owned(),
            message,
        })
    }

    /// Returns true if one call can serve both throttles: always without a cluster, and with the
    /// same hash tag on one.
    pub(super) fn is_together(&self, one: &Name, other: &Name) -> bool {
        let tag = |name: &Name| tag(&self.key(name, KNOBS, "").to_string()).to_owned();
        !self.is_cluster || one == other || tag(one) == tag(other)
    }
}

impl<'a> Key<'a> {
    pub(super) fn pieces(&self) -> &[&'a str] {
        &self.0
    }
}

impl std::fmt::Display for Key<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|piece| f.write_str(piece))
    }
}

/// Returns the error text for a parent whose hash tag differs from its child's.
pub(super) fn other_tag(throttle: &Name, parent: &Name) -> String {
    format!(
        "{parent} with the hash tag of {throttle}: on Redis Cluster a throttle and its parents must have the same one in their \
         names, for instance {{notify}} and {{notify}}:sms"
    )
}

/// Returns true if the concatenation of `texts`, with text without braces between them, contains a
/// hash tag.
fn has_tag(texts: &[&str]) -> bool {
    let Some(at) = texts.iter().position(|text| text.contains('{')) else {
        return false;
    };
    let (_, rest) = texts[at].split_once('{').unwrap_or_default();
    match rest.find('}') {
        Some(end) => end > 0,
        // The tag begins in the prefix and ends in the name, with `throttle:` in it.
        None => texts[at + 1..].iter().any(|text| text.contains('}')),
    }
}

/// Returns the part of a key that determines its slot.
fn tag(key: &str) -> &str {
    let between = key
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'))
        .map(|(tag, _)| tag);
    between.filter(|tag| !tag.is_empty()).unwrap_or(key)
}

/// Returns the slot of a key: CRC16 (XMODEM) of its tag, modulo 16384.
pub(super) fn slot(key: &str) -> u16 {
    crc16(tag(key).as_bytes()) % 16384
}

fn crc16(bytes: &[u8]) -> u16 {
    let step = |crc: u16, _| {
        if crc & 0x8000 == 0 {
            crc << 1
        } else {
            (crc << 1) ^ 0x1021
        }
    };
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), step)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARTS: [(&str, &str); 7] = [
        ("bucket", ""),
        ("holds", ""),
        ("pauses", ""),
        ("lane:", "{x}"),
        ("lane:", "}{"),
        ("pause:", "{}"),
        ("holds:", "a}b{c}"),
    ];

    fn name(text: &str) -> Name {
        Name::new(text).unwrap()
    }

    #[test]
    fn slots_are_those_of_redis() {
        // From the specification of Redis Cluster, and from CLUSTER KEYSLOT of a Redis 7.
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(
            (slot("foo"), slot("bar"), slot("{user1000}.following")),
            (12182, 5061, slot("user1000"))
        );
        assert_eq!(slot("foo{}{bar}"), crc16(b"foo{}{bar}") % 16384);
        assert_eq!(slot("foo{{bar}}zap"), slot("{bar"));
        assert_eq!(slot("foo{bar}{zap}"), slot("bar"));
    }

    #[test]
    fn on_a_cluster_all_keys_of_a_throttle_share_a_slot_whatever_the_rate_limit_keys_are() {
        for prefix in ["", "app:", "{app}:", "a{b"] {
            let layout = Layout::new(prefix, true);
            for throttle in [
                "mail",
                "{notify}",
                "{notify}:sms",
                "a{b}c{d}",
                "open{",
                "x{y{z",
            ] {
                let throttle = name(throttle);
                assert_eq!(layout.check(&throttle), Ok(()), "{prefix} {throttle}");
                let home = layout.slot(&throttle);
                for (part, key) in PARTS {
                    let key = layout.key(&throttle, part, key).to_string();
                    assert_eq!(slot(&key), home, "{key}");
                }
            }
        }
    }

    #[test]
    fn knobs_are_named_alike_everywhere_and_nothing_else_changes_without_a_cluster() {
        let (alone, cluster) = (Layout::new("p:", false), Layout::new("p:", true));
        let mail = name("mail");

        assert_eq!(
            alone.key(&mail, KNOBS, "").to_string(),
            "p:throttle:mail:knobs"
        );
        assert_eq!(
            cluster.key(&mail, KNOBS, "").to_string(),
            "p:throttle:mail:knobs"
        );
        assert_eq!(
            alone.key(&mail, "lane:", "k").to_string(),
            "p:throttle:mail:lane:k"
        );
        assert_eq!(
            cluster.key(&mail, "lane:", "k").to_string(),
            "{p:throttle:mail:knobs}:lane:k"
        );
        assert_eq!(
            cluster.key(&name("{a}:b"), "lane:", "k").to_string(),
            "p:throttle:{a}:b:lane:k"
        );
    }

    #[test]
    fn braces_that_are_no_tag_are_refused_on_a_cluster_alone() {
        for text in ["a}b", "{}", "{}{x}", "}{x", "a}b{c"] {
            let problem = Layout::new("", true).check(&name(text)).unwrap_err();
            assert!(
                problem.field == "name" && problem.message.contains("for instance {notify}:sms"),
                "{problem:?}"
            );
            assert_eq!(Layout::new("", false).check(&name(text)), Ok(()));
        }
    }

    #[test]
    fn a_tree_is_together_under_one_tag() {
        let cluster = Layout::new("", true);

        assert!(cluster.is_together(&name("{notify}:sms"), &name("{notify}")));
        assert!(!cluster.is_together(&name("{notify}:sms"), &name("notify")));
        assert!(!cluster.is_together(&name("mail"), &name("tier")));
        assert!(Layout::new("", false).is_together(&name("mail"), &name("tier")));
        assert!(Layout::new("{app}", true).is_together(&name("mail"), &name("tier")));
    }
}
