use super::*;

/// A world that is as the model says: half a processor takes twice as long, four take 0.6 of the time.
fn truth(flops: f64, parameters: f64, batch: u32, cores: f64) -> f64 {
    let records = f64::from(batch);
    let call = 1e5 + records * (2e4 + 1e3 * flops / 1e6 + 0.5 * 50.0) + 3e4 * parameters / 1e6;
    let slope = 0.6f64.ln() / 4f64.ln();
    call / cores.min(1.0) * cores.max(1.0).powf(slope)
}

const MODELS: [(&str, f64, f64); 6] = [
    ("m1", 1e7, 1e6),
    ("m2", 5e7, 2e5),
    ("m3", 1e8, 5e6),
    ("m4", 4e8, 1e6),
    ("m5", 9e8, 9e6),
    ("m6", 3e9, 2e7),
];

fn features(known: &[(&str, f64, f64)]) -> Models {
    let one = |(name, flops, parameters): &(&str, f64, f64)| {
        (("o".to_owned(), (*name).to_owned()), Features { flops: *flops, parameters: *parameters })
    };
    known.iter().map(one).collect()
}

fn profile(machines: &[(&str, f64)], models: &[(&str, f64, f64)]) -> Profile {
    let mut text =
        "version: 1\nworkflow: {name: w}\nmessages: [{from: s, to: o, bytes_per_record: 50kB}]\nmachines:\n"
            .to_owned();
    for (name, cores) in machines {
        text.push_str(&format!("  - {{worker_type: {name}, how: measured, cores: {cores}}}\n"));
    }
    text.push_str("services:\n");
    for (machine, cores) in machines {
        for (model, flops, parameters) in models {
            let rows = [1, 8].map(|batch| {
                let time = truth(*flops, *parameters, batch, *cores).round();
                format!("{{batch: {batch}, p50: {time}ns, p90: {}ns}}", (time * 1.2).round())
            });
            text.push_str(&format!(
                "  - {{operator: o, variant: {model}, backend: ort, worker_type: {machine}, how: measured, batches: [{}]}}\n",
                rows.join(", ")
            ));
        }
    }
    Profile::parse(&text, "p").unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn a_world_as_the_model_says_is_predicted() {
    let machines = [("half", 0.5), ("one", 1.0), ("two", 2.0), ("four", 4.0)];
    let profile = profile(&machines, &MODELS[..5]);
    let predictor = Predictor::new(&profile, features(&MODELS), &BTreeSet::new());
    let slopes = predictor.slopes();
    assert!((slopes.below_one + 1.0).abs() < 1e-4 && slopes.seen == [true, true], "{slopes:?}");
    assert!((slopes.above_one - 0.6f64.ln() / 4f64.ln()).abs() < 1e-4, "{slopes:?}");
    // Another machine, another model, and both.
    for (model, worker, cores) in [("m1", "eight", 8.0), ("m6", "two", 2.0), ("m6", "eight", 8.0)] {
        let (_, flops, parameters) = MODELS.iter().find(|known| known.0 == model).unwrap();
        let found = predictor.predict("o", Some(model), Some("ort"), 8, (worker, cores)).unwrap();
        let ratio = found.nanoseconds / truth(*flops, *parameters, 8, cores);
        assert!((ratio - 1.0).abs() < 0.02, "{model} {worker}: {ratio}");
        assert!(found.within.unwrap() < 1.2, "{found:?}");
    }
    assert!(predictor.left_out_machines().iter().all(|one| one.factor < 1.05 && one.figures == 10));
    assert_eq!(predictor.left_out_models().len(), 5);
    assert_eq!(predictor.predict("o", Some("unknown"), Some("ort"), 1, ("one", 1.0)), None);
    assert_eq!(predictor.predict("o", Some("m6"), Some("rten"), 1, ("one", 1.0)), None);
}

#[test]
fn what_was_never_seen_is_assumed_and_has_no_interval() {
    let predictor = Predictor::new(&profile(&[("one", 1.0)], &MODELS), features(&MODELS), &BTreeSet::new());
    let slopes = predictor.slopes();
    assert_eq!((slopes.below_one, slopes.above_one, slopes.seen), (-1.0, 0.0, [false, false]));
    let found = predictor.predict("o", Some("m1"), Some("ort"), 1, ("half", 0.5)).unwrap();
    assert_eq!(found.within, None);
}

#[test]
fn wrong_models_are_told_by_what_was_left_out() {
    let mut odd = profile(&[("one", 1.0)], &MODELS);
    for row in &mut odd.services[2].batches {
        row.p50 = row.p50.map(|time| TimeSpan(time.0 * 20));
        row.p90 = None;
    }
    let predictor = Predictor::new(&odd, features(&MODELS), &BTreeSet::new());
    let left_out = predictor.left_out_models();
    let worst = left_out.iter().max_by(|a, b| a.factor.total_cmp(&b.factor)).unwrap();
    assert!(worst.name == "o m3" && worst.factor > 10.0 && worst.bias < 0.1, "{worst:?}");
    assert!(within(left_out).unwrap() > 10.0);
}

#[test]
fn a_profile_is_completed_and_marked() {
    let machines = [("half", 0.5), ("one", 1.0)];
    let known = profile(&machines, &MODELS[..5]);
    let predictor = Predictor::new(&known, features(&MODELS), &BTreeSet::new());
    let wanted: Vec<_> = ["m1", "m6", "m7"]
        .map(|model| ("o".to_owned(), Some(model.to_owned()), Some("ort".to_owned())))
        .to_vec();
    let targets = [
        Target { worker_type: "one".to_owned(), cores: 1.0 },
        Target { worker_type: "quarter".to_owned(), cores: 0.25 },
    ];
    let found = complete(&known, &predictor, &wanted, &targets);
    // m6 on both, m1 on the new one; m7 has no features.
    assert_eq!((found.added, found.notes.len()), (3, 1));
    assert!(found.notes[0].contains("m7"), "{:?}", found.notes);
    let new: Vec<_> = found.profile.services.iter().skip(known.services.len()).collect();
    assert!(new.iter().all(|service| service.how == How::Predicted && service.within.is_some()));
    let row = &found.profile.service("o", Some("m1"), Some("ort"), "quarter").unwrap().batches[0];
    assert!(row.p90.unwrap() > row.p50.unwrap() && row.mean.is_none() && row.samples.is_none());
    assert_eq!(found.profile.machine("quarter").unwrap().how, How::Predicted);
    assert!(Profile::parse(&found.profile.to_yaml().unwrap(), "p").is_ok());
    // Predictions are not learnt from.
    let again = Predictor::new(&found.profile, features(&MODELS), &BTreeSet::new());
    assert_eq!(again.figures, predictor.figures);
}
