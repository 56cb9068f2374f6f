//! The assignment of a cluster's slots to servers, read from CLUSTER SLOTS and from redirections.

use redis::Value;

/// The number of slots in a cluster.
pub(super) const SLOTS: usize = 16384;

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Address {
    pub(super) host: String,
    pub(super) port: u16,
}

/// A range of slots and the primary that serves it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) first: u16,
    pub(super) last: u16,
    pub(super) primary: Address,
}

impl Address {
    /// Reads `host:port` of a redirection; an empty host means the host of the server that sent it.
    pub(super) fn read(text: &str, said_by: &Self) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        Some(Self::of(host, port.parse().ok()?, said_by))
    }

    fn of(host: &str, port: u16, said_by: &Self) -> Self {
        let host = if matches!(host, "" | "?") {
            &said_by.host
        } else {
            host
        };
        Self {
            host: host.to_owned(),
            port,
        }
    }
}

/// Reads the reply to CLUSTER SLOTS, skipping unreadable ranges.
pub(super) fn ranges(answer: &Value, said_by: &Address) -> Vec<Range> {
    let Value::Array(ranges) = answer else {
        return Vec::new();
    };
    ranges
        .iter()
        .filter_map(|range| range_of(range, said_by))
        .collect()
}

fn range_of(range: &Value, said_by: &Address) -> Option<Range> {
    let Value::Array(parts) = range else {
        return None;
    };
    let [
        Value::Int(first),
        Value::Int(last),
        Value::Array(primary),
        ..,
    ] = parts.as_slice()
    else {
        return None;
    };
    let [host, Value::Int(port), ..] = primary.as_slice() else {
        return None;
    };
    let host = match host {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok()?,
        // The server does not know its own public address.
        _ => "",
    };
    let slot = |n: i64| u16::try_from(n).ok().filter(|n| usize::from(*n) < SLOTS);
    let primary = Address::of(host, u16::try_from(*port).ok()?, said_by);
    Some(Range {
        first: slot(*first)?,
        last: slot(*last)?,
        primary,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked() -> Address {
        Address {
            host: "seed".into(),
            port: 7000,
        }
    }

    fn range(first: i64, last: i64, host: Value, port: i64) -> Value {
        let server = |host: Value| {
            Value::Array(vec![
                host,
                Value::Int(port),
                Value::BulkString(b"id".to_vec()),
            ])
        };
        let replica = server(Value::BulkString(b"replica".to_vec()));
        Value::Array(vec![
            Value::Int(first),
            Value::Int(last),
            server(host),
            replica,
        ])
    }

    #[test]
    fn the_first_server_of_each_range_is_its_primary() {
        let answer = Value::Array(vec![
            range(0, 5460, Value::BulkString(b"10.0.0.1".to_vec()), 7001),
            range(
                5461,
                16383,
                Value::BulkString(b"2001:db8::2".to_vec()),
                7002,
            ),
        ]);

        let read: Vec<_> = ranges(&answer, &asked())
            .into_iter()
            .map(|r| (r.first, r.last, r.primary.host, r.primary.port))
            .collect();

        assert_eq!(
            read,
            [
                (0, 5460, "10.0.0.1".to_owned(), 7001),
                (5461, 16383, "2001:db8::2".to_owned(), 7002)
            ]
        );
    }

    #[test]
    fn a_server_that_does_not_know_its_name_is_where_it_was_asked() {
        for host in [
            Value::Nil,
            Value::BulkString(Vec::new()),
            Value::BulkString(b"?".to_vec()),
        ] {
            let read = ranges(&Value::Array(vec![range(0, 1, host, 7003)]), &asked());
            assert_eq!(
                read[0].primary,
                Address {
                    host: "seed".into(),
                    port: 7003
                }
            );
        }
        assert_eq!(
            Address::read(":7004", &asked()),
            Some(Address {
                host: "seed".into(),
                port: 7004
            })
        );
    }

    #[test]
    fn what_cannot_be_read_is_left_out() {
        let nonsense = Value::Array(vec![
            Value::Nil,
            range(0, 16384, Value::Nil, 7003),
            range(-1, 3, Value::Nil, 7003),
            range(0, 3, Value::Nil, 70_003),
        ]);

        assert_eq!(ranges(&nonsense, &asked()), []);
        assert_eq!(ranges(&Value::Nil, &asked()), []);
        assert_eq!(Address::read("nowhere", &asked()), None);
    }
}
