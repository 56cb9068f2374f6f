//! Lists of origins, each the scheme, host and port of URLs to which a secret may go.

use url::{Origin, Url};

/// Returns true if the origin of `url` is among `origins`, a list with commas between.
pub(crate) fn is_among(url: &str, origins: &str) -> bool {
    let Some(wanted) = origin(url) else {
        return false;
    };
    origins
        .split(',')
        .filter_map(origin)
        .any(|origin| origin == wanted)
}

/// Returns true if every part of a list with commas between is an origin.
pub(super) fn are_origins(list: &str) -> bool {
    list.split(',').all(|part| origin(part).is_some())
}

fn origin(text: &str) -> Option<Origin> {
    let url = Url::parse(text.trim()).ok()?;
    Some(url.origin()).filter(Origin::is_tuple)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_belongs_to_scheme_host_and_port() {
        let origins = "https://search.example.com:9200, http://10.0.0.7";

        for url in [
            "https://search.example.com:9200",
            "https://SEARCH.example.com:9200/prefix",
            "http://10.0.0.7:80",
        ] {
            assert!(is_among(url, origins), "{url}");
        }
        for url in [
            "http://search.example.com:9200",
            "https://search.example.com",
            "https://search.example.com.evil.example:9200",
            "https://search.example.com:9200@evil.example",
            "http://10.0.0.70",
            "",
        ] {
            assert!(!is_among(url, origins), "{url}");
        }
        assert!(!is_among("https://search.example.com:9200", ""));
    }

    #[test]
    fn a_list_of_origins_holds_nothing_else() {
        assert!(are_origins("https://a.example, http://10.0.0.7:8080"));
        for list in ["", " ", "a.example", "https://a.example,", "file:///etc"] {
            assert!(!are_origins(list), "{list}");
        }
    }
}
