//! The demo's texts for the terminal.

use std::fmt::Write;

use super::report::StoreSample;
use flyball::stack::Urls;

/// Returns the text with the dashboard's address, the events to watch and the commands to try.
pub(super) fn welcome(
    url: &str,
    urls: &Urls,
    store_url: &str,
    index: &str,
    harder_after_s: f64,
) -> String {
    let redis = redis_cli(&urls.redis_url);
    let database = &urls.database_url;
    format!(
        "
Flyball runs. Open the dashboard:  {url}/

Watch: the load climbs to its setpoint and stays there. After {harder_after_s:.0} s the documents become ten times harder:
       the breaker stops the work at once, the governor finds the new rate, the load comes back to the setpoint.

Try, in another terminal:
  {redis} hset throttle:reindex:knobs mode manual rps 5     # turn the knob by hand
  {redis} hset throttle:reindex:knobs mode auto             # hand it back
  psql '{database}' -c \"select * from flyball.enqueue('http', '{{\\\"method\\\": \\\"GET\\\", \\\"url\\\": \\\"{url}/healthz\\\"}}')\"
  curl -s {url}/api/v1/jobs -H 'content-type: application/json' -d '{{\"kind\": \"http\", \"args\": {{\"method\": \"GET\", \"url\": \"{url}/healthz\"}}}}'
  curl -s {url}/api/v1/throttles/reindex/why
  curl -s '{store_url}/{index}/_search?q=steam+engine'

Ctrl-C ends it and leaves nothing running; the next `flyball demo` goes on where this one stopped.
"
    )
}

/// Returns the text with the dashboard's address and the events to watch, for the second act alone.
pub(super) fn greet(url: &str, pool: &str) -> String {
    format!(
        "
Flyball runs. Open the dashboard:  {url}/

Watch the throttle {pool}: its knob, its capacity, the learned quota and the reason, while accounts go and come back and the quota is halved.

  curl -s {url}/api/v1/throttles/{pool}/why
  curl -s {url}/api/v1/pools/{pool}
"
    )
}

/// Returns one line about the progress of the reindex.
pub(super) fn line(t_s: f64, now: &StoreSample, rate: f64, in_all: u64, setpoint: f64) -> String {
    let mut line = format!(
        "{:02}:{:02}  load {:.2} of {setpoint}",
        t_s as u64 / 60,
        t_s as u64 % 60,
        now.load
    );
    let _ = match now.rps {
        Some(rps) if rps < 0.0 => write!(line, "  rate unlimited"),
        Some(0.0) => write!(line, "  stopped"),
        Some(rps) => write!(line, "  rate {rps:.1}/s"),
        None => write!(line, "  rate unknown"),
    };
    let _ = write!(line, "  indexing {rate:.0}/s, {in_all} documents so far");
    line
}

/// Returns the redis-cli command that connects to a URL.
fn redis_cli(url: &str) -> String {
    if let Some(socket) = url.strip_prefix("redis+unix://") {
        return format!("redis-cli -s {socket}");
    }
    match url.split_once("+cluster://") {
        // Any server of a cluster leads to the others.
        Some((scheme, servers)) => format!(
            "redis-cli -c -u '{scheme}://{}'",
            servers.split(',').next().unwrap_or_default()
        ),
        None => format!("redis-cli -u '{url}'"),
    }
}

/// Formats seconds as minutes and seconds.
pub(super) fn clock(t_s: f64) -> String {
    format!("{:02}:{:02}", t_s as u64 / 60, t_s as u64 % 60)
}

/// Prints a line to standard output.
pub(super) fn print_line(line: &str) {
    println!("{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redis_is_reached_where_it_is() {
        assert_eq!(
            redis_cli("redis://me@redis:6379"),
            "redis-cli -u 'redis://me@redis:6379'"
        );
        assert_eq!(
            redis_cli("rediss+cluster://me@one:6379,two:6379"),
            "redis-cli -c -u 'rediss://me@one:6379'"
        );
    }

    #[test]
    fn the_lines_to_try_use_the_sockets_that_are_there() {
        let urls = Urls {
            database_url: "postgres://flyball@localhost:5432/flyball?host=/tmp/f".into(),
            redis_url: "redis+unix:///tmp/f/redis.sock".into(),
            prometheus_url: "http://127.0.0.1:9090".into(),
            targets_dir: None,
        };

        let text = welcome(
            "http://127.0.0.1:8080",
            &urls,
            "http://127.0.0.1:9",
            "documents-1",
            75.0,
        );

        assert!(text.contains(
            "redis-cli -s /tmp/f/redis.sock hset throttle:reindex:knobs mode manual rps 5"
        ));
        assert!(
            text.contains(
                r#"'{\"method\": \"GET\", \"url\": \"http://127.0.0.1:8080/healthz\"}')""#
            ),
            "{text}"
        );
    }
}
