//! The drivers, their setup for their fakes, and the differences between them.

use flyball::providers::{
    self, Account, AccountSecret, Channel, Driver, DriverClients, InvalidAccount, Scope,
};
use flyball_fakes::{Fake, FakeProvider, ThrottleScope};

/// The origin of the id in a successful answer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Id {
    None,
    Theirs,
    /// The id set in the message.
    Own,
}

/// Builds a driver.
pub type Build = fn(&Account, &DriverClients) -> Result<Box<dyn Driver>, InvalidAccount>;

/// A driver with the expectations for it.
pub struct Subject {
    pub name: &'static str,
    pub speaks: FakeProvider,
    /// The account at the fake, and its secret.
    pub account: &'static str,
    pub secret: &'static str,
    pub build: Build,
    /// Returns the account's settings with valid or invalid credentials.
    pub settings: fn(&Fake, bool) -> Account,
    pub channel: Channel,
    pub to: fn(&Fake) -> String,
    /// The word of a success, and whether an id comes with it.
    pub success: &'static str,
    pub gives_id: Id,
    /// The scope of each throttle, as far as the answer states it.
    pub scopes: &'static [(ThrottleScope, Scope)],
    /// The provider's format has a place for the delay.
    pub tells_delay: bool,
    /// The word for status 500, if it differs from the one for 503.
    pub broken: Option<&'static str>,
    /// The words for a server error, a refused connection, invalid credentials, and a recipient
    /// that is gone.
    pub unavailable: &'static str,
    pub unreachable: &'static str,
    pub unauthorized: &'static str,
    pub gone: &'static str,
    pub suppresses: bool,
    /// The driver retries once with a new access token after a 401; nothing is sent twice.
    pub asks_again_when_unauthorized: bool,
    /// The body of a successful answer is empty.
    pub any_2xx_is_success: bool,
}

const FROM: &str = "Shop <shop@example.com>";

/// Returns an account with these settings and credentials.
fn account(
    base_url: Option<String>,
    options: &[(&str, &str)],
    secrets: &[(&str, &str)],
) -> Account {
    Account {
        base_url,
        options: options
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect(),
        secrets: secrets
            .iter()
            .map(|(name, value)| ((*name).to_owned(), AccountSecret::new(value)))
            .collect(),
        ..Account::default()
    }
}

/// Returns the expectations shared by most providers.
const USUAL: Subject = Subject {
    name: "",
    speaks: FakeProvider::Webhook,
    account: "",
    secret: "",
    build: providers::webhook::build,
    settings: |_, _| Account::default(),
    channel: Channel::Email,
    to: |_| "ann.recipient@example.org".to_owned(),
    success: "accepted",
    gives_id: Id::Theirs,
    scopes: &[(ThrottleScope::Account, Scope::Account)],
    tells_delay: true,
    broken: None,
    unavailable: "transient",
    unreachable: "transient",
    unauthorized: "account_failure",
    gone: "permanent_recipient",
    suppresses: true,
    asks_again_when_unauthorized: false,
    any_2xx_is_success: false,
};

pub fn subjects() -> Vec<Subject> {
    vec![
        twilio(),
        sendgrid(),
        ses(),
        mailgun(),
        telegram(),
        slack_webhook(),
        slack_web(),
        webhook(),
        smtp(),
        fcm(),
        apns(),
    ]
}

fn telegram() -> Subject {
    const TOKEN: &str = "123456:the-right-token";
    Subject {
        name: "telegram",
        speaks: FakeProvider::Telegram,
        account: TOKEN,
        secret: TOKEN,
        build: providers::telegram::build,
        settings: |fake, is_wrong| {
            account(
                Some(fake.url()),
                &[],
                &[(
                    "token",
                    if is_wrong {
                        "123456:the-wrong-token"
                    } else {
                        TOKEN
                    },
                )],
            )
        },
        channel: Channel::Chat,
        to: |_| "471147114711".to_owned(),
        success: "delivered",
        // The answer does not state the scope of the limit.
        scopes: &[
            (ThrottleScope::Account, Scope::Recipient),
            (ThrottleScope::Recipient, Scope::Recipient),
        ],
        ..USUAL
    }
}

fn slack_webhook() -> Subject {
    const PATH: &str = "/services/T000/B000/therightpath";
    Subject {
        name: "slack by webhook",
        speaks: FakeProvider::Slack,
        account: PATH,
        secret: PATH,
        build: providers::slack::build,
        settings: |fake, is_wrong| {
            let path = if is_wrong {
                "/services/T000/B000/thewrongpath"
            } else {
                PATH
            };
            account(
                Some(fake.url()),
                &[],
                &[("webhook_url", &format!("https://hooks.slack.com{path}"))],
            )
        },
        channel: Channel::Chat,
        to: |_| "C0CHANNEL0".to_owned(),
        success: "delivered",
        gives_id: Id::None,
        scopes: &[
            (ThrottleScope::Account, Scope::Recipient),
            (ThrottleScope::Recipient, Scope::Recipient),
        ],
        // The channel is the webhook's own.
        gone: "account_failure",
        suppresses: false,
        ..USUAL
    }
}

fn slack_web() -> Subject {
    const TOKEN: &str = "xoxb-the-right-token";
    Subject {
        name: "slack by Web API",
        account: TOKEN,
        secret: TOKEN,
        settings: |fake, is_wrong| {
            account(
                Some(fake.url()),
                &[],
                &[(
                    "token",
                    if is_wrong {
                        "xoxb-the-wrong-token"
                    } else {
                        TOKEN
                    },
                )],
            )
        },
        gives_id: Id::Theirs,
        // After `internal_error` a part of it may have happened, according to Slack's
        // documentation.
        broken: Some("ambiguous"),
        gone: "permanent_recipient",
        ..slack_webhook()
    }
}

fn webhook() -> Subject {
    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    Subject {
        name: "webhook",
        speaks: FakeProvider::Webhook,
        account: "/hooks/of-ann",
        secret: SECRET,
        build: providers::webhook::build,
        settings: |_, is_wrong| {
            let wrong = "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
            account(
                None,
                &[],
                &[("signing_secret", if is_wrong { wrong } else { SECRET })],
            )
        },
        channel: Channel::Webhook,
        to: |fake| format!("{}/hooks/of-ann", fake.url()),
        success: "delivered",
        gives_id: Id::None,
        // A problem of one endpoint concerns no other.
        scopes: &[(ThrottleScope::Account, Scope::Recipient)],
        unavailable: "throttled",
        unreachable: "throttled",
        unauthorized: "permanent_recipient",
        any_2xx_is_success: true,
        ..USUAL
    }
}

fn smtp() -> Subject {
    const PASSWORD: &str = "the-right-password";
    Subject {
        name: "smtp",
        speaks: FakeProvider::Smtp,
        account: "user",
        secret: PASSWORD,
        build: providers::smtp::build,
        settings: |fake, is_wrong| {
            let options = [
                ("host", "127.0.0.1"),
                ("tls", "none"),
                ("username", "user"),
                ("from", FROM),
            ];
            account(
                Some(fake.url()),
                &options,
                &[(
                    "password",
                    if is_wrong {
                        "the-wrong-password"
                    } else {
                        PASSWORD
                    },
                )],
            )
        },
        gives_id: Id::Own,
        scopes: &[
            (ThrottleScope::Account, Scope::Account),
            (ThrottleScope::Connection, Scope::Account),
            (ThrottleScope::Recipient, Scope::Recipient),
        ],
        // A server that accepts nothing at the moment is treated like one that is rate limiting.
        unavailable: "throttled",
        ..USUAL
    }
}

pub fn twilio() -> Subject {
    const SID: &str = "AC0123456789abcdef0123456789abcdef";
    const TOKEN: &str = "the-right-auth-token";
    Subject {
        name: "twilio",
        speaks: FakeProvider::Twilio,
        account: SID,
        secret: TOKEN,
        build: providers::twilio::build,
        settings: |fake, is_wrong| {
            let token = if is_wrong {
                "the-wrong-auth-token"
            } else {
                TOKEN
            };
            account(
                Some(fake.url()),
                &[("account_sid", SID), ("from", "+15550100")],
                &[("auth_token", token)],
            )
        },
        channel: Channel::Sms,
        to: |_| "+15005550006".to_owned(),
        scopes: &[
            (ThrottleScope::Account, Scope::Account),
            (ThrottleScope::Sender, Scope::Sender),
        ],
        ..USUAL
    }
}

pub fn sendgrid() -> Subject {
    const KEY: &str = "SG.the-right-key";
    Subject {
        name: "sendgrid",
        speaks: FakeProvider::Sendgrid,
        account: KEY,
        secret: KEY,
        build: providers::sendgrid::build,
        settings: |fake, is_wrong| {
            let key = if is_wrong { "SG.the-wrong-key" } else { KEY };
            account(Some(fake.url()), &[("from", FROM)], &[("api_key", key)])
        },
        suppresses: false,
        ..USUAL
    }
}

pub fn ses() -> Subject {
    const ID: &str = "AKIA0THERIGHT0ID";
    const SECRET: &str = "the/right+secret/access+key";
    Subject {
        name: "ses",
        speaks: FakeProvider::Ses,
        account: ID,
        secret: SECRET,
        build: providers::ses::build,
        settings: |fake, is_wrong| {
            let secret = if is_wrong {
                "the/wrong+secret/access+key"
            } else {
                SECRET
            };
            let options = [
                ("region", "eu-central-1"),
                ("access_key_id", ID),
                ("from", FROM),
            ];
            account(Some(fake.url()), &options, &[("secret_access_key", secret)])
        },
        tells_delay: false,
        ..USUAL
    }
}

pub fn mailgun() -> Subject {
    const DOMAIN: &str = "mg.example.com";
    const KEY: &str = "the-right-api-key";
    Subject {
        name: "mailgun",
        speaks: FakeProvider::Mailgun,
        account: DOMAIN,
        secret: KEY,
        build: providers::mailgun::build,
        settings: |fake, is_wrong| {
            let key = if is_wrong { "the-wrong-api-key" } else { KEY };
            account(
                Some(fake.url()),
                &[("domain", DOMAIN), ("from", FROM)],
                &[("api_key", key)],
            )
        },
        suppresses: false,
        ..USUAL
    }
}

fn fcm() -> Subject {
    /// A public key for tests only.
    const KEY: &str = include_str!("../../../../lab/fakes/src/keys/test_only_sns_key.pem");
    Subject {
        name: "fcm",
        speaks: FakeProvider::Fcm,
        account: "project",
        secret: "",
        build: providers::fcm::build,
        settings: |fake, is_wrong| {
            let service = serde_json::json!({
                "type": "service_account", "project_id": if is_wrong { "another-project" } else { "project" }, "private_key": KEY,
                "private_key_id": "k1", "client_email": "sender@project.iam.gserviceaccount.com",
                "token_uri": format!("{}/token", fake.url()),
            });
            account(
                Some(fake.url()),
                &[],
                &[("service_account", &service.to_string())],
            )
        },
        channel: Channel::Push,
        to: |_| "fcm-device-token-of-ann".to_owned(),
        scopes: &[
            (ThrottleScope::Account, Scope::Account),
            (ThrottleScope::Recipient, Scope::Recipient),
        ],
        asks_again_when_unauthorized: true,
        ..USUAL
    }
}

fn apns() -> Subject {
    /// A public key for tests only.
    const KEY: &str = include_str!("../../support/apns_test_only.p8");
    Subject {
        name: "apns",
        speaks: FakeProvider::Apns,
        account: "TEAM123456",
        secret: "",
        build: providers::apns::build,
        settings: |fake, is_wrong| {
            let team = if is_wrong { "TEAM654321" } else { "TEAM123456" };
            let options = [
                ("team_id", team),
                ("key_id", "KEY1234567"),
                ("topic", "com.example.app"),
            ];
            account(Some(fake.url()), &options, &[("private_key", KEY)])
        },
        channel: Channel::Push,
        to: |_| "00fc13adff785122b4ad28809a3420982341241421348097878e577c991de8f0".to_owned(),
        any_2xx_is_success: true,
        tells_delay: false,
        // There is no limit of the account.
        scopes: &[
            (ThrottleScope::Account, Scope::Recipient),
            (ThrottleScope::Recipient, Scope::Recipient),
            (ThrottleScope::Connection, Scope::Connection),
        ],
        ..USUAL
    }
}
