use super::*;
use crate::wav::{Longest, check, decode, decode_any};
use proptest::prelude::*;
use serde::Deserialize;

/// A file and its samples by ffmpeg, made by `testdata/make_sounds.py`.
#[derive(Deserialize)]
struct Reference {
    name: String,
    file: String,
    rate: u32,
    /// Units of samples between 0 and 1.
    unit: f64,
    samples: Vec<f64>,
}

impl Reference {
    fn bytes(&self) -> Vec<u8> {
        let (pairs, _) = self.file.as_bytes().as_chunks::<2>();
        let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        pairs.iter().map(|pair: &[u8; 2]| byte(&pair[..])).collect()
    }
}

fn references() -> Vec<Reference> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/sounds.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn sounds_are_those_of_ffmpeg() {
    let references = references();
    assert_eq!(references.len(), 8);
    for reference in references {
        let (name, bytes) = (&reference.name, reference.bytes());
        let samples = decode(&bytes, reference.rate).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(samples.len(), reference.samples.len(), "{name}");
        check(&bytes).unwrap();
        let off = samples.iter().zip(&reference.samples);
        let off = off.map(|(ours, theirs)| (f64::from(*ours) * reference.unit - theirs).abs());
        let most = off.fold(0.0, f64::max);
        // The numbers of the reference are rounded to hundredths; of one channel of FLAC they are whole.
        let allowed = match name.as_str() {
            "flac" | "flac 24 bits" => 0.0,
            "flac stereo" => 0.01,
            _ => 0.05,
        };
        assert!(most <= allowed, "{name}: off by {most}");
    }
}

#[test]
fn rates_and_lengths_are_checked_before_decoding() {
    for reference in references() {
        let (name, bytes) = (&reference.name, reference.bytes());
        let rejected = decode(&bytes, 11_025).unwrap_err();
        assert_eq!(rejected.reason, "audio_sample_rate", "{name}");
        assert!(rejected.detail.contains(&reference.rate.to_string()), "{name}: {rejected}");
        let longest = |seconds| Longest { sample_rate: 16_000, seconds: Some(seconds) };
        let (samples, rate) = decode_any(&bytes, longest(0.5)).unwrap();
        assert_eq!((samples.len(), rate), (reference.samples.len(), reference.rate), "{name}");
        assert_eq!(decode_any(&bytes, longest(0.1)).unwrap_err().reason, "audio_too_long", "{name}");
    }
}

#[test]
fn every_truncation_is_found() {
    for reference in references() {
        let bytes = reference.bytes();
        for length in 0..bytes.len() {
            let rejected = decode(&bytes[..length], reference.rate);
            match rejected {
                Err(rejected) => {
                    let is_known =
                        matches!(rejected.reason, "audio_truncated" | "audio_invalid" | "audio_empty");
                    assert!(is_known, "{}, {length} bytes: {rejected}", reference.name);
                }
                // Nothing counts the frames: the file may end after each.
                Ok(samples) => {
                    assert!(reference.name.contains("without"), "{}, {length} bytes", reference.name);
                    assert!(samples.len() < reference.samples.len() && samples.len() % 576 == 0);
                }
            }
        }
    }
}

/// In each file every fifth byte changes. FLAC and Ogg have checksums; in an MP3 the sound changes.
#[test]
fn damaged_sounds_are_found() {
    for reference in references() {
        let bytes = reference.bytes();
        let whole = decode(&bytes, reference.rate).unwrap();
        for (at, mask) in (0..bytes.len()).step_by(5).flat_map(|at| [(at, 0x01), (at, 0xff)]) {
            let mut damaged = bytes.clone();
            damaged[at] ^= mask;
            if let Ok(samples) = decode(&damaged, reference.rate) {
                let is_equal = samples == whole;
                assert!(is_equal || reference.name.starts_with("mp3"), "{}, byte {at}", reference.name);
            }
        }
    }
}

fn file(name: &str) -> Vec<u8> {
    references().iter().find(|reference| reference.name == name).unwrap().bytes()
}

/// A tag with the title and a picture, and one at the end.
#[test]
fn tags_are_passed_over() {
    let tag = [&b"ID3\x03\0\0\0\0\x02\x01"[..], &[b'x'; 257]].concat();
    for (name, rate) in [("mp3", 16_000), ("flac", 16_000)] {
        let bytes = file(name);
        let sound = decode(&bytes, rate).unwrap();
        assert_eq!(decode(&[&tag[..], &tag, &bytes].concat(), rate).unwrap(), sound, "{name}");
    }
    let bytes = file("mp3");
    let sound = decode(&bytes, 16_000).unwrap();
    let end = [b"TAG".to_vec(), vec![b' '; 125]].concat();
    assert_eq!(decode(&[&bytes[..], &end].concat(), 16_000).unwrap(), sound);
    assert_eq!(decode(&[&bytes[..], &[0; 400]].concat(), 16_000).unwrap(), sound);
    assert_eq!(decode(&[&bytes[..], b"noise"].concat(), 16_000).unwrap_err().reason, "audio_invalid");
}

#[test]
fn lost_pages_and_further_streams_are_told() {
    let bytes = file("ogg vorbis");
    let pages: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at..].starts_with(b"OggS")).collect();
    assert!(pages.len() >= 3, "{pages:?}");
    let without = [&bytes[..pages[1]], &bytes[pages[2]..]].concat();
    let rejected = decode(&without, 16_000).unwrap_err();
    assert!(rejected.reason == "audio_invalid" && rejected.detail.contains("lacks a page"), "{rejected}");
    let other = file("ogg vorbis stereo");
    let mut next = other.clone();
    assert_eq!(bytes[14..18], other[14..18], "made with equal serials");
    let rejected = decode(&[&bytes[..], &next].concat(), 16_000).unwrap_err();
    assert!(rejected.detail.contains("lacks a page"), "{rejected}");
    next.truncate(pages[1]);
    assert_eq!(decode(&next, 22_050).unwrap_err().reason, "audio_truncated");
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes: Vec<u8>, kind in 0usize..4) {
        let starts: [&[u8]; 4] = [b"fLaC\0\0\0\x22", b"OggS\0\x02", b"\xff\xfb\x90\x64", b"ID3\x04\0\0\0\0\0\x05"];
        let _ = decode(&[starts[kind], &bytes].concat(), 8000);
    }

    /// The checksum is right, so that decoders see the damage.
    #[test]
    fn damaged_pages_never_panic(at in 0usize..4000, value: u8) {
        let mut bytes = file("ogg vorbis");
        let at = at % bytes.len();
        bytes[at] = value;
        let pages: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at..].starts_with(b"OggS")).collect();
        for (start, end) in pages.iter().zip(pages[1..].iter().chain([&bytes.len()])) {
            if end - start > 26 {
                let sum = ogg::checksum(&bytes[*start..*end]);
                bytes[start + 22..start + 26].copy_from_slice(&sum.to_le_bytes());
            }
        }
        let _ = decode(&bytes, 16_000);
    }
}
