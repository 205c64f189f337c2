//! The states of a job in a file: a line of JSON, and the bits of all numbers, moments too.
use super::{Beginning, Client, ClientError, PAUSE, Patience};
use crate::tensor::Spec;
use crate::wire::Outcome;
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::path::Path;
use tidemill_rpc::Bytes;

/// The version of the format.
const FORMAT: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Header {
    format: u32,
    version: u64,
    specs: Vec<Spec>,
    crc32c: u32,
}

impl Client {
    /// Gets the whole states of all tensors. Between two steps of this worker all of them are at its step.
    ///
    /// # Errors
    /// An aggregator is not reached.
    pub fn states(&mut self) -> Result<Beginning, ClientError> {
        let (paths, version) = (&self.paths, self.version);
        let held = &mut self.held;
        let states = self.runtime.block_on(async {
            let mut states = Vec::new();
            for held in held {
                let mut patience = Patience::new(paths.joining.patience);
                loop {
                    match paths.ask(held, true, false).await {
                        Ok(pulled)
                            if pulled.outcome == Outcome::DONE
                                && pulled.version == version
                                && crc32c::crc32c(&pulled.state) == pulled.crc32c =>
                        {
                            states.push(Bytes::copy_from_slice(&pulled.state));
                            break;
                        }
                        pulled if patience.is_over() => {
                            let reason = pulled.map_or_else(
                                |status| status.to_string(),
                                |pulled| format!("it is at step {}", pulled.version),
                            );
                            return Err(paths.lost(held, reason));
                        }
                        Ok(pulled) if !pulled.moved_to.is_empty() => held.place = pulled.moved_to,
                        _ => {
                            // The master may be away, too: then the next try finds out.
                            let _ = paths.locate(held).await;
                            if held.gives {
                                let _ = paths.give(held).await;
                            }
                            tokio::time::sleep(PAUSE).await;
                        }
                    }
                }
            }
            Ok(states)
        })?;
        Ok(Beginning { version, states })
    }
}

impl Beginning {
    /// Writes it to a file, which has the old contents or the new ones, whatever happens.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self, specs: &[Spec], path: &Path) -> Result<(), ClientError> {
        let mut crc = 0;
        self.states.iter().for_each(|state| crc = crc32c::crc32c_append(crc, state));
        let header = Header { format: FORMAT, version: self.version, specs: specs.to_vec(), crc32c: crc };
        let written = tidemill_disk::replace(path, |file| {
            serde_json::to_writer(&mut *file, &header)?;
            file.write_all(b"\n")?;
            self.states.iter().try_for_each(|state| file.write_all(state))
        });
        written.map_err(|error| ClientError::File { path: path.to_owned(), error })
    }

    /// Reads a file of [`Beginning::save`].
    ///
    /// # Errors
    /// It cannot be read, is damaged, or has other tensors.
    pub fn load(specs: &[Spec], path: &Path) -> Result<Self, ClientError> {
        let wrong = |text: &str| ClientError::Form(format!("{}: {text}", path.display()));
        let bytes =
            std::fs::read(path).map_err(|error| ClientError::File { path: path.to_owned(), error })?;
        let end = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(0);
        let header: Header = serde_json::from_slice(&bytes[..end])
            .map_err(|error| wrong(&format!("it is no checkpoint of tensors: {error}")))?;
        if header.format != FORMAT {
            return Err(wrong(&format!("it has format {}, and {FORMAT} is known", header.format)));
        }
        if header.specs != specs {
            return Err(wrong("it has other tensors or another update: use the same ones, or another file"));
        }
        let all = Bytes::from(bytes).slice(end + 1..);
        let length: usize = specs.iter().map(Spec::of_state).sum();
        if all.len() != length || crc32c::crc32c(&all) != header.crc32c {
            return Err(wrong("it is damaged: use an older one"));
        }
        let mut begin = 0;
        let states = specs.iter().map(|spec| {
            begin += spec.of_state();
            all.slice(begin - spec.of_state()..begin)
        });
        Ok(Self { version: header.version, states: states.collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::number::Numbers;
    use crate::rule::Rule;

    #[test]
    fn states_come_back_and_damage_is_found() {
        let specs = [
            Spec::new("a", 3, Numbers::F32, Rule::adam(0.1)),
            Spec::new("b", 2, Numbers::Fixed, Rule::Momentum { rate: 0.1, momentum: 0.9 }),
        ];
        let mut begun = Beginning::with_values(&specs, &[vec![1.0, 2.0, 3.0], vec![4.0, 5.0]]);
        begun.version = 7;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("states");
        begun.save(&specs, &path).unwrap();
        assert_eq!(Beginning::load(&specs, &path).unwrap(), begun);
        assert!(Beginning::load(&specs[..1], &path).unwrap_err().to_string().contains("other tensors"));
        let mut bytes = std::fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&path, bytes).unwrap();
        assert!(Beginning::load(&specs, &path).unwrap_err().to_string().contains("damaged"));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
