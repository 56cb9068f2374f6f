//! The table of Twilio's answers: the outcome of each status and error code, and the delay after
//! it.

use crate::providers::code::row;
use crate::providers::{Class, Code, Scope};

/// The meaning of answers. The codes are Twilio's own, from the answer's body.
pub const CODES: &[Code] = &[
    row("201", "", Class::Accepted, "queued"),
    row(
        "2xx",
        "",
        Class::Ambiguous,
        "unexpected format of the response",
    ),
    // Limits.
    row(
        "4xx",
        "20429",
        Class::Throttled(Scope::Account),
        "too many requests at once; none was processed",
    ),
    row(
        "4xx",
        "63017",
        Class::Throttled(Scope::Account),
        "more messages per second than the account and its subaccounts may send",
    ),
    row(
        "4xx",
        "21611",
        Class::Throttled(Scope::Sender),
        "the sender's queue is full",
    ),
    row(
        "4xx",
        "30001",
        Class::Throttled(Scope::Sender),
        "the sender's queue is full",
    ),
    row(
        "4xx",
        "30022",
        Class::Throttled(Scope::Sender),
        "more messages than the sender's 10DLC campaign may send",
    ),
    row(
        "4xx",
        "30023",
        Class::Throttled(Scope::Sender),
        "the daily cap of the 10DLC campaign is reached",
    ),
    row(
        "4xx",
        "30027",
        Class::Throttled(Scope::Sender),
        "the daily 10DLC cap of T-Mobile is reached",
    ),
    row(
        "4xx",
        "63018",
        Class::Throttled(Scope::Sender),
        "more messages than the sender may send on its channel",
    ),
    row(
        "4xx",
        "14107",
        Class::Throttled(Scope::Recipient),
        "too many messages to the same number",
    ),
    // Problems of the recipient.
    row(
        "4xx",
        "21610",
        Class::Suppress,
        "the recipient has unsubscribed",
    ),
    row(
        "4xx",
        "21211",
        Class::Recipient,
        "the recipient's number is not valid",
    ),
    row(
        "4xx",
        "21214",
        Class::Recipient,
        "the recipient's number cannot be reached",
    ),
    row(
        "4xx",
        "21217",
        Class::Recipient,
        "the recipient's number does not appear to be valid",
    ),
    row(
        "4xx",
        "21219",
        Class::Recipient,
        "a trial account may not send to this number",
    ),
    row(
        "4xx",
        "21265",
        Class::Recipient,
        "a short code cannot receive",
    ),
    row(
        "4xx",
        "21608",
        Class::Recipient,
        "a trial account may not send to this number",
    ),
    row(
        "4xx",
        "21612",
        Class::Recipient,
        "there is no route from the sender to the recipient",
    ),
    row(
        "4xx",
        "21614",
        Class::Recipient,
        "the recipient's number is not a mobile number",
    ),
    row(
        "4xx",
        "21635",
        Class::Recipient,
        "the recipient's number is a landline",
    ),
    row(
        "4xx",
        "30004",
        Class::Recipient,
        "the recipient's number is blocked",
    ),
    row(
        "4xx",
        "30005",
        Class::Recipient,
        "the recipient's number is unknown",
    ),
    row(
        "4xx",
        "30006",
        Class::Recipient,
        "the recipient's number is a landline or its carrier cannot be reached",
    ),
    row(
        "4xx",
        "30011",
        Class::Recipient,
        "the recipient's phone does not accept media",
    ),
    row(
        "4xx",
        "30450",
        Class::Recipient,
        "Twilio blocks the recipient's prefix as a protection against fraud",
    ),
    row(
        "4xx",
        "30453",
        Class::Recipient,
        "Twilio blocks the recipient's prefix as a protection against fraud",
    ),
    // Problems of the account.
    row(
        "*",
        "20003",
        Class::Account,
        "the credentials are not valid",
    ),
    row(
        "*",
        "20005",
        Class::Account,
        "the account is suspended or closed",
    ),
    row("*", "20006", Class::Account, "access is denied"),
    row(
        "*",
        "20008",
        Class::Account,
        "test credentials cannot do this",
    ),
    row("*", "10001", Class::Account, "the account is not active"),
    row(
        "*",
        "10002",
        Class::Account,
        "a trial account cannot do this",
    ),
    row("*", "30002", Class::Account, "the account is suspended"),
    row("*", "90010", Class::Account, "the account is not active"),
    // Temporary failures.
    row(
        "*",
        "30003",
        Class::Transient,
        "the recipient's phone is currently unreachable",
    ),
    row("*", "30008", Class::Transient, "unknown carrier error"),
    row(
        "*",
        "30410",
        Class::Transient,
        "the carrier did not answer in time",
    ),
    row("*", "20500", Class::Transient, "internal error"),
    row("*", "20503", Class::Transient, "the service is unavailable"),
    // Problems of the request, and an unknown account.
    row("4xx", "20404", Class::Account, "the account does not exist"),
    row("4xx", "21212", Class::Request, "the sender is not valid"),
    row(
        "4xx",
        "21266",
        Class::Request,
        "sender and recipient are the same",
    ),
    row(
        "4xx",
        "21408",
        Class::Request,
        "the account does not send to this region; it is allowed in Twilio's console",
    ),
    row("4xx", "21602", Class::Request, "the body is missing"),
    row("4xx", "21603", Class::Request, "the sender is missing"),
    row("4xx", "21604", Class::Request, "the recipient is missing"),
    row("4xx", "21605", Class::Request, "the body is too long"),
    row(
        "4xx",
        "21606",
        Class::Request,
        "the sender cannot send text messages, or not to this recipient",
    ),
    row(
        "4xx",
        "21609",
        Class::Request,
        "the status callback's URL is not valid",
    ),
    row(
        "4xx",
        "21617",
        Class::Request,
        "the body is longer than 1,600 characters",
    ),
    row("4xx", "21619", Class::Request, "body and media are missing"),
    row("4xx", "21620", Class::Request, "a media URL is not valid"),
    row(
        "4xx",
        "21659",
        Class::Request,
        "the sender is not a Twilio number",
    ),
    row(
        "4xx",
        "21660",
        Class::Request,
        "the sender belongs to another account",
    ),
    row(
        "4xx",
        "21703",
        Class::Request,
        "the messaging service has no senders",
    ),
    row(
        "4xx",
        "21705",
        Class::Request,
        "the messaging service is not valid",
    ),
    row(
        "4xx",
        "30007",
        Class::Request,
        "filtered as spam by the carrier or Twilio",
    ),
    row(
        "4xx",
        "30010",
        Class::Request,
        "the price is above max_price",
    ),
    row(
        "4xx",
        "30024",
        Class::Request,
        "the sender is not provisioned at the carrier",
    ),
    row(
        "4xx",
        "30032",
        Class::Request,
        "the toll-free sender is not verified",
    ),
    row(
        "4xx",
        "30034",
        Class::Request,
        "the sender is not registered for 10DLC",
    ),
    // Statuses without a known code in the body.
    row("3xx", "", Class::Account, "the API address redirects"),
    row("401", "", Class::Account, "the credentials are not valid"),
    row("403", "", Class::Account, "access is denied"),
    row("404", "", Class::Account, "the account does not exist"),
    row("408", "", Class::Transient, "the request took too long"),
    row(
        "429",
        "",
        Class::Throttled(Scope::Account),
        "too many requests",
    ),
    row(
        "504",
        "",
        Class::Ambiguous,
        "a gateway timed out, so the message may have been sent",
    ),
    row("5xx", "", Class::Transient, "server error"),
    row(
        "*",
        "",
        Class::Request,
        "other errors, which a retry would repeat",
    ),
];

/// The delays to assume for codes that come without one, in seconds. Too many requests (`20429`,
/// 429) are not listed: the throttle's own back-off is better than a guess, because a delay that is
/// given here overrides it.
pub(super) const DELAYS: &[(&str, u64)] = &[
    ("63017", 1),
    ("14107", 30),
    ("21611", 60),
    ("30001", 60),
    ("30023", 3600),
    ("30027", 3600),
];
