//! Measures the cost of one record on each backend: microseconds before the model, in it, and after it.
//!
//! ```text
//! cargo run --release -p tidemill-inference --example infer_cost -- MANIFEST [FOLDER] [BATCH]
//! ```
//! FOLDER holds one file per record (images, sounds or texts) for models with one input; without it the records are zeros
//! and only the model's run and the output steps are measured. BATCH: records per run, default 1.
#![expect(clippy::disallowed_methods, reason = "this program measures")]
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tidemill_inference::backend;
use tidemill_inference::blueprint::Blueprint;
use tidemill_inference::error::ModelError;
use tidemill_inference::model::Model;
use tidemill_inference::prepared::PreparedRow;
use tidemill_inference::steps::Cell;
use tidemill_spec::manifest::InputType;

/// Most records measured.
const RECORDS: usize = 500;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let manifest = arguments.next().ok_or("usage: infer_cost MANIFEST [FOLDER] [BATCH]")?;
    let folder = arguments.next().filter(|folder| !folder.is_empty()).map(PathBuf::from);
    let batch: usize = arguments.next().map_or(Ok(1), |text| text.parse())?;
    let blueprint =
        Blueprint::read(Path::new(&manifest)).map_err(|errors| ModelError::collect(errors).render(false))?;
    let files = folder.map(|folder| files(&folder)).transpose()?;
    println!(
        "{} ({} weights), batch {batch}, 1 thread, median microseconds a record",
        blueprint.manifest.id, blueprint.facts.parameters
    );
    println!("{:<8} {:>12} {:>12} {:>12}", "backend", "preprocess", "run", "postprocess");
    for name in blueprint.manifest.backends.iter().map(ToString::to_string) {
        let loaded = backend::backend(&name, Path::new("."))
            .map_err(ModelError::from)
            .and_then(|backend| Model::load(blueprint.clone(), backend.as_ref()));
        let mut model = match loaded {
            Ok(model) => model,
            Err(error) => {
                println!("{name:<8} {error}");
                continue;
            }
        };
        let (rows, preparing) = prepare(&mut model, files.as_deref())?;
        let (mut running, mut finishing) = (Vec::new(), Vec::new());
        for rows in rows.chunks(batch.max(1)).filter(|rows| rows.len() == batch.max(1)) {
            let start = Instant::now();
            let raw = model.run(rows)?;
            running.push(start.elapsed() / rows.len() as u32);
            let start = Instant::now();
            std::hint::black_box(model.finish(raw));
            finishing.push(start.elapsed() / rows.len() as u32);
        }
        println!("{name:<8} {:>12} {:>12} {:>12}", median(preparing), median(running), median(finishing));
    }
    Ok(())
}

/// The contents of the files of a folder, by name.
fn files(folder: &Path) -> std::io::Result<Vec<Vec<u8>>> {
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(folder)?.map(|e| e.map(|e| e.path())).collect::<Result<_, _>>()?;
    paths.retain(|path| path.is_file());
    paths.sort();
    paths.iter().map(std::fs::read).collect()
}

/// Prepares records and times each of them.
fn prepare(
    model: &mut Model,
    files: Option<&[Vec<u8>]>,
) -> Result<(Vec<PreparedRow>, Vec<Duration>), Box<dyn std::error::Error>> {
    let Some(files) = files else { return Ok((vec![model.zeros(); RECORDS], Vec::new())) };
    let [input] = model.blueprint().manifest.inputs.as_slice() else {
        return Err("a folder of records fits models with one input only".into());
    };
    let as_text = input.input_type == InputType::Text;
    let (mut rows, mut times) = (Vec::new(), Vec::new());
    for bytes in files.iter().cycle().take(RECORDS.max(files.len())) {
        let cell = if as_text { Cell::Text(std::str::from_utf8(bytes)?) } else { Cell::Bytes(bytes) };
        let start = Instant::now();
        let row = model.prepare(&[cell])?;
        times.push(start.elapsed());
        rows.push(row);
    }
    Ok((rows, times))
}

/// The median in microseconds with one digit; a dash for none.
fn median(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    times
        .get(times.len() / 2)
        .map_or_else(|| "-".to_owned(), |time| format!("{:.1}", time.as_secs_f64() * 1e6))
}
