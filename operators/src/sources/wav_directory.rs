//! `wav_directory`: the sounds of a folder, by name.
//!
//! ```yaml
//! - {id: questions, kind: wav_directory, key: key, rate: 40/s, options: {path: data/questions}}
//! ```
//! Every `.wav`, `.flac`, `.ogg`, `.oga` or `.mp3` file is one record `{key: text, audio: audio}`; the key is the name without its extension. Sounds stay
//! encoded and are decoded where they are used; only their header is read here. Dead letters: `file_name_invalid` (not
//! UTF-8), `file_empty`, `file_too_large` (`max_file`, default 64MiB), `file_unreadable`, `audio_unreadable` (no header
//! of a sound), `audio_empty` (no samples).
//!
//! ```
//! use tidemill_operators::api::SourceRead;
//! use tidemill_operators::kind::EndContext;
//! use tidemill_operators::registry::Registry;
//! use tidemill_spec::{span::SourceFile, yaml};
//! let folder = tempfile::tempdir().unwrap();
//! std::fs::write(folder.path().join("hum.wav"), "no sound").unwrap();
//! let id = "questions".into();
//! let context = EndContext::new(&id, folder.path());
//! let options = yaml::parse(&SourceFile::new("workflow.yaml", "path: .")).unwrap();
//! let sounds = Registry::builtin().source("wav_directory").unwrap().bind(&context, &options).unwrap();
//! let mut reader = (sounds.make)().unwrap();
//! let Ok(SourceRead::Rows { dead_letters, .. }) = reader.read(8, 1 << 20) else { panic!() };
//! assert_eq!(dead_letters[0].reason, "audio_unreadable");
//! ```
use super::directory::Folder;
use crate::api::BoundSource;
use crate::kind::{EndContext, SourceKind};
use schemars::JsonSchema;
use serde::Deserialize;
use std::sync::Arc;
use tidemill_media::wav;
use tidemill_spec::diagnostic::Diagnostics;
use tidemill_spec::span::Located;
use tidemill_spec::types::{Column, ColumnType, StreamType};
use tidemill_spec::units::Bytes;
use tidemill_spec::value::Value;

/// The kind `wav_directory`; see the module.
#[derive(Debug, Clone, Copy)]
pub struct WavDirectory;

/// Options of `wav_directory`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Options {
    /// The folder, relative to the workflow file.
    path: Located<String>,
    /// Largest file. Default: 64MiB.
    #[serde(default = "super::lines::default_max_file")]
    max_file: Bytes,
}

impl SourceKind for WavDirectory {
    fn kind(&self) -> &'static str {
        "wav_directory"
    }

    fn summary(&self) -> &'static str {
        "The sounds of a folder, by name: WAV, FLAC, Ogg Vorbis and MP3."
    }

    fn options_schema(&self) -> schemars::Schema {
        schemars::schema_for!(Options)
    }

    fn shown_by_opening(&self) -> &'static str {
        "is a folder with sounds"
    }

    fn bind(&self, context: &EndContext<'_>, options: &Value) -> Result<BoundSource, Diagnostics> {
        let options: Options = options.deserialize_into()?;
        let output =
            StreamType::new([Column::new("key", ColumnType::Text), Column::new("audio", ColumnType::Audio)]);
        let folder = Folder {
            path: context.path(&options.path),
            endings: wav::ENDINGS.iter().map(|ending| (*ending).to_owned()).collect(),
            gives_names: false,
            has_whole_keys: false,
            file_limit: options.max_file.0.min(super::lines::MAX_FILE_LIMIT),
            check: Arc::new(check),
        };
        folder.bind(self.kind(), context, &options.path, output)
    }
}

/// Checks that the header of a sound has a format, and that there are samples.
///
/// # Errors
/// Reason and detail: it is no sound in a known format, or has no samples.
pub fn check(bytes: &[u8]) -> Result<(), (&'static str, String)> {
    wav::check(bytes).map_err(|rejected| match rejected.reason {
        "audio_invalid" => ("audio_unreadable", rejected.detail),
        // A file that ends before its first sample has none.
        _ => ("audio_empty", rejected.detail),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::text;
    use crate::sources::test::{bind, check_seeks, drain};

    fn wav(samples: &[i16]) -> Vec<u8> {
        let data: Vec<u8> = samples.iter().flat_map(|s| s.to_le_bytes()).collect();
        let mut bytes = b"RIFF".to_vec();
        bytes.extend((36 + data.len() as u32).to_le_bytes());
        bytes.extend(b"WAVEfmt \x10\0\0\0\x01\0\x01\0\x80\x3e\0\0\0\x7d\0\0\x02\0\x10\0data");
        bytes.extend((data.len() as u32).to_le_bytes());
        bytes.extend(data);
        bytes
    }

    #[test]
    fn good_and_bad_sounds() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).unwrap();
        write("good.wav", &wav(&[1, 2, 3]));
        write("none.wav", &wav(&[]));
        write("cut.wav", &wav(&[1, 2, 3])[..30]);
        write("text.wav", b"hello");
        write("z.WAV", &wav(&[0]));
        let source = bind(&WavDirectory, folder.path(), "path: .").unwrap();
        let (batches, dead) = drain(&source, 100, usize::MAX);
        assert_eq!(text(batches[0].column(0)).unwrap().iter().flatten().collect::<Vec<_>>(), ["good", "z"]);
        let reasons: Vec<_> = dead.iter().map(|(at, d)| (*at, &*d.reason)).collect();
        assert_eq!(reasons, [(0, "audio_empty"), (2, "audio_empty"), (3, "audio_unreadable")]);
        check_seeks(&source);
    }

    /// The other formats are decoded in `tidemill-media`.
    #[test]
    fn sounds_of_other_formats_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).unwrap();
        // Frames of MPEG 1, 128 kbit/s, 44100 Hz, of 417 bytes.
        let frame = [&[0xff, 0xfb, 0x90, 0xc0][..], &[0; 413]].concat();
        write("a.mp3", &[&frame[..], &frame].concat());
        write("b.mp3", &[b'x'; 600]);
        write("c.ogg", b"OggT");
        write("d.flac", b"fLaC");
        let (batches, dead) = drain(&bind(&WavDirectory, folder.path(), "path: .").unwrap(), 100, usize::MAX);
        let keys = text(batches[0].column(0)).unwrap();
        // What is cut off is found when it is decoded.
        assert_eq!(keys.iter().flatten().collect::<Vec<_>>(), ["a", "d"]);
        let reasons: Vec<_> = dead.iter().map(|(at, letter)| (*at, &*letter.reason)).collect();
        assert_eq!(reasons, [(1, "audio_unreadable"), (2, "audio_unreadable")]);
    }

    #[test]
    fn every_cut_and_every_changed_byte_of_a_header_is_handled() {
        let good = wav(&[7; 8]);
        for length in 0..good.len() {
            let _ = check(&good[..length]);
        }
        for index in 0..44 {
            for value in [0, 1, 127, 255] {
                let mut bad = good.clone();
                bad[index] = value;
                let _ = check(&bad);
            }
        }
        assert!(check(&good).is_ok());
    }
}
