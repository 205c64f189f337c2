//! Checks that the book is correct: files shown on a page are written, its commands are run one after the other in a fresh
//! clone, and their output must be the one shown.
//!
//! | block | action |
//! |---|---|
//! | ```` ```yaml file=NAME ```` (any language) | the file is written |
//! | ```` ```sh run ```` | the lines are commands |
//! | ```` ```console run ```` | `$ ` starts a command, the other lines are its output |
//! | ```` ```console run numbers ```` | as above; numbers, and blanks between columns, may differ |
//!
//! A line `...` stands for any lines. Unmarked blocks are not run; unmarked YAML must still be YAML.
use crate::command::root;
use crate::session::{self, Checkout, Step};
use std::path::{Path, PathBuf};
use tidemill_spec::span::SourceFile;

/// A code block.
struct Block {
    /// Line of the opening fence, counted from 1.
    line: usize,
    /// The words after the fence.
    words: Vec<String>,
    text: String,
}

impl Block {
    fn has(&self, word: &str) -> bool {
        self.words.iter().any(|found| found == word)
    }

    fn file(&self) -> Option<&str> {
        self.words.iter().find_map(|word| word.strip_prefix("file="))
    }
}

fn blocks(markdown: &str) -> Vec<Block> {
    let mut all = Vec::new();
    let mut open: Option<Block> = None;
    for (index, line) in markdown.lines().enumerate() {
        match (&mut open, line.trim_start().strip_prefix("```")) {
            (Some(_), Some("")) => all.extend(open.take()),
            (Some(block), _) => block.text.push_str(&format!("{line}\n")),
            (None, Some(info)) => {
                let words =
                    info.split([' ', ',']).filter(|word| !word.is_empty()).map(str::to_owned).collect();
                open = Some(Block { line: index + 1, words, text: String::new() });
            }
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "a code block is not closed");
    all
}

/// All pages of the book.
fn pages() -> Vec<PathBuf> {
    let summary = std::fs::read_to_string(root().join("docs/SUMMARY.md")).unwrap();
    let targets = summary.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    targets.map(|(target, _)| root().join("docs").join(target)).collect()
}

/// The steps of a page: each with the line of its block, whether its output counts, and whether numbers do.
fn steps(page: &str) -> Vec<(Step, usize, bool, bool)> {
    let mut all = Vec::new();
    for block in blocks(page) {
        if let Some(file) = block.file() {
            let command = format!(
                "mkdir -p \"$(dirname {file})\" && cat > {file} <<'END_OF_FILE'\n{}END_OF_FILE",
                block.text
            );
            all.push((Step { command, output: String::new(), code: 0 }, block.line, true, false));
        } else if block.has("run") && block.has("sh") {
            let step = Step { command: block.text.trim_end().to_owned(), output: String::new(), code: 0 };
            all.push((step, block.line, false, false));
        } else if block.has("run") {
            let steps = session::parse(&block.text).into_iter();
            all.extend(steps.map(|step| (step, block.line, true, block.has("numbers"))));
        }
    }
    all
}

/// Whether an output matches the one shown.
fn agrees(shown: &str, printed: &str, numbers: bool) -> bool {
    fn lines_agree(shown: &[String], printed: &[String]) -> bool {
        match shown.split_first() {
            None => printed.is_empty(),
            Some((first, rest)) if first == "..." => {
                (0..=printed.len()).any(|skipped| lines_agree(rest, &printed[skipped..]))
            }
            Some((first, rest)) => printed.first() == Some(first) && lines_agree(rest, &printed[1..]),
        }
    }
    let lines = |text: &str| text.lines().map(|line| normal(line, numbers)).collect::<Vec<_>>();
    lines_agree(&lines(shown), &lines(printed))
}

/// The line without variable parts.
fn normal(line: &str, numbers: bool) -> String {
    if !numbers {
        return line.trim_end().to_owned();
    }
    let mut out = String::new();
    let characters: Vec<char> = line.chars().collect();
    let is_digit = |at: usize| characters.get(at).is_some_and(char::is_ascii_digit);
    for (at, &c) in characters.iter().enumerate() {
        // One space separates thousands; two separate columns.
        if c == ' ' && at > 0 && (at - 1..at).chain(at + 1..at + 4).all(is_digit) && !is_digit(at + 4) {
            continue;
        }
        let c = if c.is_ascii_digit() { '0' } else { c };
        let after_number = out.ends_with('0') && (c == '0' || c == '.');
        let after_blank = out.ends_with(' ') && c == ' ';
        if !after_number && !after_blank {
            out.push(c);
        }
    }
    // The unit depends on the size of a number.
    for unit in ["0 us", "0 ms", "0 min", "0 s"] {
        out = out.replace(unit, "0 TIME");
    }
    out.trim().to_owned()
}

/// Does what these pages say, and returns the number of steps.
fn done(pages: &[PathBuf]) -> usize {
    let mut faults = Vec::new();
    let mut run = 0;
    for path in pages {
        let page =
            std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let steps = steps(&page);
        if steps.is_empty() {
            continue;
        }
        run += steps.len();
        let clone = Checkout::new();
        let commands: Vec<&str> = steps.iter().map(|(step, ..)| step.command.as_str()).collect();
        let results = session::run(&clone.path(""), &commands, &[]);
        for ((step, line, counts, numbers), (printed, code)) in steps.iter().zip(results) {
            let right = !counts || agrees(&step.output, &printed, *numbers);
            if !right || code != step.code {
                let name = path.strip_prefix(root()).unwrap_or(path).display();
                faults.push(format!(
                    "== {name}:{line}\n$ {}\nshown (exit code {}):\n{}\nprinted (exit code {code}):\n{printed}",
                    step.command, step.code, step.output
                ));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    run
}

#[test]
fn the_first_page_does_what_it_says() {
    assert!(done(&[root().join("docs/quickstart.md")]) >= 9);
}

#[test]
#[ignore = "long: make test-long"]
fn every_page_does_what_it_says() {
    let run = done(&pages());
    assert!(run >= 20, "only {run} steps of the book were run");
}

#[test]
fn yaml_in_the_book_is_yaml() {
    for path in pages() {
        let page = std::fs::read_to_string(&path).unwrap();
        for block in blocks(&page).iter().filter(|block| block.has("yaml") || block.has("yml")) {
            let name = format!("{}:{}", path.display(), block.line);
            if let Err(errors) = tidemill_spec::yaml::parse(&SourceFile::new(name, block.text.clone())) {
                panic!("{errors}");
            }
        }
    }
}

/// Every message on the page still exists, letter by letter.
#[test]
fn messages_in_troubleshooting_are_said() {
    let page = std::fs::read_to_string(root().join("docs/troubleshooting.md")).unwrap();
    let mut sessions = String::new();
    for entry in std::fs::read_dir(root().join("cli/tests/mistakes")).unwrap().flatten() {
        sessions.push_str(&std::fs::read_to_string(entry.path().join("session.txt")).unwrap());
    }
    let headings = page.lines().filter_map(|line| line.strip_prefix("### `")?.strip_suffix('`'));
    let mut count = 0;
    for message in headings {
        count += 1;
        let mut rest = sessions.as_str();
        let found = sessions.lines().any(|line| {
            rest = line;
            message.split("...").all(|part| match rest.split_once(part.trim()) {
                Some((_, after)) => {
                    rest = after;
                    true
                }
                None => false,
            })
        });
        assert!(found, "no session of cli/tests/mistakes/ has the message `{message}`");
    }
    assert!(count >= 12, "only {count} messages");
}

/// Every code of the program has its line on the page, and no other has.
#[test]
fn every_error_code_is_explained() {
    let page = std::fs::read_to_string(root().join("docs/error-codes.md")).unwrap();
    let mut told: Vec<String> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next().map(str::to_owned))
        .filter(|code| is_code(code))
        .collect();
    let mut used = Vec::new();
    for folder in [
        "spec/src",
        "optimizer/src",
        "operators/src",
        "operators/inference/src",
        "operators/python/src",
        "app/src",
        "deploy/src",
        "cli/src",
    ] {
        codes_in(&root().join(folder), &mut used);
    }
    for list in [&mut told, &mut used] {
        list.sort();
        list.dedup();
    }
    let only =
        |a: &[String], b: &[String]| a.iter().filter(|code| !b.contains(code)).cloned().collect::<Vec<_>>();
    let (missing, stale) = (only(&used, &told), only(&told, &used));
    assert!(
        missing.is_empty() && stale.is_empty(),
        "docs/error-codes.md: missing {missing:?}, not used {stale:?}"
    );
}

fn is_code(text: &str) -> bool {
    text.len() == 5 && text.starts_with("E0") && text[1..].bytes().all(|b| b.is_ascii_digit())
}

/// Codes in the texts of programs, `"E0103"`, excluding tests and comments.
fn codes_in(folder: &Path, used: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            codes_in(&path, used);
        } else if path.extension().is_some_and(|end| end == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            let program = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
            for line in program.lines().filter(|line| !line.trim_start().starts_with("//")) {
                used.extend(line.split('"').filter(|part| is_code(part)).map(str::to_owned));
            }
        }
    }
}

#[test]
fn outputs_are_compared() {
    assert!(agrees("a\n...\nc", "a\nb\nb\nc", false));
    assert!(agrees("...\nc", "c", false));
    assert!(!agrees("a\n...\nc", "a\nb", false));
    assert!(!agrees("1 ms", "2 ms", false));
    assert!(agrees("in  10.5 ms   x", "in 2 s x", true));
    assert!(!agrees("in 10.5 ms x", "in 2 ms y", true));
}

#[test]
fn blocks_are_found() {
    let page = "a\n```yaml file=a.yaml\nb: 1\n```\n```console run numbers\n$ ls\nx\n```\n";
    let found = blocks(page);
    assert_eq!((found.len(), found[0].file(), found[1].line), (2, Some("a.yaml"), 5));
    assert_eq!(steps(page).len(), 2);
}
