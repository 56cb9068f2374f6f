//! Finding the servers that are installed on this machine.
//!
//! The places are, in this order: `PATH`; Debian's and Red Hat's directories of Postgres, newest
//! first; Homebrew's; the directory into which `scripts/setup.sh` unpacks packages for a user who
//! may not install them. A directory given with `--search-path` replaces them all.

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Error;

/// The oldest Postgres that Flyball runs on.
pub const OLDEST_POSTGRES: u32 = 15;

/// A directory to look in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchDir {
    pub dir: PathBuf,
    /// Directories of its libraries, for programs that were unpacked and not installed.
    pub library_path: Option<OsString>,
}

/// A server's program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The executable.
    pub path: PathBuf,
    /// See [`SearchDir::library_path`].
    pub library_path: Option<OsString>,
}

impl Program {
    /// Returns a command that runs the program.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        if let Some(library_path) = &self.library_path {
            command.env("LD_LIBRARY_PATH", library_path);
        }
        command
    }

    /// Returns another program of the same package, beside this one.
    pub fn sibling(&self, name: &str) -> Self {
        Self {
            path: self.path.with_file_name(name),
            library_path: self.library_path.clone(),
        }
    }
}

/// A Postgres: the program `postgres` (with `initdb` beside it) and its major version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostgresProgram {
    /// The program `postgres`.
    pub program: Program,
    /// Its major version, at least [`OLDEST_POSTGRES`].
    pub major: u32,
}

/// Returns the places to look in, in order.
pub fn places(search_path: &[PathBuf]) -> Vec<SearchDir> {
    if !search_path.is_empty() {
        return search_path.iter().map(|dir| plain(dir.clone())).collect();
    }
    let mut places: Vec<SearchDir> = Vec::new();
    places.extend(
        std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
            .filter(|dir| dir.is_absolute())
            .map(plain),
    );
    places.extend(
        ["/usr/local/bin", "/usr/bin", "/usr/local/sbin", "/usr/sbin"].map(|dir| plain(dir.into())),
    );
    places.extend(
        newest_first(Path::new("/usr/lib/postgresql"), "")
            .into_iter()
            .map(|dir| plain(dir.join("bin"))),
    );
    places.extend(
        newest_first(Path::new("/usr"), "pgsql-")
            .into_iter()
            .map(|dir| plain(dir.join("bin"))),
    );
    for brew in [
        "/opt/homebrew/opt",
        "/usr/local/opt",
        "/home/linuxbrew/.linuxbrew/opt",
    ] {
        places.extend(
            newest_first(Path::new(brew), "postgresql@")
                .into_iter()
                .map(|dir| plain(dir.join("bin"))),
        );
        places.extend(
            ["postgresql", "redis", "valkey", "prometheus", "pgbouncer"]
                .map(|name| plain(Path::new(brew).join(name).join("bin"))),
        );
    }
    if let Some(cache) = cache_dir() {
        places.extend(unpacked(&cache.join("apt/root")));
    }
    places
}

/// Returns the directory into which `scripts/setup.sh` unpacks packages that it may not install.
fn cache_dir() -> Option<PathBuf> {
    let below = |name: &str| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|dir| dir.is_absolute())
    };
    Some(
        below("XDG_CACHE_HOME")
            .or_else(|| below("HOME").map(|home| home.join(".cache")))?
            .join("flyball"),
    )
}

fn plain(dir: PathBuf) -> SearchDir {
    SearchDir {
        dir,
        library_path: None,
    }
}

/// Returns the program directories of a tree of unpacked Debian packages, with the paths of its
/// libraries.
fn unpacked(root: &Path) -> Vec<SearchDir> {
    let mut libraries: Vec<PathBuf> = Vec::new();
    for lib in ["usr/lib", "lib"] {
        let lib = root.join(lib);
        libraries.extend(
            entries(&lib)
                .into_iter()
                .filter(|name| name.ends_with("-linux-gnu"))
                .map(|name| lib.join(name)),
        );
    }
    let library_path = std::env::join_paths(&libraries).ok();
    let mut dirs = vec![root.join("usr/bin"), root.join("usr/sbin")];
    dirs.extend(
        newest_first(&root.join("usr/lib/postgresql"), "")
            .into_iter()
            .map(|dir| dir.join("bin")),
    );
    dirs.into_iter()
        .map(|dir| SearchDir {
            dir,
            library_path: library_path.clone(),
        })
        .collect()
}

/// Returns the subdirectories named `prefix` and a number, the largest number first.
fn newest_first(dir: &Path, prefix: &str) -> Vec<PathBuf> {
    let mut found: Vec<(u32, PathBuf)> = entries(dir)
        .into_iter()
        .filter_map(|name| Some((name.strip_prefix(prefix)?.parse().ok()?, dir.join(&name))))
        .collect();
    found.sort_by_key(|(number, _)| std::cmp::Reverse(*number));
    found.into_iter().map(|(_, path)| path).collect()
}

fn entries(dir: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect()
}

/// Returns the first Postgres that is new enough, of the given major version if there is one.
///
/// A data directory belongs to one major version, so an older Postgres that fits is better than a
/// newer one that does not.
pub fn postgres(places: &[SearchDir], wanted_major: Option<u32>) -> Option<PostgresProgram> {
    let mut first = None;
    for program in all(places, &["postgres"]) {
        // Debian and others link the program into PATH; its companions are beside the real file.
        let real = std::fs::canonicalize(&program.path)
            .map_or(program.clone(), |path| Program { path, ..program });
        let Some(major) = major_of(&real) else {
            continue;
        };
        if major < OLDEST_POSTGRES || !is_program(&real.sibling("initdb").path) {
            continue;
        }
        if wanted_major.is_none_or(|wanted| wanted == major) {
            return Some(PostgresProgram {
                program: real,
                major,
            });
        }
        first.get_or_insert(PostgresProgram {
            program: real,
            major,
        });
    }
    first
}

/// Returns the first Redis or Valkey.
pub fn redis(places: &[SearchDir]) -> Option<Program> {
    all(places, &["redis-server", "valkey-server"])
        .into_iter()
        .next()
}

/// Returns the first Prometheus.
pub fn prometheus(places: &[SearchDir]) -> Option<Program> {
    all(places, &["prometheus"]).into_iter().next()
}

/// Returns the first PgBouncer. No stack has one; tests put it before a Postgres.
pub fn pgbouncer(places: &[SearchDir]) -> Option<Program> {
    all(places, &["pgbouncer"]).into_iter().next()
}

fn all(places: &[SearchDir], names: &[&str]) -> Vec<Program> {
    let mut found = Vec::new();
    for name in names {
        for place in places {
            let path = place.dir.join(name);
            if is_program(&path) {
                found.push(Program {
                    path,
                    library_path: place.library_path.clone(),
                });
            }
        }
    }
    found
}

fn is_program(path: &Path) -> bool {
    std::fs::metadata(path)
        .is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

fn major_of(postgres: &Program) -> Option<u32> {
    let output = postgres.command().arg("--version").output().ok()?;
    parse_major(&String::from_utf8_lossy(&output.stdout))
}

/// Returns the major version in the output of `postgres --version`, for example `postgres
/// (PostgreSQL) 17.2 (Debian 17.2-1)`.
fn parse_major(text: &str) -> Option<u32> {
    let version = text.split_once("(PostgreSQL) ")?.1;
    let end = version
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(version.len());
    version[..end].parse().ok()
}

/// Returns an error that names the missing servers and the one line that helps.
pub fn missing(postgres: bool, redis: bool, prometheus: bool) -> Error {
    let flags = [postgres, redis, prometheus];
    let pick = |names: [&'static str; 3]| {
        names
            .into_iter()
            .zip(flags)
            .filter_map(|(name, missing)| missing.then_some(name))
            .collect::<Vec<_>>()
    };
    let what = pick([
        "PostgreSQL (15 or newer)",
        "Redis (or Valkey)",
        "Prometheus",
    ])
    .join(", ");
    let urls = pick(["DATABASE_URL", "REDIS_URL", "PROMETHEUS_URL"]).join(", ");
    let command = if cfg!(target_os = "macos") {
        format!(
            "brew install {}",
            pick(["postgresql@17", "redis", "prometheus"]).join(" ")
        )
    } else {
        format!(
            "sudo apt-get install -y {}",
            pick(["postgresql", "redis-server", "prometheus"]).join(" ")
        )
    };
    Error::NotFound {
        what,
        hint: format!("install with `{command}`, or set {urls}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_major_version_is_read_from_released_and_unreleased_postgres() {
        assert_eq!(
            parse_major("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n"),
            Some(15)
        );
        assert_eq!(parse_major("postgres (PostgreSQL) 17.2\n"), Some(17));
        assert_eq!(parse_major("postgres (PostgreSQL) 19devel\n"), Some(19));
        assert_eq!(parse_major("PostgreSQL"), None);
        assert_eq!(parse_major(""), None);
    }

    #[test]
    fn what_is_missing_is_named_in_one_line_with_the_command_that_helps() {
        let line = missing(true, false, true).to_string();

        assert!(
            line.starts_with("PostgreSQL (15 or newer), Prometheus not found; install with `"),
            "{line}"
        );
        assert!(line.contains("DATABASE_URL, PROMETHEUS_URL"), "{line}");
        assert!(!line.contains('\n') && !line.contains("redis"), "{line}");
    }
}
