//! Every clone downloads videos and models, so they stay small.
use crate::repository::{files, root};

const MEBIBYTE: u64 = 1 << 20;
/// Limit of all clips together.
const CLIPS: u64 = 6 * MEBIBYTE;
/// Limit of the clips and their models.
const CLIPS_AND_MODELS: u64 = 15 * MEBIBYTE;

/// Number of bytes and of files below a folder with one of these extensions.
fn size(folder: &str, endings: &[&str]) -> (u64, usize) {
    let has_ending = |file: &std::path::PathBuf| {
        file.extension().and_then(|ending| ending.to_str()).is_some_and(|ending| endings.contains(&ending))
    };
    let found = files().into_iter().filter(|file| file.starts_with(folder)).filter(has_ending);
    let sizes: Vec<u64> =
        found.map(|file| std::fs::metadata(root().join(file)).expect("git lists it").len()).collect();
    (sizes.iter().sum(), sizes.len())
}

#[test]
fn clips_and_their_models_stay_small() {
    let (all_clips, _) = size("examples", &["mp4", "mkv", "mov", "avi", "webm"]);
    let (clips, cameras) = size("examples/aicity", &["mp4"]);
    let (models, count) = size("models/aicity", &["onnx"]);
    assert!(cameras >= 4 && count == 10, "{cameras} clips and {count} models: this looks in the wrong place");
    assert!(all_clips <= CLIPS, "clips of all examples are {all_clips} bytes, at most {CLIPS}");
    let both = clips + models;
    assert!(both <= CLIPS_AND_MODELS, "clips and models are {both} bytes, at most {CLIPS_AND_MODELS}");
}
