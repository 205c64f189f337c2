//! Models that read tokens of a text: embeddings, classifiers of texts and of their tokens; and texts as they are.
use super::draft::{Draft, Entry, Step};
use super::ports::{self, Side};
use super::subject::{Subject, Tried};
use super::{labels, pictures, scores, tensors, yaml};
use serde_json::Value;
use tidemill_inference::facts::Port;
use tidemill_spec::types::ElementType;

/// Tokens in a trial: a number that is no size of a model, so that it is found again.
const TRIED: usize = 7;
/// Tokens of a text where an output has values for each of them.
const LENGTH: usize = 128;
/// Side of a picture beside a text if the file accepts any.
const PICTURE: usize = 224;
/// Fewest values of a vector; fewer are scores of classes.
const NARROWEST: usize = 32;
/// Most values of a vector; more are scores of all tokens.
const WIDEST: usize = 5000;

/// Values of tokens, by the names of inputs that have them.
const NAMES: [(&str, &[&str]); 3] = [
    ("mask", &["mask"]),
    ("types", &["token_type", "segment", "type_ids"]),
    ("ids", &["input_ids", "input_word_ids", "token_ids", "tokens", "ids"]),
];

/// Returns which values of tokens an input reads.
fn values(port: &Port) -> Option<&'static str> {
    let is_row = port.shape.as_ref().is_some_and(|shape| shape.len() == 2);
    if !is_row || !ports::is_whole(port) || ports::is_named(port, &["position"]) {
        return None;
    }
    NAMES.iter().find(|(_, names)| ports::is_named(port, names)).map(|(give, _)| *give)
}

/// Drafts a model of texts.
pub(super) fn draft(subject: &Subject<'_>) -> Option<Draft> {
    if let [port] = subject.inputs.as_slice()
        && ports::element(port) == Some(ElementType::Text)
        && matches!(Side::row(&subject.input_sides(port)).as_slice(), [] | [Side::Size(1)])
    {
        let tried = subject.tried(&[]);
        let outputs = subject.outputs.iter();
        let outputs = outputs.map(|port| output_of_text(subject, port, tried.as_ref())).collect();
        return Some(Draft { inputs: vec![as_it_is(subject, port)], outputs, ..Draft::default() });
    }
    if !subject.inputs.iter().any(|port| values(port) == Some("ids")) {
        return None;
    }
    let tokens: Vec<(&Port, &str)> =
        subject.inputs.iter().filter_map(|port| Some((*port, values(port)?))).collect();
    let picture = pictures::of(subject).map(|picture| (picture.size(subject, PICTURE), picture));
    let picture_shape =
        picture.iter().map(|(size, picture)| (picture.port.name.as_str(), picture.shape(*size)));
    let shapes: Vec<(&str, Vec<usize>)> = tokens
        .iter()
        .map(|(port, _)| (port.name.as_str(), vec![1, fixed_length(subject, port).unwrap_or(TRIED)]))
        .chain(picture_shape)
        .collect();
    let tried = subject.tried(&shapes);
    let (outputs, mut remarks, is_long) = outputs(subject, &tokens, tried.as_ref());
    let found = subject.beside.path("tokenizer.json");
    if found.is_none() {
        remarks.push("put the model's `tokenizer.json` beside this manifest".to_owned());
    }
    let file = found.unwrap_or_else(|| "tokenizer.json".to_owned());
    let most = most_tokens(subject).filter(|_| !is_long);
    let inputs = subject
        .inputs
        .iter()
        .map(|port| match values(port) {
            Some(give) => {
                let length = fixed_length(subject, port).or(is_long.then_some(LENGTH));
                tokenized(subject, port, give, &file, length, most)
            }
            None => match picture.as_ref().filter(|(_, picture)| picture.port.name == port.name) {
                Some((size, picture)) => picture.entry(subject, *size, picture.steps(subject, *size)),
                None => tensors::input(subject, port),
            },
        })
        .collect();
    Some(Draft { remarks, inputs, outputs, ..Draft::default() })
}

/// Drafts an input that reads a text as it is.
pub(super) fn as_it_is(subject: &Subject<'_>, port: &Port) -> Entry {
    Entry::new(&port.name, "text", "text", "text", subject.input_sides(port))
}

/// Tokens of a text, if the file fixes their number.
fn fixed_length(subject: &Subject<'_>, port: &Port) -> Option<usize> {
    match Side::row(&subject.input_sides(port)).as_slice() {
        [Side::Size(length)] => Some(*length),
        _ => None,
    }
}

/// Most tokens of a text by the settings beside the model.
fn most_tokens(subject: &Subject<'_>) -> Option<u64> {
    let number = |file: &str, key: &str| subject.beside.json(file)?.get(key).and_then(Value::as_u64);
    // Some files have a number without meaning there.
    let is_limit = |most: &u64| (1..1 << 20).contains(most);
    number("sentence_bert_config.json", "max_seq_length")
        .or_else(|| number("tokenizer_config.json", "model_max_length").filter(is_limit))
        .or_else(|| {
            let settings = subject.beside.json("tokenizer.json")?;
            settings.get("truncation")?.get("max_length")?.as_u64()
        })
        .filter(is_limit)
}

fn tokenized(
    subject: &Subject<'_>,
    port: &Port,
    give: &str,
    file: &str,
    length: Option<usize>,
    most: Option<u64>,
) -> Entry {
    let mut keys = vec![format!("file: {}", yaml::scalar(file))];
    keys.extend((give != "ids").then(|| format!("give: {give}")));
    let shape = subject.input_sides(port);
    let shape = match length {
        Some(length) => {
            keys.push(format!("length: {length}"));
            shape
                .into_iter()
                .map(|side| if side == Side::Batch { side } else { Side::Size(length) })
                .collect()
        }
        None => {
            keys.extend(most.map(|most| format!("most: {most}")));
            shape.into_iter().map(|side| if side == Side::Batch { side } else { Side::Any }).collect()
        }
    };
    let step = Step::known(format!("tokenize: {{{}}}", keys.join(", ")));
    Entry::new(&port.name, "text", "text", ports::dtype(port), shape).step(step)
}

/// Drafts the outputs; returns remarks, and whether one of them has values for each token, so that texts need a length.
fn outputs(
    subject: &Subject<'_>,
    tokens: &[(&Port, &str)],
    tried: Option<&Tried>,
) -> (Vec<Entry>, Vec<String>, bool) {
    let mask = tokens.iter().find(|(_, give)| *give == "mask").map(|(port, _)| port.name.as_str());
    let shapes: Vec<(&Port, Vec<Side>)> =
        subject.outputs.iter().map(|port| (*port, shape(subject, port, tried))).collect();
    let is_pooled = |shape: &[Side]| matches!(shape, [Side::Batch, Side::Size(length)] if *length != TRIED);
    let is_open =
        |shape: &[Side]| matches!(shape, [Side::Batch, Side::Any, Side::Size(width)] if *width < WIDEST);
    let float = |port: &Port| ports::is_float(port);
    let is_for_tokens = |port: &Port, shape: &[Side]| {
        let is_narrow = matches!(shape.last(), Some(Side::Size(width)) if *width < NARROWEST);
        is_narrow || ports::is_named(port, &["logit"]) || config_of(subject, "ForTokenClassification")
    };
    // A vector of the whole text that the file gives, unless it is the by-product of BERT.
    let ready = shapes
        .iter()
        .find(|(port, shape)| float(port) && is_pooled(shape) && !ports::is_named(port, &["pooler"]));
    let open =
        shapes.iter().find(|(port, shape)| float(port) && is_open(shape) && !is_for_tokens(port, shape));
    if let Some((port, shape)) = ready.filter(|_| open.is_none() || !pools_beside(subject)) {
        let Some(Side::Size(length)) = shape.get(1) else { return (Vec::new(), Vec::new(), false) };
        let length = *length;
        let is_vector = (ports::is_named(port, &["embed", "vector", "pool"]) || length > 64)
            && labels::of(subject, length).is_none();
        let outputs = match is_vector {
            true => vec![scores::embedding(port, shape.clone())],
            false => scores::label_and_score(subject, port, shape.clone(), length, tried),
        };
        return (outputs, left_out(&shapes, port), false);
    }
    if let Some((port, shape)) = open {
        let (pool, guess) = pooling(subject, mask);
        let steps = [
            match guess {
                Some(guess) => Step::guessed(pool, guess),
                None => Step::known(pool),
            },
            Step::guessed("l2_norm: {}", "vectors that are compared have the length 1"),
        ];
        let entry =
            Entry::new(&port.name, "embedding", "tensor", ports::dtype(port), shape.clone()).steps(steps);
        return (vec![entry], left_out(&shapes, port), false);
    }
    if let Some((port, shape, classes)) = shapes.iter().find_map(|(port, shape)| match shape.as_slice() {
        [Side::Batch, Side::Any, Side::Size(classes)] if float(port) => Some((port, shape, *classes)),
        _ => None,
    }) && let Some(labels) = labels::of(subject, classes)
    {
        let scheme = Step::guessed(
            format!("entities: {{{}}}", labels.key),
            "spans of labels B-X and I-X; `scheme: words` gives one label for each word",
        );
        let entry = Entry::new(&port.name, "entities", "text", ports::dtype(port), shape.clone())
            .step(Step::guessed("softmax: {}", "the file gives logits"))
            .step(scheme);
        return (vec![entry], left_out(&shapes, port), false);
    }
    // One value or vector for each token: texts of one length have as many.
    let fixed = |shape: &[Side]| -> Vec<Side> {
        shape.iter().map(|side| if *side == Side::Any { Side::Size(LENGTH) } else { side.clone() }).collect()
    };
    let is_long = shapes.iter().any(|(_, shape)| shape.contains(&Side::Any));
    let outputs = shapes.iter().map(|(port, shape)| tensors::output(subject, port, fixed(shape))).collect();
    let mut remarks = Vec::new();
    if is_long {
        remarks.push(format!(
            "guessed: texts of {LENGTH} tokens, because an output has values for each token; `entities` makes labels of them"
        ));
    }
    remarks.extend(super::heads::class_names(subject, None));
    (outputs, remarks, is_long)
}

/// The shape of an output; `any` where it has as many values as there are tokens.
fn shape(subject: &Subject<'_>, port: &Port, tried: Option<&Tried>) -> Vec<Side> {
    let shape = subject.output_sides(port, tried);
    let declared = subject.output_sides(port, None);
    let is_free =
        |at: usize| declared.len() != shape.len() || matches!(declared.get(at), Some(Side::Open(_)));
    let side = |(at, side): (usize, &Side)| match side {
        Side::Size(TRIED) if tried.is_some() && is_free(at) => Side::Any,
        Side::Open(_) => Side::Any,
        side => side.clone(),
    };
    shape.iter().enumerate().map(side).collect()
}

/// Whether `config.json` names an architecture that ends so.
fn config_of(subject: &Subject<'_>, ending: &str) -> bool {
    let config = subject.beside.json("config.json").unwrap_or_default();
    let all = config.get("architectures").and_then(Value::as_array);
    all.into_iter().flatten().filter_map(Value::as_str).any(|name| name.ends_with(ending))
}

/// Whether the settings of sentence-transformers are beside the model.
fn pools_beside(subject: &Subject<'_>) -> bool {
    subject.beside.path("1_Pooling/config.json").is_some()
}

/// The step that makes one vector of those of the tokens, with the reason if it is a guess.
fn pooling(subject: &Subject<'_>, mask: Option<&str>) -> (String, Option<String>) {
    let mean = mask.map_or_else(
        || "mean_pool: {}".to_owned(),
        |mask| format!("mean_pool: {{mask: {}}}", yaml::scalar(mask)),
    );
    let Some(settings) = subject.beside.json("1_Pooling/config.json") else {
        return (mean, Some("the mean of the tokens; `pick: {at: 0}` takes the first one".to_owned()));
    };
    let is = |key: &str| settings.get(key).and_then(Value::as_bool).unwrap_or(false);
    if is("pooling_mode_cls_token") {
        ("pick: {at: 0}".to_owned(), None)
    } else if is("pooling_mode_lasttoken") {
        ("pick: {at: -1}".to_owned(), Some("right only for texts without padding".to_owned()))
    } else {
        (mean, None)
    }
}

/// Names the outputs that a draft leaves out.
fn left_out(shapes: &[(&Port, Vec<Side>)], kept: &Port) -> Vec<String> {
    let names: Vec<&str> =
        shapes.iter().map(|(port, _)| port.name.as_str()).filter(|name| *name != kept.name).collect();
    match names.is_empty() {
        true => Vec::new(),
        false => vec![format!("left out: the outputs {}", yaml::list(&names))],
    }
}

/// Drafts an output of a model that reads a text as it is.
fn output_of_text(subject: &Subject<'_>, port: &Port, tried: Option<&Tried>) -> Entry {
    super::tables::output(subject, port, tried)
}

#[cfg(test)]
mod tests {
    use super::super::cases::{Case, body};

    fn encoder() -> Case {
        Case::new("encoder")
            .input("input_ids", "int64 [batch, sequence]")
            .input("attention_mask", "int64 [batch, sequence]")
            .input("token_type_ids", "int64 [batch, sequence]")
    }

    #[test]
    fn vectors_of_tokens_are_pooled() {
        let text = encoder()
            .output("last_hidden_state", "float32 [batch, sequence, 384]")
            .beside("tokenizer.json", "{}")
            .beside("sentence_bert_config.json", r#"{"max_seq_length": 256}"#)
            .draft();
        assert_eq!(
            body(&text),
            "\
backends: [ort, rten]
inputs:
  - name: input_ids
    column: text
    type: text
    dtype: int64
    shape: [batch, any]
    preprocess:
      - tokenize: {file: tokenizer.json, most: 256}
  - name: attention_mask
    column: text
    type: text
    dtype: int64
    shape: [batch, any]
    preprocess:
      - tokenize: {file: tokenizer.json, give: mask, most: 256}
  - name: token_type_ids
    column: text
    type: text
    dtype: int64
    shape: [batch, any]
    preprocess:
      - tokenize: {file: tokenizer.json, give: types, most: 256}
outputs:
  - name: last_hidden_state
    column: embedding
    type: tensor
    dtype: float32
    shape: [batch, any, 384]
    postprocess:
      - mean_pool: {mask: attention_mask} # guessed: the mean of the tokens; `pick: {at: 0}` takes the first one
      - l2_norm: {} # guessed: vectors that are compared have the length 1
"
        );
    }

    #[test]
    fn settings_beside_the_model_decide() {
        let case = encoder().output("last_hidden_state", "float32 [batch, sequence, 384]");
        let text = case.beside("1_Pooling/config.json", r#"{"pooling_mode_cls_token": true}"#).draft();
        assert!(
            text.contains("- pick: {at: 0}\n") && text.contains("# put the model's `tokenizer.json`"),
            "{text}"
        );
        let config = r#"{"id2label": {"0": "bad", "1": "good"}}"#;
        let text = encoder().output("logits", "float32 [batch, 2]").beside("config.json", config).draft();
        assert!(text.contains("argmax: {labels: [bad, good]}") && text.contains("softmax: {}"), "{text}");
        let config =
            r#"{"architectures": ["BertForTokenClassification"], "id2label": {"0": "O", "1": "NAME"}}"#;
        let text =
            encoder().output("logits", "float32 [batch, sequence, 2]").beside("config.json", config).draft();
        assert!(text.contains("entities: {labels: [O, NAME]}"), "{text}");
        let text = encoder().output("logits", "float32 [batch, sequence, 2]").draft();
        assert!(text.contains("length: 128") && text.contains("shape: [batch, 128, 2]"), "{text}");
    }

    #[test]
    fn a_vector_of_the_text_is_taken_before_those_of_tokens() {
        let text = Case::new("l3")
            .input("input_ids", "int64 [batch_size, sequence_length]")
            .input("attention_mask", "int64 [batch_size, sequence_length]")
            .output("output", "int64 [batch_size, sequence_length]")
            .output("hidden", "float32 [d0, d1, 384]")
            .output("461", "float32 [d2, 384]")
            .draft();
        assert!(text.contains("name: \"461\"") && !text.contains("mean_pool"), "{text}");
        assert!(text.contains("# left out: the outputs [output, hidden]"), "{text}");
    }

    #[test]
    fn labels_of_tokens_become_entities() {
        let model = Case::new("ner")
            .input("input_ids", "int64 [batch, sequence]")
            .input("attention_mask", "int64 [batch, sequence]")
            .output("logits", "float32 [batch, sequence, 3]")
            .beside("tokenizer.json", r#"{"truncation": {"max_length": 384}}"#)
            .beside("config.json", r#"{"id2label": {"0": "O", "1": "B-PER", "2": "I-PER"}}"#);
        let text = model.with(|subject| super::draft(subject).unwrap().to_yaml());
        assert!(text.contains("most: 384"), "{text}");
        assert!(text.contains("- entities: {labels: [O, B-PER, I-PER]}"), "{text}");
        assert!(text.contains("shape: [batch, any, 3]"), "{text}");
    }

    #[test]
    fn texts_may_be_read_as_they_are() {
        let text = Case::new("x").input("text", "string [?, 1]").output("vector", "float32 [?, 512]").draft();
        assert!(text.contains("type: text\n    dtype: text\n    shape: [batch, 1]"), "{text}");
        assert!(text.contains("shape: [batch, 512]"), "{text}");
    }
}
