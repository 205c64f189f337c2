use super::*;
use tidemill_spec::profile::AfterPause;
use tidemill_spec::units::TimeSpan;

/// A world that follows the model: four processors take 0.6 of the time of one.
fn truth(flops: f64, parameters: f64, batch: u32, cores: f64) -> f64 {
    let records = f64::from(batch);
    let call = 1e5 + records * (2e4 + 1e3 * flops / 1e6 + 0.5 * 50.0) + 3e4 * parameters / 1e6;
    let slope = 0.6f64.ln() / 4f64.ln();
    call * cores.powf(slope)
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
        text.push_str(&format!("  - {{worker_type: {name}, how: measured, cpu: c, cores: {cores}}}\n"));
    }
    text.push_str("services:\n");
    for (machine, cores) in machines {
        for (model, flops, parameters) in models {
            let rows = [1, 8].map(|batch| {
                let time = truth(*flops, *parameters, batch, cores.max(1.0));
                match *cores < 1.0 {
                    true => {
                        let row = Shape::default().row(batch, time, Some(*cores));
                        let (mean, p50) = (row.mean.unwrap().0, row.p50.unwrap().0);
                        format!("{{batch: {batch}, samples: 40, mean: {mean}ns, p50: {p50}ns}}")
                    }
                    false => {
                        let (p50, p90) = (time.round(), (time * 1.2).round());
                        format!("{{batch: {batch}, samples: 50, p50: {p50}ns, p90: {p90}ns}}")
                    }
                }
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
    let speedup = predictor.speedup();
    // Although short calls on a half take no longer than on one.
    let expected = 0.6f64.ln() / 4f64.ln();
    assert!(speedup.is_seen && (speedup.exponent - expected).abs() < 1e-4, "{speedup:?}");
    assert!(predictor.learnt.iter().all(|figure| figure.machine != "half"));
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
    assert_eq!(predictor.speedup(), Speedup { exponent: 0.0, is_seen: false });
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
    assert!(predictor.model_errors.within(1).unwrap() > 10.0);
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
    assert_eq!((found.added, found.missing, found.notes.len()), (3, 2, 1));
    assert!(found.notes[0].contains("m7"), "{:?}", found.notes);
    let new = found.new_services();
    assert_eq!((new.len(), known.services.len() + 3), (3, found.profile.services.len()));
    assert!(new.iter().all(|service| service.how == How::Predicted));
    // A new model on a known machine has an interval; the error of shares is known from `half`.
    assert!(new.iter().all(|service| service.within.is_some()), "{new:?}");
    let row = &found.profile.service("o", Some("m1"), Some("ort"), "quarter").unwrap().batches[0];
    let truth = truth(MODELS[0].1, MODELS[0].2, 1, 1.0);
    assert!((row.mean.unwrap().0 as f64 / truth - 4.0).abs() < 0.01 && row.samples.is_none(), "{row:?}");
    assert!(row.p90.unwrap() >= row.p50.unwrap());
    assert_eq!(found.profile.machine("quarter").unwrap().how, How::Predicted);
    assert!(Profile::parse(&found.profile.to_yaml().unwrap(), "p").is_ok());
    // Predictions are not used for fitting.
    let again = Predictor::new(&found.profile, features(&MODELS), &BTreeSet::new());
    assert_eq!(again.figures, predictor.figures);
}

#[test]
fn a_quota_says_nothing_about_speed() {
    // The calls of a fast model take as long on a half as on two; with only one whole type, the effect of more is unknown.
    let known = profile(&[("half", 0.5), ("two", 2.0)], &MODELS[..1]);
    let predictor = Predictor::new(&known, features(&MODELS), &BTreeSet::new());
    assert_eq!(predictor.speedup(), Speedup { exponent: 0.0, is_seen: false });
    let four = predictor.predict("o", Some("m1"), Some("ort"), 1, ("four", 4.0)).unwrap();
    let two = truth(MODELS[0].1, MODELS[0].2, 1, 2.0);
    assert!((four.nanoseconds / two - 1.0).abs() < 1e-3, "{four:?}");
}

#[test]
fn shares_alone_teach_their_processor_time() {
    let known = profile(&[("half", 0.5)], &MODELS);
    let predictor = Predictor::new(&known, features(&MODELS), &BTreeSet::new());
    let one = predictor.predict("o", Some("m3"), Some("ort"), 8, ("one", 1.0)).unwrap();
    let (_, flops, parameters) = MODELS[2];
    assert!((one.nanoseconds / truth(flops, parameters, 8, 1.0) - 1.0).abs() < 0.01, "{one:?}");
}

#[test]
fn what_was_measured_and_multiplied_is_learnt_from_once() {
    let mut corrected = profile(&[("one", 1.0), ("two", 2.0)], &MODELS);
    corrected.services.iter_mut().for_each(|service| service.how = How::Predicted);
    corrected.machines.iter_mut().for_each(|machine| (machine.how, machine.cpu) = (How::Predicted, None));
    let predictor = Predictor::new(&corrected, features(&MODELS), &BTreeSet::new());
    assert!(predictor.learnt() == 24 && predictor.speedup().is_seen);
    // A type with more processors than the real ones has copied figures: their equality proves nothing.
    let copies = corrected.services.iter().filter(|service| service.worker_type == "one").cloned();
    let copies: Vec<Service> =
        copies.map(|service| Service { worker_type: "huge".to_owned(), ..service }).collect();
    corrected.services.retain(|service| service.worker_type == "one");
    corrected.services.extend(copies);
    corrected.machines[1].worker_type = "huge".to_owned();
    let predictor = Predictor::new(&corrected, features(&MODELS), &BTreeSet::new());
    assert!(predictor.learnt() == 12 && !predictor.speedup().is_seen);
}

#[test]
fn a_larger_batch_takes_no_less() {
    let mut known = profile(&[("one", 1.0), ("two", 2.0)], &MODELS[..1]);
    for service in &mut known.services {
        service.batches[1].p50 = Some(TimeSpan(5_000));
        service.batches[1].p90 = None;
    }
    let predictor = Predictor::new(&known, features(&MODELS), &BTreeSet::new());
    let wanted = [("o".to_owned(), Some("m1".to_owned()), Some("ort".to_owned()))];
    for (name, cores) in [("four", 4.0), ("tenth", 0.1)] {
        let targets = [Target { worker_type: name.to_owned(), cores }];
        let found = complete(&known, &predictor, &wanted, &targets);
        let rows = &found.new_services()[0].batches;
        assert!(rows.len() == 2 && rows[1].p50 >= rows[0].p50 && rows[1].p90 >= rows[0].p90, "{rows:?}");
    }
}

#[test]
fn calls_after_a_pause_are_predicted_too() {
    let mut known = profile(&[("one", 1.0)], &MODELS[..5]);
    for (place, service) in known.services.iter_mut().enumerate() {
        let longer = |time: TimeSpan| TimeSpan(time.0 + 100_000 * (place as u64 + 1));
        let times = service.batches[0].map(longer);
        service.after_pause = Some(AfterPause { pause: TimeSpan(20_000_000), times });
    }
    let predictor = Predictor::new(&known, features(&MODELS), &BTreeSet::new());
    let wanted = ["m1", "m6"].map(|model| ("o".to_owned(), Some(model.to_owned()), Some("ort".to_owned())));
    let targets =
        [("one", 1.0), ("quarter", 0.25)].map(|(name, cores)| Target { worker_type: name.to_owned(), cores });
    let found = complete(&known, &predictor, &wanted, &targets);
    let longer = |model: &str, worker: &str| {
        let service = found.profile.service("o", Some(model), Some("ort"), worker).unwrap();
        assert!(
            service.how == How::Predicted && service.after_pause.as_ref().unwrap().times.samples.is_none()
        );
        found.profile.longer_after_pause(service, |times| times.p50) / 1e5
    };
    // The median of five; for a measured model its own, on a quarter four times that.
    assert!((longer("m6", "one") - 3.0).abs() < 0.1, "{}", longer("m6", "one"));
    assert!((longer("m1", "quarter") - 4.0).abs() < 0.1, "{}", longer("m1", "quarter"));
    assert!(Profile::parse(&found.profile.to_yaml().unwrap(), "p").is_ok());
}

#[test]
fn the_factor_is_that_of_nine_in_ten_times() {
    let errors = Errors((0..20).map(|place| (1 + place % 2, -f64::from(place as u8) / 10.0)).collect());
    let ln = |batch| (errors.within(batch).unwrap().ln() * 10.0).round();
    // Ten of each size: rank 9.9, the largest. For an unseen size: rank 18.9 of all.
    assert_eq!((ln(1), ln(2), ln(4)), (18.0, 19.0, 18.0));
    assert_eq!(Errors(vec![(1, 0.5), (2, -0.7)]).within(1), Some(0.7f64.exp()));
    assert_eq!(Errors::default().within(1), None);
}
