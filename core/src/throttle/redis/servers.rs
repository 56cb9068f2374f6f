//! The servers that hold the throttles: a single one, or those of a cluster.

use redis::{Client, RedisError, RedisResult};

use super::cluster::Cluster;
use super::connection::{Connection, Redirection};
use super::link::{CallBound, CallError, RedisLink};
use crate::throttle::{Error, KnobProblem};

/// The URL schemes of a cluster, each with the scheme of its servers.
const CLUSTER_SCHEMES: [(&str, &str); 2] = [
    ("redis+cluster://", "redis://"),
    ("rediss+cluster://", "rediss://"),
];

/// A single server or the servers of a cluster.
pub(super) enum Servers {
    One(RedisLink),
    Many(Cluster),
}

impl Servers {
    /// Reads the URL and starts to connect in the background.
    pub(super) fn open(url: &str) -> Result<Self, Error> {
        let Some(seeds) = seeds(url)? else {
            return Client::open(url)
                .and_then(RedisLink::open)
                .map(Self::One)
                .map_err(|error| unusable(error.category()));
        };
        let seeds: RedisResult<Vec<Client>> = seeds.into_iter().map(Client::open).collect();
        Ok(Self::Many(Cluster::open(seeds.map_err(
            |error: RedisError| unusable(error.category()),
        )?)))
    }

    pub(super) fn is_cluster(&self) -> bool {
        matches!(self, Self::Many(_))
    }

    /// Runs `call` at the server of `slot`, repeating it after a redirection, and returns within
    /// `bound`.
    ///
    /// Only before the first connection is established may a call wait longer, up to a second.
    pub(super) async fn run<T, F>(
        &self,
        slot: u16,
        bound: impl Into<CallBound>,
        call: impl Fn(Connection) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = RedisResult<T>>,
    {
        let bound = bound.into();
        match self {
            Self::One(link) => run_alone(link, bound, call).await,
            Self::Many(cluster) => cluster.run(slot, bound, call).await,
        }
        .map_err(Error::from)
    }

    /// Runs `call` at the server with index `number`, counted from 0; returns `None` if there is
    /// none.
    pub(super) async fn run_at<T, F>(
        &self,
        number: usize,
        bound: impl Into<CallBound>,
        call: impl Fn(Connection) -> F,
    ) -> Option<Result<T, Error>>
    where
        F: Future<Output = RedisResult<T>>,
    {
        let bound = bound.into();
        let answer = match self {
            Self::One(link) if number == 0 => Some(run_alone(link, bound, call).await),
            Self::One(_) => None,
            Self::Many(cluster) => cluster.run_at(number, bound, call).await,
        };
        answer.map(|answer| answer.map_err(Error::from))
    }
}

async fn run_alone<T, F>(
    link: &RedisLink,
    bound: CallBound,
    call: impl Fn(Connection) -> F,
) -> Result<T, CallError>
where
    F: Future<Output = RedisResult<T>>,
{
    link.settled().await;
    let answer = link
        .run(bound, |manager| call(Connection::new(manager, false)))
        .await;
    answer.map_err(
        |failure| match failure.error.as_ref().and_then(Redirection::read) {
            // The server's own message would disclose an address.
            Some(Redirection::Moved(_) | Redirection::Ask(_)) => CallError::new(
                "this server is part of a cluster; set REDIS_URL to \
                            redis+cluster://host:port,host:port",
            ),
            _ => failure,
        },
    )
}

/// Splits the URL of a cluster into one URL for each server; returns `None` for the URL of a single
/// server.
fn seeds(url: &str) -> Result<Option<Vec<String>>, Error> {
    let named = CLUSTER_SCHEMES
        .iter()
        .find_map(|(scheme, single)| Some((single, url.strip_prefix(scheme)?)));
    let Some((single, rest)) = named else {
        return Ok(None);
    };
    let (authority, tail) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let (path, query) = tail.split_at(tail.find('?').unwrap_or(tail.len()));
    if !matches!(path, "" | "/" | "/0") {
        return Err(unusable("a cluster has only database 0"));
    }
    let (user, hosts) = authority
        .rsplit_once('@')
        .map_or(("", authority), |(user, hosts)| {
            (&authority[..=user.len()], hosts)
        });
    if hosts.split(',').any(str::is_empty) {
        return Err(unusable("an address is empty"));
    }
    Ok(Some(
        hosts
            .split(',')
            .map(|host| format!("{single}{user}{host}{query}"))
            .collect(),
    ))
}

fn unusable(why: &str) -> Error {
    let message = format!(
        "the URL cannot be used ({why}): it must be redis://host:port, rediss://host:port, redis+unix:///path or, for a cluster, \
         redis+cluster://host:port,host:port or rediss+cluster://host:port,host:port"
    );
    Error::Invalid(vec![KnobProblem {
        field: "REDIS_URL".to_owned(),
        message,
    }])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_url_of_a_cluster_names_some_of_its_servers() {
        let read = |url: &str| seeds(url).unwrap();

        assert_eq!(read("redis://a:1"), None);
        assert_eq!(
            read("redis+cluster://a:1,b:2").unwrap(),
            ["redis://a:1", "redis://b:2"]
        );
        assert_eq!(
            read("rediss+cluster://me:p%40@a:1,[::1]:2/").unwrap(),
            ["rediss://me:p%40@a:1", "rediss://me:p%40@[::1]:2"]
        );
        assert_eq!(
            read("redis+cluster://a/0?protocol=resp3").unwrap(),
            ["redis://a?protocol=resp3"]
        );
    }

    #[test]
    fn another_url_is_refused_without_its_password() {
        for url in [
            "redis+cluster://",
            "redis+cluster://me:hunter2@a:1,,b:2",
            "redis+cluster://me:hunter2@a:1/3",
        ] {
            let message = seeds(url).unwrap_err().to_string();
            assert!(
                message.contains("REDIS_URL")
                    && message.contains("redis+cluster://host:port,host:port"),
                "{message}"
            );
            assert!(!message.contains("hunter2"), "{message}");
        }
    }
}
