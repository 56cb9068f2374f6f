//! The codes of problems, in one table.

use axum::http::StatusCode;

/// Declares the codes, each with its text, its status and its title.
macro_rules! codes {
    ($($(#[$doc:meta])* $code:ident = ($slug:literal, $status:literal, $title:literal),)*) => {
        /// The code of an error, which programs can match. `docs/reference/errors.md` lists all of
        /// them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Code {
            $($(#[$doc])* $code,)*
        }

        impl Code {
            /// All codes, in the order of their status.
            pub const ALL: [Self; [$($slug),*].len()] = [$(Self::$code),*];

            /// Returns the code as text, the status and the title.
            fn row(self) -> (&'static str, u16, &'static str) {
                match self {
                    $(Self::$code => ($slug, $status, $title),)*
                }
            }
        }
    };
}

codes! {
    /// The body is not JSON.
    MalformedJson = ("malformed_json", 400, "The body is not valid JSON"),
    /// Parameters of the query cannot be accepted.
    InvalidQuery = ("invalid_query", 400, "The query is not valid"),
    /// A part of the path cannot be accepted.
    InvalidPath = ("invalid_path", 400, "The path is not valid"),
    /// A header cannot be accepted.
    InvalidHeader = ("invalid_header", 400, "A header is not valid"),
    /// The request as a whole cannot be understood.
    BadRequest = ("bad_request", 400, "The request is not valid"),
    /// A batch has more recipients, or larger messages, than are allowed.
    BatchLimitExceeded = ("BATCH_LIMIT_EXCEEDED", 400, "The batch is too large"),
    /// The token is missing or wrong.
    Unauthorized = ("unauthorized", 401, "A valid token is required"),
    /// The Host header is not a name of this machine's loopback.
    HostNotAllowed = ("host_not_allowed", 403, "The Host header is not allowed"),
    /// A page of another origin sent the request.
    OriginNotAllowed = ("origin_not_allowed", 403, "Requests from other sites are refused"),
    /// The token lacks a scope that the route needs.
    ScopeMissing = ("scope_missing", 403, "The token lacks a scope"),
    /// The token may not enqueue this kind, or not use this throttle.
    NotAllowed = ("not_allowed", 403, "The token does not permit this"),
    /// The route does not exist.
    RouteNotFound = ("route_not_found", 404, "Route not found"),
    /// The job does not exist.
    JobNotFound = ("job_not_found", 404, "Job not found"),
    /// The message does not exist.
    NotificationNotFound = ("notification_not_found", 404, "Notification not found"),
    /// The message is in no open digest.
    DigestItemNotFound = ("digest_item_not_found", 404, "Digest item not found"),
    /// The batch does not exist.
    BatchNotFound = ("batch_not_found", 404, "Batch not found"),
    /// The group of jobs does not exist.
    GroupNotFound = ("group_not_found", 404, "Group not found"),
    /// The tenant does not exist.
    TenantNotFound = ("tenant_not_found", 404, "Tenant not found"),
    /// The recipient does not exist.
    RecipientNotFound = ("recipient_not_found", 404, "Recipient not found"),
    /// The pool has no such account.
    AccountNotFound = ("account_not_found", 404, "Account not found"),
    /// The throttle does not exist.
    ThrottleNotFound = ("throttle_not_found", 404, "Throttle not found"),
    /// The schedule does not exist.
    ScheduleNotFound = ("schedule_not_found", 404, "Schedule not found"),
    /// The pool does not exist.
    PoolNotFound = ("pool_not_found", 404, "Pool not found"),
    /// The route does not support the method.
    MethodNotAllowed = ("method_not_allowed", 405, "The route does not support this method"),
    /// The body did not arrive in time.
    RequestTimeout = ("request_timeout", 408, "The body did not arrive in time"),
    /// The state of the job forbids the change.
    WrongState = ("wrong_state", 409, "The state of the job does not allow this"),
    /// The worker does not hold the job under this lease.
    LeaseLost = ("lease_lost", 409, "The lease is lost"),
    /// Another request with the same idempotency key is being handled.
    RequestRunning = ("request_running", 409, "The same request is being handled"),
    /// The recipient got as many messages as its caps allow, and the category refuses more.
    RecipientCapped = ("RECIPIENT_CAPPED", 409, "The recipient got as many messages as its caps allow"),
    /// Another client changed the knobs meanwhile.
    Conflict = ("conflict", 409, "The knobs have changed"),
    /// The object cannot be deleted because something else needs it.
    InUse = ("in_use", 409, "The resource is in use"),
    /// The body is too large.
    TooLarge = ("too_large", 413, "The body is too large"),
    /// The body is not sent as JSON.
    UnsupportedMediaType = ("unsupported_media_type", 415, "The body must be sent as JSON"),
    /// Fields of the body cannot be accepted.
    InvalidFields = ("invalid_fields", 422, "The body has invalid fields"),
    /// The idempotency key was used for another request.
    IdempotencyKeyReused = ("idempotency_key_reused", 422, "The idempotency key was used for another request"),
    /// The throttles of the API admit no more requests of this client now.
    TooManyRequests = ("too_many_requests", 429, "Too many requests"),
    /// The tenant has as many connections as it may have.
    TooManyConnections = ("TOO_MANY_CONNECTIONS", 429, "The tenant has too many connections"),
    /// The message was accepted, and waits because its tenant or module is at its limit.
    RateLimitExceeded = ("RATE_LIMIT_EXCEEDED", 429, "The message waits for the limits of its tenant"),
    /// A bug in Flyball.
    Internal = ("internal", 500, "Flyball failed"),
    /// Postgres does not answer.
    QueueUnavailable = ("queue_unavailable", 503, "Postgres does not answer"),
    /// Redis does not answer, or refuses.
    ThrottlesUnavailable = ("throttles_unavailable", 503, "Redis does not answer, or refuses"),
    /// A part of the system is not ready yet, or has stopped.
    NotReady = ("not_ready", 503, "Flyball is not ready"),
    /// Too many live streams are open.
    TooManyStreams = ("too_many_streams", 503, "Too many live streams are open"),
    /// The memory budget of all requests is used up.
    Overloaded = ("overloaded", 503, "Flyball is overloaded"),
    /// The lane has more waiting jobs than its throttle allows.
    LaneFull = ("lane_full", 503, "The lane is full"),
    /// The tenant has as many pending messages as it may have.
    QueueFull = ("QUEUE_FULL", 503, "The queue of the tenant is full"),
}

impl Code {
    /// Returns the code as text, which programs match.
    pub fn slug(self) -> &'static str {
        self.row().0
    }

    /// Returns the HTTP status of the code.
    pub fn status(self) -> StatusCode {
        StatusCode::from_u16(self.row().1).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// Returns the title: one line for people, always the same for one code.
    pub fn title(self) -> &'static str {
        self.row().2
    }

    /// Returns the code for a bare status that a library answered.
    pub(super) fn of(status: StatusCode) -> Self {
        match status.as_u16() {
            401 => Self::Unauthorized,
            404 => Self::RouteNotFound,
            405 => Self::MethodNotAllowed,
            408 => Self::RequestTimeout,
            413 => Self::TooLarge,
            415 => Self::UnsupportedMediaType,
            429 => Self::TooManyRequests,
            503 => Self::NotReady,
            400..=499 => Self::BadRequest,
            _ => Self::Internal,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_in_the_reference_with_its_status() {
        let reference = include_str!("../../../docs/reference/errors.md");
        for code in Code::ALL {
            let row = format!("| `{}` | {} |", code.slug(), code.status().as_u16());
            assert!(
                reference.contains(&row),
                "docs/reference/errors.md lacks a row that begins: {row}"
            );
        }
        assert_eq!(
            reference.matches("\n| `").count(),
            Code::ALL.len(),
            "the reference lists codes that do not exist"
        );
    }

    #[test]
    fn codes_are_in_the_order_of_their_status_and_none_is_twice() {
        let mut slugs: Vec<&str> = Code::ALL.iter().map(|code| code.slug()).collect();
        assert!(Code::ALL.is_sorted_by_key(|code| code.status()));
        slugs.sort_unstable();
        slugs.dedup();
        assert_eq!(slugs.len(), Code::ALL.len());
    }
}
