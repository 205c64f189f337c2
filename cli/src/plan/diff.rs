//! `tidemill plan diff`: differences to another plan.
use super::dollars;
use crate::arguments::OutputForm;
use crate::exit::Exit;
use crate::table::paragraph;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::Path;
use tidemill_app::figures::milliseconds;
use tidemill_spec::plan::{LatencyBasis, Plan, PredictedValue};
use tidemill_spec::units::TimeSpan;

/// Something that differs between two plans.
pub(crate) struct Change {
    what: &'static str,
    name: String,
    old: Option<String>,
    new: Option<String>,
}

/// Compares two plans.
pub(super) fn diff(old: &Path, new: &Path, form: OutputForm) -> anyhow::Result<Exit> {
    let (old, new) = (Plan::load(old)?, Plan::load(new)?);
    let changes = changes(&old, &new);
    let mut out = crate::answer::out();
    match form {
        OutputForm::Json => {
            serde_json::to_writer_pretty(
                &mut out,
                &json!({"version": 1, "differ": !changes.is_empty(), "changes": document(&changes)}),
            )?;
            writeln!(out)?;
        }
        OutputForm::Table if changes.is_empty() => writeln!(out, "the plans are equivalent")?,
        OutputForm::Table => write(&mut out, &changes)?,
    }
    out.flush()?;
    Ok(if changes.is_empty() { Exit::Success } else { Exit::No })
}

/// Formats for programs.
pub(crate) fn document(changes: &[Change]) -> Vec<Value> {
    let all = changes.iter().map(
        |change| json!({"what": change.what, "name": change.name, "old": change.old, "new": change.new}),
    );
    all.collect()
}

/// Writes one line each for people.
pub(crate) fn write(out: &mut impl Write, changes: &[Change]) -> std::io::Result<()> {
    for Change { what, name, old, new } in changes {
        match (old, new) {
            (None, Some(new)) => paragraph(out, &format!("+ {what} {name}: {new}"))?,
            (Some(old), None) => paragraph(out, &format!("- {what} {name}: {old}"))?,
            (old, new) => {
                let (old, new) = (old.as_deref().unwrap_or("-"), new.as_deref().unwrap_or("-"));
                paragraph(out, &format!("~ {what} {name}: {old} -> {new}"))?;
            }
        }
    }
    Ok(())
}

/// Returns the differences.
pub(crate) fn changes(old: &Plan, new: &Plan) -> Vec<Change> {
    let mut all = Vec::new();
    let mut compare = |what: &'static str, a: BTreeMap<String, String>, b: BTreeMap<String, String>| {
        let names: BTreeSet<String> = a.keys().chain(b.keys()).cloned().collect();
        for name in names.into_iter().filter(|name| a.get(name) != b.get(name)) {
            all.push(Change { what, old: a.get(&name).cloned(), new: b.get(&name).cloned(), name });
        }
    };
    compare("plan", facts(old), facts(new));
    compare("variant", variants(old), variants(new));
    compare("worker", workers(old), workers(new));
    compare("stage", stages(old), stages(new));
    compare("flow", flows(old), flows(new));
    all
}

fn facts(plan: &Plan) -> BTreeMap<String, String> {
    let mut all = BTreeMap::from([
        ("workflow".to_owned(), plan.workflow.name.clone()),
        ("tick".to_owned(), plan.tick.to_string()),
        ("checkpoint_every".to_owned(), plan.checkpoint_every.to_string()),
    ]);
    let Some(predicted) = &plan.predicted else { return all };
    let basis = match predicted.latency_basis {
        LatencyBasis::Guaranteed => "guaranteed",
        LatencyBasis::Expected => "expected",
    };
    all.insert("latency basis".to_owned(), basis.to_owned());
    let cost = predicted.cost.as_ref().map(|cost| ("cost", dollars(cost.value.0)));
    // The rest of the cost is traffic.
    let compute: f64 = plan.workers.iter().filter_map(|worker| worker.price).map(|price| price.0).sum();
    let split = predicted.cost.as_ref().map(|cost| (dollars(compute), dollars(cost.value.0 - compute)));
    let (compute, network) = split.unzip();
    let latency = |value: &Option<PredictedValue<TimeSpan>>| {
        value.as_ref().map(|value| milliseconds(value.value.0 as f64 / 1e6))
    };
    let more = [
        ("compute", compute),
        ("network", network),
        ("latency mean", latency(&predicted.mean)),
        ("latency p50", latency(&predicted.p50)),
        ("latency p90", latency(&predicted.p90)),
        ("latency p99", latency(&predicted.p99)),
    ];
    let accuracy = predicted.accuracy.as_ref().map(|accuracy| ("accuracy", accuracy.value.to_string()));
    let rate = predicted.rate.as_ref().map(|rate| {
        let most = rate.to.map(|most| format!(" up to {most}")).unwrap_or_default();
        ("rate", format!("{}{most}", rate.value))
    });
    all.extend(more.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
    all.extend([cost, accuracy, rate].into_iter().flatten().map(|(name, value)| (name.to_owned(), value)));
    all
}

fn variants(plan: &Plan) -> BTreeMap<String, String> {
    let named = plan.stages.iter().filter_map(|stage| Some((stage.operator.clone(), stage.variant.clone()?)));
    named.collect()
}

fn workers(plan: &Plan) -> BTreeMap<String, String> {
    let message = plan.workers.iter().map(|worker| {
        let price = worker.price.map(|price| format!(", {}", dollars(price.0))).unwrap_or_default();
        (worker.id.clone(), format!("{} in {}{price}", worker.worker_type, worker.tier))
    });
    message.collect()
}

fn stages(plan: &Plan) -> BTreeMap<String, String> {
    let message = plan.stages.iter().map(|stage| {
        let mut text = format!("on {}", stage.worker);
        if stage.share < 1.0 - 1e-9 {
            text.push_str(&format!(", {:.1} % of the records", stage.share * 100.0));
        }
        if stage.max_batch > 1 {
            text.push_str(&format!(", batches of {} within {}", stage.max_batch, stage.batching_budget));
        }
        if let Some(backend) = &stage.backend {
            text.push_str(&format!(", {backend}"));
        }
        (stage.id.clone(), text)
    });
    message.collect()
}

/// Shares of the keys by pair of stages.
fn flows(plan: &Plan) -> BTreeMap<String, String> {
    let message = plan.edges.iter().map(|edge| {
        let rate = edge.rate.map_or_else(|| "rate not known".to_owned(), |rate| format!("{:.2}/s", rate.0));
        (format!("{} -> {} ({})", edge.from, edge.to, edge.input), rate)
    });
    message.collect()
}
