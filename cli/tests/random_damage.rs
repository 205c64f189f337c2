//! A state with a randomly damaged file: the run is refused, or its output equals that of an undisturbed one.
//!
//! Damages all files of the state and all that the engine keeps beside the outputs. JSONL and CSV files belong to the user:
//! a continuing run compares their last 4 KiB before the checkpoint, and their length. Earlier changes are not noticed, so
//! they are not tested.
use crate::command::{Place, command};
use crate::journals::{checkpoint, journal_end, sorted_lines, until};
use crate::states::parquet_rows;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;
use tidemill_app::journals::look;
use tidemill_app::state::place::StatePlace;
use tidemill_random::Random;

/// A stream with a journal and a file; snapshots and calls of a join and of windows; sinks of three kinds, including an
/// appending one.
const WORKFLOW: &str = "version: 1
name: damaged
sources:
  - id: events
    kind: jsonl
    JOURNAL
    options: {path: '-', columns: {key: text, at: int64, value: int64}, event_time: at, out_of_order: 1s}
  - id: weights
    kind: csv
    options: {path: weights.csv, columns: {key: text, at: int64, weight: int64}, event_time: at}
operators:
  - {id: some, kind: filter, input: events, options: {where: \"value % 7 != 3\"}}
  - {id: fifth, kind: filter, input: events, options: {where: \"value % 5 == 0\"}}
  - {id: pair, kind: join, inputs: [some, fifth], options: {key: key, within: 300ms, same_names: keep_first}}
  - {id: counted, kind: window, input: some, options: {size: 1s, group_by: [key], aggregates: [{function: count, as: n}]}}
sinks:
  - {id: rows, kind: jsonl, input: some, options: {path: out/rows.jsonl, metadata: true}}
  - {id: pairs, kind: jsonl, input: pair, options: {path: out/pairs.jsonl, mode: append}}
  - {id: weighed, kind: csv, input: weights, options: {path: out/weighed.csv}}
  - {id: table, kind: csv, input: counted, options: {path: out/counted.csv}}
  - {id: columns, kind: parquet, input: counted, options: {path: out/counted.parquet}}
checkpoint: {keep: 8}
run: {tick: 10ms, checkpoint_every: 1, dead_letters: out/dead.jsonl}
";
const ROWS: usize = 4000;
/// Files that belong to the user.
const OWN: [&str; 5] =
    ["out/rows.jsonl", "out/pairs.jsonl", "out/weighed.csv", "out/counted.csv", "out/dead.jsonl"];
/// Bytes that a run compares at the end of these files.
const COMPARED: usize = 4096;
/// Bytes that a disk loses at once.
const BLOCK: usize = 512;

fn text() -> String {
    let mut random = Random::of_seed(3);
    let line = |i: usize| {
        let at = 1_700_000_000_000 + 5 * i - random.below(300);
        let value = if i % 200 == 198 { "none".to_owned() } else { i.to_string() };
        format!("{{\"key\":\"k{}\",\"at\":{at},\"value\":{value}}}\n", i % 13)
    };
    (0..ROWS).map(line).collect()
}

fn place(journal: &str) -> Place {
    let place = Place::empty("damaged");
    place.write("workflow.yaml", WORKFLOW.replace("JOURNAL", journal));
    let line = |i: usize| format!("k{},{},{i}\n", i % 13, 1_700_000_000_000 + 20 * i);
    let lines: String = (0..ROWS / 4).map(line).collect();
    place.write("weights.csv", format!("key,at,weight\n{lines}"));
    place
}

fn outputs(place: &Place) -> Vec<(&'static str, Vec<u8>)> {
    let read = |file: &str| std::fs::read(place.path(file)).unwrap_or_default();
    let mut all: Vec<_> = OWN.iter().map(|file| (*file, sorted_lines(&read(file)))).collect();
    all.push(("out/counted.parquet", sorted_lines(&parquet_rows(&place.path("out/counted.parquet")))));
    all
}

fn start(place: &Place) -> Child {
    let [workflow, state] = ["workflow.yaml", "state"].map(|name| place.argument(name));
    let arguments = ["run", &workflow, "--state", &state, "--checkpoint-interval", "20ms", "--quiet"];
    command(&arguments).stdin(Stdio::piped()).spawn().unwrap()
}

/// Outputs of a run without kills and damage.
fn undisturbed(text: &str) -> Vec<(&'static str, Vec<u8>)> {
    let place = place("");
    let mut child = command(&["run", &place.argument("workflow.yaml"), "--quiet"]);
    let mut child = child.stdin(Stdio::piped()).spawn().unwrap();
    let written = child.stdin.take().unwrap().write_all(text.as_bytes());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    written.unwrap();
    let outputs = outputs(&place);
    assert!(outputs.iter().all(|(file, content)| content.len() > 500 || panic!("{file} is nearly empty")));
    outputs
}

/// Place from which a producer continues the stream; an error where the journal cannot be read.
fn end_of_lines(place: &Place) -> Result<usize, String> {
    let looks = look(&StatePlace::Folder(place.path("state"))).map_err(|failure| failure.to_string())?;
    Ok(looks.get("events").map_or(0, |look| look.end_of_lines as usize))
}

/// State after three processes in turn were killed. Each had read bytes after its last checkpoint. That checkpoint may be the one that it
/// started with.
fn killed(text: &str, has_checkpoints: bool) -> Place {
    let place = place("journal: {size: 16GiB}");
    if !has_checkpoints {
        place.change("workflow.yaml", "checkpoint_every: 1,", "checkpoint_every: 10000,");
    }
    for process in 1..=3 {
        let from = end_of_lines(&place).unwrap();
        let quarter = process * text.len() / 4;
        let to = quarter + text[quarter..].find('\n').unwrap() + 1;
        let mut child = start(&place);
        let mut stdin = child.stdin.take().unwrap();
        let begun = checkpoint(&place);
        // Checkpoints are written while bytes arrive.
        for part in text.as_bytes()[from..to].chunks(101) {
            let had = journal_end(&place);
            stdin.write_all(part).unwrap();
            until(&mut child, "bytes in the journal", || journal_end(&place) > had);
            for _ in 0..20 {
                if !has_checkpoints || checkpoint(&place) >= begun + 3 {
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        // The first one is written when a process starts.
        let written = checkpoint(&place) - begun;
        assert!(if has_checkpoints { written > 1 } else { written <= 1 }, "{written} of process {process}");
        let had = journal_end(&place);
        stdin.write_all(&text.as_bytes()[to..to + 700]).unwrap();
        until(&mut child, "bytes in the journal", || journal_end(&place) > had);
        child.kill().unwrap();
        child.wait().unwrap();
    }
    place
}

/// The files of a folder and those below it, with their content.
fn files(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let (mut folders, mut found) = (vec![folder.to_owned()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let content = std::fs::read(&path).unwrap();
                found.push((path, content));
            }
        }
    }
    found.sort();
    found
}

/// Kinds of files, by parts of their paths.
const KINDS: [(&str, &str); 10] = [
    ("manifest", "manifest.json"),
    ("objects", "/state/objects/"),
    ("journal", "/journals/events/"),
    ("segments", ".journal"),
    ("rows of Parquet", ".rows"),
    ("marks", ".appending"),
    ("rows", "/out/rows.jsonl"),
    ("appended rows", "/out/pairs.jsonl"),
    ("table", "/out/counted.csv"),
    ("dead letters", "/out/dead.jsonl"),
];

/// Damages one file; describes the damage.
fn damage(place: &Place, all: &[(PathBuf, Vec<u8>)], random: &mut Random) -> String {
    let of_kind = |(kind, part): (&'static str, &str)| {
        let found = all.iter().filter(|(path, _)| path.to_str().unwrap().contains(part));
        (kind, found.collect::<Vec<_>>())
    };
    let kinds: Vec<_> = KINDS.into_iter().map(of_kind).filter(|(_, files)| !files.is_empty()).collect();
    let (kind, files) = &kinds[random.below(kinds.len())];
    let (path, content) = files[random.below(files.len())];
    let name = path.strip_prefix(place.path("")).unwrap();
    let first =
        if OWN.iter().any(|own| name == Path::new(own)) { content.len().saturating_sub(COMPARED) } else { 0 };
    let at = first + random.below((content.len() - first).max(1));
    let mut changed = content.clone();
    let what = match random.below(4) {
        0 => {
            std::fs::remove_file(path).unwrap();
            return format!("{kind}: {} is deleted", name.display());
        }
        1 => {
            changed.truncate(at);
            "is cut"
        }
        2 => {
            let end = (at + BLOCK).min(changed.len());
            changed[at..end].fill(0);
            "has zeros"
        }
        _ if content.is_empty() => "stays",
        _ => {
            changed[at] ^= 1 << random.below(8);
            "has another bit"
        }
    };
    std::fs::write(path, &changed).unwrap();
    format!("{kind}: {} of {} bytes {what} at byte {at}", name.display(), content.len())
}

/// Restores the files in place: a run identifies them by inode number. The names to keep are in `kept`.
fn restore(place: &Place, kept: &[(PathBuf, Vec<u8>)]) {
    for folder in ["state", "out"] {
        for (path, _) in files(&place.path(folder)) {
            std::fs::remove_file(path).unwrap();
        }
    }
    for (index, (path, content)) in kept.iter().enumerate() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let stays = place.path("kept").join(index.to_string());
        std::fs::write(&stays, content).unwrap();
        std::fs::hard_link(stays, path).unwrap();
    }
}

/// Rounds with these seeds.
fn rounds(seeds: impl Iterator<Item = u64>, has_checkpoints: bool) {
    let text = text();
    let expected = undisturbed(&text);
    let place = killed(&text, has_checkpoints);
    let kept: Vec<_> = ["state", "out"].iter().flat_map(|folder| files(&place.path(folder))).collect();
    std::fs::create_dir(place.path("kept")).unwrap();
    for (index, (path, _)) in kept.iter().enumerate() {
        std::fs::hard_link(path, place.path("kept").join(index.to_string())).unwrap();
    }
    let (mut refused, mut right) = (0, 0);
    for seed in seeds {
        restore(&place, &kept);
        let done = damage(&place, &kept, &mut Random::of_seed(seed));
        let from = end_of_lines(&place);
        let mut child = start(&place);
        let mut stdin = child.stdin.take().unwrap();
        let rest = text[from.clone().unwrap_or(0)..].to_owned();
        // A refused run does not read it.
        let producer = std::thread::spawn(move || drop(stdin.write_all(rest.as_bytes())));
        let output = child.wait_with_output().unwrap();
        producer.join().unwrap();
        let printed = String::from_utf8_lossy(&output.stderr);
        match output.status.code() {
            Some(65) => {
                refused += 1;
                assert!(!printed.is_empty(), "seed {seed}: {done}: nothing is said");
            }
            Some(0) => {
                right += 1;
                assert!(from.is_ok(), "seed {seed}: {done}: {from:?}, and it goes on");
                for ((file, found), (_, expected)) in outputs(&place).iter().zip(&expected) {
                    let (found_bytes, bytes) = (found.len(), expected.len());
                    assert!(
                        found == expected,
                        "seed {seed}: {done}: {file}: {found_bytes} bytes of {bytes}: {printed}"
                    );
                }
            }
            code => panic!("seed {seed}: {done}: {code:?}: {printed}"),
        }
    }
    println!("{refused} were refused, {right} came to the right end");
    assert!(refused > 0 && right > 0, "{refused} were refused, {right} came to the right end");
}

fn number() -> u64 {
    std::env::var("TIDEMILL_DAMAGES").ok().and_then(|text| text.parse().ok()).unwrap_or(60)
}

#[test]
#[ignore = "long: make test-long"]
fn recovery_of_damaged_states_of_even_seeds() {
    rounds((0..number()).filter(|seed| seed % 2 == 0), true);
}

#[test]
#[ignore = "long: make test-long"]
fn recovery_of_damaged_states_of_odd_seeds() {
    rounds((0..number()).filter(|seed| seed % 2 == 1), true);
}

/// All of such a state is in the journal.
#[test]
#[ignore = "long: make test-long"]
fn recovery_of_damaged_states_with_all_behind_their_checkpoint() {
    rounds(0..number() / 3, false);
}
