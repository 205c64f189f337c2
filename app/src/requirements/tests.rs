use super::*;
use crate::listener::Silent;
use tidemill_inference::payload::Payload;
use tidemill_replay::change::Change;

fn example(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/vqa").join(file)
}

fn asked() -> Asked {
    Asked {
        infrastructure: Some(example("infrastructure.yaml")),
        profiles: vec![example("profile.yaml")],
        plan: None,
        devices: Vec::new(),
        bound: Bound { budget: 0.05, window: 1 },
        batch: None,
        round_trip: None,
        bandwidth: None,
        software: Some(0.0),
        queue: 0.0,
        any: None,
    }
}

fn judged(asked: &Asked) -> Requirements {
    requirements(&example("workflow.yaml"), asked, &Silent).unwrap_or_else(|error| panic!("{error:#}"))
}

fn model<'a>(all: &'a Requirements, variant: &str) -> &'a OfModel {
    let models = all.operators.iter().flat_map(|operator| &operator.models);
    models.into_iter().find(|of| of.variant == variant).unwrap()
}

#[test]
fn a_model_of_the_example_is_judged_by_its_files() {
    let found = judged(&asked());
    assert_eq!(found.links.len(), 1, "{:?}", found.links);
    assert_eq!((found.links[0].name.as_str(), found.links[0].round_trip), ("edge -> cloud", 0.040));
    let huge = model(&found, "scene-features-huge");
    // 3 x 256 x 256 floats there, 384 back; `large` is the only kind that the link leads to.
    assert_eq!((huge.run.up, huge.run.down, huge.device.as_str()), (786_432.0, 1_536.0, "large"));
    let verdict = &huge.verdicts[0];
    let over = 786_432.0 / payload_rate(50e6) + 1_536.0 / payload_rate(50e6) + 0.040;
    assert!((verdict.slow_down - over / huge.run.local).abs() < 1e-9, "{verdict:?}");
    assert_eq!((verdict.fits, verdict.binding), (false, Term::Bytes));
    assert!(found.is_no());
    // A round trip may take 5 % of the time of a run.
    let longest = huge.longest_round_trip.unwrap();
    assert!((longest - 0.05 * huge.run.local).abs() < 1e-9);
    let operator = &found.operators[0];
    assert!(operator.round_trips.last().is_some_and(|last| *last < longest));
    assert_eq!(huge.least_bandwidths.len(), operator.round_trips.len());
    for (round_trip, least) in operator.round_trips.iter().zip(&huge.least_bandwidths) {
        let link = Link::nominal(*round_trip, least.unwrap() * 1.0001, least.unwrap() * 1.0001);
        assert!(found.bound.fits(&huge.run, &link));
    }
}

#[test]
fn the_cheapest_change_keeps_the_budget() {
    // A budget of three times the local time, over a link whose round trip it allows but whose bytes it does not.
    let asked = Asked {
        bound: Bound { budget: 3.0, window: 1 },
        round_trip: Some(0.001),
        bandwidth: Some(5e6),
        ..asked()
    };
    let found = judged(&asked);
    let place = found.links.iter().position(|link| link.name == "the given link").unwrap();
    let mut changes = Vec::new();
    for of in found.operators.iter().flat_map(|operator| &operator.models) {
        let verdict = of.verdicts.iter().find(|verdict| verdict.link == place).unwrap();
        if let Some((way, slow_down)) = &verdict.change {
            assert!(!verdict.fits && *slow_down <= 3.0 + 1e-6, "{verdict:?}");
            changes.extend(way.changes.iter().copied());
        }
    }
    // Pictures are sent coded; texts and vectors need nothing.
    assert!(changes.contains(&Change::PrepareAtDevice), "{changes:?}");
}

#[test]
fn devices_and_batches_can_be_named() {
    let asked = Asked { devices: vec!["small".into()], batch: Some(4), infrastructure: None, ..asked() };
    let found = judged(&asked);
    assert!(found.links.is_empty() && !found.is_no(), "without a link there is no verdict");
    let tiny = model(&found, "scene-features-tiny");
    assert_eq!((tiny.device.as_str(), tiny.run.down), ("small", 4.0 * 1_536.0));
    assert!(found.left_out.iter().any(|left| left.variant == "moonshine-base"), "{:?}", found.left_out);
}

#[test]
fn what_is_missing_names_the_command_that_measures_it() {
    let fails = |asked: &Asked| {
        let error = requirements(&example("workflow.yaml"), asked, &Silent).unwrap_err();
        let failure = error.downcast::<Failure>().unwrap();
        (failure.to_string(), failure.help().unwrap_or_default().to_owned())
    };
    let (message, help) = fails(&Asked { profiles: Vec::new(), ..asked() });
    assert!(message.contains("no profile") && help.contains("tidemill profile "), "{message}: {help}");
    let (message, help) = fails(&Asked { profiles: vec![example("absent.yaml")], ..asked() });
    assert!(message.contains("absent.yaml") && help.contains("tidemill profile "), "{message}: {help}");
    let (message, help) = fails(&Asked { devices: vec!["larg".into()], ..asked() });
    assert!(message.contains("`larg`") && help.contains("large"), "{message}: {help}");
    let (message, _) = fails(&Asked { batch: Some(3), ..asked() });
    assert!(message.contains("batches of 3 on large, only of 1, 2, 4, 8"), "{message}");
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().join("profile.yaml");
    std::fs::write(
        &empty,
        "version: 1\nworkflow: {name: vqa}\nmachines: [{worker_type: large, how: measured}]\n",
    )
    .unwrap();
    let (message, help) = fails(&Asked { profiles: vec![empty], ..asked() });
    assert!(message.contains("no times of `scene_features`"), "{message}");
    assert!(help.contains("tidemill profile "), "{help}");
}

/// A model of 1, 2, 4 and 8 ms in batches of 1, 2, 4 and 8, as a plan runs it.
fn service() -> Profile {
    let batches: Vec<String> = [1, 2, 4, 8].map(|n| format!("{{batch: {n}, mean: {n}ms}}")).to_vec();
    let text = format!(
        "version: 1\nworkflow: {{name: w}}\nmachines: [{{worker_type: card, how: measured}}]\nservices:\n  - {{operator: o, variant: v, \
         worker_type: card, how: measured, batches: [{}]}}\n",
        batches.join(", ")
    );
    Profile::parse(&text, "profile.yaml").unwrap_or_else(|found| panic!("{found}"))
}

fn planned(sends: Sends, batch: u32, share: f64, compute: Option<u64>) -> Planned {
    use tidemill_spec::units::{Bytes, Percent, TimeSpan};
    let expected = compute.map(|compute| tidemill_spec::plan::RemoteRun {
        sent: Bytes(1000),
        received: Bytes(100),
        round_trip: TimeSpan(4_000_000),
        transfer: TimeSpan(1_000_000),
        queue: TimeSpan(50_000_000),
        compute: TimeSpan(compute),
        share: Percent(10.0),
    });
    let device = PlannedDevice { id: "hub/card".into(), kind: "card".into(), share, expected };
    Planned { sends, batch, device: Some(device) }
}

/// The profile has no batches of the plan's size to compare with.
#[test]
fn batches_of_another_size_last_as_long_as_by_the_profile() {
    let (profile, planned) = (service(), planned(Sends::Rows, 3, 0.5, Some(9_000_000)));
    let source = Source {
        payload: None,
        column: None,
        service: profile.services.first(),
        planned: Some(&planned),
        is_on_device: true,
        software: None,
        queue: 0.0,
    };
    let local = |batch| source.run(batch).map(|run| run.local);
    assert_eq!((local(3), local(4), local(5)), (Some(0.009), Some(0.008), None), "4 ms on half of a device");
}

proptest::proptest! {
    /// A run has the time that the plan expects of its batches; others take as much longer as by the profile.
    #[test]
    fn a_planned_run_has_the_time_and_the_bytes_of_the_plan(
        at in 0_usize..4,
        other in 0_usize..4,
        compute in 1_000_u64..1_000_000_000,
        share in 0.1_f64..1.0,
        is_expected: bool,
    ) {
        let (profile, sizes) = (service(), [1_u32, 2, 4, 8]);
        let (batch, other) = (sizes[at], sizes[other]);
        let planned = planned(Sends::Rows, batch, share, is_expected.then_some(compute));
        let source = Source {
            payload: None,
            column: None,
            service: profile.services.first(),
            planned: Some(&planned),
            is_on_device: true,
            software: Some(0.0),
            queue: 0.0,
        };
        let run = source.run(other);
        // Rows whose size neither the plan nor the profile has are not judged.
        proptest::prop_assert_eq!(run.is_some(), is_expected);
        if let Some(run) = run {
            let local = compute as f64 / 1e9 * f64::from(other) / f64::from(batch);
            proptest::prop_assert!((run.local / local - 1.0).abs() < 1e-9, "{run:?}");
            proptest::prop_assert_eq!((run.up, run.down), (1000.0 * f64::from(other), 100.0 * f64::from(other)));
            let ways = alternatives(&source, run, other);
            proptest::prop_assert!(ways.iter().all(|(changes, _)| !changes.contains(&Change::PrepareAtDevice)));
        }
        let tensors = Planned { sends: Sends::Tensors, ..planned.clone() };
        let payload = Payload { inputs: 500, outputs: 50, byte_inputs: None };
        let own = Source { payload: Some(payload), planned: Some(&tensors), ..source };
        let run = own.run(batch).unwrap();
        let local = if is_expected { compute as f64 / 1e9 } else { f64::from(batch) / 1e3 / share };
        proptest::prop_assert!((run.local / local - 1.0).abs() < 1e-9, "{run:?}");
        proptest::prop_assert_eq!(run.up, 500.0 * f64::from(batch));
    }
}
