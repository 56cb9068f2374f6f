//! Limits of an API's requests: groups by method and URL prefix, per key and per customer.
//!
//! The limit of one key exists beside one for all keys of its customer together, so that a customer
//! that changes keys gains nothing.

use super::Name;

/// The name by which settings mean Flyball's own API.
pub const OWN_API: &str = "flyball";

/// The prefix of the throttles that limit other APIs.
pub const LIMIT_PREFIX: &str = "limit:";

/// The prefix of the throttles that limit our own API.
pub const API_PREFIX: &str = "api:";

/// Returns true for a throttle that limits our own API, or another one by the settings; only an
/// administrator changes those, so that no client lifts its own limits.
pub fn is_of_the_api(throttle: &str) -> bool {
    throttle.starts_with(API_PREFIX) || throttle.starts_with(LIMIT_PREFIX)
}

/// The limit of a group of requests.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiLimit {
    /// The name of the group.
    pub name: String,
    /// The API; [`OWN_API`] for our own, empty for the only other one.
    pub api: String,
    /// The methods of the group, in upper case; empty for all. `GET` holds `HEAD` as well, which
    /// costs the API as much.
    pub methods: Vec<String>,
    /// The beginning of the paths of the group, such as `/api/v1/lead/`, as [`plain_path`] returns
    /// it.
    pub prefix: String,
    /// The requests of one key, per second.
    pub key_rps: f64,
    /// The requests of one key that may come at once, in windows' worth.
    pub key_burst: f64,
    /// The length of a window, in seconds.
    pub window: f64,
    /// The requests of all keys of a customer together, in multiples of those of one key.
    pub customer_multiple: f64,
}

impl ApiLimit {
    /// Returns the closeness of a request with this method, in upper case, and this [`plain_path`]
    /// to the group; `None` if the group does not hold it.
    ///
    /// The case of letters keeps no request out, because it does not for many servers.
    fn closeness(&self, method: &str, path: &str) -> Option<(usize, bool, u8)> {
        let beginning = path.as_bytes().get(..self.prefix.len())?;
        let is_below = beginning.eq_ignore_ascii_case(self.prefix.as_bytes());
        let has = |method: &str| self.methods.iter().any(|known| known == method);
        let by_method = match method {
            _ if self.methods.is_empty() => 0,
            "HEAD" if !has("HEAD") && has("GET") => 1,
            method if has(method) => 2,
            _ => return None,
        };
        is_below.then_some((self.prefix.len(), path.starts_with(&self.prefix), by_method))
    }

    /// Returns the throttle of the keys of another API; its keys are those of the API.
    pub fn of_keys(&self) -> Result<Name, super::name::InvalidName> {
        Name::new(format!("{LIMIT_PREFIX}{}", self.name))
    }

    /// Returns the throttle of the customers of another API; its keys are the customers.
    pub fn of_customers(&self) -> Result<Name, super::name::InvalidName> {
        Name::new(format!("{LIMIT_PREFIX}{}:customer", self.name))
    }

    /// Returns the requests of all keys of a customer together, per second.
    pub fn customer_rps(&self) -> f64 {
        self.key_rps * self.customer_multiple
    }
}

/// Returns the limit for a request: the one with the longest prefix, and of two with the same the
/// one that names the method; `None` if no group holds it.
///
/// The one with the fewest requests of a key counts where servers would serve different paths.
pub fn limit_of<'a>(
    limits: &'a [ApiLimit],
    api: &str,
    method: &str,
    path: &str,
) -> Option<&'a ApiLimit> {
    let method = method.to_ascii_uppercase();
    let closest = |path: &str| {
        let of_the_api = limits.iter().filter(|limit| limit.api == api);
        let holding = of_the_api.filter_map(|limit| Some((limit.closeness(&method, path)?, limit)));
        let closest = holding.max_by_key(|(closeness, _)| *closeness);
        closest.map(|(_, limit)| limit)
    };
    let is_plain = !path.contains(['%', ';']) && !path.contains("..");
    let readings = PathReading::ALL.iter().take(match is_plain {
        true => 1,
        false => PathReading::ALL.len(),
    });
    let found = readings.filter_map(|reading| closest(&reading.path(path)));
    found.min_by(|one, other| one.key_rps.total_cmp(&other.key_rps))
}

/// Returns the path that a server would serve: without the query and the origin, decoded once,
/// without repeated slashes, `.` and `..`. Otherwise `/api//v1/%6cead/` would pass the limit of
/// `/api/v1/lead/`.
pub fn plain_path(path: &str) -> String {
    PathReading::ALL[0].path(path)
}

/// A reading of a path, as a kind of servers has it.
#[derive(Clone, Copy)]
struct PathReading {
    /// True if `..` leads to the folder above; otherwise it is a name like any other.
    follows: bool,
    /// True if what follows a `;` does not belong to the name of a folder, as for Java's servers.
    has_parameters: bool,
}

impl PathReading {
    /// The usual reading, and those by which a path in disguise would pass its limit.
    const ALL: [Self; 4] = [
        Self::of(true, false),
        Self::of(false, false),
        Self::of(true, true),
        Self::of(false, true),
    ];

    const fn of(follows: bool, has_parameters: bool) -> Self {
        Self {
            follows,
            has_parameters,
        }
    }

    fn path(self, path: &str) -> String {
        let path = path.split(['?', '#']).next().unwrap_or_default();
        let origin = path.split_once("://").filter(|_| !path.starts_with('/'));
        let path = origin.map_or(path, |(_, rest)| {
            rest.find('/').map_or("", |at| &rest[at..])
        });
        let decoded = percent_encoding::percent_decode_str(path).decode_utf8_lossy();
        let mut segments: Vec<&str> = Vec::new();
        for segment in decoded.split('/') {
            let name = match self.has_parameters {
                true => segment.split(';').next().unwrap_or_default(),
                false => segment,
            };
            match name {
                "" | "." => {}
                ".." if self.follows => drop(segments.pop()),
                name => segments.push(name),
            }
        }
        let is_folder = ["/", "/.", "/.."].iter().any(|end| decoded.ends_with(end));
        let end = if is_folder && !segments.is_empty() {
            "/"
        } else {
            ""
        };
        format!("/{}{end}", segments.join("/"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(name: &str, methods: &[&str], prefix: &str) -> ApiLimit {
        ApiLimit {
            name: name.to_owned(),
            api: String::new(),
            methods: methods.iter().map(|&method| method.to_owned()).collect(),
            prefix: prefix.to_owned(),
            key_rps: 40.0,
            key_burst: 1.0,
            window: 1.0,
            customer_multiple: 3.0,
        }
    }

    #[test]
    fn the_longest_prefix_limits_and_a_named_method_goes_before_all() {
        let limits = [
            limit("all", &[], "/"),
            limit("lead", &["POST"], "/api/v1/lead/"),
            limit("any_lead", &[], "/api/v1/lead/"),
            limit("report", &["GET", "HEAD"], "/api/v1/report"),
        ];
        let of = |method: &str, path: &str| {
            limit_of(&limits, "", method, path).map(|limit| limit.name.as_str())
        };
        assert_eq!(of("POST", "/api/v1/lead/7?x=/../"), Some("lead"));
        assert_eq!(of("post", "/api/v1/lead/"), Some("lead"));
        assert_eq!(of("PUT", "/api/v1/lead/7"), Some("any_lead"));
        assert_eq!(of("POST", "/api/v1/lead"), Some("all"));
        assert_eq!(of("GET", "/api/v1/reports/3"), Some("report"));
        assert_eq!(of("GET", "/elsewhere"), Some("all"));
        assert_eq!(of("POST", "/API/v1/Lead/7"), Some("lead"));
        assert_eq!(of("POST", "/api/v1/leä"), Some("all"));
        assert_eq!(limit_of(&limits[1..], "", "GET", "/elsewhere"), None);
        assert_eq!(limit_of(&limits, "other", "GET", "/"), None);
    }

    #[test]
    fn a_limit_of_reads_holds_those_without_a_body_as_well() {
        let limits = [
            limit("read", &["GET"], "/"),
            limit("all", &[], "/"),
            limit("probe", &["HEAD"], "/health"),
            limit("health", &["GET"], "/health"),
        ];
        let of = |method: &str, path: &str| {
            limit_of(&limits, "", method, path).map(|limit| limit.name.as_str())
        };
        assert_eq!(of("HEAD", "/reports"), Some("read"));
        assert_eq!(of("head", "/health"), Some("probe"));
        assert_eq!(of("GET", "/health"), Some("health"));
        assert_eq!(of("POST", "/reports"), Some("all"));
    }

    #[test]
    fn where_servers_differ_the_stricter_limit_holds() {
        let limits = [
            ApiLimit {
                key_rps: 1000.0,
                ..limit("archive", &[], "/archive/of/all/reports")
            },
            limit("lead", &[], "/api/v1/lead/"),
        ];
        let of = |path: &str| limit_of(&limits, "", "POST", path).map(|limit| limit.name.as_str());
        for lead in [
            "/api/v1/lead/7",
            "/api/v1/lead/7%2f..%2f..%2f..%2f..%2fhealth",
            "/api/v1/lead/../../../archive/of/all/reports",
            "/archive/of/all/reports/../../../../api/v1/lead/7",
            "/api/v1/lead;x=1/7",
            "/api;x/v1/lead%3bx/7",
            "/x/..;/api/v1/lead/7",
        ] {
            assert_eq!(of(lead), Some("lead"), "{lead}");
        }
        assert_eq!(of("/archive/of/all/reports;7"), Some("archive"));
        assert_eq!(of("/health/..%2f;"), None);
    }

    #[test]
    fn a_path_in_disguise_is_the_path_that_is_served() {
        for (given, plain) in [
            ("/api//v1/%6Cead/7", "/api/v1/lead/7"),
            ("/api/x/../v1/./lead/7?a=b", "/api/v1/lead/7"),
            ("/../../api/v1/lead/", "/api/v1/lead/"),
            ("/api/v1/lead/..", "/api/v1/"),
            ("", "/"),
            ("http://shop.example/api/v1/lead/7?x", "/api/v1/lead/7"),
            ("http://shop.example", "/"),
            ("/to/http://shop.example/x", "/to/http:/shop.example/x"),
            ("/%2e%2e/", "/"),
        ] {
            assert_eq!(plain_path(given), plain, "{given}");
        }
    }
}
