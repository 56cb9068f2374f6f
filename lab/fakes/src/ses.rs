//! Amazon SES v2 in AWS's format.

use std::time::Duration;

use serde_json::json;

use super::ThrottleScope;
use super::wire::{
    FakeRequest, FormatState, IncomingRequest, QuotaStatus, Read, Reply, WireFormat,
};
use super::{sigv4, sns};

/// The format of Amazon SES v2.
pub struct Ses;

fn error(status: u16, kind: &str, message: &str) -> Reply {
    Reply::json(status, &json!({ "message": message })).with("x-amzn-errortype", kind)
}

impl WireFormat for Ses {
    fn read(&self, came: &IncomingRequest, format_state: &FormatState) -> Read {
        if let Some(reply) = sns::answer(came, format_state) {
            return Read::Other(reply);
        }
        let Some(signed) = sigv4::read(came.header("authorization")) else {
            return Read::Other(error(
                403,
                "MissingAuthenticationTokenException",
                "Missing Authentication Token",
            ));
        };
        let account = signed.key_id.clone();
        if !format_state.secrets.is_empty() {
            let Some(secret) = format_state.secrets.get(&account) else {
                let message = "The security token included in the request is invalid.";
                return Read::Refused(account, error(403, "UnrecognizedClientException", message));
            };
            if !signed.is_by(secret, came) {
                return Read::Refused(account, self.unauthorized(&FakeRequest::default()));
            }
        }
        match (came.method.as_str(), &came.path()[..]) {
            ("GET", ["v2", "email", "account"]) => Read::Quota(account),
            ("POST", ["v2", "email", "outbound-emails"]) => {
                let body = came.json();
                let to = body["Destination"]["ToAddresses"][0]
                    .as_str()
                    .unwrap_or_default();
                let from = body["FromEmailAddress"].as_str().unwrap_or_default();
                if !to.contains('@') || !from.contains('@') {
                    return Read::Refused(
                        account,
                        error(400, "BadRequestException", "Missing final '@domain'"),
                    );
                }
                if !body["Content"].is_object() {
                    return Read::Refused(
                        account,
                        error(400, "BadRequestException", "Content is required."),
                    );
                }
                Read::Message(FakeRequest {
                    account,
                    to: to.to_owned(),
                    sender: from.to_owned(),
                    ..FakeRequest::default()
                })
            }
            _ => Read::Refused(
                account,
                error(404, "UnknownOperationException", "unknown operation"),
            ),
        }
    }

    fn accepted(&self, _: &FakeRequest, number: u64, _: u64) -> (String, Reply) {
        let id = format!(
            "0100018f{:08x}-{number:08x}-0000-4000-8000-{number:012x}-000000",
            number >> 32
        );
        let reply = Reply::json(200, &json!({ "MessageId": id }));
        (id, reply)
    }

    /// Builds the answer to an exceeded quota, without the delay because SES has no place for it.
    fn throttled(&self, _: &FakeRequest, _: ThrottleScope, _: Option<Duration>, _: u64) -> Reply {
        error(
            429,
            "TooManyRequestsException",
            "Maximum sending rate exceeded.",
        )
    }

    fn failed(&self, _: &FakeRequest, status: u16, code: Option<&str>) -> Reply {
        match (code, status) {
            (Some("Daily"), _) => error(
                status,
                "TooManyRequestsException",
                "Daily message quota exceeded.",
            ),
            (Some(code), _) => error(status, code, "It was not possible."),
            (None, 503) => error(503, "ServiceUnavailableException", "Service Unavailable"),
            (None, _) => error(status, "InternalServiceErrorException", "Internal error"),
        }
    }

    fn suspended(&self, _: &FakeRequest) -> Reply {
        error(
            400,
            "AccountSuspendedException",
            "The account's ability to send email has been permanently restricted.",
        )
    }

    fn unauthorized(&self, _: &FakeRequest) -> Reply {
        let message = "The request signature we calculated does not match the signature you provided. Check your AWS Secret Access Key \
                       and signing method. Consult the service documentation for details.";
        error(403, "InvalidSignatureException", message)
    }

    fn gone(&self, _: &FakeRequest, _: u64) -> Reply {
        error(400, "MessageRejected", "Address blacklisted.")
    }

    fn quota(&self, standing: QuotaStatus) -> Reply {
        let rate = standing.limit.unwrap_or(1_000.0);
        Reply::json(
            200,
            &json!({
                "DedicatedIpAutoWarmupEnabled": false, "EnforcementStatus": "HEALTHY", "ProductionAccessEnabled": true,
                "SendingEnabled": true,
                "SendQuota": { "Max24HourSend": 50_000_000.0, "MaxSendRate": rate, "SentLast24Hours": standing.accepted as f64 },
            }),
        )
    }
}
