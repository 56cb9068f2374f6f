//! Error replies of a server in our own words, because its text may contain addresses, names and
//! data.

use redis::RedisError;

/// The error codes of servers with their meanings.
const MEANINGS: [(&str, &str); 15] = [
    (
        "OOM",
        "OOM: it is out of memory (maxmemory) and takes no writes",
    ),
    ("READONLY", "READONLY: it is a replica and takes no writes"),
    (
        "MISCONF",
        "MISCONF: it cannot save its data to disk and takes no writes",
    ),
    (
        "NOREPLICAS",
        "NOREPLICAS: it has too few replicas and takes no writes",
    ),
    ("LOADING", "LOADING: it is still reading its data from disk"),
    (
        "MASTERDOWN",
        "MASTERDOWN: it is a replica that has lost its primary",
    ),
    ("CLUSTERDOWN", "CLUSTERDOWN: its cluster is not whole"),
    (
        "NOAUTH",
        "NOAUTH: it wants a password; give one in REDIS_URL",
    ),
    (
        "WRONGPASS",
        "WRONGPASS: it does not know this user and password; look at REDIS_URL",
    ),
    ("NOPERM", "NOPERM: its user may not do this"),
    ("BUSY", "BUSY: a script keeps it busy"),
    (
        "WRONGTYPE",
        "WRONGTYPE: a key holds another type than it should",
    ),
    ("NOPROTO", "NOPROTO: it does not speak this protocol"),
    ("EXECABORT", "EXECABORT: it did not carry the commands out"),
    ("ERR", "ERR: it failed at the command"),
];

/// Returns the meaning of an error reply, or `None` if the server sent none that is known.
pub(super) fn error_meaning(error: &RedisError) -> Option<&'static str> {
    let code = error.code()?;
    MEANINGS
        .iter()
        .find(|(known, _)| *known == code)
        .map(|(_, meaning)| *meaning)
}

/// Returns the meaning if `reason`, the cause of a lost store, is an error reply.
pub fn reason_meaning(reason: &str) -> Option<&'static str> {
    MEANINGS
        .iter()
        .find(|(_, meaning)| *meaning == reason)
        .map(|(_, meaning)| *meaning)
}
