//! The messages API of Mailgun in its own format.

use std::time::Duration;

use serde_json::json;

use super::ThrottleScope;
use super::crypt::basic;
use super::wire::{FakeRequest, FormatState, IncomingRequest, Read, Reply, WireFormat};

/// The format of Mailgun's messages API.
pub struct Mailgun;

fn message(status: u16, text: &str) -> Reply {
    Reply::json(status, &json!({ "message": text }))
}

impl WireFormat for Mailgun {
    fn read(&self, came: &IncomingRequest, format_state: &FormatState) -> Read {
        let ["v3", domain, "messages"] = came.path()[..] else {
            return Read::Other(message(404, "Not Found"));
        };
        let refused = |reply| Read::Refused(domain.to_owned(), reply);
        if came.method != "POST" {
            return refused(message(
                405,
                "The method is not allowed for the requested URL.",
            ));
        }
        let is_in =
            |(user, key): (String, String)| user == "api" && format_state.lets_in(domain, &key);
        if !basic(came.header("authorization")).is_some_and(is_in) {
            return refused(Reply::text(401, "Forbidden"));
        }
        let form = came.form();
        let field = |name: &str| form.get(name).cloned().unwrap_or_default();
        for name in ["from", "to"] {
            if field(name).is_empty() {
                return refused(message(400, &format!("{name} parameter is missing")));
            }
            if !field(name).contains('@') {
                return refused(message(
                    400,
                    &format!("{name} parameter is not a valid address. please check documentation"),
                ));
            }
        }
        if ["text", "html", "template"]
            .iter()
            .all(|name| field(name).is_empty())
        {
            return refused(message(
                400,
                "Need at least one of 'text' or 'html' parameters specified",
            ));
        }
        Read::Message(FakeRequest {
            account: domain.to_owned(),
            to: field("to"),
            sender: field("from"),
            ..FakeRequest::default()
        })
    }

    fn accepted(&self, requested: &FakeRequest, number: u64, _: u64) -> (String, Reply) {
        let id = format!("<20260101000000.{number:016x}@{}>", requested.account);
        let reply = Reply::json(200, &json!({ "id": id, "message": "Queued. Thank you." }));
        (id, reply)
    }

    fn throttled(
        &self,
        _: &FakeRequest,
        _: ThrottleScope,
        delay: Option<Duration>,
        _: u64,
    ) -> Reply {
        message(429, "Too Many Requests").after(delay)
    }

    fn failed(&self, _: &FakeRequest, status: u16, code: Option<&str>) -> Reply {
        message(status, code.unwrap_or("Internal Server Error"))
    }

    fn suspended(&self, requested: &FakeRequest) -> Reply {
        message(
            403,
            &format!(
                "Domain {} is not allowed to send: The domain is disabled",
                requested.account
            ),
        )
    }

    fn unauthorized(&self, _: &FakeRequest) -> Reply {
        Reply::text(401, "Forbidden")
    }

    fn gone(&self, _: &FakeRequest, _: u64) -> Reply {
        message(
            400,
            "to parameter is not a valid address. please check documentation",
        )
    }
}
