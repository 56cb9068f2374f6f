//! The Messages API of Twilio in its own format.

use std::time::Duration;

use serde_json::json;

use super::ThrottleScope;
use super::crypt::basic;
use super::wire::{FakeRequest, FormatState, IncomingRequest, Read, Reply, WireFormat};

/// The format of Twilio's Messages API.
pub struct Twilio;

/// Builds Twilio's form of an error.
fn error(status: u16, code: u32, message: &str) -> Reply {
    let more_info = format!("https://www.twilio.com/docs/errors/{code}");
    Reply::json(
        status,
        &json!({ "code": code, "message": message, "more_info": more_info, "status": status }),
    )
}

fn is_number(to: &str) -> bool {
    let digits = to
        .strip_prefix("whatsapp:")
        .unwrap_or(to)
        .strip_prefix('+')
        .unwrap_or_default();
    (7..=15).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit())
}

impl WireFormat for Twilio {
    fn read(&self, came: &IncomingRequest, format_state: &FormatState) -> Read {
        let ["2010-04-01", "Accounts", sid, "Messages.json"] = came.path()[..] else {
            return Read::Other(error(404, 20404, "The requested resource was not found"));
        };
        let account = sid.to_owned();
        let refused = |reply| Read::Refused(sid.to_owned(), reply);
        if came.method != "POST" {
            return refused(error(405, 20004, "Method not allowed"));
        }
        if !basic(came.header("authorization")).is_some_and(|(user, password)| {
            (user == sid && format_state.lets_in(sid, &password))
                || (user.starts_with("SK") && format_state.lets_in(&user, &password))
        }) {
            return refused(error(401, 20003, "Authenticate"));
        }
        let form = came.form();
        let field = |name: &str| form.get(name).cloned().unwrap_or_default();
        let sender = if field("From").is_empty() {
            field("MessagingServiceSid")
        } else {
            field("From")
        };
        if field("To").is_empty() {
            return refused(error(400, 21604, "A 'To' phone number is required."));
        }
        if sender.is_empty() {
            return refused(error(400, 21603, "A 'From' phone number is required."));
        }
        if ["Body", "MediaUrl", "ContentSid"]
            .iter()
            .all(|name| field(name).is_empty())
        {
            return refused(error(400, 21602, "Message body is required."));
        }
        if !field("To").starts_with("whatsapp:") && !is_number(&field("To")) {
            return refused(error(400, 21211, "Invalid 'To' Phone Number"));
        }
        Read::Message(FakeRequest {
            account,
            to: field("To"),
            sender,
            endpoint: field("Body"),
            callback: form.get("StatusCallback").cloned(),
        })
    }

    fn accepted(&self, requested: &FakeRequest, number: u64, _: u64) -> (String, Reply) {
        let sid = format!("SM{number:032x}");
        let uri = format!(
            "/2010-04-01/Accounts/{}/Messages/{sid}.json",
            requested.account
        );
        let body = json!({
            "sid": sid, "account_sid": requested.account, "to": requested.to, "from": requested.sender, "body": requested.endpoint, "status": "queued",
            "direction": "outbound-api", "error_code": null, "error_message": null, "num_segments": "1", "uri": uri,
        });
        (
            sid,
            Reply::json(201, &body).with("twilio-concurrent-requests", 1),
        )
    }

    fn throttled(
        &self,
        requested: &FakeRequest,
        whom: ThrottleScope,
        delay: Option<Duration>,
        _: u64,
    ) -> Reply {
        match whom {
            ThrottleScope::Sender => {
                let message = format!(
                    "The 'From' number {} has exceeded the maximum number of queued messages",
                    requested.sender
                );
                error(400, 21611, &message).after(delay)
            }
            _ => error(429, 20429, "Too Many Requests")
                .with("twilio-concurrent-requests", 101)
                .after(delay),
        }
    }

    fn failed(&self, _: &FakeRequest, status: u16, code: Option<&str>) -> Reply {
        match (code.and_then(|code| code.parse().ok()), status) {
            (Some(code), _) => error(status, code, "It was not possible."),
            (None, 503) => error(503, 20503, "Service Unavailable"),
            (None, 500..) => error(status, 20500, "Internal Server Error"),
            (None, _) => error(status, 20001, "Bad Request"),
        }
    }

    fn suspended(&self, _: &FakeRequest) -> Reply {
        error(403, 20005, "Account not active")
    }

    fn unauthorized(&self, _: &FakeRequest) -> Reply {
        error(401, 20003, "Authenticate")
    }

    fn gone(&self, requested: &FakeRequest, _: u64) -> Reply {
        error(
            400,
            21610,
            &format!("Attempt to send to unsubscribed recipient {}", requested.to),
        )
    }
}
