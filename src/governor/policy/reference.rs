//! The page `docs/reference/policy.md`, made from the table of keys.

use super::keys::{KEYS, PolicyTable};

/// Returns the text of `docs/reference/policy.md`.
fn reference() -> String {
    let mut text = String::from(
        "# Policy keys\n\n\
         A policy is the `[[signal]]` and `[governor]` part of a knobs file, `knobs/<throttle>.toml`. A\n\
         throttle whose file has no `[[signal]]` has no governor. A key that is unknown, of the wrong type or\n\
         out of its range is refused at start, with file, line and reason. This page is generated from the\n\
         table that the parser uses (`src/governor/policy/keys.rs`).\n",
    );
    for (part, title, about) in [
        (
            PolicyTable::Signal,
            "[[signal]]",
            "A measurement and the value to hold. Up to 16 signals; the one that requires the lowest rate\n\
             decides.",
        ),
        (
            PolicyTable::Governor,
            "[governor]",
            "Overrides of the controller's defaults. None is required. The defaults were tested on [simulated\n\
             plants](../governor.md#in-numbers); on some [random ones](../governor.md#on-random-plants) they use\n\
             less of the room than a tuned controller would.",
        ),
    ] {
        text += &format!(
            "\n## `{title}`\n\n{about}\n\n| key | default | unit | allowed | what it does |\n|---|---|---|---|---|\n"
        );
        for key in KEYS.iter().filter(|k| k.part == part) {
            let (default, allowed) = (key.default.words(), key.allowed.description());
            text += &format!(
                "| `{}` | {default} | {} | {allowed} | {} |\n",
                key.name, key.unit, key.what
            );
        }
    }
    text
}

#[test]
fn the_reference_page_is_what_the_table_says() {
    let page = include_str!("../../../docs/reference/policy.md");
    assert!(
        page == reference(),
        "docs/reference/policy.md differs; it should read:\n{}",
        reference()
    );
}
