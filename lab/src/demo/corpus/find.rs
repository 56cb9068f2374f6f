//! The search for WordNet's data files.

use std::path::{Path, PathBuf};

use crate::demo::run::Unavailable;

/// The files that hold the entries, with the letter of their part of speech.
pub const FILES: [(char, &str); 4] = [
    ('n', "data.noun"),
    ('v', "data.verb"),
    ('a', "data.adj"),
    ('r', "data.adv"),
];

/// Returns the directory that holds WordNet's files.
///
/// The error is one line with the command that installs them.
pub fn find(given: Option<&Path>) -> Result<PathBuf, Unavailable> {
    let complete = |dir: &PathBuf| FILES.iter().all(|(_, file)| dir.join(file).is_file());
    if let Some(dir) = given {
        let dir = dir.to_path_buf();
        return if complete(&dir) {
            Ok(dir)
        } else {
            Err(Unavailable(format!(
                "{} does not contain WordNet's data.noun, data.verb, data.adj and data.adv",
                dir.display()
            )))
        };
    }
    places().into_iter().find(complete).ok_or_else(|| {
        let command = if cfg!(target_os = "macos") { "brew install wordnet" } else { "sudo apt-get install -y wordnet-base" };
        Unavailable(format!(
            "the demo's documents (WordNet) were not found; install them with `{command}`, or set FLYBALL_WORDNET_DIR"
        ))
    })
}

fn places() -> Vec<PathBuf> {
    let mut places: Vec<PathBuf> = Vec::new();
    places.extend(std::env::var_os("WNSEARCHDIR").map(PathBuf::from));
    places.extend(
        [
            "/usr/share/wordnet",
            "/usr/share/wordnet-3.0/dict",
            "/usr/local/WordNet-3.0/dict",
        ]
        .map(PathBuf::from),
    );
    places.extend(
        [
            "/opt/homebrew/opt",
            "/usr/local/opt",
            "/home/linuxbrew/.linuxbrew/opt",
        ]
        .map(|opt| Path::new(opt).join("wordnet/dict")),
    );
    // Packages unpacked by a user without the right to install them.
    let below = |name: &str| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|dir| dir.is_absolute())
    };
    let cache = below("XDG_CACHE_HOME").or_else(|| below("HOME").map(|home| home.join(".cache")));
    places.extend(cache.map(|dir| dir.join("flyball/apt/root/usr/share/wordnet")));
    places
}
