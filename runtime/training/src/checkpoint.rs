//! The state of a training in a file: a line of JSON, and the bits of all numbers.
use crate::model::Model;
use crate::trainer::{Error, Options, Trainer};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;

/// The version of the format.
const VERSION: u32 = 1;
/// Bytes of the first line, at most.
const MOST_HEADER: u64 = 64 << 10;

#[derive(Serialize, Deserialize)]
struct Header {
    version: u32,
    model: Model,
    options: Options,
    step: u64,
    crc32c: u32,
}

/// The parameters of a model in training, with their last changes, after some steps.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Whole {
    pub(crate) step: u64,
    pub(crate) parameters: Vec<f64>,
    pub(crate) velocity: Vec<f64>,
}

impl Whole {
    /// Writes it to a file, which has the old contents or the new ones, whatever happens.
    pub(crate) fn save(&self, path: &Path, model: &Model, options: Options) -> Result<(), Error> {
        let numbers = self.parameters.iter().chain(&self.velocity);
        let bytes: Vec<u8> = numbers.flat_map(|number| number.to_le_bytes()).collect();
        let header = Header {
            version: VERSION,
            model: model.clone(),
            options,
            step: self.step,
            crc32c: crc32c::crc32c(&bytes),
        };
        let written = tidemill_disk::replace(path, |file| {
            serde_json::to_writer(&mut *file, &header)?;
            file.write_all(b"\n")?;
            file.write_all(&bytes)
        });
        written.map_err(|error| Error::File { path: path.to_owned(), error })
    }

    /// Reads it from a file of the same model and options.
    pub(crate) fn load(path: &Path, model: &Model, options: Options) -> Result<Self, Error> {
        let bytes = std::fs::read(path).map_err(|error| Error::File { path: path.to_owned(), error })?;
        let wrong = |reason: String| Error::Checkpoint { path: path.to_owned(), reason };
        let end = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(0);
        let header = header(&bytes[..end], path, model, options)?;
        let (numbers, count) = (&bytes[end + 1..], model.parameters());
        if numbers.len() != 16 * count || crc32c::crc32c(numbers) != header.crc32c {
            return Err(wrong("it is damaged: use an older one".to_owned()));
        }
        let mut numbers = numbers.chunks_exact(8).map(|bytes| {
            let mut number = [0; 8];
            number.copy_from_slice(bytes);
            f64::from_le_bytes(number)
        });
        let parameters = numbers.by_ref().take(count).collect();
        Ok(Self { step: header.step, parameters, velocity: numbers.collect() })
    }
}

/// Reads the first line of a checkpoint, and checks that it is of this model and these options.
fn header(line: &[u8], path: &Path, model: &Model, options: Options) -> Result<Header, Error> {
    let wrong = |reason: String| Error::Checkpoint { path: path.to_owned(), reason };
    let header: Header = serde_json::from_slice(line)
        .map_err(|error| wrong(format!("it is no checkpoint of a training: {error}")))?;
    if header.version != VERSION {
        return Err(wrong(format!("it has format {}, and {VERSION} is known", header.version)));
    }
    if header.model != *model || header.options != options {
        let reason = "it is of another model or other options: use the same ones, or another file";
        return Err(wrong(reason.to_owned()));
    }
    Ok(header)
}

/// Returns the step of a checkpoint of this model and these options; none: there is no file.
pub(crate) fn step_of(path: &Path, model: &Model, options: Options) -> Result<Option<u64>, Error> {
    let failed = |error| Error::File { path: path.to_owned(), error };
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file.map_err(failed)?,
    };
    let mut line = Vec::new();
    BufReader::new(file).take(MOST_HEADER).read_until(b'\n', &mut line).map_err(failed)?;
    Ok(Some(header(&line, path, model, options)?.step))
}

impl Trainer {
    /// Writes a checkpoint. The file has the old contents or the new ones, whatever happens.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self, path: &Path) -> Result<(), Error> {
        let (parameters, velocity) = (self.parameters.clone(), self.velocity.clone());
        Whole { step: self.step, parameters, velocity }.save(path, &self.model, self.options)
    }

    /// Continues from a checkpoint of the same model and options: the next steps have the bits that they would have had.
    ///
    /// # Errors
    /// The file cannot be read, is damaged, or belongs to another training.
    pub fn load(&mut self, path: &Path) -> Result<(), Error> {
        let whole = Whole::load(path, &self.model, self.options)?;
        (self.step, self.parameters, self.velocity) = (whole.step, whole.parameters, whole.velocity);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::data::spirals;
    use crate::{Alone, Error, Model, Options, Trainer};

    fn trainer(experts: usize) -> Trainer {
        let model = Model::Mixture { inputs: 2, hidden: 6, experts, classes: 3, balance: 0.05 };
        Trainer::new(model, Options::default(), spirals(3, 100, 1)).unwrap()
    }

    /// Bits, not values: a training that was interrupted is the same training.
    #[test]
    fn a_resumed_training_has_the_same_losses() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("training");
        let mut whole = trainer(3);
        let losses: Vec<u64> = (0..40).map(|_| whole.step(&mut Alone).unwrap().to_bits()).collect();
        let mut first = trainer(3);
        for _ in 0..17 {
            first.step(&mut Alone).unwrap();
        }
        first.save(&path).unwrap();
        let mut second = trainer(3);
        second.load(&path).unwrap();
        assert_eq!(second.steps(), 17);
        let rest: Vec<u64> = (17..40).map(|_| second.step(&mut Alone).unwrap().to_bits()).collect();
        assert_eq!(rest, losses[17..]);
        assert_eq!(second.parameters(), whole.parameters());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn wrong_files_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("training");
        let mut own = trainer(3);
        assert!(matches!(own.load(&path), Err(Error::File { .. })));
        own.save(&path).unwrap();
        assert!(trainer(2).load(&path).unwrap_err().to_string().contains("another model"));
        let mut bytes = std::fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        assert!(own.load(&path).unwrap_err().to_string().contains("damaged"));
        std::fs::write(&path, "").unwrap();
        assert!(own.load(&path).unwrap_err().to_string().contains("no checkpoint"));
        assert!(matches!(own.save(&folder.path().join("no/such")), Err(Error::File { .. })));
    }
}
