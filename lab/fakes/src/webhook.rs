//! A recipient's own webhook in the format of Standard Webhooks.

use std::time::Duration;

use super::ThrottleScope;
use super::crypt::{base64, hmac_sha256, unbase64};
use super::wire::{FakeRequest, FormatState, IncomingRequest, Read, Reply, WireFormat};

/// The format of Standard Webhooks.
pub struct Webhook;

/// Returns true if one of the signatures is that of the secret and at most five minutes old or
/// early.
fn is_signed(came: &IncomingRequest, secret: &str) -> bool {
    let Some(key) = unbase64(secret.strip_prefix("whsec_").unwrap_or(secret)) else {
        return false;
    };
    let (id, timestamp) = (came.header("webhook-id"), came.header("webhook-timestamp"));
    let text = [id.as_bytes(), b".", timestamp.as_bytes(), b".", &came.body].concat();
    let expected = format!("v1,{}", base64(&hmac_sha256(&key, &text)));
    let is_timely = timestamp
        .parse::<u64>()
        .is_ok_and(|at_s| at_s.abs_diff(came.now_ms / 1_000) <= 300);
    !id.is_empty()
        && is_timely
        && came
            .header("webhook-signature")
            .split(' ')
            .any(|one| one == expected)
}

impl WireFormat for Webhook {
    fn read(&self, came: &IncomingRequest, format_state: &FormatState) -> Read {
        let path = came.uri.path().to_owned();
        let account = match came.header("x-account") {
            "" => path.clone(),
            named => named.to_owned(),
        };
        if !format_state.secrets.is_empty()
            && !format_state
                .secrets
                .get(&account)
                .is_some_and(|secret| is_signed(came, secret))
        {
            return Read::Refused(account, Reply::text(401, "the signature is not valid"));
        }
        Read::Message(FakeRequest {
            account,
            to: path,
            ..FakeRequest::default()
        })
    }

    fn accepted(&self, _: &FakeRequest, number: u64, _: u64) -> (String, Reply) {
        (
            number.to_string(),
            Reply {
                status: 204,
                ..Reply::default()
            },
        )
    }

    fn throttled(
        &self,
        _: &FakeRequest,
        _: ThrottleScope,
        delay: Option<Duration>,
        _: u64,
    ) -> Reply {
        Reply::text(429, "slow down").after(delay)
    }

    fn failed(&self, _: &FakeRequest, status: u16, code: Option<&str>) -> Reply {
        Reply::text(status, code.unwrap_or("it failed"))
    }

    fn suspended(&self, _: &FakeRequest) -> Reply {
        Reply::text(403, "forbidden")
    }

    fn unauthorized(&self, _: &FakeRequest) -> Reply {
        Reply::text(401, "unauthorized")
    }

    fn gone(&self, _: &FakeRequest, _: u64) -> Reply {
        Reply::text(410, "gone")
    }
}
