//! Encoder-decoders: the loop, the cache, the end token, and mismatches.
use hound::{SampleFormat, WavSpec, WavWriter};
use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidemill_inference::backend;
use tidemill_inference::blueprint::Blueprint;
use tidemill_inference::model::Model;
use tidemill_inference::steps::{Cell, OutputColumn};
use tidemill_spec::digest::sha256;

fn testdata() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata")
}

/// The parrot model on each backend of this machine, with changes to its manifest.
fn parrots(changes: &[(&str, &str)]) -> Vec<Model> {
    let folder = tempfile::tempdir().unwrap();
    let mut text = std::fs::read_to_string(testdata().join("parrot.yaml")).unwrap();
    for (old, new) in changes {
        assert!(text.contains(old), "{old}");
        text = text.replace(old, new);
    }
    for name in ["parrot_encoder.onnx", "parrot_decoder.onnx", "parrot_tokens.bin"] {
        std::fs::copy(testdata().join(name), folder.path().join(name)).unwrap();
    }
    std::fs::copy(testdata().join("language/tokenizer.json"), folder.path().join("tokenizer.json")).unwrap();
    let path = folder.path().join("parrot.yaml");
    std::fs::write(&path, text).unwrap();
    let blueprint: Arc<Blueprint> = Blueprint::read(&path).unwrap_or_else(|errors| panic!("{errors:?}"));
    let here = ["rten", "ort"].into_iter().filter_map(|name| backend::backend(name, &testdata()).ok());
    here.map(|backend| Model::load(blueprint.clone(), backend.as_ref()).unwrap()).collect()
}

/// A sound whose samples are these numbers / 8.
fn wav(rate: u32, numbers: &[f32]) -> Vec<u8> {
    let spec =
        WavSpec { channels: 1, sample_rate: rate, bits_per_sample: 16, sample_format: SampleFormat::Int };
    let mut bytes = Cursor::new(Vec::new());
    let mut writer = WavWriter::new(&mut bytes, spec).unwrap();
    for number in numbers {
        writer.write_sample((number / 8.0 * 32768.0) as i16).unwrap();
    }
    writer.finalize().unwrap();
    bytes.into_inner()
}

fn texts(model: &mut Model, sounds: &[Vec<u8>]) -> Vec<String> {
    let rows: Vec<_> = sounds.iter().map(|sound| model.prepare(&[Cell::Bytes(sound)]).unwrap()).collect();
    let raw = model.run(&rows).unwrap();
    let mut columns = model.finish(raw);
    let Some(OutputColumn::Text(texts)) = columns.pop() else { panic!("a text is the last column") };
    assert!(columns.is_empty(), "one column");
    texts
}

#[test]
fn the_text_is_what_the_tokens_say() {
    for mut model in parrots(&[]) {
        let sounds = [wav(8000, &[3.0, 4.0, 5.0, 6.0]), wav(8000, &[4.0]), wav(8000, &[6.0, 3.0])];
        assert_eq!(texts(&mut model, &sounds), ["What isn't?", "is", "? What"], "{}", model.backend());
        let columns = model.blueprint().output_columns();
        assert_eq!((columns.len(), columns[0].name.as_str()), (1, "question"));
    }
}

#[test]
fn the_end_token_ends_and_so_does_the_largest_number() {
    let long = wav(8000, &[4.0; 20]);
    for mut model in parrots(&[]) {
        let sounds = [wav(8000, &[3.0, 2.0, 4.0]), long.clone()];
        assert_eq!(texts(&mut model, &sounds), ["What", "is is is is is is"], "{}", model.backend());
        let rows: Vec<_> = sounds.iter().map(|sound| model.prepare(&[Cell::Bytes(sound)]).unwrap()).collect();
        assert_eq!(model.run(&rows).unwrap().cut_off, 1, "{}", model.backend());
    }
    // 20 samples of 8000 a second at 1600 tokens a second: 4.
    for mut model in parrots(&[("max_tokens: 6", "max_tokens: 400\n  tokens_per_second: 1600")]) {
        assert_eq!(texts(&mut model, std::slice::from_ref(&long)), ["is is is is"], "{}", model.backend());
        let most = 400 * 8000 / 1600;
        assert!(model.prepare(&[Cell::Bytes(&wav(8000, &vec![0.0; most]))]).is_ok());
        let rejected = model.prepare(&[Cell::Bytes(&wav(8000, &vec![0.0; most + 1]))]).unwrap_err();
        assert_eq!(rejected.reason, "audio_too_long");
        // Only the header of this sound exists, which suffices.
        let mut promised = wav(8000, &[]);
        let end = promised.len();
        promised[end - 4..].copy_from_slice(&(2 * most as u32 + 2).to_le_bytes());
        let rejected = model.prepare(&[Cell::Bytes(&promised)]).unwrap_err();
        assert_eq!(rejected.reason, "audio_too_long", "{rejected}");
    }
}

#[test]
fn texts_are_normalized_where_an_alphabet_is_given() {
    for mut model in
        parrots(&[("column: question", "column: question\n  alphabet: ' abcdefghijklmnopqrstuvwxyz'")])
    {
        assert_eq!(texts(&mut model, &[wav(8000, &[3.0, 4.0, 5.0, 6.0])]), ["what isnt"]);
    }
}

#[test]
fn the_texts_of_tokens_may_be_a_tokenizer_json() {
    let digest = |name: &str| sha256(&std::fs::read(testdata().join(name)).unwrap());
    let old = format!("parrot_tokens.bin, sha256: {}", digest("parrot_tokens.bin"));
    let new = format!("tokenizer.json, sha256: {}", digest("language/tokenizer.json"));
    for mut model in parrots(&[(&old, &new)]) {
        assert_eq!(texts(&mut model, &[wav(8000, &[3.0, 4.0, 5.0, 6.0])]), ["bcde"], "{}", model.backend());
    }
}

#[test]
fn tokens_may_be_chosen_by_their_probability() {
    let sound = wav(8000, &[3.0, 4.0, 5.0, 6.0]);
    for mut model in parrots(&[("column: question", "column: question\n  sampling: {top_k: 1}")]) {
        assert_eq!(texts(&mut model, std::slice::from_ref(&sound)), ["What isn't?"]);
    }
    for mut model in
        parrots(&[("column: question", "column: question\n  sampling: {temperature: 9, seed: 4}")])
    {
        let sound = wav(8000, &[3.0, 4.0, 5.0, 6.0, 3.0, 4.0, 5.0, 6.0]);
        let found = texts(&mut model, &[sound.clone(), wav(8000, &[4.0; 8]), sound]);
        assert_eq!(found[0], found[2], "the same record has the same text");
        assert_ne!(found[0], "What isn't? What is");
    }
}

/// A sound is silent beyond its ends, so the first value comes out smaller.
#[test]
fn a_sound_of_another_rate_is_resampled() {
    for mut model in parrots(&[]) {
        let slow = texts(&mut model, &[wav(16000, &[4.0; 64])]);
        assert!(slow[0].ends_with(" is is is is is"), "a constant stays, away from its ends: {slow:?}");
        let rejected = model.prepare(&[Cell::Bytes(&wav(300_000, &[4.0]))]).unwrap_err();
        assert_eq!(rejected.reason, "audio_sample_rate");
    }
}

#[test]
fn what_does_not_fit_is_told_with_its_place() {
    let cases: &[(&str, &str, &str)] = &[
        ("input: hidden}", "input: hiden}", "has no input `hiden`"),
        ("flag: flag}", "flag: flug}", "has no input `flug`"),
        ("inputs: past.", "inputs: pst.", "reads `past.0.decoder`"),
        ("outputs: present.", "outputs: prsent.", "needs the output `prsent.0.decoder`"),
        ("end: 2", "end: 7", "the end token 7 is not among 7 tokens"),
        ("file: parrot_tokens.bin", "file: parrot_decoder.onnx", "the manifest expects"),
        ("output: scores", "output: scors", "has no output `scors`"),
        ("mask: {encoder: mask, decoder: mask}", "mask: {encoder: mask, decoder: hidden}", "gets int64"),
        ("shape: [batch, any]", "shape: [batch, 8]", "any"),
    ];
    for (old, new, message) in cases {
        let text = std::fs::read_to_string(testdata().join("parrot.yaml")).unwrap();
        assert!(text.contains(old), "{old}");
        let path = testdata().join("parrot.yaml");
        let found = match tidemill_spec::manifest::Manifest::parse(&text.replace(old, new), "parrot.yaml") {
            Ok(manifest) => {
                let errors = Blueprint::check(manifest, &path).err();
                tidemill_inference::error::ModelError::collect(errors.expect(new))
            }
            Err(found) => found,
        };
        let told = found.render(false);
        assert!(told.contains(message), "{new}: {told}");
    }
}

/// Needs a real model that was fetched: `make test-long` runs it if there is one. Its transcripts of our synthetic voices
/// are often wrong, but not all.
#[test]
#[ignore = "models: tidemill models fetch moonshine-tiny moonshine-base"]
fn a_fetched_recogniser_hears_words_of_the_questions() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for name in ["moonshine-tiny", "moonshine-base"] {
        let path = root.join("models/third_party").join(format!("{name}.yaml"));
        let manifest =
            tidemill_spec::manifest::Manifest::load(&path).unwrap_or_else(|errors| panic!("{errors}"));
        let ort =
            backend::backend("ort", &root).unwrap_or_else(|error| panic!("{error}: tidemill doctor --fix"));
        let fetched = tidemill_inference::location::bytes(&manifest, &path).is_some();
        assert!(fetched, "{name} is not there: tidemill models fetch {name}");
        let blueprint = Blueprint::check(manifest, &path).unwrap_or_else(|errors| panic!("{}", errors[0]));
        let mut model = Model::load(blueprint, ort.as_ref()).unwrap();
        let truth = std::fs::read_to_string(root.join("examples/vqa/data/truth.csv")).unwrap();
        let (mut words, mut heard) = (0, 0);
        for line in truth.lines().skip(1).take(12) {
            let mut fields = line.split(',');
            let (key, question) = (fields.next().unwrap(), fields.next().unwrap());
            let sound = std::fs::read(root.join(format!("examples/vqa/data/questions/{key}.wav"))).unwrap();
            let text = texts(&mut model, &[sound]).remove(0).to_lowercase();
            words += question.split(' ').count();
            heard += question
                .split(' ')
                .filter(|word| text.split(|c: char| !c.is_alphabetic()).any(|w| w == *word))
                .count();
        }
        assert!(heard * 5 > words, "{name} heard {heard} of {words} words");
    }
}
