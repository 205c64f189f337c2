//! The workflows: one with many slow sources for each worker, and one over all workers.
use super::workers;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use tidemill_spec::plan::{Plan, PlanFile};

/// A workflow with its plan.
pub(super) struct Work {
    pub(super) name: String,
    pub(super) workflow: PathBuf,
    pub(super) plan: Plan,
}

/// Records of a source: more than a run waits for.
const ROWS: usize = 2_000;
/// A camera with occasional events.
const RATE: &str = "0.5/s";

/// Writes a workflow of these pairs of a source and a sink: number and worker.
fn write(folder: &Path, name: &str, pairs: &[(usize, String)]) -> anyhow::Result<Work> {
    let folder = folder.join(name);
    std::fs::create_dir_all(&folder)?;
    let rows: String = (0..ROWS).map(|n| format!("{n}\n")).collect();
    std::fs::write(folder.join("rows.csv"), format!("n\n{rows}"))?;
    let (mut sources, mut sinks) = (String::new(), String::new());
    let (mut stages, mut edges, mut route) = (String::new(), String::new(), Vec::new());
    for (n, worker) in pairs {
        writeln!(
            sources,
            "  - {{id: s{n}, kind: csv, rate: {RATE}, options: {{path: rows.csv, columns: {{n: int64}}}}}}"
        )?;
        writeln!(sinks, "  - {{id: o{n}, kind: jsonl, input: s{n}, options: {{path: out/{n}.jsonl}}}}")?;
        writeln!(stages, "  - {{id: s{n}, operator: s{n}, worker: {worker}}}")?;
        writeln!(stages, "  - {{id: o{n}, operator: o{n}, worker: {worker}}}")?;
        writeln!(edges, "  - {{from: s{n}, to: o{n}}}")?;
        route.push(format!("s{n}: s{n}, o{n}: o{n}"));
    }
    let mut names: Vec<&String> = pairs.iter().map(|(_, worker)| worker).collect();
    names.dedup();
    let mut workers = String::new();
    for name in names {
        writeln!(workers, "  - {{id: {name}, tier: edge, worker_type: small}}")?;
    }
    let workflow = folder.join("workflow.yaml");
    let settings = "run: {tick: 500ms, checkpoint_every: 4}\n";
    std::fs::write(
        &workflow,
        format!("version: 1\nname: {name}\nsources:\n{sources}sinks:\n{sinks}{settings}"),
    )?;
    let plan = folder.join("plan.yaml");
    let route = route.join(", ");
    std::fs::write(
        &plan,
        format!(
            "version: 1\nworkflow: {{name: {name}}}\ntick: 500ms\ncheckpoint_every: 4\nworkers:\n{workers}stages:\n{stages}classes:\n  \
             - {{id: 0, share: 1, route: {{{route}}}}}\nedges:\n{edges}"
        ),
    )?;
    let plan = PlanFile::load(&plan)?.plan;
    Ok(Work { name: name.to_owned(), workflow, plan })
}

/// Writes a workflow with this number of sources, all on one worker.
pub(super) fn site(folder: &Path, worker: &str, sources: usize) -> anyhow::Result<Work> {
    let pairs: Vec<_> = (0..sources).map(|n| (n, worker.to_owned())).collect();
    write(folder, &format!("site-{worker}"), &pairs)
}

/// Writes one workflow with a source on each worker.
pub(super) fn spread(folder: &Path, number: usize, workers: usize) -> anyhow::Result<Work> {
    let pairs: Vec<_> = (0..workers).map(|n| (n, workers::name(n))).collect();
    write(folder, &format!("spread-{number}"), &pairs)
}
