//! The paths of a stack and the configuration of each server. Pure: paths in, texts out.
//!
//! ```text
//! DIR/lock                    held (flock) while a supervisor runs; contains its process id
//! DIR/log/NAME.log            output of each server
//! DIR/run/NAME.pid            for finding servers whose supervisor was killed
//! DATA/postgres/data          Postgres' data directory
//! DATA/redis/                 redis.conf and the append-only file
//! DATA/prometheus/            prometheus.yml, data/, rules/*.yml and targets/*.json
//! /tmp/flyball-HASH/          the sockets; a path may not exceed 107 bytes, however deep DIR is
//! ```
//!
//! DATA is DIR, except for root when the servers' unprivileged user cannot reach DIR (see
//! [`Layout::moved`]).

use std::path::{Path, PathBuf};

/// The role that owns the private Postgres' database and may create others; it is not a superuser.
pub const DATABASE_USER: &str = "flyball";
/// The superuser of the private Postgres, for tasks that [`DATABASE_USER`] must not do.
pub const SUPERUSER: &str = "postgres";

/// The names of all entries that a stack creates in DIR.
pub const NAMES: [&str; 7] = [
    "lock",
    "log",
    "run",
    "postgres",
    "redis",
    "redis.conf",
    "prometheus",
];

/// The URLs of the three servers: the one line that a supervisor prints when all are ready.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Urls {
    /// URL of Postgres, for sqlx and psql alike.
    pub database_url: String,
    /// URL of Redis.
    pub redis_url: String,
    /// Base URL of Prometheus, without a slash at the end.
    pub prometheus_url: String,
    /// Directory for `*.json` files of Prometheus' file_sd form; a file written here adds scrape
    /// targets within a second or two. `None` if Prometheus is not part of the stack.
    pub targets_dir: Option<PathBuf>,
}

/// The paths of one private stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The requested directory, canonical.
    pub dir: PathBuf,
    /// Directory of the servers' data.
    pub data: PathBuf,
    /// Directory of the sockets.
    pub sockets: PathBuf,
}

impl Layout {
    /// Returns the layout of a directory, given by its canonical path.
    pub fn new(dir: &Path) -> Self {
        let sockets = PathBuf::from(format!("/tmp/flyball-{:016x}", hash(dir)));
        Self {
            dir: dir.to_path_buf(),
            data: dir.to_path_buf(),
            sockets,
        }
    }

    /// Returns the same layout with the data below `/var/lib/flyball`, for root, whose servers run
    /// as a user that cannot enter DIR.
    pub fn moved(self) -> Self {
        let data = PathBuf::from(format!("/var/lib/flyball/{:016x}", hash(&self.dir)));
        Self { data, ..self }
    }

    /// Returns the file that a running supervisor keeps locked.
    pub fn lock(&self) -> PathBuf {
        self.dir.join("lock")
    }

    /// Returns the log file of a server.
    pub fn log(&self, server: &str) -> PathBuf {
        self.dir.join("log").join(format!("{server}.log"))
    }

    /// Returns the file with the process id of a server.
    pub fn pid(&self, server: &str) -> PathBuf {
        self.dir.join("run").join(format!("{server}.pid"))
    }

    /// Returns the home of a server's data.
    pub fn home(&self, server: &str) -> PathBuf {
        self.data.join(server)
    }

    /// Returns Postgres' data directory.
    pub fn postgres_data(&self) -> PathBuf {
        self.home("postgres").join("data")
    }

    /// Returns Redis' socket.
    pub fn redis_socket(&self) -> PathBuf {
        self.sockets.join("redis.sock")
    }

    /// Returns Prometheus' configuration file.
    pub fn prometheus_config(&self) -> PathBuf {
        self.home("prometheus").join("prometheus.yml")
    }

    /// Returns the directory in which Prometheus looks for files that name scrape targets.
    pub fn targets_dir(&self) -> PathBuf {
        self.home("prometheus").join("targets")
    }

    /// Returns the directory in which Prometheus looks for rule files when it starts.
    pub fn rules_dir(&self) -> PathBuf {
        self.home("prometheus").join("rules")
    }

    /// Returns the URL of a database of the private Postgres.
    ///
    /// The port is named, because clients would otherwise take it from PGPORT.
    pub fn database_url(&self, database: &str) -> String {
        format!(
            "postgres://{DATABASE_USER}@localhost:5432/{database}?host={}",
            self.sockets.display()
        )
    }

    /// Returns the URL of the private Redis.
    pub fn redis_url(&self) -> String {
        format!("redis+unix://{}", self.redis_socket().display())
    }
}

/// Returns the superuser's form of a private Postgres' URL; another URL is returned unchanged.
pub fn as_superuser(url: &str) -> String {
    url.replacen(
        &format!("postgres://{DATABASE_USER}@localhost:5432/"),
        &format!("postgres://{SUPERUSER}@localhost:5432/"),
        1,
    )
}

/// Returns the FNV-1a hash of the path's bytes: short, and the same in every build and on every
/// machine.
fn hash(path: &Path) -> u64 {
    use std::os::unix::ffi::OsStrExt;
    path.as_os_str()
        .as_bytes()
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |h, byte| {
            (h ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        })
}

/// Returns the settings of the private Postgres, as `-c name=value`.
///
/// `fsync` off loses data when the machine (not the process) crashes. `tiny_shm` is set if /dev/shm
/// is too small for parallel queries, as in a container.
pub fn postgres_settings(layout: &Layout, fsync: bool, tiny_shm: bool) -> Vec<String> {
    let mut settings = vec![
        // Without a port, two stacks never clash, and no other user of the machine gets in.
        "listen_addresses=".to_owned(),
        "port=5432".to_owned(),
        format!("unix_socket_directories={}", layout.sockets.display()),
        "unix_socket_permissions=0700".to_owned(),
        "shared_buffers=128MB".to_owned(),
        "max_connections=200".to_owned(),
        "jit=off".to_owned(),
        "timezone=UTC".to_owned(),
        "log_timezone=UTC".to_owned(),
        "logging_collector=off".to_owned(),
        "log_line_prefix=%m [%p] ".to_owned(),
    ];
    if tiny_shm {
        settings.push("dynamic_shared_memory_type=mmap".to_owned());
    }
    if !fsync {
        // A commit still waits until the system has its record, so that only a crash of the whole
        // machine loses any.
        settings.extend(["fsync=off", "full_page_writes=off"].map(str::to_owned));
    }
    settings
}

/// Returns the configuration of the private Redis.
///
/// Knobs are stored here and people edit them, so they are kept between runs: append-only, and
/// never evicted.
pub fn redis_config(layout: &Layout, fsync: bool) -> String {
    format!(
        "# Written by `flyball services` at every start.\n\
         port 0\n\
         unixsocket {socket}\n\
         unixsocketperm 700\n\
         daemonize no\n\
         # The process title stays the command line: that is how a later start finds a server that was left behind.\n\
         set-proc-title no\n\
         dir {dir}\n\
         save \"\"\n\
         appendonly yes\n\
         appendfsync {appendfsync}\n\
         maxmemory-policy noeviction\n",
        socket = quoted(&layout.redis_socket()),
        dir = quoted(&layout.home("redis")),
        appendfsync = if fsync { "everysec" } else { "no" },
    )
}

/// Returns the configuration of the private Prometheus.
pub fn prometheus_config(layout: &Layout, scrape_interval_ms: u64) -> String {
    let timeout_ms = scrape_interval_ms.min(10_000);
    format!(
        "# Written by `flyball services` at every start.\n\
         global:\n\
         \x20 scrape_interval: {scrape_interval_ms}ms\n\
         \x20 scrape_timeout: {timeout_ms}ms\n\
         \x20 evaluation_interval: {scrape_interval_ms}ms\n\
         rule_files:\n\
         \x20 - {rules}\n\
         scrape_configs:\n\
         \x20 # Add targets while it runs: targets/NAME.json = [{{\"targets\": [\"127.0.0.1:8080\"], \"labels\": {{\"job\": \"flyball\"}}}}]\n\
         \x20 - job_name: targets\n\
         \x20   file_sd_configs:\n\
         \x20     - files:\n\
         \x20         - {targets}\n\
         \x20       refresh_interval: 2s\n",
        rules = quoted(&layout.rules_dir().join("*.yml")),
        targets = quoted(&layout.targets_dir().join("*.json")),
    )
}

/// Returns a path in double quotes; both Redis and YAML read backslash escapes in them.
fn quoted(path: &Path) -> String {
    format!(
        "\"{}\"",
        path.display()
            .to_string()
            .replace('\\', "\\\\")
            .replace('"', "\\\"")
    )
}

/// Reads `2s`, `500ms` or `1m` as milliseconds, from 100 ms to an hour.
pub fn parse_interval_ms(text: &str) -> Result<u64, String> {
    let wrong = || {
        format!(
            "{text:?} is not an interval: use a whole number and a unit, from 100ms to 60m, for example 500ms, 5s or 1m"
        )
    };
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let unit_ms = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        _ => return Err(wrong()),
    };
    let ms = number
        .parse::<u64>()
        .ok()
        .and_then(|n| n.checked_mul(unit_ms))
        .ok_or_else(wrong)?;
    if (100..=3_600_000).contains(&ms) {
        Ok(ms)
    } else {
        Err(wrong())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_paths_stay_short_however_deep_the_directory_is() {
        let deep = PathBuf::from(format!("/{}", "a long directory name/".repeat(100)));

        let layout = Layout::new(&deep);

        for socket in [
            layout.redis_socket(),
            layout.sockets.join(".s.PGSQL.5432.lock"),
        ] {
            assert!(socket.as_os_str().len() < 60, "{}", socket.display());
        }
        assert_ne!(layout.sockets, Layout::new(Path::new("/another")).sockets);
        assert_eq!(layout.clone().moved().sockets, layout.sockets);
    }

    #[test]
    fn the_hash_of_a_path_never_changes_between_builds() {
        assert_eq!(
            Layout::new(Path::new("/srv/flyball")).sockets,
            Path::new("/tmp/flyball-63de58e8247aec9c")
        );
    }

    #[test]
    fn paths_with_quotes_and_spaces_stay_one_word_in_the_configurations() {
        let layout = Layout::new(Path::new("/srv/two words/a\"b"));

        assert!(redis_config(&layout, true).contains(r#"dir "/srv/two words/a\"b/redis""#));
        assert!(
            prometheus_config(&layout, 5_000)
                .contains(r#"- "/srv/two words/a\"b/prometheus/targets/*.json""#)
        );
    }

    #[test]
    fn the_scrape_never_times_out_later_than_the_next_one_starts() {
        let layout = Layout::new(Path::new("/srv"));

        assert!(prometheus_config(&layout, 2_000).contains("scrape_timeout: 2000ms"));
        assert!(prometheus_config(&layout, 60_000).contains("scrape_timeout: 10000ms"));
    }

    #[test]
    fn intervals_are_whole_numbers_with_a_unit() {
        assert_eq!(parse_interval_ms("500ms"), Ok(500));
        assert_eq!(parse_interval_ms("2s"), Ok(2_000));
        assert_eq!(parse_interval_ms("1m"), Ok(60_000));
        for text in [
            "",
            "s",
            "5",
            "0s",
            "99ms",
            "61m",
            "1.5s",
            "-1s",
            "5 s",
            "5h",
            "99999999999999999999s",
        ] {
            assert!(
                parse_interval_ms(text)
                    .unwrap_err()
                    .contains("use a whole number and a unit"),
                "{text}"
            );
        }
    }
}
