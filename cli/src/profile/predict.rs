//! `tidemill profile predict`: times without a measurement, and the error of such predictions.
use super::written;
use crate::arguments::{OutputForm, PredictArguments};
use crate::exit::Exit;
use crate::table::{Side, Table};
use crate::terminal::Terminal;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::{self, Write};
use tidemill_app::choice;
use tidemill_app::output_file::OutputFile;
use tidemill_app::preparation::{Scope, load};
use tidemill_profiler::predict::{Features, LeftOut, Models, Predicted, Predictor, Target, complete};
use tidemill_spec::infrastructure::Infrastructure;
use tidemill_spec::variables::environment;

/// Predicts and prints.
pub(super) fn predict(arguments: &PredictArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    let profile = super::read(&arguments.profile)?;
    let infrastructure = Infrastructure::load(&arguments.infra)?;
    let workflow = load(&arguments.workflow, &environment, Scope::Files, terminal)?;
    profile.validate_against(&workflow).into_result(())?;
    let target = arguments.out.as_deref().map(OutputFile::create).transpose()?;
    let (mut models, mut wanted) = (Models::new(), Vec::new());
    let candidates = choice::candidates(&workflow)?;
    for (operator, candidate) in candidates.iter().flat_map(|(o, list)| list.iter().map(move |c| (o, c))) {
        let manifest = &candidate.manifest;
        let variant = manifest.id.value.clone();
        if let (Some(flops), Some(parameters)) = (manifest.flops, manifest.parameters) {
            let features = Features { flops: flops as f64, parameters: parameters as f64 };
            models.insert((operator.clone(), variant.clone()), features);
        }
        // A published profile names no backends.
        let named = manifest.backends.iter().map(|backend| Some(backend.to_string()));
        let backends: Vec<Option<String>> =
            if manifest.backends.is_empty() { vec![None] } else { named.collect() };
        wanted.extend(backends.into_iter().map(|backend| (operator.clone(), Some(variant.clone()), backend)));
    }
    let without_models = profile.services.iter().filter(|service| service.variant.is_none());
    let others: BTreeSet<String> = without_models.map(|service| service.operator.clone()).collect();
    wanted.extend(others.into_iter().map(|operator| (operator, None, None)));
    let (mut targets, mut accelerated, mut notes) = (Vec::new(), BTreeSet::new(), Vec::new());
    for worker in infrastructure.tiers.iter().flat_map(|tier| tier.workers.iter()) {
        let worker_type = worker.worker_type.value.clone();
        if !worker.accelerators.is_empty() {
            accelerated.insert(worker_type);
        } else if let Some(vcpu) = &worker.vcpu {
            let target = Target { worker_type, cores: vcpu.value };
            if !targets.contains(&target) {
                targets.push(target);
            }
        } else {
            notes.push(format!(
                "`{worker_type}` is not predicted: the infrastructure does not give its `vcpu`"
            ));
        }
    }
    for worker_type in &accelerated {
        if !profile.services.iter().any(|service| service.worker_type == *worker_type) {
            notes.push(format!(
                "`{worker_type}` is not predicted: it has an accelerator, whose speed does not follow from numbers of processors"
            ));
        }
    }
    let predictor = Predictor::new(&profile, models, &accelerated);
    let mut predicted = complete(&profile, &predictor, &wanted, &targets);
    predicted.notes.extend(notes);
    if let Some(target) = target {
        let text = written(&predicted.profile)?;
        target.write(|out| out.write_all(text.as_bytes()))?;
    }
    let mut out = crate::answer::out();
    match arguments.output {
        OutputForm::Table => table(arguments, &predictor, &predicted, &mut out)?,
        OutputForm::Json => writeln!(out, "{:#}", document(arguments, &predictor, &predicted))?,
    }
    out.flush()?;
    Ok(Exit::Success)
}

fn document(arguments: &PredictArguments, predictor: &Predictor, predicted: &Predicted) -> Value {
    let rows = |all: &[LeftOut]| -> Vec<Value> {
        all.iter()
            .map(|one| json!({"name": one.name, "factor": one.factor, "bias": one.bias, "figures": one.figures}))
            .collect()
    };
    let speedup = predictor.speedup();
    json!({
        "version": 1, "profile": arguments.profile.display().to_string(),
        "out": arguments.out.as_ref().map(|file| file.display().to_string()), "learnt": predictor.learnt(),
        "added": predicted.added, "missing": predicted.missing, "notes": predicted.notes,
        "processors": {"above_one": speedup.exponent, "above_one_seen": speedup.is_seen},
        "left_out_models": rows(predictor.left_out_models()),
        "left_out_machines": rows(predictor.left_out_machines()),
        "predicted": predicted.new_services(),
    })
}

fn table(
    arguments: &PredictArguments,
    predictor: &Predictor,
    predicted: &Predicted,
    out: &mut dyn Write,
) -> io::Result<()> {
    let speedup = predictor.speedup();
    writeln!(
        out,
        "twice as many processors take {:.2} times as long ({}); a part of a processor computes like a whole one until its quota ends\n",
        2f64.powf(speedup.exponent),
        if speedup.is_seen { "measured" } else { "assumed" },
    )?;
    for (title, all) in [
        ("model, predicted from the others", predictor.left_out_models()),
        ("machine, predicted from the others", predictor.left_out_machines()),
    ] {
        if all.is_empty() {
            writeln!(out, "{title}: too few in the profile to leave one out\n")?;
            continue;
        }
        let mut table = Table::new(&[
            (title, Side::Left),
            ("off by a factor of", Side::Right),
            ("predicted / measured", Side::Right),
            ("times", Side::Right),
        ]);
        for one in all {
            table.row([
                one.name.clone(),
                format!("{:.2}", one.factor),
                format!("{:.2}", one.bias),
                one.figures.to_string(),
            ]);
        }
        table.write(out)?;
        writeln!(out)?;
    }
    for note in &predicted.notes {
        writeln!(out, "{note}")?;
    }
    match (&arguments.out, predicted.added) {
        (_, 0) if predicted.missing == 0 => {
            writeln!(out, "nothing to predict: the profile has all times of the predictable types")
        }
        (_, 0) if predictor.learnt() == 0 => writeln!(
            out,
            "{} services are missing, and {} has no measured times to predict from: `tidemill profile \
             WORKFLOW --infra FILE` measures some",
            predicted.missing,
            arguments.profile.display()
        ),
        (_, 0) => {
            writeln!(out, "{} services are missing, and none is predictable", predicted.missing)
        }
        (Some(file), added) => {
            writeln!(
                out,
                "{added} predicted services in {}; `tidemill profile show` marks them",
                file.display()
            )
        }
        (None, added) => writeln!(out, "{added} services are predictable; `--out FILE` writes them"),
    }
}
