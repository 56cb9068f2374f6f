//! Lists the files of `migrations/` in order, with their texts, as `migrations.rs`.
//!
//! The driver has a macro for this. It would compile the driver and its cryptography a second time,
//! for the compiler itself to use.

use std::fmt::Write;
use std::path::Path;
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=migrations");

    let mut names: Vec<String> = fs::read_dir("migrations")
        .expect("the directory of the migrations can be read")
        .map(|entry| entry.expect("its entries can be read").file_name())
        .map(|name| name.into_string().expect("names are UTF-8"))
        .collect();
    names.sort();

    let mut list = String::from("&[\n");
    for name in &names {
        let (version, description) = name
            .strip_suffix(".sql")
            .and_then(|stem| stem.split_once('_'))
            .unwrap_or_else(|| panic!("{name} is not of the form 0001_words.sql"));
        let version: i64 = version
            .parse()
            .unwrap_or_else(|_| panic!("{name} does not begin with a number"));
        let description = description.replace('_', " ");
        let path = format!("/migrations/{name}");
        writeln!(
            list,
            "    ({version}, {description:?}, include_str!(concat!(env!(\"CARGO_MANIFEST_DIR\"), {path:?}))),"
        )
        .expect("a string can be written");
    }
    list.push_str("]\n");

    let out = env::var_os("OUT_DIR").expect("Cargo names the directory");
    fs::write(Path::new(&out).join("migrations.rs"), list).expect("the list can be written");
}
