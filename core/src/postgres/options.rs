//! Options for connecting to the server of a URL.

use std::str::FromStr;

use sqlx::postgres::PgConnectOptions;
use url::{Url, form_urlencoded};

/// Parameters of a URL that the driver reads.
const KNOWN: [&str; 18] = [
    "sslmode",
    "ssl-mode",
    "sslrootcert",
    "ssl-root-cert",
    "ssl-ca",
    "sslcert",
    "ssl-cert",
    "sslkey",
    "ssl-key",
    "statement-cache-capacity",
    "host",
    "hostaddr",
    "port",
    "dbname",
    "user",
    "password",
    "application_name",
    "options",
];

/// The parameters that messages name as known; the others are further spellings.
pub const PARAMETERS: &str = "sslmode, sslrootcert, sslcert, sslkey, host, hostaddr, port, dbname, \
     user, password, application_name, options and statement-cache-capacity";

/// The statements that a connection keeps prepared, unless the URL says otherwise: more than a
/// process with all roles has. A statement that is thrown out for another is parsed and planned
/// again.
const STATEMENTS_KEPT: usize = 512;

/// Returns the options for the server of a URL.
///
/// Parameters that the driver does not know are left out: it would log them with their values, of
/// which one may be a secret.
pub fn connect_options(url: &str) -> Result<PgConnectOptions, sqlx::Error> {
    let Ok(mut parsed) = Url::parse(url) else {
        // The driver says what is wrong with it.
        return PgConnectOptions::from_str(url);
    };
    let query = parsed.query().unwrap_or_default();
    let says_kept = query
        .split('&')
        .any(|part| name_of(part).as_deref() == Some("statement-cache-capacity"));
    let options = match query.split('&').all(is_known) {
        true => PgConnectOptions::from_str(url)?,
        false => {
            let kept: Vec<&str> = query.split('&').filter(|part| is_known(part)).collect();
            let kept = kept.join("&");
            parsed.set_query(Some(&kept));
            PgConnectOptions::from_str(parsed.as_str())?
        }
    };
    match says_kept {
        true => Ok(options),
        false => Ok(options.statement_cache_capacity(STATEMENTS_KEPT)),
    }
}

/// Returns the names of the parameters of a URL that the driver does not know. A name without a
/// value is left unsaid, because it may be the rest of a password.
pub fn unknown_parameters(url: &str) -> Vec<String> {
    let Ok(parsed) = Url::parse(url) else {
        return Vec::new();
    };
    let query = parsed.query().unwrap_or_default();
    let unknown = query.split('&').filter(|part| !is_known(part));
    unknown
        .map(|part| match (part.contains('='), name_of(part)) {
            (true, Some(name)) => name,
            _ => "without a value".to_owned(),
        })
        .collect()
}

fn is_known(part: &str) -> bool {
    name_of(part).is_none_or(|name| KNOWN.contains(&name.as_str()) || name.starts_with("options["))
}

/// Returns the name of a parameter; `None` for an empty part.
fn name_of(part: &str) -> Option<String> {
    let (name, _) = form_urlencoded::parse(part.as_bytes()).next()?;
    Some(name.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const URL: &str = "postgres://ann:p%40ss@db:5433/shop";

    #[test]
    fn parameters_that_the_driver_does_not_know_never_reach_it_and_the_others_stay() {
        let url = format!(
            "{URL}?sslmode=require&sslpassword=geheim&application_name=a%20b&rest&options[search_path]=x"
        );
        assert_eq!(unknown_parameters(&url), ["sslpassword", "without a value"]);

        let options = connect_options(&url).unwrap();

        assert_eq!(
            (options.get_host(), options.get_port()),
            ("db", 5433),
            "the rest of the URL is as it was"
        );
        assert_eq!(options.get_database(), Some("shop"));
        assert_eq!(options.get_application_name(), Some("a b"));
        assert!(matches!(
            options.get_ssl_mode(),
            sqlx::postgres::PgSslMode::Require
        ));
        assert_eq!(options.get_options(), Some("-c search_path=x"));
    }

    #[test]
    fn a_url_without_such_parameters_is_left_as_it_is() {
        for url in [URL, "postgres:///?host=/run/postgresql&port=5433", "x"] {
            assert_eq!(unknown_parameters(url), [""; 0], "{url}");
        }
        let options = connect_options("postgres:///?host=/run/postgresql").unwrap();
        assert!(options.get_socket().is_some());
        assert!(connect_options("postgres://[").is_err());
    }
}
