//! The answer for programs. Times are seconds, bandwidths bits per second, parts of 1.
use serde_json::{Value, json};
use tidemill_app::requirements::{KnownLink, OfModel, OfOperator, PlannedDevice, Requirements, Verdict};
use tidemill_replay::change::Change;
use tidemill_spec::units::TimeSpan;

/// The whole answer. An infinite bandwidth is `null`.
pub(super) fn document(found: &Requirements) -> Value {
    let link = |link: &KnownLink| json!({"name": link.name, "round_trip": link.round_trip, "up": link.up, "down": link.down});
    let left_out = found
        .left_out
        .iter()
        .map(|left| json!({"operator": left.operator, "variant": left.variant, "why": left.why}));
    json!({
        "version": 1,
        "workflow": found.workflow,
        "budget": found.bound.budget,
        "window": found.bound.window,
        "batch": found.batch,
        "fits": !found.is_no(),
        "links": found.links.iter().map(link).collect::<Vec<_>>(),
        "operators": found.operators.iter().map(|of| operator(found, of)).collect::<Vec<_>>(),
        "not_judged": left_out.collect::<Vec<_>>(),
    })
}

fn operator(found: &Requirements, operator: &OfOperator) -> Value {
    let models = operator.models.iter().map(|of| model(found, operator, of));
    json!({"operator": operator.operator, "models": models.collect::<Vec<_>>()})
}

fn model(found: &Requirements, operator: &OfOperator, of: &OfModel) -> Value {
    let points = operator.round_trips.iter().zip(&of.least_bandwidths);
    let frontier = points.map(|(round_trip, least)| json!({"round_trip": round_trip, "bandwidth": least}));
    let verdicts = of.verdicts.iter().map(|verdict| self::verdict(found, verdict));
    json!({
        "variant": of.variant,
        "device": of.device,
        "sends": of.sends,
        "batch": of.batch,
        "planned_device": of.planned.as_ref().and_then(|planned| planned.device.as_ref()).map(planned),
        "how": of.how.to_string(),
        "local": of.run.local,
        "allowed": found.bound.allowed(&of.run),
        "software": of.run.software,
        "queue": of.run.queue,
        "round_trips": of.run.round_trips,
        "bytes_to_device": of.run.up,
        "bytes_back": of.run.down,
        "longest_round_trip": of.longest_round_trip,
        "exceeded_by": of.exceeded_by.map(|term| term.name()),
        "frontier": frontier.collect::<Vec<_>>(),
        "links": verdicts.collect::<Vec<_>>(),
    })
}

/// Expectations of the plan of a device; times are null in a plan that was written by hand.
fn planned(device: &PlannedDevice) -> Value {
    let seconds = |time: TimeSpan| time.0 as f64 / 1e9;
    let expected = device.expected.as_ref();
    json!({
        "id": device.id,
        "share": device.share,
        "round_trip": expected.map(|run| seconds(run.round_trip)),
        "transfer": expected.map(|run| seconds(run.transfer)),
        "compute": expected.map(|run| seconds(run.compute)),
    })
}

fn verdict(found: &Requirements, verdict: &Verdict) -> Value {
    let change = verdict.change.as_ref().map(|(way, slow_down)| {
        let changes: Vec<Value> = way.changes.iter().map(|change| named(*change)).collect();
        json!({"changes": changes, "slow_down": slow_down})
    });
    json!({
        "link": found.links[verdict.link].name,
        "slow_down": verdict.slow_down,
        "fits": verdict.fits,
        "binding": verdict.binding.name(),
        "cheapest_change": change,
    })
}

fn named(change: Change) -> Value {
    match change {
        Change::PrepareAtDevice => json!({"kind": "prepare_at_device"}),
        Change::Batch(size) => json!({"kind": "batch", "records": size}),
        Change::ByteInput => json!({"kind": "byte_input"}),
        Change::Window(runs) => json!({"kind": "window", "runs": runs}),
    }
}
