//! Files of refusals, one per entry point: each wrong input with the messages that it gets.

use std::fmt::Write as _;

/// If this variable is `1`, a file is written again instead of compared.
const BLESS: &str = "FLYBALL_BLESS";

/// Compares the messages of an entry point with its file `testdata/<entry point>.txt`; an input
/// without a message is an error.
pub fn check(entry_point: &str, cases: impl IntoIterator<Item = (String, Vec<String>)>) {
    let mut made = String::new();
    for (input, messages) in cases {
        assert!(!messages.is_empty(), "{entry_point}: accepted: {input}");
        for (n, line) in input.trim_end().lines().enumerate() {
            let _ = writeln!(made, "{} {line}", if n == 0 { '>' } else { '|' });
        }
        for message in messages {
            let _ = writeln!(made, "  {}", message.replace('\n', "\n  "));
        }
    }
    let path = format!(
        "{}/src/input/testdata/{entry_point}.txt",
        env!("CARGO_MANIFEST_DIR")
    );
    if std::env::var(BLESS).is_ok_and(|value| value == "1") {
        std::fs::write(path, made).unwrap();
        return;
    }
    let pinned = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        pinned == made,
        "the refusals of {entry_point} differ from {path}; if that is meant, renew the files: {BLESS}=1 \
         cargo test --workspace --lib refusals_are_as_pinned\n{made}"
    );
}
