//! The rival: a loop over files and models, written to win. It has one thread (or several that share only the list of
//! files), and the decoders, backends and models of the workflow. Each model has batches of its best size, buffers are
//! reused, and files are read when needed. It has no repeated checks and no recovery.
use crate::model_stage::Stage;
use crate::parts::cpu_microseconds;
use anyhow::{Context, anyhow, bail, ensure};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use tidemill_engine::clock::{Clock, WallClock};
use tidemill_inference::steps::{Cell, OutputColumn};
use tidemill_inference::tensor::TensorData;

/// Batch sizes to try.
pub(crate) const SIZES: [usize; 6] = [1, 2, 4, 8, 16, 32];
/// Pairs per block of a thread; a multiple of all sizes.
const BLOCK: usize = 32;
/// Least rounds of a sweep, and nanoseconds after which no further round starts.
const FEWEST_ROUNDS: usize = 3;
const LONG_ENOUGH: i64 = 5_000_000_000;

/// The models, and their batch sizes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Models {
    pub(crate) images: PathBuf,
    pub(crate) speech: PathBuf,
    pub(crate) answerer: PathBuf,
    pub(crate) backend: String,
}

/// Records per run of each model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BatchSizes {
    pub(crate) images: usize,
    pub(crate) speech: usize,
    pub(crate) answerer: usize,
}

/// The loop's own report at its end.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Outcome {
    pub(crate) pairs: usize,
    /// Seconds from the first file to the last line, after loading the models.
    pub(crate) seconds: f64,
}

/// Files of one pair.
pub(crate) struct Pair {
    key: String,
    image: PathBuf,
    sound: PathBuf,
}

/// Returns the pairs of two folders: files of the same name except for the extension, in order.
pub(crate) fn pairs(images: &Path, sounds: &Path) -> anyhow::Result<Vec<Pair>> {
    let mut pairs = Vec::new();
    for entry in std::fs::read_dir(images).with_context(|| images.display().to_string())? {
        let image = entry?.path();
        let key = image.file_stem().and_then(|stem| stem.to_str()).context("a name is not UTF-8")?.to_owned();
        let sound = sounds.join(format!("{key}.wav"));
        if sound.exists() {
            pairs.push(Pair { key, image, sound });
        }
    }
    pairs.sort_by(|a, b| a.key.cmp(&b.key));
    Ok(pairs)
}

/// All models of one thread, and its reused buffers.
struct Loop {
    images: Stage,
    speech: Stage,
    answerer: Stage,
    sizes: BatchSizes,
    bytes: Vec<u8>,
    features: Vec<f32>,
    questions: Vec<String>,
    answers: Vec<String>,
}

impl Loop {
    fn load(models: &Models, sizes: BatchSizes) -> anyhow::Result<Self> {
        let mut all = Self {
            images: Stage::load(&models.images, &models.backend)?,
            speech: Stage::load(&models.speech, &models.backend)?,
            answerer: Stage::load(&models.answerer, &models.backend)?,
            sizes,
            bytes: Vec::new(),
            features: Vec::new(),
            questions: Vec::new(),
            answers: Vec::new(),
        };
        for stage in [&mut all.images, &mut all.speech, &mut all.answerer] {
            stage.warm_up()?;
        }
        Ok(all)
    }

    fn read(&mut self, path: &Path) -> anyhow::Result<()> {
        self.bytes.clear();
        let mut file = File::open(path).with_context(|| path.display().to_string())?;
        file.read_to_end(&mut self.bytes)?;
        Ok(())
    }

    fn images(&mut self, block: &[Pair]) -> anyhow::Result<()> {
        self.features.clear();
        for part in block.chunks(self.sizes.images) {
            for pair in part {
                self.read(&pair.image)?;
                self.images.push(|_| Cell::Bytes(&self.bytes))?;
            }
            let OutputColumn::Tensor(TensorData::Float32(features)) = self.images.run()? else {
                bail!("the image model gives no float32 features")
            };
            self.features.extend_from_slice(&features);
        }
        Ok(())
    }

    fn speech(&mut self, block: &[Pair]) -> anyhow::Result<()> {
        self.questions.clear();
        for part in block.chunks(self.sizes.speech) {
            for pair in part {
                self.read(&pair.sound)?;
                self.speech.push(|_| Cell::Bytes(&self.bytes))?;
            }
            let OutputColumn::Text(mut texts) = self.speech.run()? else {
                bail!("the speech model gives no text")
            };
            self.questions.append(&mut texts);
        }
        Ok(())
    }

    /// Answers a block and appends its lines.
    fn answer(&mut self, block: &[Pair], lines: &mut Vec<u8>) -> anyhow::Result<()> {
        self.images(block)?;
        self.speech(block)?;
        self.answers.clear();
        let width = self.features.len() / block.len();
        for start in (0..block.len()).step_by(self.sizes.answerer) {
            for at in start..block.len().min(start + self.sizes.answerer) {
                let features = &self.features[at * width..(at + 1) * width];
                let question = self.questions[at].as_str();
                self.answerer.push(|column| match column {
                    "question" => Cell::Text(question),
                    _ => Cell::Float32(features),
                })?;
            }
            let OutputColumn::Text(mut texts) = self.answerer.run()? else {
                bail!("the answerer gives no text")
            };
            self.answers.append(&mut texts);
        }
        for (pair, (question, answer)) in block.iter().zip(self.questions.iter().zip(&self.answers)) {
            lines.extend_from_slice(b"{\"key\":");
            serde_json::to_writer(&mut *lines, &pair.key)?;
            lines.extend_from_slice(b",\"question\":");
            serde_json::to_writer(&mut *lines, question)?;
            lines.extend_from_slice(b",\"answer\":");
            serde_json::to_writer(&mut *lines, answer)?;
            lines.extend_from_slice(b"}\n");
        }
        Ok(())
    }
}

/// Answers all pairs and writes the lines to `out`, in order.
pub(crate) fn run(
    models: &Models,
    sizes: BatchSizes,
    pairs: &[Pair],
    threads: usize,
    out: &Path,
) -> anyhow::Result<Outcome> {
    let clock = WallClock::new();
    let mut file = File::create(out).with_context(|| out.display().to_string())?;
    let mut loops = (0..threads).map(|_| Loop::load(models, sizes)).collect::<anyhow::Result<Vec<_>>>()?;
    let started = clock.now();
    if let [one] = loops.as_mut_slice() {
        let mut lines = Vec::new();
        for block in pairs.chunks(BLOCK) {
            lines.clear();
            one.answer(block, &mut lines)?;
            file.write_all(&lines)?;
        }
    } else {
        let next = AtomicUsize::new(0);
        let work = |mut own: Loop| -> anyhow::Result<Vec<(usize, Vec<u8>)>> {
            let mut parts = Vec::new();
            loop {
                let at = next.fetch_add(BLOCK, Ordering::Relaxed);
                let Some(rest) = pairs.get(at..).filter(|rest| !rest.is_empty()) else {
                    return Ok(parts);
                };
                let mut lines = Vec::new();
                own.answer(&rest[..rest.len().min(BLOCK)], &mut lines)?;
                parts.push((at, lines));
            }
        };
        let work = &work;
        let parts = std::thread::scope(|scope| {
            let threads: Vec<_> = loops.drain(..).map(|own| scope.spawn(move || work(own))).collect();
            let joined = threads.into_iter().map(|thread| match thread.join() {
                Ok(parts) => parts,
                Err(_) => Err(anyhow!("a thread died")),
            });
            joined.collect::<anyhow::Result<Vec<_>>>()
        })?;
        let mut parts: Vec<(usize, Vec<u8>)> = parts.into_iter().flatten().collect();
        parts.sort_unstable_by_key(|(at, _)| *at);
        for (_, lines) in parts {
            file.write_all(&lines)?;
        }
    }
    file.flush()?;
    Ok(Outcome { pairs: pairs.len(), seconds: (clock.now() - started) as f64 / 1e9 })
}

/// Measures the processor time of a record, microseconds, at each of [`SIZES`] for each model: the median over at most
/// `rounds` rounds through all sizes, fewer where they take long. Measures from the file to the model's output, as in
/// the loop: a large batch that suits the model may not fit the processor's caches.
pub(crate) fn sweep(models: &Models, pairs: &[Pair], rounds: usize) -> anyhow::Result<[Vec<f64>; 3]> {
    let one = BatchSizes { images: 1, speech: 1, answerer: 1 };
    let mut own = Loop::load(models, one)?;
    let block = &pairs[..pairs.len().min(BLOCK)];
    ensure!(block.len() == BLOCK, "a sweep needs {BLOCK} pairs");
    own.answer(block, &mut Vec::new())?;
    let (features, questions) = (own.features.clone(), own.questions.clone());
    let width = features.len() / BLOCK;
    let mut costs: [Vec<Vec<f64>>; 3] = std::array::from_fn(|_| vec![Vec::new(); SIZES.len()]);
    let clock = WallClock::new();
    for round in 0..rounds {
        if round >= FEWEST_ROUNDS && clock.now() > LONG_ENOUGH {
            break;
        }
        for (place, size) in SIZES.into_iter().enumerate() {
            for (model, costs) in costs.iter_mut().enumerate() {
                let before = cpu_microseconds();
                for start in (0..BLOCK).step_by(size) {
                    for (at, pair) in block.iter().enumerate().skip(start).take(size) {
                        match model {
                            0 => own.read(&pair.image)?,
                            1 => own.read(&pair.sound)?,
                            _ => {}
                        }
                        let bytes = Cell::Bytes(&own.bytes);
                        match model {
                            0 => own.images.push(|_| bytes)?,
                            1 => own.speech.push(|_| bytes)?,
                            _ => own.answerer.push(|column| match column {
                                "question" => Cell::Text(&questions[at]),
                                _ => Cell::Float32(&features[at * width..(at + 1) * width]),
                            })?,
                        }
                    }
                    let stage = [&mut own.images, &mut own.speech, &mut own.answerer].into_iter().nth(model);
                    stage.context("three models")?.run()?;
                }
                let microseconds = cpu_microseconds() - before;
                costs[place].push(microseconds / BLOCK as f64);
            }
        }
    }
    let median = |mut samples: Vec<f64>| {
        samples.sort_by(f64::total_cmp);
        samples[samples.len() / 2]
    };
    Ok(costs.map(|sizes| sizes.into_iter().map(median).collect()))
}
