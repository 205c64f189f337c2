//! Broken files never make the program panic or hang: they are refused with errors.
//!
//! `TIDEMILL_MUTATIONS=1000000` tries that many instead of a few thousand.
use tidemill_spec::diagnostic::Diagnostics;
use tidemill_spec::infrastructure::Infrastructure;
use tidemill_spec::manifest::Manifest;
use tidemill_spec::plan::PlanFile;
use tidemill_spec::profile::ProfileFile;
use tidemill_spec::workflow::Workflow;
use tidemill_spec::yaml::LARGEST_FILE;

const FILES: [&str; 6] = [
    include_str!("golden/workflow.yaml"),
    include_str!("golden/infrastructure.yaml"),
    include_str!("golden/plan-two-workers.yaml"),
    include_str!("golden/plan-three-tiers.yaml"),
    include_str!("golden/model.yaml"),
    include_str!("golden/profile.yaml"),
];

/// Numbers that are the same in every run, so that a failure can be repeated from its case number.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        usize::try_from((z ^ (z >> 31)) % limit.max(1) as u64).expect("below a usize")
    }
}

/// One to four changes of a file.
fn mutated(case: u64) -> (usize, String) {
    let mut numbers = Numbers(case);
    let file = numbers.below(FILES.len());
    let mut bytes = FILES[file].as_bytes().to_vec();
    for _ in 0..=numbers.below(4) {
        let place = numbers.below(bytes.len());
        match numbers.below(8) {
            0 => bytes.truncate(place),
            1 if !bytes.is_empty() => bytes[place] ^= 1 << numbers.below(8),
            2 if !bytes.is_empty() => {
                const SIGNS: &[u8] = b"{}[]:,-#&*!|>'\"%@`$?~ \n\t0";
                bytes[place] = SIGNS[numbers.below(SIGNS.len())];
            }
            3 => {
                let lines: Vec<&[u8]> = bytes.split_inclusive(|b| *b == b'\n').collect();
                if !lines.is_empty() {
                    let (from, to) = (numbers.below(lines.len()), numbers.below(lines.len()));
                    let line = lines[from].to_vec();
                    let at: usize = lines[..to].iter().map(|line| line.len()).sum();
                    bytes.splice(at..at, line);
                }
            }
            4 => {
                let end = (place + numbers.below(40)).min(bytes.len());
                bytes.drain(place..end);
            }
            5 => {
                let deep = b"[{\"- a: "[numbers.below(4)..][..1].repeat(numbers.below(300));
                bytes.splice(place..place, deep);
            }
            6 => {
                let odd = [
                    "&a ", "*a", "*route", "<<: ", "!!int ", "${X}", "é", "\u{FEFF}", "-1", "1e999", ".nan",
                    "\0",
                ];
                bytes.splice(place..place, odd[numbers.below(odd.len())].bytes());
            }
            _ => {
                let other = FILES[numbers.below(FILES.len())].as_bytes();
                let from = numbers.below(other.len());
                let to = (from + numbers.below(200)).min(other.len());
                bytes.splice(place..place, other[from..to].to_vec());
            }
        }
    }
    (file, String::from_utf8_lossy(&bytes).into_owned())
}

/// Uses everything that a caller would: the errors as text and as JSON, or the value printed.
fn read(file: usize, text: &str) -> Result<String, Diagnostics> {
    match file {
        0 => Workflow::parse(text, "mutated").and_then(|workflow| workflow.to_yaml()),
        1 => Infrastructure::parse(text, "mutated").and_then(|infrastructure| infrastructure.to_yaml()),
        2 | 3 => PlanFile::parse(text, "mutated").and_then(|file| {
            let workflow = Workflow::parse(FILES[0], "workflow.yaml")?;
            file.validate_against(&workflow).into_result(())?;
            file.plan.to_yaml()
        }),
        5 => ProfileFile::parse(text, "mutated").and_then(|file| {
            let workflow = Workflow::parse(FILES[0], "workflow.yaml")?;
            file.validate_against(&workflow).into_result(())?;
            let printed = file.profile.to_yaml()?;
            assert_eq!(ProfileFile::parse(&printed, "printed").map(|again| again.profile), Ok(file.profile));
            Ok(printed)
        }),
        _ => Manifest::parse(text, "mutated").and_then(|manifest| manifest.to_yaml()),
    }
}

#[test]
fn mutated_files_are_read_or_refused() {
    let wanted = std::env::var("TIDEMILL_MUTATIONS").ok().and_then(|count| count.parse().ok());
    let cases: u64 = wanted.unwrap_or(4_000);
    let (mut accepted, mut refused) = (0u64, 0u64);
    for case in 0..cases {
        let (file, text) = mutated(case);
        // The case number stands in the output of a test that fails.
        let outcome = std::panic::catch_unwind(|| read(file, &text));
        match outcome.unwrap_or_else(|_| panic!("case {case} panics:\n{text}")) {
            Ok(_) => accepted += 1,
            Err(found) => {
                refused += 1;
                assert!(found.has_errors(), "case {case} is refused without an error:\n{text}");
                assert!(!found.render(false).is_empty());
                serde_json::to_string(&found).expect("diagnostics are data");
            }
        }
        if case % 10_000 == 9_999 {
            eprintln!("{} of {cases} mutated files: {accepted} accepted, {refused} refused", case + 1);
        }
    }
    // Both must happen, or the mutations test nothing.
    assert!(accepted > cases / 100 && refused > cases / 10, "{accepted} accepted, {refused} refused");
}

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
