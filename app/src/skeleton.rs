//! Drafts a manifest: all facts from a model file, and guesses from its shapes. Values known only to the maker are in
//! capitals; guesses have a comment.
mod language;

use std::fmt::Write;
use std::path::Path;
use tidemill_inference::alphabet;
use tidemill_inference::backend;
use tidemill_inference::facts::{Dimension, ModelFacts, Port, PortElement};
use tidemill_inference::tensor::Tensor;
use tidemill_spec::manifest::{BLANK_COLUMN, BLANK_DESCRIPTION, BLANK_LICENCE, BLANK_ORIGIN};
use tidemill_spec::types::ElementType;

/// Size of pictures if the file accepts any.
const PICTURE: usize = 224;
/// Height and width of lines of text if the file accepts any.
const LINE: (usize, usize) = (48, 640);
/// Models with more input values than this are not tried.
const MOST_VALUES: usize = 64 << 20;

/// Guess about an input.
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
    /// Whether the classes have an additional one for the space.
    space: bool,
}

/// Returns the manifest's text. `directory`: start of the search for libraries.
pub fn manifest(facts: &ModelFacts, directory: &Path) -> String {
    let stem = facts.path.file_stem().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let file = facts.path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let mut text = format!(
        "version: 1\nid: {}\ndescription: {BLANK_DESCRIPTION}\nfile: {file}\nsha256: {}\n\
         licence: {BLANK_LICENCE}\norigin: {{kind: external, note: {BLANK_ORIGIN}}}\nparameters: {}\n\
         backends: [ort, rten]\n",
        scalar(&identifier(&stem)),
        facts.sha256,
        facts.parameters,
        file = scalar(&file),
    );
    if let Some(sections) = language::sections(facts) {
        return text + &sections;
    }
    let notes = Notes::of(facts);
    let alphabets: Vec<Option<Alphabet<'_>>> =
        facts.outputs.iter().map(|port| alphabet_of(port, facts)).collect();
    let reads_text = alphabets.iter().any(Option::is_some);
    let guesses: Vec<Guess> = facts.inputs.iter().map(|port| guess(port, reads_text, &notes)).collect();
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
        output(&mut text, port, shape.map(Vec::as_slice), alphabets[index].as_ref(), &notes, &column);
    }
    text
}

/// Returns the placeholder for a port's column; each of several ports has its own, because names of columns are unique.
fn column(port: &Port, all: &[Port]) -> String {
    if all.len() == 1 {
        BLANK_COLUMN.to_owned()
    } else {
        format!("{BLANK_COLUMN}-{}", identifier(&port.name))
    }
}

/// Converts to the form of ids, which starts with a letter.
fn identifier(stem: &str) -> String {
    let fits = |c: char| if c.is_ascii_alphanumeric() || c == '-' || c == '_' { c } else { '-' };
    let id: String = stem.to_ascii_lowercase().chars().map(fits).collect();
    if id.starts_with(|c: char| c.is_ascii_lowercase()) { id } else { format!("model-{id}") }
}

fn guess(port: &Port, reads_text: bool, notes: &Notes) -> Guess {
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
    let (tall, wide) = notes.size.unwrap_or((PICTURE, PICTURE));
    Guess::Picture { height: size(height, tall), width: size(width, wide), free }
}

/// Formats a text for YAML: numbers, booleans and the like are quoted.
fn scalar(text: &str) -> String {
    let is_plain = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "_./-".contains(c))
        && text.parse::<f64>().is_err()
        && !["true", "false", "yes", "no", "on", "off", "null", "y", "n"]
            .contains(&text.to_ascii_lowercase().as_str());
    // JSON strings are valid YAML.
    if is_plain { text.to_owned() } else { serde_json::Value::from(text).to_string() }
}

/// Size, classes and task from an exporter's metadata (`imgsz`, `names`, `task` of Ultralytics).
#[derive(Default)]
struct Notes {
    /// Height and width of pictures.
    size: Option<(usize, usize)>,
    /// The classes, in order.
    labels: Vec<String>,
    task: Option<String>,
}

impl Notes {
    fn of(facts: &ModelFacts) -> Self {
        let sizes = facts.metadata.get("imgsz").map(String::as_str).unwrap_or_default();
        let sizes: Vec<usize> =
            sizes.split(|c: char| !c.is_ascii_digit()).filter_map(|size| size.parse().ok()).collect();
        let size = match sizes.as_slice() {
            [side] => Some((*side, *side)),
            [height, width] => Some((*height, *width)),
            _ => None,
        };
        let labels =
            facts.metadata.get("names").and_then(|names| alphabet::dictionary(names)).unwrap_or_default();
        Self {
            size: size.filter(|(height, width)| *height > 0 && *width > 0),
            labels,
            task: facts.metadata.get("task").cloned(),
        }
    }

    /// Whether an output has one score for each class, in rows of this shape.
    fn are_scores(&self, row: &[usize]) -> bool {
        self.labels.len() > 1
            && row == [self.labels.len()]
            && self.task.as_deref().is_none_or(|task| task == "classify")
    }

    /// Returns the task and the classes of the file as a comment, for steps of an output to be written by hand.
    fn comment(&self) -> String {
        let task = self.task.as_ref().map(|task| format!("its task is {}", scalar(task)));
        let labels = (!self.labels.is_empty())
            .then(|| format!("its classes in order are {}", serde_json::Value::from(self.labels.clone())));
        let all: Vec<String> = task.into_iter().chain(labels).collect();
        if all.is_empty() { String::new() } else { format!("    # the file says: {}\n", all.join("; ")) }
    }
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

/// Returns the shapes of the outputs for zeros, from the first backend that runs the model.
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

/// Returns an entry of the metadata with as many lines as the output has classes: with the blank, or with blank and space.
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
                scalar(&port.name)
            )
        }
        Guess::Line { height, width } => writeln!(
            text,
            "  - name: {}\n    column: image\n    type: image\n    dtype: float32\n    \
             shape: [batch, 3, {height}, {width}] # width of the longest line that you expect\n    \
             # a guess: its maker knows the mean and std, and whether it wants `bgr: {{}}`\n    \
             preprocess: [fit_height: {{height: {height}, width: {width}}}, bgr: {{}}, {normalize}]",
            scalar(&port.name)
        ),
        Guess::Tensor => writeln!(
            text,
            "  - name: {}\n    column: {column}\n    type: tensor\n    dtype: {}\n    shape: {}{}",
            scalar(&port.name),
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
    notes: &Notes,
    column: &str,
) {
    let declared = || match port.shape.as_deref() {
        Some([_, Dimension::Fixed(classes)]) => Some(vec![*classes]),
        _ => None,
    };
    let row = tried.map(|shape| shape.get(1..).unwrap_or_default().to_vec()).or_else(declared);
    let is_label = alphabet.is_none() && row.is_some_and(|row| notes.are_scores(&row));
    let shape = match tried.filter(|_| counts_records(port)) {
        Some([_, rest @ ..]) => {
            let all = rest.iter().map(|size| format!(", {size}"));
            format!("[batch{}]", all.collect::<String>())
        }
        // A model with a batch size of 1 has one in its output, too.
        _ => format!(
            "{}{}",
            shape_text(port).replacen("[1,", "[batch,", 1).replacen("[1]", "[batch]", 1),
            note(port)
        ),
    };
    let (column, kind) = match (alphabet, is_label) {
        (Some(_), _) => ("text", "text"),
        (None, true) => ("label", "text"),
        (None, false) => (column, "tensor"),
    };
    let _ = writeln!(
        text,
        "  - name: {}\n    column: {column}\n    type: {kind}\n    dtype: {}\n    shape: {shape}",
        scalar(&port.name),
        element(port)
    );
    if is_label {
        let _ = writeln!(
            text,
            "    # the classes are those that the file names\n    postprocess: [argmax: {{labels: {}}}]",
            serde_json::Value::from(notes.labels.clone())
        );
    } else if alphabet.is_none() {
        text.push_str(&notes.comment());
    }
    if let Some(Alphabet { key, space }) = alphabet {
        let space = if *space { ", alphabet: \" \"" } else { "" };
        let _ = writeln!(
            text,
            "    # a guess: the blank first, then the characters of the file{}\n    \
             postprocess: [ctc_decode: {{alphabet_metadata: {}{space}, blank: 0}}]",
            if space.is_empty() { "" } else { ", then the space" },
            scalar(key)
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

/// Returns a trailing comment about a shape for people.
fn note(port: &Port) -> &'static str {
    let open = |(at, size): (usize, &Dimension)| at > 0 && matches!(size, Dimension::Free(_));
    if !counts_records(port) {
        " # its first dimension does not count records: export the model again"
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
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../operators/inference/testdata");
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
        assert!(found.iter().all(|finding| finding.message == "`SIZE-OF-n` is a placeholder"), "{found}");
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
        input(&mut text, &picture, &guess(&picture, false, &Notes::default()), "COLUMN");
        assert!(
            text.contains("shape: [batch, 3, 8, 8]\n"),
            "steps give as many as there are records: {text}"
        );
        let mut text = String::new();
        output(
            &mut text,
            &port(vec![Dimension::Fixed(1), Dimension::Fixed(81_920)]),
            None,
            None,
            &Notes::default(),
            "COLUMN",
        );
        assert!(text.contains("shape: [batch, 81920]\n"), "manifests write `batch` for it: {text}");
    }

    #[test]
    fn ids_start_with_a_letter() {
        assert_eq!(identifier("ch_PP-OCRv4_rec.infer"), "ch_pp-ocrv4_rec-infer");
        assert_eq!(identifier("4x"), "model-4x");
    }

    #[test]
    fn names_that_yaml_takes_for_something_else_are_quoted() {
        for name in ["1234", "0", "no", "True", "null", "1e3", "a: b", "", "x#", "nan", "~", "-x"] {
            assert_eq!(scalar(name), format!("\"{name}\""));
        }
        assert_eq!(scalar("softmax_11.tmp_0"), "softmax_11.tmp_0");
        let port = Port {
            name: "1234".to_owned(),
            element: PortElement::Known(ElementType::Float32),
            shape: Some(vec![Dimension::Free("batch".to_owned()), Dimension::Fixed(2)]),
        };
        let mut text = String::new();
        output(&mut text, &port, None, None, &Notes::default(), "COLUMN");
        assert!(text.contains("- name: \"1234\"\n"), "{text}");
    }

    #[test]
    fn what_an_exporter_wrote_is_used() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../operators/inference/testdata");
        let mut facts = inspect(&folder.join("image_means.onnx")).unwrap();
        let write = |facts: &mut ModelFacts, all: &[(&str, &str)]| {
            facts.metadata = all.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned())).collect();
        };
        write(
            &mut facts,
            &[
                ("imgsz", "[320, 640]"),
                ("names", "{0: 'red', 1: \"cat's eye\", 2: 'no'}"),
                ("task", "classify"),
            ],
        );
        let notes = Notes::of(&facts);
        assert_eq!(notes.size, Some((320, 640)));
        let text = manifest(&facts, &folder);
        assert!(text.contains(r#"argmax: {labels: ["red","cat's eye","no"]}"#), "{text}");
        let source = tidemill_spec::span::SourceFile::new("m.yaml", text);
        let parsed: tidemill_spec::manifest::Manifest =
            tidemill_spec::yaml::parse(&source).unwrap().deserialize_into().unwrap();
        assert!(parsed.check().is_empty(), "{}", parsed.check());
        let free = Dimension::Free(String::new());
        facts.inputs[0].shape = Some(vec![free.clone(), Dimension::Fixed(3), free.clone(), free]);
        let guessed = guess(&facts.inputs[0], false, &notes);
        assert!(matches!(guessed, Guess::Picture { height: 320, width: 640, free: true }));
        write(&mut facts, &[("names", "{0: 'red', 1: 'green', 2: 'blue'}"), ("task", "detect")]);
        let text = manifest(&facts, &folder);
        assert!(text.contains("type: tensor") && text.contains("its task is detect; its classes"), "{text}");
    }
}
