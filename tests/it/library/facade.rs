//! The façade: the library's public rooms are those listed in ARCHITECTURE.md.

#[test]
fn the_rooms_that_a_user_sees_are_those_of_the_table_in_the_architecture() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |name: &str| std::fs::read_to_string(root.join(name)).unwrap();
    let library = read("src/lib.rs");
    let mut documented = std::collections::BTreeSet::new();
    let mut attribute = "";
    for line in library.lines() {
        match line.strip_prefix("pub mod ") {
            Some(module) => {
                let module = module.trim_end_matches(';').to_owned();
                let expected = ["#[warn(missing_docs)]", "#[doc(hidden)]"];
                assert!(
                    expected.contains(&attribute),
                    "{module} is neither part of the façade nor hidden"
                );
                if attribute == expected[0] {
                    documented.insert(module);
                }
            }
            None => attribute = line.trim(),
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
}
