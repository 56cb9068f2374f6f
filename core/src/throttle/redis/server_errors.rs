//! Error replies of a server in our own words, because its text may contain addresses, names and
//! data.

use redis::{ErrorKind, RedisError};

/// The meaning of the refusal by a replica.
pub(super) const REPLICA: &str = "READONLY: it is a replica and accepts no writes";

/// The error codes of servers with their meanings.
const MEANINGS: [(&str, &str); 15] = [
    (
        "OOM",
        "OOM: it is out of memory (maxmemory) and accepts no writes",
    ),
    ("READONLY", REPLICA),
    (
        "MISCONF",
        "MISCONF: it cannot save its data to disk and accepts no writes",
    ),
    (
        "NOREPLICAS",
        "NOREPLICAS: it has too few replicas and accepts no writes",
    ),
    ("LOADING", "LOADING: it is still reading its data from disk"),
    (
        "MASTERDOWN",
        "MASTERDOWN: it is a replica that has lost its primary",
    ),
    ("CLUSTERDOWN", "CLUSTERDOWN: its cluster is incomplete"),
    (
        "NOAUTH",
        "NOAUTH: it requires a password; set one in REDIS_URL",
    ),
    (
        "WRONGPASS",
        "WRONGPASS: it refuses the user or password of REDIS_URL",
    ),
    ("NOPERM", "NOPERM: its user lacks the permission"),
    ("BUSY", "BUSY: a script blocks it"),
    ("WRONGTYPE", "WRONGTYPE: a key has the wrong type"),
    ("NOPROTO", "NOPROTO: it does not support this protocol"),
    ("EXECABORT", "EXECABORT: it aborted the transaction"),
    ("ERR", "ERR: the command failed"),
];

/// Returns the meaning of an error reply, or `None` if the server sent none that is known.
pub(super) fn error_meaning(error: &RedisError) -> Option<&'static str> {
    // The client library keeps the code of a refused login to itself.
    let code = match error.kind() {
        ErrorKind::AuthenticationFailed => "WRONGPASS",
        _ => error.code()?,
    };
    MEANINGS
        .iter()
        .find(|(known, _)| *known == code)
        .map(|(_, meaning)| *meaning)
}

/// Returns true if the meaning of an error reply is about the user of the connection.
pub fn is_of_login(meaning: &str) -> bool {
    ["NOAUTH:", "WRONGPASS:", "NOPERM:"]
        .iter()
        .any(|code| meaning.starts_with(code))
}

/// Returns the meaning if `reason`, the cause of a lost store, is an error reply.
pub fn reason_meaning(reason: &str) -> Option<&'static str> {
    MEANINGS
        .iter()
        .find(|(_, meaning)| *meaning == reason)
        .map(|(_, meaning)| *meaning)
}
