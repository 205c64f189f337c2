//! Files made to crash or block the program are rejected with errors. Random changes: `tests/fuzzing`.
use tidemill_spec::diagnostic::Diagnostics;
use tidemill_spec::workflow::Workflow;
use tidemill_spec::yaml::LARGEST_FILE;

fn refusal(text: &str) -> Diagnostics {
    Workflow::parse(text, "hostile.yaml").expect_err("hostile files are refused")
}

fn codes(found: &Diagnostics) -> Vec<&'static str> {
    found.iter().map(|d| d.code).collect()
}

#[test]
fn alias_bombs_are_refused() {
    let mut text = "version: 1\na0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_string();
    for level in 1..20 {
        let aliases = vec![format!("*a{}", level - 1); 10].join(", ");
        text.push_str(&format!("a{level}: &a{level} [{aliases}]\n"));
    }
    let found = refusal(&text);
    assert_eq!(codes(&found), ["E0109"], "{found}");
    let many = format!("version: 1\na: &a x\nb: [{}]\n", vec!["*a"; 5_000].join(", "));
    assert_eq!(codes(&refusal(&many)), ["E0109"]);
}

#[test]
fn deep_nesting_is_refused() {
    for text in [
        format!("version: 1\na: {}{}", "[".repeat(100_000), "]".repeat(100_000)),
        format!("version: 1\na: {}", "{a: ".repeat(100_000)),
        (0..2_000).map(|depth| format!("{}a:\n", " ".repeat(depth))).collect(),
        "- ".repeat(100_000),
    ] {
        let found = refusal(&text);
        assert!(codes(&found).iter().all(|code| ["E0109", "E0101"].contains(code)), "{found}");
    }
}

#[test]
fn large_files_are_refused_unread() {
    let file = tempfile::NamedTempFile::new().expect("there is a folder for temporary files");
    file.as_file().set_len(100 << 20).expect("a sparse file");
    let found = Workflow::load(file.path()).expect_err("100 MiB");
    assert_eq!(codes(&found), ["E0108"]);
    assert!(found.render(false).contains("4 MiB"), "{found}");
    let text = " ".repeat(usize::try_from(LARGEST_FILE).expect("4 MiB") + 1);
    assert_eq!(codes(&refusal(&text)), ["E0108"]);
    // A device without a size and without an end.
    let found = Workflow::load("/dev/zero").expect_err("endless");
    assert_eq!(codes(&found), ["E0108"]);
}

#[test]
fn unreadable_files_are_refused() {
    let folder = tempfile::tempdir().expect("there is a folder for temporary files");
    let path = folder.path().join("missing.yaml");
    assert_eq!(codes(&Workflow::load(&path).expect_err("not there")), ["E0102"]);
    std::fs::write(&path, b"version: 1\nname: \xff\xfe\n").expect("can be written");
    assert_eq!(codes(&Workflow::load(&path).expect_err("not UTF-8")), ["E0102"]);
}

/// Large but well-formed files full of mistakes: the checks must not be quadratic.
#[test]
fn large_wrong_files_are_refused() {
    let items = |line: &dyn Fn(usize) -> String| (0..20_000).map(line).collect::<String>();
    let chain = items(&|i| format!("- {{id: o{i}, kind: map, input: o{}}}\n", (i + 1) % 20_000));
    let found = refusal(&format!(
        "version: 1\nname: a\nsources: [{{id: s, kind: csv}}]\nsinks: [{{id: t, kind: csv, input: s}}]\noperators:\n{chain}"
    ));
    assert_eq!(codes(&found), ["E0206"]);
    let same = items(&|i| format!("- {{id: same, kind: map, input: unknown{i}}}\n"));
    let found = refusal(&format!(
        "version: 1\nname: a\nsources: [{{id: s, kind: csv}}]\nsinks: [{{id: t, kind: csv, input: s}}]\noperators:\n{same}"
    ));
    assert!(found.len() <= 300, "{} findings", found.len());
    let wrong = items(&|_| "- {id: 1, kind: 2, inptu: 3}\n".to_string());
    let found = refusal(&format!("version: 1\nname: a\nsources: []\nsinks: []\noperators:\n{wrong}"));
    assert!(found.len() > 10 && found.len() <= 100, "{} findings", found.len());
}
