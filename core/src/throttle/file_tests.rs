use super::*;

fn parse(text: &str) -> Result<KnobsFile, String> {
    KnobsFile::parse(Path::new("knobs/reindex.toml"), text.to_owned())
        .map_err(|error| error.to_string())
}

#[test]
fn knobs_become_texts_and_other_tables_are_left_to_their_owners() {
    let text = "[knobs]\nrps = 20.0\nmode = \"auto\"\npaused = false\nmin = 1_000\nmax = 2000\n[[signal]]\nname = \"x\"\n[governor]\ntick_s = 5\n";

    let file = parse(text).unwrap();

    assert_eq!(file.name.as_str(), "reindex");
    let expected = [
        ("rps", "20"),
        ("mode", "auto"),
        ("paused", "0"),
        ("min", "1000"),
        ("max", "2000"),
    ];
    assert_eq!(
        file.fields,
        expected.map(|(k, v)| (k.to_owned(), v.to_owned())).into()
    );
    assert_eq!(file.text, text);
}

#[test]
fn what_is_wrong_is_reported_with_file_line_key_and_what_is_allowed() {
    let cases = [
        (
            "[knobs]\nrps = \"ten\"\n",
            "knobs/reindex.toml:2: knobs.rps: must be a number",
        ),
        (
            "[knobs]\nrps = 1\n\nburst = -3\n",
            "knobs/reindex.toml:4: knobs.burst: must be a number from 0 to 10000, not -3",
        ),
        (
            "[knobs]\nrps = nan\n",
            "knobs/reindex.toml:2: knobs.rps: must be a number",
        ),
        (
            "[knobs]\nrsp = 1\n",
            "knobs/reindex.toml:2: knobs.rsp: is not a known knob; did you mean \"rps\"? allowed: rps, burst",
        ),
        (
            "[knobs]\nburst = 1\n",
            "knobs/reindex.toml:1: knobs.rps: is missing",
        ),
        (
            "[knobs]\nrps = 1\nmin = 5\nmax = 2\n",
            "knobs/reindex.toml:3: knobs.min: must be at most max 2, not 5",
        ),
        (
            "[knobs]\nrps = 1\nseq = 2\n",
            "knobs/reindex.toml:3: knobs.seq: must be left out: Flyball itself writes it",
        ),
        (
            "[knobs]\nrps = 1\nparent = \"two words\"\n",
            "knobs/reindex.toml:3: knobs.parent: must be the name of another throttle",
        ),
        (
            "[knbos]\nrps = 1\n",
            "knobs/reindex.toml:1: knbos: is not a known field; did you mean \"knobs\"? allowed: knobs, signal, governor",
        ),
        ("[knobs]\nrps = \n", "knobs/reindex.toml:2: "),
        (
            "knobs = 3\n",
            "knobs/reindex.toml:1: knobs: must be a table",
        ),
        ("", "knobs/reindex.toml: knobs: is missing"),
    ];
    for (text, expected) in cases {
        let message = parse(text).unwrap_err();
        assert!(
            message.lines().any(|line| line.starts_with(expected)),
            "{text:?} gave\n{message}\nnot\n{expected}"
        );
    }
}

#[test]
fn a_file_of_a_pattern_has_no_signal_and_no_pause() {
    let pattern = |text: &str| {
        KnobsFile::parse(Path::new("knobs/gcal:*.toml"), text.to_owned())
            .map_err(|error| error.to_string())
    };
    let signal = pattern("[knobs]\nrps = 1\n[[signal]]\nname = \"load\"\n").unwrap_err();
    assert!(
        signal.contains("signal: must be left out of the file of a pattern"),
        "{signal}"
    );
    let paused = pattern("[knobs]\nrps = 1\npaused = true\n").unwrap_err();
    assert!(
        paused.starts_with("knobs/gcal:*.toml:3: knobs.paused: must be 0 for a pattern"),
        "{paused}"
    );
    let plain = pattern("[knobs]\nrps = 1\npaused = false\n").unwrap();
    assert_eq!(plain.fields["paused"], "0");
}

#[test]
fn a_directory_that_does_not_exist_has_no_files() {
    assert_eq!(
        KnobsFile::read_dir(Path::new("/does/not/exist")).unwrap(),
        []
    );
}

#[test]
fn files_of_editors_and_of_file_systems_are_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("mail.toml"), "[knobs]\nrps = 1\n").unwrap();
    std::fs::write(at("._mail.toml"), b"\x00\x05\x16\x07").unwrap();
    // Emacs links the file that it edits to the name of its process.
    std::os::unix::fs::symlink("ann@host.1", at(".#mail.toml")).unwrap();

    let files = KnobsFile::read_dir(folder.path()).unwrap();

    assert_eq!(files.len(), 1);
    assert_eq!(files[0].name.as_str(), "mail");
}

#[test]
fn refusals_are_as_pinned() {
    let cases = [
        "",
        "[knobs]\nrps = \n",
        "knobs = 3\n",
        "[knbos]\nrps = 1\n",
        "[knobs]\nburst = 1\n",
        "[knobs]\nrps = \"ten\"\n",
        "[knobs]\nrps = nan\nburst = inf\n",
        "[knobs]\nrsp = 1\nrps = 1\n",
        "[knobs]\nrps = 1\n\nburst = -3\nmode = \"atuo\"\n",
        "[knobs]\nrps = 1\nmin = 5\nmax = 2\n",
        "[knobs]\nrps = 1\nseq = 2\nparent = \"two words\"\n",
        "[knobs]\nrps = 1\nparent = \"reindex\"\n",
        "[knobs]\nrps = 1979-05-27\nburst = [1]\nwindow = {}\npaused = 3\n",
        "[knobs]\nrps = 0x10\nburst = 99_999\n",
    ];
    crate::input::pinned::check(
        "knobs_file",
        cases.map(|text| {
            let message = parse(text).unwrap_err();
            (
                text.to_owned(),
                message.lines().map(str::to_owned).collect(),
            )
        }),
    );
}
