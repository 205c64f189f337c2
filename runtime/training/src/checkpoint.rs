//! The state of a training in a file: a line of JSON, and the bits of all numbers.
use crate::model::Model;
use crate::trainer::{Error, Options, Trainer};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// The version of the format.
const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Header {
    version: u32,
    model: Model,
    options: Options,
    step: u64,
    crc32c: u32,
}

impl Trainer {
    /// Writes a checkpoint. The file has the old contents or the new ones, whatever happens.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self, path: &Path) -> Result<(), Error> {
        let numbers = self.parameters.iter().chain(&self.velocity);
        let bytes: Vec<u8> = numbers.flat_map(|number| number.to_le_bytes()).collect();
        let header = Header {
            version: VERSION,
            model: self.model.clone(),
            options: self.options,
            step: self.step,
            crc32c: crc32c::crc32c(&bytes),
        };
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(".new");
        let new = path.with_file_name(name);
        let write = || -> io::Result<()> {
            let mut file = File::create(&new)?;
            serde_json::to_writer(&mut file, &header)?;
            file.write_all(b"\n")?;
            file.write_all(&bytes)?;
            tidemill_disk::sync_all(&file)?;
            tidemill_disk::rename(&new, path)?;
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            tidemill_disk::sync_folder(folder.unwrap_or(Path::new(".")))
        };
        write().map_err(|error| {
            // The new file is of no use.
            let _ = tidemill_disk::remove(&new);
            Error::File { path: path.to_owned(), error }
        })
    }

    /// Continues from a checkpoint of the same model and options: the next steps have the bits that they would have had.
    ///
    /// # Errors
    /// The file cannot be read, is damaged, or belongs to another training.
    pub fn load(&mut self, path: &Path) -> Result<(), Error> {
        let bytes = std::fs::read(path).map_err(|error| Error::File { path: path.to_owned(), error })?;
        let wrong = |reason: String| Error::Checkpoint { path: path.to_owned(), reason };
        let end = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(0);
        let header: Header = serde_json::from_slice(&bytes[..end])
            .map_err(|error| wrong(format!("it is no checkpoint of a training: {error}")))?;
        if header.version != VERSION {
            return Err(wrong(format!("it has format {}, and {VERSION} is known", header.version)));
        }
        if header.model != self.model || header.options != self.options {
            return Err(wrong(
                "it is of another model or other options: use the same ones, or another file".to_owned(),
            ));
        }
        let (numbers, count) = (&bytes[end + 1..], self.parameters.len());
        if numbers.len() != 16 * count || crc32c::crc32c(numbers) != header.crc32c {
            return Err(wrong("it is damaged: use an older one".to_owned()));
        }
        let mut numbers = numbers.chunks_exact(8).map(|bytes| {
            let mut number = [0; 8];
            number.copy_from_slice(bytes);
            f64::from_le_bytes(number)
        });
        self.parameters = numbers.by_ref().take(count).collect();
        self.velocity = numbers.collect();
        self.step = header.step;
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
