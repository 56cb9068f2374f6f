//! The messages of closed digests.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::taken_items::{DigestItem, TakenItems, shown};
use crate::jobs::check::MAX_ARGS_BYTES;
use crate::recipient::address::RecipientKey;
use crate::recipient::digest::{DigestMessage, DigestType};
use crate::recipient::fields::{USUAL_CATEGORY, is_gated};
use crate::recipient::text_bytes::text_bytes;

/// The bytes that are kept free of items, for their counts and punctuation.
const SPARE_BYTES: usize = 64;

/// The time that an item must still be valid for to go, in seconds: the shortest that there is.
const VALID_MIN_S: f64 = 1.0;

/// A digest that is due.
pub(super) struct DueDigest {
    pub id: i64,
    pub tenant: String,
    pub module: String,
    pub type_name: String,
    pub recipient: RecipientKey,
    pub key: String,
    pub recipient_id: String,
    pub category: String,
    pub channel: String,
    pub address: Option<String>,
    pub throttle: String,
    pub throttle_key: String,
    pub items: i32,
    /// The gate that kept it open before; empty for none.
    pub gate: String,
}

/// A message of a closed digest.
pub(super) struct NewDigestMessage<'a> {
    pub digest: &'a DueDigest,
    pub args: Value,
    pub origin: &'static str,
}

/// The messages of a closed digest.
#[derive(Default)]
pub(super) struct DigestMessages<'a> {
    pub messages: Vec<NewDigestMessage<'a>>,
    /// Items that would have gone alone, and have expired.
    pub expired: Vec<i64>,
}

impl<'a> DigestMessages<'a> {
    /// Adds the messages of a digest that closes at `now`.
    pub(super) fn add(
        &mut self,
        digest: &'a DueDigest,
        kind: &DigestType,
        taken: TakenItems,
        now: Timestamp,
    ) {
        let total = digest.items.unsigned_abs() as usize;
        if total == 0 {
            return;
        }
        let newest = Value::Object(taken.newest);
        let frame = digest_args(digest, kind, &newest, &[], total, true);
        let room = MAX_ARGS_BYTES.saturating_sub(text_bytes(&frame) + SPARE_BYTES);
        let bytes_of = |item: &DigestItem| text_bytes(&shown(&item.args)) + 2;
        for message in kind.close(taken.shown, total, room, bytes_of) {
            let (args, origin) = match message {
                DigestMessage::Single(item) => {
                    let job_id = item.job_id;
                    let Some(args) = alone(item, now) else {
                        self.expired.push(job_id);
                        continue;
                    };
                    (args, "item")
                }
                DigestMessage::Digest {
                    items,
                    total_count,
                    has_more,
                } => {
                    let args = digest_args(digest, kind, &newest, &items, total_count, has_more);
                    (args, "digest")
                }
            };
            self.messages.push(NewDigestMessage {
                digest,
                args,
                origin,
            });
        }
    }
}

/// Returns the arguments of an item that goes alone; `None` if it has expired.
fn alone(item: DigestItem, now: Timestamp) -> Option<Value> {
    let mut args = item.args;
    if let Some(valid_for_s) = args.get("valid_for_s").and_then(Value::as_f64) {
        // Whole seconds, so that it has no more digits than before.
        let left = (valid_for_s - now.duration_since(item.at).as_secs_f64()).floor();
        if left < VALID_MIN_S {
            return None;
        }
        args["valid_for_s"] = json!(left as u64);
    }
    if let Value::Object(fields) = &mut args {
        fields.remove("digest");
    }
    // It keeps a field that gates look at.
    if !is_gated(&args) {
        args["category"] = USUAL_CATEGORY.into();
    }
    Some(args)
}

fn digest_args(
    digest: &DueDigest,
    kind: &DigestType,
    newest: &Value,
    items: &[DigestItem],
    total_count: usize,
    has_more: bool,
) -> Value {
    let each: Vec<Value> = items.iter().map(|item| shown(&item.args)).collect();
    let mut args = json!({
        "channel": digest.channel,
        "category": digest.category,
        "template_id": kind.template,
        "template": kind.texts.template(&digest.channel),
        "data": {"items": each, "totalCount": total_count, "hasMore": has_more},
    });
    for field in ["from", "provider"] {
        if let Some(value) = newest.get(field) {
            args[field] = value.clone();
        }
    }
    if let Some(to) = &digest.address {
        args["to"] = to.clone().into();
    }
    if !digest.recipient_id.is_empty() {
        args["recipient"] = digest.recipient_id.clone().into();
    }
    if kind.per_actor && !digest.key.is_empty() {
        args["actor"] = digest.key.clone().into();
    }
    args
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(valid_for_s: f64) -> DigestItem {
        DigestItem {
            job_id: 1,
            args: json!({"channel": "sms", "digest": "likes", "valid_for_s": valid_for_s}),
            at: Timestamp::from_second(1000).unwrap(),
        }
    }

    #[test]
    fn an_item_that_goes_alone_is_valid_for_as_long_as_its_sender_said() {
        let after = |seconds: i64| {
            let now = Timestamp::from_second(1000 + seconds).unwrap();
            Some(alone(item(3600.5), now)?["valid_for_s"].clone())
        };
        assert_eq!(after(0), Some(json!(3600)));
        assert_eq!(after(3599), Some(json!(1)));
        assert_eq!(after(3600), None);
        assert_eq!(after(86_400), None);
    }

    #[test]
    fn an_item_that_goes_alone_goes_through_all_gates() {
        let now = Timestamp::from_second(1000).unwrap();
        let args = alone(item(60.0), now).unwrap();
        assert_eq!(
            args,
            json!({"channel": "sms", "valid_for_s": 60, "category": "transactional"})
        );
        let mut named = item(60.0);
        named.args["template_id"] = json!("like");
        assert_eq!(alone(named, now).unwrap().get("category"), None);
    }
}
