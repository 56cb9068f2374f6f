//! Hosts that pushed back, for jobs without a key and calls of webhooks under the key of a tenant:
//! those go to many servers, so one server's answer stops only its own jobs.
//!
//! Throttles pause lanes, and all jobs without a key share one lane. So each process remembers by
//! itself which hosts need a rest, and postpones their jobs before anything is sent. After the rest
//! one job goes first, as with a key; no rate is learned.

use std::collections::BTreeMap;
use std::time::Duration;

use url::{Position, Url};

/// Most hosts that are remembered.
const MAX_HOSTS: usize = 4096;

/// The rest after a first refusal without a delay; it doubles with each further one in a row.
const FIRST_REST: Duration = Duration::from_secs(1);

/// Most doublings of the rest.
const MAX_DOUBLINGS: u32 = 8;

/// Wait of the other jobs for the answer of the one that goes first.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// Time after its last rest at which a host is forgotten.
const KEEP: Duration = Duration::from_secs(600);

/// The longest rest, even if the host asks for more.
const MAX_HOST_REST: Duration = Duration::from_secs(3600);

/// A host, for the jobs of one key of one throttle. Two tenants may have receivers behind one host,
/// and one of the two keeps no calls of the other waiting.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostKey {
    pub throttle: String,
    pub key: String,
    pub host: String,
}

impl HostKey {
    /// Returns the key of the host of a URL: the one that is connected to, whatever the text looks
    /// like.
    pub fn of(throttle: &str, key: &str, url: &str) -> Self {
        let url = Url::parse(url).ok();
        let host = url
            .as_ref()
            .map_or("", |url| &url[Position::BeforeHost..Position::AfterPort]);
        Self {
            throttle: throttle.to_owned(),
            key: key.to_owned(),
            host: host.to_owned(),
        }
    }
}

/// Returns true if the key of a call is the host of its URL, in the form of `flyball.webhook_key`.
pub fn is_of_host(key: &str, url: &str) -> bool {
    let rest = url.split_once("://").map_or("", |(_, rest)| rest);
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    key.chars().eq(host.to_lowercase().chars().take(128))
}

/// The rests of hosts. Times are durations since an arbitrary origin.
#[derive(Debug, Default)]
pub struct HostBackoffs {
    known: BTreeMap<HostKey, HostBackoff>,
}

#[derive(Clone, Copy, Debug)]
struct HostBackoff {
    until: Duration,
    /// Refusals in a row; those of jobs that were under way together count once.
    strikes: u32,
    /// True if the next refusal counts: that of the job that went first after the rest.
    is_probing: bool,
}

impl HostBackoffs {
    /// Returns the delay of a job for the host; `None` if it may go.
    ///
    /// `spread`, from 0 to 1, adds that share of the delay, which counts as at least one second, so
    /// that the jobs do not all come back at once.
    pub fn wait(&mut self, host: &HostKey, now: Duration, spread: f64) -> Option<Duration> {
        let rest = self.known.get_mut(host)?;
        let left = rest.until.saturating_sub(now);
        if left.is_zero() {
            rest.until = now + PROBE_TIMEOUT;
            rest.is_probing = true;
            return None;
        }
        Some(left + left.max(FIRST_REST).mul_f64(spread.clamp(0.0, 1.0)))
    }

    /// Records that the host refused a job, with the delay that it asked for, if any.
    pub fn refused(&mut self, host: HostKey, requested: Option<Duration>, now: Duration) {
        if self.known.len() >= MAX_HOSTS && !self.known.contains_key(&host) {
            self.make_room(now);
        }
        let rest = self.known.entry(host).or_insert(HostBackoff {
            until: Duration::ZERO,
            strikes: 0,
            is_probing: true,
        });
        if std::mem::take(&mut rest.is_probing) {
            rest.strikes = rest.strikes.saturating_add(1);
        }
        let doublings = rest.strikes.saturating_sub(1).min(MAX_DOUBLINGS);
        let doubled = FIRST_REST * 2_u32.pow(doublings);
        rest.until = rest
            .until
            .max(now + requested.unwrap_or(doubled).min(MAX_HOST_REST));
    }

    /// Records that the host accepted a job.
    pub fn welcomed(&mut self, host: &HostKey) {
        self.known.remove(host);
    }

    /// Forgets hosts that rested long ago, or else the one whose rest ends first.
    fn make_room(&mut self, now: Duration) {
        self.known.retain(|_, rest| rest.until + KEEP > now);
        if self.known.len() >= MAX_HOSTS
            && let Some(first) = self
                .known
                .iter()
                .min_by_key(|(_, rest)| rest.until)
                .map(|(host, _)| host.clone())
        {
            self.known.remove(&first);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn the_key_of_a_call_is_its_host_or_the_tenant_that_has_many() {
        let url = "https://Hooks.Example.com:8443/in?a#b";
        assert!(is_of_host("hooks.example.com:8443", url));
        assert!(!is_of_host("acme", url) && !is_of_host("", url));
        let long = "h".repeat(200);
        assert!(is_of_host(&long[..128], &format!("https://{long}/in")));
    }

    fn whom(host: &str) -> HostKey {
        HostKey::of(
            "hooks",
            "",
            &format!("https://ann:secret@{}/path?@b", host.to_ascii_uppercase()),
        )
    }

    #[test]
    fn the_host_is_the_one_that_is_connected_to() {
        for (url, host) in [
            (
                "https://ann:secret@A.example:8443/path?@b",
                "a.example:8443",
            ),
            ("https://evil.example\\@a.example/", "evil.example"),
            ("http:evil.example/@a.example", "evil.example"),
            ("https://a.example:443", "a.example"),
            ("http://[::1]:80/", "[::1]"),
        ] {
            let key = HostKey {
                throttle: "hooks".to_owned(),
                key: String::new(),
                host: host.to_owned(),
            };
            assert_eq!(HostKey::of("hooks", "", url), key, "{url}");
        }
    }

    #[test]
    fn a_host_that_pushed_back_rests_and_then_one_job_goes_first() {
        let (mut rests, a, b) = (HostBackoffs::default(), whom("a"), whom("b"));
        rests.refused(a.clone(), Some(7 * S), S);

        assert_eq!(
            (rests.wait(&a, 2 * S, 0.0), rests.wait(&b, 2 * S, 0.0)),
            (Some(6 * S), None)
        );
        assert_eq!(rests.wait(&a, 2 * S, 1.0), Some(12 * S));
        assert_eq!(
            (rests.wait(&a, 8 * S, 0.0), rests.wait(&a, 8 * S, 0.0)),
            (None, Some(PROBE_TIMEOUT)),
            "one goes, the next waits"
        );
        rests.welcomed(&a);
        assert_eq!(rests.wait(&a, 8 * S, 0.0), None);
    }

    #[test]
    fn a_host_that_pushed_back_on_the_calls_of_a_tenant_rests_for_that_tenant_alone() {
        let mut rests = HostBackoffs::default();
        let of = |tenant: &str| HostKey::of("webhooks", tenant, "https://hooks.example.com/in");
        rests.refused(of("acme"), Some(7 * S), Duration::ZERO);

        assert_eq!(rests.wait(&of("acme"), S, 0.0), Some(6 * S));
        assert_eq!(rests.wait(&of("zeta"), S, 0.0), None);
    }

    #[test]
    fn without_a_word_the_rest_doubles_and_no_rest_is_longer_than_an_hour() {
        let (mut rests, a) = (HostBackoffs::default(), whom("a"));
        let mut now = Duration::ZERO;
        for seconds in [1, 2, 4] {
            rests.refused(a.clone(), None, now);
            assert_eq!(rests.wait(&a, now, 0.0), Some(seconds * S));
            now += seconds * S;
            assert_eq!(rests.wait(&a, now, 0.0), None, "one goes first");
        }
        rests.refused(a.clone(), Some(Duration::MAX), now);
        assert_eq!(rests.wait(&a, now, 0.0), Some(MAX_HOST_REST));
    }

    #[test]
    fn refusals_of_jobs_that_were_under_way_together_count_once() {
        let (mut rests, a) = (HostBackoffs::default(), whom("a"));
        for _ in 0..20 {
            rests.refused(a.clone(), None, Duration::ZERO);
        }
        assert_eq!(rests.wait(&a, Duration::ZERO, 0.0), Some(S));

        // The one that goes first is refused, and so is one that began before the rest.
        assert_eq!(rests.wait(&a, S, 0.0), None);
        for _ in 0..2 {
            rests.refused(a.clone(), None, S);
        }
        assert_eq!(rests.wait(&a, S, 0.0), Some(2 * S));
    }

    #[test]
    fn ever_new_hosts_take_no_more_memory() {
        let mut rests = HostBackoffs::default();
        (0..2 * MAX_HOSTS)
            .for_each(|n| rests.refused(whom(&n.to_string()), Some(S), Duration::ZERO));

        assert_eq!(rests.known.len(), MAX_HOSTS);
    }
}
