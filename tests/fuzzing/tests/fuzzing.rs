//! Every target reads its corpus and mutations of it. `TIDEMILL_MUTATIONS=1000000` sets their number instead of a
//! thousand, and prints a line of figures for each target, from which `scripts/fuzzing.sh` writes a page.
//!
//! `UPDATE_GOLDEN=1` rewrites the generated part of the corpora.
use peak_alloc::PeakAlloc;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use tidemill_fuzzing::{Bounds, Memory, TARGETS, Target, quiet, run};

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// Memory is that of the process: one target after the other.
static ALONE: Mutex<()> = Mutex::new(());

/// Most bytes of all corpora together.
const CORPORA: usize = 200_000;

struct Counted;

impl Memory for Counted {
    fn begin(&self) -> usize {
        ALLOCATOR.reset_peak_usage();
        ALLOCATOR.current_usage()
    }

    fn most(&self) -> usize {
        ALLOCATOR.peak_usage()
    }
}

fn executions() -> u64 {
    let wanted = std::env::var("TIDEMILL_MUTATIONS").ok().and_then(|count| count.parse().ok());
    wanted.unwrap_or(1_000)
}

/// Constant over runs, different for each target.
fn seed(target: &Target) -> u64 {
    target.name.bytes().fold(21, |seed, byte| seed * 31 % 1_000_003 + u64::from(byte))
}

fn fuzzed(name: &str) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let target = Target::find(name).expect("a target");
    let corpus: Vec<Vec<u8>> =
        target.corpus().expect("its corpus is committed").into_iter().map(|(_, bytes)| bytes).collect();
    quiet();
    let wanted = executions();
    let outcome = run(target, &corpus, wanted, seed(target), Bounds::of(target), &Counted);
    drop(std::panic::take_hook());
    assert_eq!(outcome.executions, wanted);
    println!(
        "fuzzed {name}: {} executions, {} accepted, {} refused, {} bytes longest, {} bytes of memory, {} us slowest",
        outcome.executions,
        outcome.accepted,
        outcome.executions - outcome.accepted,
        outcome.longest,
        outcome.memory,
        outcome.slowest.as_micros()
    );
    // Otherwise the mutations test nothing: the corpus is accepted, and most mutations have an effect.
    assert!(outcome.accepted > 0 && outcome.accepted < wanted, "{outcome:?}");
}

macro_rules! targets {
    ($($test:ident $name:literal)*) => {
        const TESTED: &[&str] = &[$($name),*];
        $(
            #[test]
            fn $test() {
                fuzzed($name);
            }
        )*
    };
}

targets! {
    mutated_workflows "workflow"
    mutated_infrastructures "infrastructure"
    mutated_plans "plan"
    mutated_profiles "profile"
    mutated_model_manifests "model-manifest"
    mutated_frames "frames"
    mutated_control_words "control-words"
    mutated_control_messages "control-messages"
    mutated_greetings "greeting"
    mutated_notices "notice"
    mutated_orders "order"
    mutated_samples "sample"
    mutated_bodies "api-body"
    mutated_queries "api-query"
    mutated_parcels "parcel"
    mutated_controller_facts "controller-facts"
    mutated_facts_logs "facts-log"
    mutated_log_lines "log-line"
    mutated_join_addresses "join-address"
    mutated_tokens "token"
    mutated_names "name"
    mutated_certificate_requests "certificate-request"
    mutated_certificates "certificate"
    mutated_registers "register"
    mutated_state_manifests "state-manifest"
    mutated_bucket_documents "bucket-document"
    mutated_marks "marks"
    mutated_journals "journal"
    mutated_snapshots "snapshot"
    mutated_calls "calls"
    mutated_deployments "deployment"
    mutated_control_groups "control-group"
    mutated_group_packets "group-packet"
    mutated_group_services "group-services"
    mutated_group_hosts "group-hosts"
    mutated_group_policies "group-policy"
    mutated_hints "hints"
}

/// Files of a folder, without their extension.
fn names(folder: &Path, ending: &str) -> BTreeSet<String> {
    let entries = std::fs::read_dir(folder).expect("the folder is committed");
    let names = entries.filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()));
    names.filter_map(|name| name.strip_suffix(ending).map(str::to_owned)).collect()
}

#[test]
fn every_target_has_a_test_a_corpus_and_a_program() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz"));
    let targets: BTreeSet<String> = TARGETS.iter().map(|target| target.name.to_owned()).collect();
    assert_eq!(targets.len(), TARGETS.len());
    assert_eq!(TESTED.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>(), targets);
    assert_eq!(names(&root.join("corpus"), ""), targets);
    assert_eq!(names(&root.join("fuzz_targets"), ".rs"), targets);
    let manifest = std::fs::read_to_string(root.join("Cargo.toml")).expect("it is committed");
    for name in &targets {
        assert!(
            manifest.contains(&format!("name = \"{name}\"\npath = \"fuzz_targets/{name}.rs\"")),
            "{name}"
        );
        let program =
            std::fs::read_to_string(root.join(format!("fuzz_targets/{name}.rs"))).expect("it is there");
        assert!(program.contains(&format!("execute(\"{name}\", bytes)")), "{name}");
    }
}

/// `made-N` is the current output of the code, `found-*` once showed a mistake, all others were made by hand.
#[test]
fn the_corpora_are_small_and_what_is_written_now() {
    let (mut size, mut old) = (0, Vec::new());
    for target in TARGETS {
        let samples = (target.samples)();
        for (number, sample) in samples.iter().enumerate() {
            let path = target.folder().join(format!("made-{number}"));
            if std::env::var_os("UPDATE_GOLDEN").is_some() {
                std::fs::create_dir_all(target.folder()).expect("a disk with room");
                std::fs::write(&path, sample).expect("a disk with room");
            }
            if std::fs::read(&path).ok().as_ref() != Some(sample) {
                old.push(format!("{}/made-{number}", target.name));
            }
        }
        let mut taken = 0;
        for (_, bytes) in target.corpus().unwrap_or_default() {
            size += bytes.len();
            taken += usize::from((target.read)(&bytes));
        }
        assert!(taken > 0, "nothing of the corpus of {} is taken", target.name);
    }
    assert!(old.is_empty(), "UPDATE_GOLDEN=1 writes them anew: {old:?}");
    assert!(size > 10_000 && size < CORPORA, "{size} bytes");
}
