//! A manifest to start from: everything that a model file knows of itself, and what its shapes suggest. What only its
//! maker knows is in capitals; guesses say so in a comment.
use std::fmt::Write;
use std::path::Path;
use tidemill_inference::alphabet;
use tidemill_inference::backend;
use tidemill_inference::facts::{Dimension, ModelFacts, Port, PortElement};
use tidemill_inference::tensor::Tensor;
use tidemill_spec::manifest::{BLANK_COLUMN, BLANK_DESCRIPTION, BLANK_LICENCE, BLANK_ORIGIN};
use tidemill_spec::types::ElementType;

/// Size of pictures where the file takes any.
const PICTURE: usize = 224;
/// Height and width of lines of text where the file takes any.
const LINE: (usize, usize) = (48, 640);
/// Models with more input values than this are not tried.
const MOST_VALUES: usize = 64 << 20;

/// What an input probably is.
enum Guess {
    /// A picture of height and width; whether the file leaves them free.
    Picture {
        height: usize,
        width: usize,
        free: bool,
    },
    /// A line of text of height and width.
    Line {
        height: usize,
        width: usize,
    },
    Tensor,
}

/// An alphabet in the file's metadata.
struct Alphabet<'a> {
    key: &'a str,
    /// Whether the classes have one more for the space.
    space: bool,
}

/// The manifest's text. `directory`: where the search for libraries starts.
pub fn manifest(facts: &ModelFacts, directory: &Path) -> String {
    let stem = facts.path.file_stem().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let file = facts.path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let mut text = format!(
        "version: 1\nid: {}\ndescription: {BLANK_DESCRIPTION}\nfile: {file}\nsha256: {}\n\
         licence: {BLANK_LICENCE}\norigin: {{kind: external, note: {BLANK_ORIGIN}}}\nparameters: {}\n\
         backends: [ort, rten]\n",
        identifier(&stem),
        facts.sha256,
        facts.parameters
    );
    let alphabets: Vec<Option<Alphabet<'_>>> =
        facts.outputs.iter().map(|port| alphabet_of(port, facts)).collect();
    let reads_text = alphabets.iter().any(Option::is_some);
    let guesses: Vec<Guess> = facts.inputs.iter().map(|port| guess(port, reads_text)).collect();
    let shapes: Option<Vec<Vec<usize>>> =
        facts.inputs.iter().zip(&guesses).map(|(port, guess)| input_shape(port, guess)).collect();
    let tried = shapes.as_ref().and_then(|shapes| tried(facts, shapes, directory));
    text.push_str("inputs:\n");
    for (port, guess) in facts.inputs.iter().zip(&guesses) {
        input(&mut text, port, guess, &column(port, &facts.inputs));
    }
    text.push_str("outputs:\n");
    for (index, port) in facts.outputs.iter().enumerate() {
        let shape = tried.as_ref().and_then(|shapes| shapes.get(index));
        let column = column(port, &facts.outputs);
        output(&mut text, port, shape.map(Vec::as_slice), alphabets[index].as_ref(), &column);
    }
    text
}

/// The blank for a port's column; of several ports each has its own, as columns have names of their own.
fn column(port: &Port, all: &[Port]) -> String {
    if all.len() == 1 {
        BLANK_COLUMN.to_owned()
    } else {
        format!("{BLANK_COLUMN}-{}", identifier(&port.name))
    }
}

/// As ids are written: it starts with a letter.
fn identifier(stem: &str) -> String {
    let fits = |c: char| if c.is_ascii_alphanumeric() || c == '-' || c == '_' { c } else { '-' };
    let id: String = stem.to_ascii_lowercase().chars().map(fits).collect();
    if id.starts_with(|c: char| c.is_ascii_lowercase()) { id } else { format!("model-{id}") }
}

fn guess(port: &Port, reads_text: bool) -> Guess {
    let Some([_, Dimension::Fixed(3), height, width]) = port.shape.as_deref() else { return Guess::Tensor };
    if port.element != PortElement::Known(ElementType::Float32) {
        return Guess::Tensor;
    }
    let size = |dimension: &Dimension, otherwise| match dimension {
        Dimension::Fixed(size) => *size,
        Dimension::Free(_) => otherwise,
    };
    let free = matches!(width, Dimension::Free(_));
    if free && reads_text {
        return Guess::Line { height: size(height, LINE.0), width: size(width, LINE.1) };
    }
    Guess::Picture { height: size(height, PICTURE), width: size(width, PICTURE), free }
}

fn input_shape(port: &Port, guess: &Guess) -> Option<Vec<usize>> {
    match guess {
        Guess::Picture { height, width, .. } | Guess::Line { height, width } => {
            Some(vec![1, 3, *height, *width])
        }
        Guess::Tensor => {
            let shape = port.shape.as_ref()?;
            let size = |(at, dimension): (usize, &Dimension)| match dimension {
                Dimension::Fixed(size) => Some(*size),
                Dimension::Free(_) => (at == 0).then_some(1),
            };
            shape.iter().enumerate().map(size).collect()
        }
    }
}

/// The shapes of the outputs for zeros, from the first backend that runs the model.
fn tried(facts: &ModelFacts, shapes: &[Vec<usize>], directory: &Path) -> Option<Vec<Vec<usize>>> {
    let values = |shape: &Vec<usize>| shape.iter().try_fold(1usize, |all, size| all.checked_mul(*size));
    if shapes.iter().any(|shape| values(shape).is_none_or(|values| values > MOST_VALUES)) {
        return None;
    }
    let mut inputs = Vec::new();
    for (port, shape) in facts.inputs.iter().zip(shapes) {
        let PortElement::Known(element) = &port.element else { return None };
        inputs.push(Tensor::zeros(*element, shape.clone()));
    }
    let wanted: Vec<usize> = (0..facts.outputs.len()).collect();
    backend::registered().find_map(|backend| {
        let mut session = (backend.open)(directory).ok()?.load(facts).ok()?;
        let results = session.run(&inputs, &wanted).ok()?;
        Some(results.iter().map(|tensor| tensor.shape().to_vec()).collect())
    })
}

/// An entry of the metadata with as many lines as the output has classes: with the blank, or with blank and space.
fn alphabet_of<'a>(port: &Port, facts: &'a ModelFacts) -> Option<Alphabet<'a>> {
    let [_, _, Dimension::Fixed(classes)] = port.shape.as_deref()? else { return None };
    facts.metadata.iter().find_map(|(key, text)| {
        let lines = alphabet::lines(text).count();
        let fits = lines > 1 && (lines + 1 == *classes || lines + 2 == *classes);
        fits.then(|| Alphabet { key, space: lines + 2 == *classes })
    })
}

fn input(text: &mut String, port: &Port, guess: &Guess, column: &str) {
    let normalize = "normalize: {mean: [0.5, 0.5, 0.5], std: [0.5, 0.5, 0.5]}";
    let _ = match guess {
        Guess::Picture { height, width, free } => {
            let any = if *free { " # the file takes any size" } else { "" };
            writeln!(
                text,
                "  - name: {}\n    column: image\n    type: image\n    dtype: float32\n    \
                 shape: [batch, 3, {height}, {width}]{any}\n    \
                 # a guess: its maker knows the mean and std, and whether it wants `bgr: {{}}` before them\n    \
                 preprocess: [resize: {{width: {width}, height: {height}}}, {normalize}]",
                port.name
            )
        }
        Guess::Line { height, width } => writeln!(
            text,
            "  - name: {}\n    column: image\n    type: image\n    dtype: float32\n    \
             shape: [batch, 3, {height}, {width}] # width of the longest line that you expect\n    \
             # a guess: its maker knows the mean and std, and whether it wants `bgr: {{}}`\n    \
             preprocess: [fit_height: {{height: {height}, width: {width}}}, bgr: {{}}, {normalize}]",
            port.name
        ),
        Guess::Tensor => writeln!(
            text,
            "  - name: {}\n    column: {column}\n    type: tensor\n    dtype: {}\n    shape: {}{}",
            port.name,
            element(port),
            shape_text(port),
            note(port)
        ),
    };
}

fn output(
    text: &mut String,
    port: &Port,
    tried: Option<&[usize]>,
    alphabet: Option<&Alphabet<'_>>,
    column: &str,
) {
    let shape = match tried.filter(|_| counts_records(port)) {
        Some([_, rest @ ..]) => {
            let all = rest.iter().map(|size| format!(", {size}"));
            format!("[batch{}]", all.collect::<String>())
        }
        // A model that takes one record at a time gives one: `batch` of 1.
        _ => format!(
            "{}{}",
            shape_text(port).replacen("[1,", "[batch,", 1).replacen("[1]", "[batch]", 1),
            note(port)
        ),
    };
    let (column, kind) = if alphabet.is_some() { ("text", "text") } else { (column, "tensor") };
    let _ = writeln!(
        text,
        "  - name: {}\n    column: {column}\n    type: {kind}\n    dtype: {}\n    shape: {shape}",
        port.name,
        element(port)
    );
    if let Some(Alphabet { key, space }) = alphabet {
        let space = if *space { ", alphabet: \" \"" } else { "" };
        let _ = writeln!(
            text,
            "    # a guess: the blank first, then the characters of the file{}\n    \
             postprocess: [ctc_decode: {{alphabet_metadata: {key}{space}, blank: 0}}]",
            if space.is_empty() { "" } else { ", then the space" }
        );
    }
}

fn element(port: &Port) -> String {
    match &port.element {
        PortElement::Known(_) => port.element.to_string(),
        PortElement::Other(name) => format!("float32 # the file has {name}, which cannot be fed"),
    }
}

/// Whether the first dimension can be that of the batch.
fn counts_records(port: &Port) -> bool {
    match port.shape.as_deref() {
        Some([]) => false,
        Some([Dimension::Fixed(size), ..]) => *size == 1,
        Some([Dimension::Free(_), ..]) | None => true,
    }
}

/// What a person has to know of a shape, as a comment behind it.
fn note(port: &Port) -> &'static str {
    let open = |(at, size): (usize, &Dimension)| at > 0 && matches!(size, Dimension::Free(_));
    if !counts_records(port) {
        " # its first dimension does not count records: such a model has to be exported anew"
    } else if port.shape.iter().flatten().enumerate().any(open) {
        " # the file leaves sizes open: write those of your records"
    } else {
        ""
    }
}

fn shape_text(port: &Port) -> String {
    let Some(shape) = &port.shape else { return "[batch] # the file does not say".to_owned() };
    let all = shape.iter().enumerate().map(|(at, size)| match size {
        Dimension::Fixed(size) => size.to_string(),
        Dimension::Free(_) if at == 0 => "batch".to_owned(),
        Dimension::Free(name) => {
            let name: String = name.chars().filter(char::is_ascii_alphanumeric).collect();
            format!("SIZE{}", if name.is_empty() { String::new() } else { format!("-OF-{name}") })
        }
    });
    format!("[{}]", all.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_inference::inspect;

    fn skeleton(name: &str) -> String {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../inference/testdata");
        manifest(&inspect(&folder.join(name)).unwrap(), &folder)
    }

    #[test]
    fn a_recogniser_of_text_is_known_by_its_alphabet() {
        let text = skeleton("line_reader.onnx");
        assert!(text.contains("shape: [batch, 3, 4, 640]"), "{text}");
        assert!(text.contains("fit_height: {height: 4, width: 640}"), "{text}");
        assert!(text.contains("shape: [batch, 640, 5]"), "what a run gave: {text}");
        assert!(
            text.contains("ctc_decode: {alphabet_metadata: character, alphabet: \" \", blank: 0}"),
            "{text}"
        );
        let source = tidemill_spec::span::SourceFile::new("m.yaml", text);
        let manifest: tidemill_spec::manifest::Manifest =
            tidemill_spec::yaml::parse(&source).unwrap().deserialize_into().unwrap();
        assert!(manifest.check().is_empty(), "{}", manifest.check());
    }

    #[test]
    fn pictures_and_tensors() {
        let text = skeleton("image_means.onnx");
        assert!(text.contains("type: image") && text.contains("resize: {width: 8, height: 8}"), "{text}");
        assert!(text.contains("shape: [batch, 3]\n"), "{text}");
        let text = skeleton("fixed_batch.onnx");
        assert!(text.contains("column: COLUMN\n") && text.contains("shape: [1, 4]"), "{text}");
    }

    #[test]
    fn what_is_left_to_a_person_is_said_and_found_again() {
        let text = skeleton("counter.onnx");
        let source = tidemill_spec::span::SourceFile::new("m.yaml", text.clone());
        let manifest: tidemill_spec::manifest::Manifest =
            tidemill_spec::yaml::parse(&source).unwrap().deserialize_into().unwrap();
        assert!(manifest.check().is_empty(), "columns of two outputs differ: {}", manifest.check());
        let text = skeleton("parrot_encoder.onnx");
        assert!(text.contains("SIZE-OF-n] # the file leaves sizes open"), "{text}");
        let found = tidemill_spec::manifest::Manifest::parse(&text, "m.yaml").unwrap_err();
        assert!(
            found.iter().all(|finding| finding.message == "`SIZE-OF-n` is still to be filled in"),
            "{found}"
        );
    }

    #[test]
    fn a_batch_that_is_not_first_is_named() {
        let port = |shape: Vec<Dimension>| Port {
            name: "state".to_owned(),
            element: PortElement::Known(ElementType::Float32),
            shape: Some(shape),
        };
        let free = || Dimension::Free("batch".to_owned());
        for shape in [vec![Dimension::Fixed(2), free(), Dimension::Fixed(128)], Vec::new()] {
            assert!(note(&port(shape)).contains("does not count records"));
        }
        assert_eq!(note(&port(vec![free(), Dimension::Fixed(128)])), "");
        assert_eq!(note(&port(vec![Dimension::Fixed(1), Dimension::Fixed(128)])), "");
        let mut picture = port([1, 3, 8, 8].map(Dimension::Fixed).into());
        picture.name = "x".to_owned();
        let mut text = String::new();
        input(&mut text, &picture, &guess(&picture, false), "COLUMN");
        assert!(
            text.contains("shape: [batch, 3, 8, 8]\n"),
            "steps give as many as there are records: {text}"
        );
        let mut text = String::new();
        output(&mut text, &port(vec![Dimension::Fixed(1), Dimension::Fixed(81_920)]), None, None, "COLUMN");
        assert!(text.contains("shape: [batch, 81920]\n"), "manifests write `batch` for it: {text}");
    }

    #[test]
    fn ids_start_with_a_letter() {
        assert_eq!(identifier("ch_PP-OCRv4_rec.infer"), "ch_pp-ocrv4_rec-infer");
        assert_eq!(identifier("4x"), "model-4x");
    }
}
