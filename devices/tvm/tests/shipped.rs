//! The shipped models as modules of TVM.
//!
//! `scripts/test-backends.sh tvm` writes the files and names their folder in `TIDEMILL_TVM_MODELS`.
#[path = "../../shipped.rs"]
mod shipped;

use shipped::{Program, Reference, files, input, name};
use std::fs;
use std::path::PathBuf;
use std::time::Duration;
use tidemill_device::daemon::tenants::Tenants;
use tidemill_device::daemon::{Daemon, Options};
use tidemill_device::dial;
use tidemill_link::remote::{Address, Security};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tidemill-device-tvm");
/// The shipped models that TVM cannot compile, each with the reason that `tidemill models compile` gives.
const NOT_COMPILED: [(&str, &str); 0] = [];

fn program() -> Program {
    Program::start("tvm", PROGRAM)
}

fn folder() -> PathBuf {
    shipped::folder("TIDEMILL_TVM_MODELS")
}

/// The references have two records, and the modules compute one at a time.
#[test]
fn outputs_are_those_of_onnx_runtime() {
    program().compare(&files(&folder(), "so"));
}

#[test]
fn exactly_these_models_cannot_be_compiled() {
    let refused: Vec<(String, String)> = files(&folder(), "refused")
        .iter()
        .map(|path| (name(path), fs::read_to_string(path).expect("what the command said")))
        .collect();
    let names: Vec<&str> = refused.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, NOT_COMPILED.map(|(name, _)| name), "{refused:?}");
    for ((name, said), (_, reason)) in refused.iter().zip(NOT_COMPILED) {
        assert!(said.contains(reason), "{name}: {said}");
    }
    let models = files(&folder(), "so").len() + refused.len();
    assert!(models >= 22, "the repository has 21 models, and one is for tests; found {models}");
}

#[test]
fn any_number_of_records_runs_in_the_batches_of_the_module() {
    let program = program();
    let path = folder().join("scene-features-tiny.so");
    let reference = Reference::of(&path);
    let both = program.run(&path, &reference).expect("two records");
    let (port, first) = (&reference.inputs[0], input(&path, 0));
    let each = first.len() / port.shape[0];
    // The second record, then the first one three times.
    let order = [1, 0, 0, 0];
    let mixed: Vec<u8> = order.iter().flat_map(|at| first[at * each..(at + 1) * each].to_vec()).collect();
    let shape: Vec<usize> = std::iter::once(order.len()).chain(port.shape[1..].iter().copied()).collect();
    let values = program.run_on(&path, &reference, &[(shape, mixed)]).expect("four records");
    let out = both[0].bytes().len() / 2;
    let expected: Vec<u8> =
        order.iter().flat_map(|at| both[0].bytes()[at * out..(at + 1) * out].to_vec()).collect();
    assert_eq!(values[0].shape()[0], 4);
    assert!(values[0].bytes()[..] == expected[..], "each record has its own result, in its place");
}

#[test]
fn a_tensor_of_another_size_is_refused_with_the_size_that_fits_and_the_session_continues() {
    let program = program();
    let path = folder().join("scene-features-tiny.so");
    let reference = Reference::of(&path);
    let refused = program.run_on(&path, &reference, &[(vec![1, 3, 4, 4], vec![0; 4 * 48])]);
    let refused = refused.expect_err("another size").to_string();
    assert!(refused.contains("was compiled for Float32 [1, 3, 128, 128]"), "{refused}");
    assert!(program.run(&path, &reference).is_ok());
}

#[test]
fn a_file_that_is_no_module_is_refused_and_the_session_continues() {
    let program = program();
    program.refuses("broken.so", b"\x7fELF no library");
    program.refuses("model.onnx", b"\x08\x09");
}

#[test]
fn other_names_than_those_of_the_module_are_told() {
    let path = folder().join("scene-features-tiny.so");
    let none = Reference { inputs: Vec::new(), ..Reference::of(&path) };
    let told = program().run(&path, &none).expect_err("it needs a picture").to_string();
    assert!(told.contains("its inputs are image, but those of its manifest are"), "{told}");
}

/// The client of a daemon may be anybody, and a module is code.
#[test]
fn a_daemon_computes_only_where_its_clients_are_trusted() {
    for trust in ["", "1"] {
        let cache = tempfile::tempdir().expect("a folder");
        let device = format!("tvm{trust}-{}", std::process::id());
        let command = ["env", &format!("TIDEMILL_TVM_TRUST_CLIENTS={trust}"), PROGRAM].map(str::to_owned);
        let daemon = Daemon::start(Options {
            device,
            kind: None,
            listen: vec![Address::tcp("127.0.0.1:0")],
            security: Security::none(),
            command: command.to_vec(),
            cache: cache.path().to_owned(),
            cache_limit: 1 << 30,
            memory: None,
            slots: 1,
            tenants: Tenants::new([], false).expect("no tenants"),
            most_sessions: 4,
            longest_run: Duration::from_secs(60),
            batching: None,
        });
        let daemon = daemon.expect("a daemon");
        let opened = dial::open(&daemon.addresses()[0], &Security::none(), "default", "test");
        match (opened, trust) {
            (Ok(session), "1") => assert_eq!(session.snapshot().backends[0].0, "tvm"),
            (Err(refused), "") => assert!(refused.to_string().contains("a TVM module is code"), "{refused}"),
            (opened, _) => panic!("{:?} with {trust:?}", opened.err()),
        }
        drop(daemon);
    }
}
