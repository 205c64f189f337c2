//! Measures a run of each shipped model by each back end of this machine, in this process and in a proxy beside it, in turns.
mod page;
mod routes;

use crate::result::{Answer, Measurement};
use anyhow::Context;
use clap::Args;
use routes::{Route, Routes};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tidemill_inference::backend::Session;
use tidemill_inference::facts::{Dimension, ModelFacts, Port, PortElement, inspect};
use tidemill_inference::tensor::{Tensor, TensorData};
use tidemill_remote::own_proxy::serve_standard_input;

/// Turns of each route in the time of a model.
const ROUNDS: u32 = 5;
/// Calls of a turn, at least.
const LEAST: usize = 4;
/// Calls of each route before the first turn.
const WARM_UPS: usize = 3;
/// Largest difference from the first route, as a part of its largest output.
const TOLERANCE: f64 = 1e-3;
/// The same of models with 8 bits, whose steps back ends round differently.
const TOLERANCE_8_BITS: f64 = 5e-2;

/// Options of `backends`.
#[derive(Debug, Clone, Args)]
#[group(id = "each-backend")]
pub(crate) struct Options {
    /// Seconds of each model by each route of backends.
    #[arg(long, default_value_t = 1.0)]
    backends_seconds: f64,
    /// The repository, for the models of backends and the files in .tidemill.
    #[arg(long, default_value = ".")]
    backends_root: PathBuf,
}

/// A model by all routes.
struct Row {
    model: String,
    /// Seconds of each call, or why there are none.
    cells: Vec<Result<Vec<f64>, String>>,
}

/// Serves a proxy if this process was started as one, as executors start their own program.
pub(crate) fn serve_proxy() -> Option<anyhow::Result<()>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.first()? != "device-proxy" {
        return None;
    }
    let of = |option: &str| words.iter().skip_while(|word| *word != option).nth(1);
    let libraries = Path::new(of("--libraries").map_or(".", String::as_str));
    Some(serve_standard_input(of("--backend").map(String::as_str), libraries).map_err(anyhow::Error::from))
}

/// Measures all models, and writes the page.
pub(crate) fn run(options: &Options, folder: &Path) -> anyhow::Result<Answer> {
    let routes = Routes::here(&options.backends_root)?;
    let mut rows = Vec::new();
    for path in models(&options.backends_root)? {
        rows.push(row(&path, &routes, Duration::from_secs_f64(options.backends_seconds))?);
    }
    let measurements = rows.iter().flat_map(|row| row.measurements(&routes)).collect();
    let answer =
        Answer::new("backends", "What does a run of a model take on each back end, batch 1?", measurements);
    page::write(folder, &routes, &rows)?;
    Ok(answer)
}

impl Row {
    fn measurements(&self, routes: &Routes) -> impl Iterator<Item = Measurement> {
        self.cells.iter().zip(&routes.all).filter_map(|(cell, route)| {
            let milliseconds = cell.as_ref().ok()?.iter().map(|seconds| seconds * 1e3).collect();
            Some(Measurement::new(format!("{}, {}", self.model, route.name), "ms", milliseconds))
        })
    }
}

/// The shipped models, by path.
fn models(root: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let folders = std::fs::read_dir(root.join("models")).context("cannot read the folder models")?;
    let folders = folders.flatten().filter_map(|folder| std::fs::read_dir(folder.path()).ok());
    let files = folders.flat_map(|files| files.flatten().map(|file| file.path()));
    let mut models: Vec<PathBuf> =
        files.filter(|path| path.extension().is_some_and(|end| end == "onnx")).collect();
    models.sort();
    anyhow::ensure!(!models.is_empty(), "there are no models in {}", root.join("models").display());
    Ok(models)
}

/// A loaded model that gave the right outputs.
struct Runner {
    session: Box<dyn Session>,
    times: Vec<f64>,
}

fn row(path: &Path, routes: &Routes, time: Duration) -> anyhow::Result<Row> {
    let facts = inspect(path)?;
    let inputs = facts.inputs.iter().map(made).collect::<anyhow::Result<Vec<_>>>()?;
    let wanted: Vec<usize> = (0..facts.outputs.len()).collect();
    let tolerance = if facts.is_quantised { TOLERANCE_8_BITS } else { TOLERANCE };
    let mut expected = None;
    let mut runners: Vec<Result<Runner, String>> = Vec::new();
    for route in &routes.all {
        runners.push(route.file(&facts).and_then(|own| {
            let session = loaded(route, &own, &inputs, &wanted, tolerance, &mut expected)?;
            Ok(Runner { session, times: Vec::new() })
        }));
    }
    // Turns, so that what else the machine does concerns all of them.
    for _ in 0..ROUNDS {
        for runner in runners.iter_mut().flatten() {
            let (begin, mut calls) = (now(), 0);
            while calls < LEAST || begin.elapsed() < time / ROUNDS {
                let call = now();
                std::hint::black_box(runner.session.run(&inputs, &wanted)?);
                runner.times.push(call.elapsed().as_secs_f64());
                calls += 1;
            }
        }
    }
    let model = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    println!("{model}");
    Ok(Row { model, cells: runners.into_iter().map(|runner| Ok(runner?.times)).collect() })
}

/// Loads a model and compares its outputs with those of the first route.
fn loaded(
    route: &Route,
    facts: &ModelFacts,
    inputs: &[Tensor],
    wanted: &[usize],
    tolerance: f64,
    expected: &mut Option<Vec<Tensor>>,
) -> Result<Box<dyn Session>, String> {
    let mut session = route.backend.load(facts).map_err(|error| error.to_string())?;
    for _ in 0..WARM_UPS {
        let outputs = session.run(inputs, wanted).map_err(|error| error.to_string())?;
        let expected = expected.get_or_insert_with(|| outputs.clone());
        for (output, expected) in outputs.iter().zip(expected) {
            let off = difference(output, expected);
            if off.is_nan() || off > tolerance {
                return Err(format!("its outputs differ by {off:.1e} of the largest one"));
            }
        }
    }
    Ok(session)
}

/// Largest difference of two tensors, as a part of the largest value; no number where one of theirs is none.
fn difference(found: &Tensor, expected: &Tensor) -> f64 {
    if found.shape() != expected.shape() {
        return f64::INFINITY;
    }
    let (found, expected) = (found.data().to_f64(), expected.data().to_f64());
    let most = expected.iter().fold(f64::MIN_POSITIVE, |most, value| most.max(value.abs()));
    let worst = |worst: f64, (a, b): (&f64, &f64)| {
        let off = (a - b).abs() / most;
        if worst.is_nan() || off <= worst { worst } else { off }
    };
    found.iter().zip(&expected).fold(0.0, worst)
}

/// An input for one record: small numbers that repeat. Texts have none.
fn made(port: &Port) -> anyhow::Result<Tensor> {
    let (PortElement::Known(element), Some(shape)) = (&port.element, &port.shape) else {
        anyhow::bail!("the input {} is no tensor of known shape", port.name);
    };
    let size = |dimension: &Dimension| match dimension {
        Dimension::Fixed(size) => *size,
        Dimension::Free(_) => 1,
    };
    let shape: Vec<usize> = shape.iter().map(size).collect();
    let mut data = TensorData::zeros(*element, 0);
    (0..shape.iter().product()).for_each(|at: usize| data.push((at % 7) as f64));
    Ok(Tensor::new(shape, data)?)
}

#[expect(clippy::disallowed_methods, reason = "the time that calls take is real time")]
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(values: &[f32]) -> Tensor {
        Tensor::new(vec![values.len()], TensorData::Float32(values.to_vec())).expect("a tensor")
    }

    #[test]
    fn a_difference_is_a_part_of_the_largest_value_and_what_is_no_number_is_none() {
        assert_eq!(difference(&tensor(&[1.0, 4.0]), &tensor(&[2.0, 4.0])), 0.25);
        assert_eq!(difference(&tensor(&[1.0]), &tensor(&[1.0, 2.0])), f64::INFINITY);
        assert!(difference(&tensor(&[f32::NAN, 4.0]), &tensor(&[2.0, 4.0])).is_nan());
    }

    #[test]
    fn an_input_has_one_record() {
        let shape = Some(vec![Dimension::Free("batch".to_owned()), Dimension::Fixed(9)]);
        let element = PortElement::Known(tidemill_spec::types::ElementType::Int64);
        let made = made(&Port { name: "x".to_owned(), element, shape }).expect("a tensor");
        assert_eq!((made.shape(), made.data().to_f64()[8]), (&[1, 9][..], 1.0));
    }
}
