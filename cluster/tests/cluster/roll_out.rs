//! A workflow goes to twenty workers at once.
use crate::place::{Place, until};
use crate::server::{Mood, Server};
use std::collections::BTreeSet;
use std::fmt::Write;
use tidemill_cluster::api::{
    Bundle, BundleFile, ControllerView, Quota, Replan, RunView, Submission, WorkerView,
};
use tidemill_cluster::blobs::digest;
use tidemill_cluster::controller::StoredFiles;
use tidemill_spec::plan::PlanFile;

const WORKERS: usize = 20;
/// Three parts of a file.
const MODEL: usize = 7 << 20;

/// A chain of filters, each on a worker of its own.
fn chain(workers: usize) -> (String, String) {
    let mut workflow = "version: 1\nname: chain\nsources:\n  - id: rows\n    kind: csv\n    \
        options: {path: rows.csv, columns: {n: int64}}\noperators:\n"
        .to_owned();
    let mut plan = "version: 1\nworkflow: {name: chain}\nworkers:\n".to_owned();
    let (mut stages, mut route, mut edges) = (String::new(), String::new(), String::new());
    let names: Vec<String> = std::iter::once("rows".to_owned())
        .chain((1..workers - 1).map(|number| format!("f{number}")))
        .chain(["kept".to_owned()])
        .collect();
    for (number, name) in names.iter().enumerate() {
        let _ = writeln!(plan, "  - {{id: w{number:02}, tier: edge, worker_type: small}}");
        let _ = writeln!(stages, "  - {{id: {name}, operator: {name}, worker: w{number:02}}}");
        let _ = write!(route, "{name}: {name}, ");
        if number > 0 {
            let _ = writeln!(edges, "  - {{from: {}, to: {name}}}", names[number - 1]);
        }
        if number > 0 && number + 1 < workers {
            let input = &names[number - 1];
            let _ = writeln!(
                workflow,
                "  - {{id: {name}, kind: filter, input: {input}, options: {{where: \"n >= 0\"}}}}"
            );
        }
    }
    let last = &names[workers - 2];
    let _ = writeln!(
        workflow,
        "sinks:\n  - {{id: kept, kind: jsonl, input: {last}, options: {{path: kept.jsonl}}}}"
    );
    let route = route.trim_end_matches(", ");
    let _ = write!(
        plan,
        "stages:\n{stages}classes:\n  - {{id: 0, share: 1, route: {{{route}}}}}\nedges:\n{edges}"
    );
    (workflow, plan)
}

/// A model, and the submission of a workflow of this number of workers that has it among its files.
pub(crate) fn submission(place: &Place, workers: usize) -> (Vec<u8>, Submission) {
    let (workflow, plan) = chain(workers);
    let model: Vec<u8> = (0..MODEL as u32)
        .flat_map(|at| (at.wrapping_mul(2_654_435_761) >> 13).to_le_bytes())
        .step_by(4)
        .collect();
    let files = [("workflow.yaml", workflow.as_bytes()), ("rows.csv", b"n\n1\n2\n"), ("model.bin", &model)];
    let mut bundle = Bundle { workflow: "workflow.yaml".into(), ..Bundle::default() };
    for (path, bytes) in files {
        let file = BundleFile { path: path.into(), digest: digest(bytes), bytes: bytes.len() as u64 };
        place.admin.put(&format!("/v1/blobs/{}", file.digest), bytes).unwrap();
        bundle.files.push(file);
    }
    std::fs::write(place.folder.path().join("plan.yaml"), plan).unwrap();
    let plan = PlanFile::load(place.folder.path().join("plan.yaml")).unwrap().plan;
    let submission = Submission {
        name: "chain".into(),
        bundle,
        plan: Some(plan),
        planning: None,
        replan: Replan::Off,
        quota: Quota::default(),
        records: None,
        sent_from: None,
        again: false,
    };
    (model, submission)
}

/// Waits for this number of workers.
pub(crate) fn until_there(place: &Place, workers: usize) {
    until("all workers are there", || {
        let views: Vec<WorkerView> = place.admin.get("/v1/workers").unwrap();
        views.into_iter().filter(|worker| worker.is_alive).count() == workers
    });
}

/// Rolls a workflow with a model out; how many copies of all its files the controller has sent. `before`: what happens when it has the
/// files and no worker has any.
fn rolled_out(mut place: Place, before: impl FnOnce()) -> f64 {
    let token = place.join_token(WORKERS as u32);
    for number in 0..WORKERS {
        // Their processes end at once: here it is about files.
        place.agent(&format!("w{number:02}"), &token, &["false"]);
    }
    until_there(&place, WORKERS);
    let (model, submission) = submission(&place, WORKERS);
    let of_model = submission.bundle.files[2].digest.clone();
    let all: u64 = submission.bundle.files.iter().map(|file| file.bytes).sum();
    before();
    let run: RunView = place.admin.post("/v1/runs", &submission).unwrap();
    assert_eq!(run.placement.len(), WORKERS);

    let folder = place.folder.path();
    let has = |number: usize| folder.join(format!("w{number:02}/files/{of_model}")).is_file();
    until("all have the model", || (0..WORKERS).all(has));
    let controller: ControllerView = place.admin.get("/v1/controller").unwrap();
    let copies = controller.files_sent_bytes as f64 / all as f64;
    // Each of them is the file that was sent.
    let found: BTreeSet<Vec<u8>> = (0..WORKERS)
        .map(|number| std::fs::read(folder.join(format!("w{number:02}/files/{of_model}"))).unwrap())
        .collect();
    assert!(found.len() == 1 && found.contains(&model));
    println!("{WORKERS} workers have {all} bytes; the controller sent {copies:.2} copies");
    copies
}

#[test]
fn twenty_workers_have_a_model_of_which_the_controller_sends_three_copies_at_most() {
    let copies = rolled_out(Place::new(), || {});
    // One, unless the machine is so busy that a worker is lost meanwhile.
    assert!((1.0..=3.0).contains(&copies), "{copies} copies");
}

fn stored(server: &Server) -> StoredFiles {
    let settings = server.variables().into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    StoredFiles::open(&"s3://abc/of/models".parse().unwrap(), &settings).unwrap()
}

#[test]
fn workers_have_a_model_from_an_object_store_and_the_controller_sends_none() {
    let server = Server::start();
    let copies = rolled_out(Place::with(Some(stored(&server))), || {});
    assert!(copies < 0.01, "{copies} copies");
    let requests = server.requests();
    let of = |method: &str| requests.iter().filter(|request| request.starts_with(method)).count();
    // Three files and whose they are, and those who have not got them from other workers.
    assert!(of("PUT /abc/of/models/") == 4 && of("GET /abc/of/models/") >= 3, "{requests:?}");
}

#[test]
#[ignore = "long: make test-long"]
fn an_object_store_that_gives_nothing_holds_nobody_up() {
    let server = Server::start();
    let copies = rolled_out(Place::with(Some(stored(&server))), || server.set(Mood::Denies));
    assert!((1.0..=3.0).contains(&copies), "{copies} copies");
    assert!(
        server.requests().iter().any(|request| request.starts_with("GET /abc/of/models/")),
        "it was tried"
    );
}

/// Files in an object store need not be sent again, also where another controller has put them there.
#[test]
fn a_controller_finds_what_lies_in_its_object_store() {
    let server = Server::start();
    let model = b"a model".as_slice();
    server.put(&format!("of/models/{}", digest(model)), model);
    // Files of others: they are not taken for files of workflows.
    let others = ["of/models/README.md".to_owned(), format!("of/models/below/{}", digest(b"another"))];
    others.iter().for_each(|name| server.put(name, b"of somebody else"));
    let place = Place::with(Some(stored(&server)));
    let missing: Vec<String> =
        place.admin.post("/v1/blobs/missing", &[digest(model), digest(b"another")]).unwrap();
    assert_eq!(missing, [digest(b"another")]);
}

/// A store that does not answer when the controller begins: files are kept by the controller, and workers have them from there.
#[test]
#[ignore = "long: make test-long"]
fn an_object_store_that_is_away_from_the_beginning_holds_nobody_up() {
    let server = Server::start();
    let store = stored(&server);
    server.set(Mood::Denies);
    let copies = rolled_out(Place::with(Some(store)), || {});
    assert!((1.0..=3.0).contains(&copies), "{copies} copies");
    assert!(!server.requests().is_empty(), "it was tried");
}

/// Each would remove what the other one needs.
#[test]
#[ignore = "long: make test-long"]
fn a_prefix_that_has_the_files_of_another_cluster_is_left_alone() {
    let server = Server::start();
    let model = b"a model".as_slice();
    server.put(&format!("of/models/{}", digest(model)), model);
    server.put("of/models/cluster", b"f00d of another one");
    let copies = rolled_out(Place::with(Some(stored(&server))), || {});
    assert!((1.0..=3.0).contains(&copies), "{copies} copies");
    let changed = |request: &&String| request.starts_with("PUT ") || request.starts_with("DELETE ");
    assert_eq!(server.requests().iter().filter(changed).count(), 0, "nothing of it is changed");
}
