//! A recipient's own webhook in the format of Standard Webhooks.

use std::time::Duration;

use super::Whom;
use super::crypt::{base64, hmac_sha256, unbase64};
use super::wire::{Asked, Came, House, Read, Reply, Wire};

/// The format of Standard Webhooks.
pub struct Webhook;

/// Returns true if one of the signatures is that of the secret and at most five minutes old or
/// early.
fn is_signed(came: &Came, secret: &str) -> bool {
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

impl Wire for Webhook {
    fn read(&self, came: &Came, house: &House) -> Read {
        let path = came.uri.path().to_owned();
        let account = match came.header("x-account") {
            "" => path.clone(),
            named => named.to_owned(),
        };
        if !house.secrets.is_empty()
            && !house
                .secrets
                .get(&account)
                .is_some_and(|secret| is_signed(came, secret))
        {
            return Read::Refused(account, Reply::text(401, "the signature is not valid"));
        }
        Read::Message(Asked {
            account,
            to: path,
            ..Asked::default()
        })
    }

    fn accepted(&self, _: &Asked, number: u64, _: u64) -> (String, Reply) {
        (
            number.to_string(),
            Reply {
                status: 204,
                ..Reply::default()
            },
        )
    }

    fn throttled(&self, _: &Asked, _: Whom, delay: Option<Duration>, _: u64) -> Reply {
        Reply::text(429, "slow down").after(delay)
    }

    fn failed(&self, _: &Asked, status: u16, code: Option<&str>) -> Reply {
        Reply::text(status, code.unwrap_or("it failed"))
    }

    fn suspended(&self, _: &Asked) -> Reply {
        Reply::text(403, "forbidden")
    }

    fn unauthorized(&self, _: &Asked) -> Reply {
        Reply::text(401, "unauthorized")
    }

    fn gone(&self, _: &Asked, _: u64) -> Reply {
        Reply::text(410, "gone")
    }
}
