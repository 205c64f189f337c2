//! A workflow goes to twenty workers at once.
use crate::place::{Place, until};
use std::collections::BTreeSet;
use std::fmt::Write;
use tidemill_cluster::api::{
    Bundle, BundleFile, ControllerView, Quota, Replan, RunView, Submission, WorkerView,
};
use tidemill_cluster::blobs::digest;
use tidemill_spec::plan::PlanFile;

const WORKERS: usize = 20;
/// Three parts of a file.
const MODEL: usize = 7 << 20;

/// A chain of filters, each on a worker of its own.
fn chain() -> (String, String) {
    let mut workflow = "version: 1\nname: chain\nsources:\n  - id: rows\n    kind: csv\n    \
        options: {path: rows.csv, columns: {n: int64}}\noperators:\n"
        .to_owned();
    let mut plan = "version: 1\nworkflow: {name: chain}\nworkers:\n".to_owned();
    let (mut stages, mut route, mut edges) = (String::new(), String::new(), String::new());
    let names: Vec<String> = std::iter::once("rows".to_owned())
        .chain((1..WORKERS - 1).map(|number| format!("f{number}")))
        .chain(["kept".to_owned()])
        .collect();
    for (number, name) in names.iter().enumerate() {
        let _ = writeln!(plan, "  - {{id: w{number:02}, tier: edge, worker_type: small}}");
        let _ = writeln!(stages, "  - {{id: {name}, operator: {name}, worker: w{number:02}}}");
        let _ = write!(route, "{name}: {name}, ");
        if number > 0 {
            let _ = writeln!(edges, "  - {{from: {}, to: {name}}}", names[number - 1]);
        }
        if number > 0 && number + 1 < WORKERS {
            let input = &names[number - 1];
            let _ = writeln!(
                workflow,
                "  - {{id: {name}, kind: filter, input: {input}, options: {{where: \"n >= 0\"}}}}"
            );
        }
    }
    let last = &names[WORKERS - 2];
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

#[test]
fn twenty_workers_have_a_model_of_which_the_controller_sends_three_copies_at_most() {
    let mut place = Place::new();
    let token = place.join_token(WORKERS as u32);
    for number in 0..WORKERS {
        // Their processes end at once: here it is about files.
        place.agent(&format!("w{number:02}"), &token, &["false"]);
    }
    let alive = |place: &Place| {
        let workers: Vec<WorkerView> = place.admin.get("/v1/workers").unwrap();
        workers.into_iter().filter(|worker| worker.is_alive).count()
    };
    until("all workers are there", || alive(&place) == WORKERS);

    let (workflow, plan) = chain();
    let model: Vec<u8> = (0..MODEL as u32)
        .flat_map(|at| (at.wrapping_mul(2_654_435_761) >> 13).to_le_bytes())
        .step_by(4)
        .collect();
    let files = [("workflow.yaml", workflow.as_bytes()), ("rows.csv", b"n\n1\n2\n"), ("model.bin", &model)];
    let mut bundle = Bundle { workflow: "workflow.yaml".into(), files: Vec::new() };
    for (path, bytes) in files {
        let file = BundleFile { path: path.into(), digest: digest(bytes), bytes: bytes.len() as u64 };
        place.admin.put(&format!("/v1/blobs/{}", file.digest), bytes).unwrap();
        bundle.files.push(file);
    }
    let of_model = bundle.files[2].digest.clone();
    let all: u64 = bundle.files.iter().map(|file| file.bytes).sum();
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
    };
    let run: RunView = place.admin.post("/v1/runs", &submission).unwrap();
    assert_eq!(run.placement.len(), WORKERS);

    let folder = place.folder.path();
    let has = |number: usize| folder.join(format!("w{number:02}/files/{of_model}")).is_file();
    until("all have the model", || (0..WORKERS).all(has));
    let controller: ControllerView = place.admin.get("/v1/controller").unwrap();
    let copies = controller.files_sent_bytes as f64 / all as f64;
    println!("{WORKERS} workers have {all} bytes; the controller sent {copies:.2} copies");
    assert!((1.0..=3.0).contains(&copies), "{copies} copies");
    // Each of them is the file that was sent.
    let found: BTreeSet<Vec<u8>> = (0..WORKERS)
        .map(|number| std::fs::read(folder.join(format!("w{number:02}/files/{of_model}"))).unwrap())
        .collect();
    assert!(found.len() == 1 && found.contains(&model));
}
