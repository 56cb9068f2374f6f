//! The table of SES's answers: the outcome of each status and error.

use crate::providers::code::row;
use crate::providers::{Class, Code, Scope};

/// The meaning of answers. The code is words of the error's message or, if none is known, its type.
pub const CODES: &[Code] = &[
    row("200", "", Class::Accepted, "accepted"),
    row(
        "2xx",
        "",
        Class::Ambiguous,
        "unexpected format of the response",
    ),
    // Limits, matched by their words, because the types are the same for a second and a day.
    row(
        "*",
        DAILY,
        Class::Throttled(Scope::Account),
        "the 24-hour quota is used up",
    ),
    row(
        "*",
        RATE,
        Class::Throttled(Scope::Account),
        "more emails per second than the account may send",
    ),
    row(
        "*",
        "TooManyRequestsException",
        Class::Throttled(Scope::Account),
        "too many requests",
    ),
    row(
        "*",
        "ThrottlingException",
        Class::Throttled(Scope::Account),
        "too many requests",
    ),
    row(
        "*",
        "Throttling",
        Class::Throttled(Scope::Account),
        "too many requests",
    ),
    row(
        "*",
        THROTTLING,
        Class::Throttled(Scope::Account),
        "too many requests, as worded by SES's SMTP interface",
    ),
    row(
        "*",
        "RequestLimitExceeded",
        Class::Throttled(Scope::Account),
        "too many requests",
    ),
    // Problems of the account.
    row(
        "*",
        "SendingPausedException",
        Class::Account,
        "sending is paused for the account",
    ),
    row(
        "*",
        "AccountSuspendedException",
        Class::Account,
        "the account is permanently suspended",
    ),
    row(
        "*",
        "LimitExceededException",
        Class::Account,
        "a limit of the account's resources is reached",
    ),
    row(
        "*",
        "ConfigurationSetSendingPausedException",
        Class::Account,
        "sending is paused for the configuration set",
    ),
    row(
        "*",
        "UnrecognizedClientException",
        Class::Account,
        "the access key is unknown",
    ),
    row(
        "*",
        "InvalidClientTokenId",
        Class::Account,
        "the access key is unknown",
    ),
    row(
        "*",
        "SignatureDoesNotMatch",
        Class::Account,
        "the secret access key does not match its id",
    ),
    row(
        "*",
        "InvalidSignatureException",
        Class::Account,
        "the secret access key does not match its id, or the clock is wrong",
    ),
    row(
        "*",
        "IncompleteSignature",
        Class::Account,
        "the signature is incomplete",
    ),
    row(
        "*",
        "IncompleteSignatureException",
        Class::Account,
        "the signature is incomplete",
    ),
    row(
        "*",
        "MissingAuthenticationToken",
        Class::Account,
        "the signature is missing",
    ),
    row(
        "*",
        "MissingAuthenticationTokenException",
        Class::Account,
        "the signature is missing",
    ),
    row(
        "*",
        "ExpiredToken",
        Class::Account,
        "the temporary credentials have expired",
    ),
    row(
        "*",
        "ExpiredTokenException",
        Class::Account,
        "the temporary credentials have expired",
    ),
    row("*", "RequestExpired", Class::Account, "the clock is wrong"),
    row(
        "*",
        "AccessDenied",
        Class::Account,
        "the access key may not send",
    ),
    row(
        "*",
        "AccessDeniedException",
        Class::Account,
        "the access key may not send",
    ),
    row(
        "*",
        "OptInRequired",
        Class::Account,
        "the account has not subscribed to SES",
    ),
    // Problems of the recipient.
    row(
        "4xx",
        "Address blacklisted",
        Class::Suppress,
        "the recipient is on the suppression list",
    ),
    row(
        "4xx",
        "Illegal address",
        Class::Recipient,
        "the recipient's address is not valid",
    ),
    row(
        "4xx",
        "Missing final '@domain'",
        Class::Recipient,
        "the recipient's address is not valid",
    ),
    // Problems of the request.
    row(
        "4xx",
        "MessageRejected",
        Class::Request,
        "the mail is refused: an unverified sender, or its content",
    ),
    row(
        "4xx",
        "MailFromDomainNotVerifiedException",
        Class::Request,
        "the MAIL FROM domain is not verified",
    ),
    row(
        "4xx",
        "MailFromDomainNotVerified",
        Class::Request,
        "the MAIL FROM domain is not verified",
    ),
    row(
        "4xx",
        "BadRequestException",
        Class::Request,
        "the request is not valid",
    ),
    row(
        "4xx",
        "NotFoundException",
        Class::Request,
        "the configuration set or the template does not exist",
    ),
    row(
        "4xx",
        "ConfigurationSetDoesNotExist",
        Class::Request,
        "the configuration set does not exist",
    ),
    row(
        "4xx",
        "ValidationException",
        Class::Request,
        "the request is not valid",
    ),
    row(
        "4xx",
        "ValidationError",
        Class::Request,
        "the request is not valid",
    ),
    row(
        "4xx",
        "InvalidParameterValue",
        Class::Request,
        "the request is not valid",
    ),
    // Temporary failures.
    row(
        "4xx",
        "ConflictException",
        Class::Transient,
        "the resource is being changed",
    ),
    row(
        "4xx",
        "ConcurrentModificationException",
        Class::Transient,
        "the resource is being changed",
    ),
    row(
        "*",
        "InternalServiceErrorException",
        Class::Transient,
        "server error",
    ),
    row("*", "InternalFailure", Class::Transient, "server error"),
    row(
        "*",
        "ServiceUnavailable",
        Class::Transient,
        "the service is unavailable",
    ),
    row(
        "*",
        "ServiceUnavailableException",
        Class::Transient,
        "the service is unavailable",
    ),
    // Statuses without a known error type.
    row("3xx", "", Class::Account, "the API address redirects"),
    row("401", "", Class::Account, "the credentials are not valid"),
    row("403", "", Class::Account, "the access key may not send"),
    row("404", "", Class::Account, "the API address is wrong"),
    row("408", "", Class::Transient, "the request took too long"),
    row("413", "", Class::Request, "the mail is too large"),
    row(
        "429",
        "",
        Class::Throttled(Scope::Account),
        "too many requests",
    ),
    row(
        "454",
        "",
        Class::Throttled(Scope::Account),
        "too many requests, by the status of SES's SMTP interface",
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

/// The words of a used-up quota of 24 hours.
pub(super) const DAILY: &str = "Daily message quota exceeded";
/// The words of an exceeded rate per second.
const RATE: &str = "Maximum sending rate exceeded";

/// The words before the reason of a limit, as SES's SMTP interface has them.
pub(super) const THROTTLING: &str = "Throttling failure";

/// The codes that are words of an error's message.
pub(super) const WORDS: [&str; 6] = [
    DAILY,
    RATE,
    THROTTLING,
    "Address blacklisted",
    "Illegal address",
    "Missing final '@domain'",
];
