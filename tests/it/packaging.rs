//! Files shipped with the program: the Makefile, the set-up script, the containers, Prometheus'
//! configuration.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use flyball::stack::find;

/// The root of the repository.
fn root() -> &'static Path {
    Path::new(crate::support::ROOT)
}

fn read(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn all(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

// === Prometheus ===

/// promtool belongs to Prometheus, which the tests need anyway.
fn promtool(arguments: &[&str]) {
    let prometheus = find::prometheus(&find::places(&[])).expect("prometheus is installed");
    let output = prometheus
        .sibling("promtool")
        .command()
        .args(arguments)
        .current_dir(root())
        .output()
        .expect("promtool runs");
    assert!(
        output.status.success(),
        "promtool {arguments:?}: {}",
        all(&output)
    );
}

#[test]
fn promtool_accepts_the_configuration_of_prometheus() {
    // Syntax only: the token's file exists in the container.
    promtool(&[
        "check",
        "config",
        "--syntax-only",
        "prometheus/prometheus.yml",
    ]);
}

#[test]
fn promtool_accepts_the_rules_and_their_tests_pass() {
    promtool(&["check", "rules", "prometheus/rules/flyball.yml"]);
    promtool(&["test", "rules", "prometheus/tests/flyball.yml"]);
}

#[test]
fn every_alert_says_what_is_the_matter_and_what_to_do() {
    let rules = read("prometheus/rules/flyball.yml");

    let alerts: Vec<&str> = rules.split("- alert: ").skip(1).collect();
    assert!(alerts.len() > 20, "{} alerts", alerts.len());
    for alert in alerts {
        let name = alert.lines().next().unwrap_or_default();
        for word in ["severity:", "summary:", "action:"] {
            assert!(alert.contains(word), "{name} has no {word}");
        }
    }
}

// === Grafana ===

/// Returns the dashboard's panels that show data.
fn panels() -> Vec<serde_json::Value> {
    let dashboard: serde_json::Value =
        serde_json::from_str(&read("grafana/flyball.json")).expect("JSON");
    dashboard["panels"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|panel| panel["type"] != "row")
        .cloned()
        .collect()
}

#[test]
fn the_dashboard_asks_whatever_prometheus_a_person_chooses_and_says_what_each_panel_is() {
    let dashboard: serde_json::Value =
        serde_json::from_str(&read("grafana/flyball.json")).expect("JSON");
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    assert!(variables.iter().any(|v| v["name"] == "datasource"
        && v["type"] == "datasource"
        && v["query"] == "prometheus"));

    let mut ids = std::collections::BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        assert!(
            ids.insert(panel["id"].as_u64().unwrap()),
            "two panels are number {}",
            panel["id"]
        );
    }
    let panels = panels();
    assert!(panels.len() > 20, "{} panels", panels.len());
    for panel in panels {
        let title = panel["title"].as_str().unwrap();
        assert!(
            panel["description"]
                .as_str()
                .is_some_and(|text| text.ends_with('.')),
            "{title} does not say what it shows"
        );
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
        for target in panel["targets"].as_array().unwrap() {
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{title}");
        }
    }
}

#[test]
fn promtool_understands_every_query_of_the_dashboard() {
    use std::fmt::Write as _;
    let mut rules = "groups:\n  - name: dashboard\n    rules:\n".to_owned();
    let mut queries = 0;
    for panel in panels() {
        for target in panel["targets"].as_array().unwrap() {
            let query = target["expr"]
                .as_str()
                .unwrap()
                .replace("$__rate_interval", "1m")
                .replace("$throttle", ".*");
            assert!(!query.contains('$'), "{query}");
            queries += 1;
            writeln!(
                rules,
                "      - record: dashboard:query:{queries}\n        expr: {}",
                serde_json::json!(query)
            )
            .unwrap();
        }
    }
    assert!(queries > 20, "{queries}");
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), rules).unwrap();
    promtool(&["check", "rules", &file.path().to_string_lossy()]);
}

#[test]
fn the_dashboard_shows_what_an_operator_asks_for_first() {
    let queries: String = panels()
        .iter()
        .flat_map(|panel| panel["targets"].as_array().unwrap().clone())
        .map(|t| t["expr"].to_string())
        .collect();
    for family in [
        "flyball_throttle_rps{",
        "flyball_throttle_achieved_rps{",
        "flyball_throttle_knob_rps{",
        "flyball_throttle_limiting_share{",
        "flyball_governor_signal_ratio{",
        "flyball_governor_breaker_state{",
        "flyball_governor_limiting{",
        "flyball_governor_watchdog{",
        "flyball_throttle_ready_jobs{",
        "flyball_throttle_oldest_ready_seconds{",
        "flyball_throttle_dead_jobs{",
        "outcome=\\\"throttled\\\"",
    ] {
        assert!(queries.contains(family), "{family}");
    }
}

// === Containers ===

#[test]
fn docker_compose_accepts_the_file_where_it_is_installed() {
    let versions = [vec!["docker", "compose"], vec!["docker-compose"]];
    let runs = |words: &&Vec<&str>| {
        let output = Command::new(words[0])
            .args(&words[1..])
            .arg("version")
            .output();
        // The first docker-compose, in Python, cannot read the current files.
        output.is_ok_and(|output| {
            output.status.success() && !all(&output).contains("docker-compose version 1.")
        })
    };
    let Some(compose) = versions.iter().find(runs) else {
        return crate::support::skip("docker compose is not installed");
    };

    // Valid without a token too: the file is correct, and Flyball rejects the missing token at
    // startup.
    let mut command = Command::new(compose[0]);
    command
        .args(&compose[1..])
        .args(["config", "--quiet"])
        .current_dir(root())
        .env_remove("FLYBALL_API_TOKEN");
    let output = command.output().unwrap();

    assert!(output.status.success(), "{}", all(&output));
}

#[test]
fn containers_listen_on_loopback_only_and_report_their_health() {
    let compose = read("docker-compose.yml");
    let services = compose
        .split_once("\nservices:\n")
        .unwrap()
        .1
        .split_once("\nvolumes:\n")
        .unwrap()
        .0;
    let names: Vec<&str> = services
        .lines()
        .filter_map(|line| line.strip_prefix("  ")?.strip_suffix(':'))
        .filter(|name| !name.starts_with(' '))
        .collect();

    assert_eq!(names, ["postgres", "valkey", "prometheus", "flyball"]);
    assert_eq!(services.matches("healthcheck:").count(), names.len());
    let ports: Vec<&str> = services
        .lines()
        .filter(|line| line.trim_start().starts_with("ports:"))
        .collect();
    assert_eq!(ports.len(), names.len());
    assert!(
        ports.iter().all(|line| line.contains("[\"127.0.0.1:")),
        "{ports:?}"
    );
    assert!(!compose.contains(":latest"));
}

#[test]
fn the_application_in_docker_compose_is_no_superuser_of_its_database() {
    let (compose, script) = (read("docker-compose.yml"), read("scripts/postgres-init.sh"));

    assert!(
        compose.contains("./scripts/postgres-init.sh:/docker-entrypoint-initdb.d/"),
        "the role is made by the script"
    );
    assert!(
        !compose.contains("POSTGRES_USER"),
        "the image would make its user a superuser"
    );
    assert!(script.contains("create role flyball login nosuperuser "));
    assert!(script.contains("create database flyball owner flyball;"));
}

#[test]
fn the_image_runs_as_an_unprivileged_user() {
    let dockerfile = read("Dockerfile");

    let last_stage = dockerfile.rsplit_once("\nFROM ").unwrap().1;
    for line in [
        "USER flyball",
        "EXPOSE 8080",
        "HEALTHCHECK ",
        "ENTRYPOINT [\"flyball\"]",
    ] {
        assert!(
            last_stage.lines().any(|found| found.starts_with(line)),
            "{line}"
        );
    }
}

#[test]
fn the_health_check_of_the_image_asks_where_the_process_answers() {
    let dockerfile = read("Dockerfile");
    let check = dockerfile.split_once("HEALTHCHECK ").unwrap().1;
    let words = check.split_once("CMD ").unwrap().1.lines().next().unwrap();
    let words: Vec<String> = serde_json::from_str(words).unwrap();
    let shown = words[2].replace("exec curl", "echo");
    for (metrics_listen, port) in [("", 8080), ("0.0.0.0:9464", 9464)] {
        let output = Command::new("/bin/sh")
            .args(["-c", &shown])
            .env_clear()
            .env("FLYBALL_LISTEN", "0.0.0.0:8080")
            .env("FLYBALL_METRICS_LISTEN", metrics_listen)
            .output()
            .unwrap();
        let asked = all(&output);
        let wanted = format!("http://127.0.0.1:{port}/healthz");
        assert!(asked.trim().ends_with(&wanted), "{asked}");
    }
}

#[test]
fn what_the_image_copies_is_there_and_not_ignored() {
    let ignored = read(".dockerignore");

    let file = read("Dockerfile");
    let copies = file
        .lines()
        .filter(|line| line.starts_with("COPY ") && !line.contains("--from"));
    assert!(copies.clone().next().is_some(), "{file}");
    for line in copies {
        let source = line.split_whitespace().nth(1).unwrap();
        assert!(root().join(source).exists(), "{line}");
        assert!(!ignored.lines().any(|name| name == source), "{line}");
    }
    // Cargo requires every target and every package that the manifest lists.
    let manifest: toml::Table = read("Cargo.toml").parse().unwrap();
    let target = |kind: &str| manifest[kind]["path"].as_str().unwrap();
    let bins = manifest["bin"].as_array().unwrap();
    let members = manifest["workspace"]["members"].as_array().unwrap();
    let mut paths = vec![target("lib")];
    paths.extend(bins.iter().map(|bin| bin["path"].as_str().unwrap()));
    paths.extend(members.iter().map(|member| member.as_str().unwrap()));
    assert!(paths.len() >= 6, "{paths:?}");
    for path in paths {
        let top = path.split('/').next().unwrap();
        assert!(!ignored.lines().any(|name| name == top), "{path}");
    }
}

// === Commands ===

#[test]
fn make_alone_lists_every_target_with_a_line_about_it() {
    let makefile = read("Makefile");
    let targets = makefile
        .lines()
        .find_map(|line| line.strip_prefix(".PHONY: "))
        .unwrap();

    let output = Command::new("make")
        .current_dir(root())
        .env_remove("MAKEFLAGS")
        .output()
        .expect("make runs");

    let printed = all(&output);
    assert!(output.status.success(), "{printed}");
    for target in targets.split_whitespace() {
        let line = printed
            .lines()
            .find(|line| line.split_whitespace().nth(1) == Some(target));
        assert!(
            line.is_some_and(|line| line.split_whitespace().count() > 3),
            "{target} is not in: {printed}"
        );
    }
}

/// The set-up script in an environment with only a few programs.
fn setup(programs: &[&str], arguments: &[&str]) -> Output {
    let world = tempfile::tempdir().unwrap();
    for program in programs {
        std::os::unix::fs::symlink(which(program), world.path().join(program)).unwrap();
    }
    let mut command = Command::new("/bin/sh");
    command
        .arg(root().join("scripts/setup.sh"))
        .args(arguments)
        .env_clear();
    command
        .env("PATH", world.path())
        .env("HOME", world.path())
        .output()
        .unwrap()
}

fn which(program: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .map(|dir| dir.join(program))
        .find(|path| path.exists())
        .unwrap_or_else(|| panic!("no {program}"))
}

#[test]
fn without_rust_the_set_up_ends_with_69_and_the_line_that_gets_it() {
    let output = setup(&[], &["--check"]);

    assert_eq!(output.status.code(), Some(69));
    let printed = all(&output);
    assert!(
        printed.lines().count() == 1 && printed.contains("https://sh.rustup.rs | sh"),
        "{printed}"
    );
}

#[test]
fn what_cannot_be_installed_ends_the_set_up_with_69_and_one_line_that_would_help() {
    let output = setup(&["uname", "sed"], &["--browser", "--check"]);

    // A browser may be installed outside PATH; Node.js may not.
    assert_eq!(output.status.code(), Some(69));
    let printed = all(&output);
    assert!(
        printed.lines().count() == 1
            && printed.contains("node")
            && printed.contains("what would help: "),
        "{printed}"
    );
}

#[test]
fn the_set_up_refuses_options_that_it_does_not_know() {
    let output = setup(&[], &["--everything"]);

    assert_eq!(output.status.code(), Some(64));
    assert!(all(&output).contains("use --demo, --browser or --check"));
}

#[test]
fn the_set_up_finds_the_same_servers_as_the_program() {
    let output = Command::new(root().join("scripts/setup.sh"))
        .arg("--check")
        .output()
        .unwrap();

    // These tests run on all four. The corpus may be missing if `cargo test` runs by itself.
    let missing = all(&output);
    let missing = missing
        .split_once("what would help")
        .map_or("", |(missing, _)| missing);
    assert!(
        !["postgres", "redis", "prometheus", "pgbouncer"]
            .iter()
            .any(|server| missing.contains(server)),
        "{missing}"
    );
}

// === The test run ===

#[test]
fn the_test_run_gives_precedence_only_to_tests_that_exist() {
    let output = Command::new(std::env::current_exe().unwrap())
        .arg("--list")
        .output()
        .expect("the tests are listed");
    let tests = String::from_utf8(output.stdout).unwrap();
    let script = read("scripts/test.sh");

    for list in ["timed", "waiting"] {
        let (_, rest) = script.split_once(&format!("\n{list}=(\n")).expect(list);
        let (fragments, _) = rest.split_once("\n)").unwrap();
        for fragment in fragments.lines().map(str::trim) {
            assert!(
                tests.contains(fragment),
                "{fragment} of the list {list} is in no test's name"
            );
        }
    }
}
