//! The façade: the library's public rooms are those listed in ARCHITECTURE.md.

use std::collections::BTreeSet;

#[test]
fn the_rooms_that_a_user_sees_are_those_of_the_table_in_the_architecture() {
    let root = std::path::Path::new(crate::support::ROOT);
    let read = |name: &str| std::fs::read_to_string(root.join(name)).unwrap();
    let mut documented = BTreeSet::new();
    for library in ["core/src/lib.rs", "src/lib.rs"] {
        let (library, mut attribute) = (read(library), String::new());
        for line in library.lines() {
            match line.strip_prefix("pub mod ") {
                Some(module) => {
                    let module = module.trim_end_matches([';', ' ', '{']).to_owned();
                    let expected = ["#[warn(missing_docs)]", "#[doc(hidden)]"];
                    assert!(
                        expected.contains(&attribute.as_str()),
                        "{module} is neither part of the façade nor hidden"
                    );
                    if attribute == expected[0] {
                        documented.insert(module);
                    }
                }
                None => attribute = line.trim().to_owned(),
            }
        }
    }

    let architecture = read("ARCHITECTURE.md");
    let section = architecture
        .split("### The façade of the library")
        .nth(1)
        .unwrap()
        .split("\n## ")
        .next()
        .unwrap();
    let listed = section
        .lines()
        .filter_map(|line| Some(line.strip_prefix("| `")?.split('`').next()?.to_owned()))
        .collect();
    assert_eq!(documented, listed);

    // The library exports the documented rooms of the lower package, and hides the others.
    let exported = |attribute: &str| -> BTreeSet<String> {
        let library = read("src/lib.rs");
        let exports = library.split(attribute).skip(1);
        exports
            .filter_map(|text| text.trim_start().strip_prefix("pub use flyball_core::"))
            .flat_map(|text| {
                let names = text.split(';').next().unwrap();
                let names = names.trim_matches(['{', '}']).split(',');
                names.map(|name| name.trim().to_owned()).collect::<Vec<_>>()
            })
            .collect()
    };
    let (shown, hidden) = (exported("#[doc(inline)]"), exported("#[doc(hidden)]"));
    let mut of_core = documented.clone();
    of_core.remove("app");
    assert_eq!(shown, of_core);
    let core = read("core/src/lib.rs");
    for room in core
        .lines()
        .filter_map(|line| line.strip_prefix("pub mod "))
    {
        let room = room.trim_end_matches([';', ' ', '{']);
        assert!(
            shown.contains(room) || hidden.contains(room),
            "the library does not export {room}"
        );
    }
}
