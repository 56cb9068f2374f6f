use super::*;

fn env(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

fn refusal(file: Option<&str>, environment: &[(&str, &str)]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("own.toml");
    if let Some(text) = file {
        std::fs::write(&path, text).unwrap();
    }
    match Settings::load(file.map(|_| path.as_path()), &env(environment)) {
        Ok(_) => panic!("accepted"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn the_default_file_names_every_key_and_its_environment_variable() {
    let table: toml::Table = toml::from_str(DEFAULT_FILE).unwrap();
    let keys: Vec<&str> = KEYS.iter().map(|(key, _)| *key).collect();

    assert_eq!(
        table
            .keys()
            .map(String::as_str)
            .collect::<std::collections::BTreeSet<_>>(),
        keys.into_iter().collect()
    );
    for (_, variable) in KEYS {
        assert!(DEFAULT_FILE.contains(variable), "{variable}");
    }
    Settings::load(None, &env(&[])).unwrap();
}

#[test]
fn kinds_have_settings_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("own.toml");
    std::fs::write(
        &path,
        "concurrency = 3\n[kinds.http]\ntimeout_s = 10\nmax_attempts = 5\n[kinds.\"my kind\"]\nretry_max_s = 60\n",
    )
    .unwrap();

    let settings = Settings::load(Some(&path), &env(&[])).unwrap();

    let http = KindSettings {
        timeout_s: Some(10.0),
        max_attempts: Some(5),
        ..KindSettings::default()
    };
    let own = KindSettings {
        retry_max_s: Some(60.0),
        ..KindSettings::default()
    };
    assert_eq!(
        settings.kinds,
        BTreeMap::from([("http".to_owned(), http), ("my kind".to_owned(), own)])
    );
    assert!(Settings::load(None, &env(&[])).unwrap().kinds.is_empty());
}

#[test]
fn lists_of_throttles_hold_names_and_beginnings_of_names() {
    for key in ["serve_throttles", "key_metrics"] {
        for pattern in ["limit:**", "two words", ""] {
            let told = refusal(Some(&format!("{key} = [\"mail\", {pattern:?}]\n")), &[]);
            let words =
                format!("own.toml:1: {key}: must be names of throttles, or their beginnings");
            assert!(told.contains(&words), "{told}");
        }
    }
    let list = env(&[("FLYBALL_KEY_METRICS", "mail, limit:*, *")]);
    let settings = Settings::load(None, &list).unwrap();
    assert_eq!(settings.key_metrics, ["mail", "limit:*", "*"]);
}

#[test]
fn tokens_of_tenants_are_read_from_where_the_settings_say_and_never_shown() {
    let folder = tempfile::tempdir().unwrap();
    let (secret, path) = (folder.path().join("secret"), folder.path().join("own.toml"));
    std::fs::write(&secret, "0123456789abcdef-acme\n").unwrap();
    let token = |tenant: &str, file: &Path| {
        format!(
            "tenant = \"{tenant}\"\nsecret_file = {:?}\n",
            file.to_str().unwrap()
        )
    };
    let load = |text: String| {
        std::fs::write(&path, text).unwrap();
        let settings = Settings::load(
            Some(&path),
            &env(&[("FLYBALL_API_TOKEN", "0123456789abcdef")]),
        )?;
        let found = |token: &TokenFound<'_>| {
            (
                token.settings.and_then(|set| set.tenant.clone()),
                token.secret.clone(),
            )
        };
        settings
            .tokens()
            .map(|tokens| tokens.iter().map(found).collect())
    };
    let answer = |text: String| {
        load(text)
            .map(|_: Vec<(Option<String>, String)>| ())
            .unwrap_err()
            .to_string()
    };

    let tokens = load(format!("[api_tokens.billing]\n{}", token("acme", &secret))).unwrap();
    assert_eq!(
        tokens,
        [
            (None, "0123456789abcdef".to_owned()),
            (Some("acme".to_owned()), "0123456789abcdef-acme".to_owned())
        ]
    );
    let wrong = answer(format!(
        "\n[api_tokens.billing]\n{}",
        token("two words", &secret)
    ));
    assert!(
        wrong.contains("own.toml:3: api_tokens.billing.tenant: must be 1 to 64 letters"),
        "{wrong}"
    );
    let none = answer("[api_tokens.billing]\ntenant = \"acme\"\n".to_owned());
    assert!(
        none.contains("api_tokens.billing.secret_env: must be set, or secret_file, and not both"),
        "{none}"
    );
    let missing = answer(format!(
        "[api_tokens.billing]\n{}",
        token("acme", &folder.path().join("no"))
    ));
    assert!(
        missing.contains("api_tokens.billing.secret_file: must name a file that can be read"),
        "{missing}"
    );
    for (line, wrong) in [
        (
            "scopes = [\"jobs:write\"]",
            "api_tokens.billing.scopes: must be jobs:enqueue, jobs:read,",
        ),
        (
            "throttles = [\"a b\"]",
            "api_tokens.billing.throttles: must be names of throttles",
        ),
    ] {
        let refused = answer(format!(
            "[api_tokens.billing]\n{line}\n{}",
            token("acme", &secret)
        ));
        assert!(
            refused.contains(&format!("own.toml:2: {wrong}")),
            "{refused}"
        );
    }
    assert!(
        answer(format!("[api_tokens.admin]\n{}", token("acme", &secret)))
            .contains("other than admin")
    );
    std::fs::write(&secret, "tooshort").unwrap();
    let short = answer(format!("[api_tokens.billing]\n{}", token("acme", &secret)));
    assert!(
        short.contains("at least 16") && !short.contains("tooshort"),
        "{short}"
    );
    std::fs::write(&secret, "0123456789abcdef").unwrap();
    assert!(
        answer(format!("[api_tokens.billing]\n{}", token("acme", &secret)))
            .contains("the token of another")
    );
    assert!(
        answer("[api_tokens.billing]\nsecret = \"x\"\n".to_owned())
            .contains("own.toml:2: api_tokens.billing.secret: is not a known field")
    );
}

#[test]
fn a_wrong_setting_of_a_kind_is_refused_with_its_line() {
    for (text, answer) in [
        (
            "\n[kinds.http]\ntimeout_s = 0\n",
            "own.toml:3: kinds.http.timeout_s: must be a number from 0.001 to 604800, not 0",
        ),
        (
            "[kinds.http]\nmax_attempts = 5000\n",
            "own.toml:2: kinds.http.max_attempts: must be a whole number from 1 to 1000, not 5000",
        ),
        (
            "[kinds.http]\nretry_factor = nan\n",
            "own.toml:2: kinds.http.retry_factor: must be a number from 1 to 100, not \"nan\"",
        ),
        (
            "[kinds.http]\ntimeout = 5\n",
            "own.toml:2: kinds.http.timeout: is not a known field; did you mean \"timeout_s\"? allowed: timeout_s, max_attempts",
        ),
        (
            "[kinds.http]\nmax_attempts = 1.5\n",
            "own.toml:2: kinds.http.max_attempts: must be a whole number from 1 to 1000, not 1.5",
        ),
        (
            "[kinds]\nhttp = 5\n",
            "own.toml:2: kinds.http: must be an object",
        ),
        (
            "[kinds.http]\nretry_max_s = 5\nretry_base_s = 7.5\n",
            "own.toml:3: kinds.http.retry_base_s: must be at most retry_max_s (5), not 7.5",
        ),
    ] {
        let refused = refusal(Some(text), &[]);
        assert!(refused.contains(answer), "{refused}");
    }
}

#[test]
fn the_environment_wins_over_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("own.toml");
    std::fs::write(&path, "concurrency = 3\nworker_ttl_s = 5.5\n").unwrap();

    let settings = Settings::load(Some(&path), &env(&[("FLYBALL_CONCURRENCY", "7")])).unwrap();

    assert_eq!((settings.concurrency, settings.worker_ttl_s), (7, 5.5));
}

#[test]
fn a_value_of_the_file_is_refused_with_its_line() {
    for (text, answer) in [
        (
            "\nconcurrency = -1\n",
            "own.toml:2: concurrency: must be a whole number from 1 to 10000, not -1",
        ),
        (
            "\nconcurrency = 0\n",
            "own.toml:2: concurrency: must be a whole number from 1 to 10000, not 0",
        ),
        (
            "redis_timeout_ms = 4\n",
            "own.toml:1: redis_timeout_ms: must be a whole number from 5 to 10000, not 4",
        ),
        (
            "token_lease_ms = 251\n",
            "own.toml:1: token_lease_ms: must be a whole number from 0 to 250, not 251",
        ),
        (
            "log_format = \"xml\"\n",
            "own.toml:1: log_format: must be text or json, not \"xml\"",
        ),
        (
            "database_pooler = \"session\"\n",
            "own.toml:1: database_pooler: must be none or transaction, not \"session\"",
        ),
        (
            "database_direct_url = \"here\"\n",
            "own.toml:1: database_direct_url: must be a URL like postgres://",
        ),
        (
            "database_read_url = \"mysql://replica/flyball\"\n",
            "own.toml:1: database_read_url: must be a URL like postgres://",
        ),
        (
            "worker_ttl_s = nan\n",
            "own.toml:1: worker_ttl_s: must be a number from 3 to 3600, not \"nan\"",
        ),
        ("listen = \"\"\n", "own.toml:1: listen: must be host:port"),
    ] {
        let refused = refusal(Some(text), &[]);
        assert!(refused.contains(answer), "{refused}");
    }
}

#[test]
fn a_text_without_quotes_is_refused_and_hides_no_other_setting() {
    for (text, place) in [
        ("knobs_dir = nan\n", "own.toml:1: knobs_dir"),
        ("log = 12345678901234567890\n", "own.toml:1: log"),
        ("redis_prefix = 1979-05-27\n", "own.toml:1: redis_prefix"),
        (
            "serve_kinds = [\"http\", 1e400]\n",
            "own.toml:1: serve_kinds.1",
        ),
    ] {
        let refused = refusal(Some(text), &[]);
        let expected = format!("{place}: must be a text in quotes");
        assert!(refused.ends_with(&expected), "{refused}");
    }
    // Such a number once made the whole file count as empty.
    let pool =
        "[pools.texts]\nprovider = \"twilio\"\naccount_sid = 12345678901234567890\nnone = 1\n";
    let refused = refusal(Some(pool), &[]);
    assert!(
        refused.contains("own.toml:4: pools.texts.none"),
        "{refused}"
    );
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("own.toml");
    let text = "log = 12345678901234567890\nserve_kinds = [1e400]\nconcurrency = 3\n";
    std::fs::write(&path, text).unwrap();
    let variables = env(&[("FLYBALL_LOG", "info"), ("FLYBALL_SERVE_KINDS", "http")]);
    let settings = Settings::load(Some(&path), &variables).unwrap();
    assert_eq!((settings.log.as_str(), settings.concurrency), ("info", 3));
    assert_eq!(settings.serve_kinds, ["http"]);
}

#[test]
fn a_value_of_the_wrong_type_hides_no_other_problem() {
    let text = "concurrency = \"many\"\nlisten = \"\"\nredis_url = \"here\"\nserve_kinds = 7\n\
        [kinds.http]\ntimeout_s = 0\n[pools.mail]\nprovider = \"twillio\"\n\
        [prometheus.east]\nurl = \"http://a\"\nheaders = { X-Team = 7 }\n";
    let refused = refusal(Some(text), &[("FLYBALL_API_TOKEN", "short")]);
    for problem in [
        "own.toml:1: concurrency: must be a whole number",
        "own.toml:2: listen: must be host:port",
        "own.toml:3: redis_url: must be a URL",
        "own.toml:4: serve_kinds: must be a list of texts",
        "own.toml:6: kinds.http.timeout_s: must be a number",
        "own.toml:8: pools.mail.provider: must be twilio",
        "own.toml:11: prometheus.east.headers: must be a table of texts, which \"X-Team\" is not",
        "FLYBALL_API_TOKEN (setting api_token): must have at least 16",
    ] {
        assert!(refused.contains(problem), "{problem}: {refused}");
    }
}

#[test]
fn a_pool_that_is_no_table_is_not_missing_among_those_to_serve() {
    let text = "serve_pools = [\"mail\"]\n[pools]\nmail = 3\n";
    let refused = refusal(Some(text), &[]);
    assert!(refused.contains("own.toml:3: pools.mail: must be a table"));
    assert!(!refused.contains("serve_pools"), "{refused}");
}

#[test]
fn an_empty_variable_counts_as_unset() {
    let empty: Vec<(&str, &str)> = KEYS.iter().map(|(_, variable)| (*variable, "")).collect();
    let settings = Settings::load(None, &env(&empty)).unwrap();
    assert_eq!(
        (settings.concurrency, settings.listen.as_str()),
        (64, "127.0.0.1:8080")
    );
}

#[test]
fn a_list_in_a_variable_that_names_nothing_is_refused() {
    for text in [",", " ", " , "] {
        let refused = refusal(None, &[("FLYBALL_SERVE_KINDS", text)]);
        let told = "FLYBALL_SERVE_KINDS (setting serve_kinds): must be a list of texts, not";
        assert!(refused.contains(told), "{refused}");
    }
}

#[test]
fn a_token_that_no_header_can_carry_is_refused() {
    for token in [
        "0123456789abcdef\n",
        "                    ",
        "0123456789abcdé-ef",
        "0123456789 abcdef",
    ] {
        assert!(
            refusal(None, &[("FLYBALL_API_TOKEN", token)]).contains("visible ASCII"),
            "{token:?}"
        );
    }
}

#[test]
fn a_pattern_that_no_channel_fits_is_refused() {
    let settings = Some("[channels.\"a b\"]\nhistory_s = 60\n");
    assert!(refusal(settings, &[]).contains("must be the name of a channel"));
}

#[test]
fn an_origin_that_no_browser_sends_is_refused() {
    for origin in [
        "https://app.example.com/",
        "https://App.example.com",
        "https://app.example.com:443",
        "https://*.example.com",
        "https://ada@app.example.com",
        "https://app.example.com?a=1",
        "app.example.com",
        "null",
    ] {
        let settings = format!("ws_origins = [\"{origin}\"]");
        let refused = refusal(Some(&settings), &[]);
        assert!(
            refused.contains("own.toml:1: ws_origins: must be origins as browsers send them"),
            "{origin}: {refused}"
        );
    }
    let sound = r#"["https://app.example.com", "http://localhost:3000", "http://[::1]:8080"]"#;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("own.toml");
    std::fs::write(&path, format!("ws_origins = {sound}")).unwrap();
    Settings::load(Some(&path), &env(&[])).unwrap();
}

#[test]
fn a_wrong_setting_is_named_with_its_place_and_what_is_allowed() {
    assert!(
        refusal(Some("\nconcurency = 3\n"), &[])
            .contains("own.toml:2: concurency: is not a known field; did you mean \"concurrency\"? allowed: database_url")
    );
    assert!(
        refusal(Some("concurrency = \"many\"\n"), &[]).contains(
            "own.toml:1: concurrency: must be a whole number from 1 to 10000, not \"many\""
        )
    );
    assert!(refusal(Some("a = [\n"), &[]).contains("own.toml:"));
    assert!(refusal(None, &[("FLYBALL_CONCURRENCY", "0")]).contains("1 to 10000"));
    assert!(refusal(None, &[("FLYBALL_CONCURRENCY", "-1")]).contains("whole number"));
    assert!(refusal(None, &[("FLYBALL_WORKER_TTL_S", "NaN")]).contains("a number"));
    assert!(
        refusal(None, &[("FLYBALL_LOG_FORMAT", "xml")])
            .contains("FLYBALL_LOG_FORMAT (setting log_format): must be text or json, not \"xml\"")
    );
    assert!(!refusal(None, &[("FLYBALL_API_TOKEN", "short-secret")]).contains("short-secret"));
    assert!(
        refusal(None, &[("FLYBALL_LOG", "verbose")]).contains(
            "FLYBALL_LOG (setting log): must be error, warn, info, debug, trace, off, or"
        )
    );
    assert!(
        refusal(None, &[("FLYBALL_LOG", "flyball[job{id=4}]=debug")])
            .contains("or a filter such as flyball=debug,sqlx=warn, not")
    );
    for log in ["off", "WARN", "warn, flyball=debug", "info,"] {
        Settings::load(None, &env(&[("FLYBALL_LOG", log)])).unwrap();
    }
}

#[test]
fn refusals_are_as_pinned() {
    let files = [
        "a = [\n",
        "concurency = 3\n",
        "concurrency = \"many\"\n",
        "concurrency = -1\n",
        "concurrency = 0\n",
        "database_connections = 1\nhttp_connections = 1\n",
        "token_lease_ms = 251\n",
        "worker_ttl_s = nan\n",
        "grace_s = -1\n",
        "retention_days = 0\n",
        "dead_retention_days = 9999\n",
        "log_format = \"xml\"\n",
        "database_pooler = \"session\"\n",
        "database_url = \"here\"\n",
        "database_direct_url = \"here\"\n",
        "database_read_url = \"here\"\n",
        "database_read_lag_max_s = 0\n",
        "redis_url = \"here\"\n",
        "prometheus_url = \"here\"\n",
        "public_url = \"here\"\n",
        "listen = \"\"\n",
        "api_token = \"short\"\n",
        "allow_urls = [1]\n",
        "allow_private_urls = 1\n",
        "[kinds]\nhttp = 5\n",
        "[kinds.http]\ntimeout = 5\n",
        "[kinds.http]\ntimeout_s = 0\nretry_factor = 0.5\n",
        "[kinds.http]\nmax_attempts = 1.5\n",
        "[api_tokens.a]\nsecret = \"x\"\n",
        "[api_tokens.a]\ntenant = \"two words\"\n",
        "[api_tokens.admin]\nsecret_env = \"A\"\n",
        "[api_tokens.a]\nscopes = [\"jobs:write\"]\n",
        "[api_tokens.a]\nthrottles = [\"a b\"]\n",
        "[prometheus.east]\nurl = \"east\"\n",
        "[prometheus.east]\nurl = \"http://ann:x@east\"\n",
        "[prometheus.east]\ntoken_env = \"A\"\n",
        "[prometheus.east]\nurl = \"http://e\"\ntoken_env = \"A\"\ntoken_file = \"b\"\n",
        "[prometheus.east]\nurl = \"http://e\"\nuser = \"ann\"\n",
        "[prometheus.east]\nurl = \"http://e\"\nca_file = \"ca.pem\"\n",
        "[postgres.shop]\n",
        "[postgres.shop]\nurl = \"postgres://ann:x@h\"\n",
        "[reindex.sources.a]\nurl_env = \"A\"\n",
        "[reindex.sources.a]\ntables = [\"a.b.c\"]\n",
        "[reindex.sources.a]\nstatements = { a = \"delete from b\" }\n",
        "[reindex.sinks.a]\ntype = \"mysql\"\n",
        "[reindex.sinks.a]\ntype = \"elastic\"\nurl = \"http://a\"\n",
        "[reindex.sinks.a]\ntype = \"postgres\"\nurl = \"http://a\"\n",
        "[pools.mail]\n",
        "[pools.mail]\nprovider = \"twillio\"\n",
        "[pools.sms]\nprovider = \"twilio\"\n",
        "[pools.sms]\nprovider = \"twilio\"\ncolour = 1\nheadroom = 2\n[[pools.sms.accounts]]\nname = \"a\"\naccount_sid = \"AC1\"\nauth_token_env = \"T\"\n",
        "[pools.sms]\nprovider = \"twilio\"\n[[pools.sms.accounts]]\n",
        "[pools.sms]\nprovider = \"twilio\"\n[[pools.sms.accounts]]\nname = \"a\"\n",
        "[pools.sms]\nprovider = \"twilio\"\nshedding = 1\nheadroom = 2\nbreaker_failures = 1.5\non_ambiguous = \"drop\"\nalert_url = \"x\"\n[[pools.sms.accounts]]\nname = \"a\"\naccount_sid = \"AC1\"\nauth_token_env = \"T\"\nrps = 0\n",
        "[pools.sms]\nprovider = \"twilio\"\n[[pools.sms.accounts]]\nname = \"a\"\naccount_sid = \"AC1\"\nauth_token = \"T\"\n",
    ];
    let variables = [
        ("FLYBALL_CONCURRENCY", "0"),
        ("FLYBALL_CONCURRENCY", "many"),
        ("FLYBALL_WORKER_TTL_S", "NaN"),
        ("FLYBALL_LOG_FORMAT", "xml"),
        ("FLYBALL_ALLOW_PRIVATE_URLS", "maybe"),
        ("FLYBALL_API_TOKEN", "short"),
        ("FLYBALL_API_TOKEN", "0123456789 abcdef"),
    ];
    let shown = |text: String| {
        let text = text.lines().map(|line| {
            let at = line.find("own.toml").unwrap_or(0);
            line[at..].to_owned()
        });
        text.collect::<Vec<_>>()
    };
    let of_files = files.map(|text| (text.to_owned(), shown(refusal(Some(text), &[]))));
    let of_variables = variables.map(|(name, text)| {
        (
            format!("{name}={text}"),
            shown(refusal(None, &[(name, text)])),
        )
    });
    crate::input::pinned::check("settings", of_files.into_iter().chain(of_variables));
}
