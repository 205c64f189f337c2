//! Checks that the steps of a model's inputs and outputs fit its declared types and shapes.
use super::heads::{check_boxes, check_text};
use super::{
    Diagnostic, Diagnostics, Dimension, ElementType, InputType, Located, ModelInput, ModelOutput, OutputType,
    Postprocess, Preprocess, TopValues,
};

pub(super) fn unfit(found: &mut Diagnostics, step: &Located<impl Sized>, message: String, help: &str) {
    found.push(Diagnostic::error("E0503", message).at(step.span.clone()).with_help(help));
}

/// Checks an input: the steps that its type allows, and their resulting shape.
pub(super) fn check_input(input: &ModelInput, found: &mut Diagnostics) {
    let mut fits = true;
    for step in &input.preprocess {
        let (name, on): (&str, &[InputType]) = match &step.value {
            Preprocess::Resize { .. } => ("resize", &[InputType::Image]),
            Preprocess::FitHeight { .. } => ("fit_height", &[InputType::Image]),
            Preprocess::ShorterSide { .. } => ("shorter_side", &[InputType::Image]),
            Preprocess::CenterCrop { .. } => ("center_crop", &[InputType::Image]),
            Preprocess::Letterbox { .. } => ("letterbox", &[InputType::Image]),
            Preprocess::Square { .. } => ("square", &[InputType::Image]),
            Preprocess::Grey {} => ("grey", &[InputType::Image]),
            Preprocess::Bgr {} => ("bgr", &[InputType::Image]),
            Preprocess::Normalize { .. } => ("normalize", &[InputType::Image]),
            Preprocess::Resample { .. } => ("resample", &[InputType::Audio]),
            Preprocess::PadOrTrim { .. } => ("pad_or_trim", &[InputType::Audio]),
            Preprocess::Gain { .. } => ("gain", &[InputType::Audio, InputType::Tensor]),
            Preprocess::LogMel { .. } => ("log_mel", &[InputType::Audio, InputType::Tensor]),
            Preprocess::Standardize {} => ("standardize", &[InputType::Audio, InputType::Tensor]),
            Preprocess::Transpose {} => ("transpose", &[InputType::Audio, InputType::Tensor]),
            Preprocess::Characters { .. } => ("characters", &[InputType::Text]),
            Preprocess::Tokenize { .. } => ("tokenize", &[InputType::Text]),
            Preprocess::Ends { .. } => ("ends", &[InputType::Bytes]),
        };
        if !on.contains(&input.input_type) {
            fits = false;
            let help = "image: resize, letterbox, square, shorter_side, center_crop, fit_height, grey, bgr, normalize; \
                        audio: resample, pad_or_trim, gain, log_mel, standardize, transpose; text: characters, tokenize; \
                        bytes: ends; tensor: gain, transpose; \
                        tensor of samples: gain, log_mel, standardize, transpose";
            unfit(found, step, format!("step `{name}` does not fit an input of this type"), help);
        }
        if normalizes_bytes(input, &step.value) {
            let help = "leave `normalize` out, or write the float type that the model takes";
            unfit(found, step, "the output of `normalize` is not uint8".to_owned(), help);
        }
        let is_tensor = input.input_type == InputType::Tensor;
        if is_tensor && matches!(step.value, Preprocess::Gain { .. }) && !input.dtype.is_float() {
            let help = "leave `gain` out, or write the float type that the model takes";
            unfit(found, step, format!("the output of `gain` is not {}", input.dtype), help);
        }
        check_step(step, found);
    }
    if !fits {
        return;
    }
    check_columns(input, found);
    use ElementType::{Float16, Float32, Float64, Int32, Int64, Text, Uint8};
    let given: &[ElementType] = match input.input_type {
        InputType::Image => &[Float32, Float16, Uint8],
        InputType::Audio => &[Float32, Float16],
        InputType::Text if input.preprocess.is_empty() => &[Text],
        InputType::Text => &[Int64, Int32, Float32],
        InputType::Tensor => &ElementType::ALL,
        InputType::Bytes => &[Int64, Int32, Uint8, Float32],
        InputType::Features => &[Float32, Float16, Float64, Int64, Int32],
        InputType::PictureSize => &[Int64, Int32, Float32],
    };
    if !given.contains(&input.dtype) {
        let message = format!("the steps of input `{}` have another element type", input.name);
        let names = given.iter().map(|element| element.name()).collect::<Vec<_>>().join(", ");
        let help = format!("here it can be {names}");
        found.push(Diagnostic::error("E0504", message).at(input.name.span.clone()).with_help(help));
    }
    if let Some(expected) = expected_shape(input)
        && !matches(&expected, &input.shape)
    {
        found.push(
            Diagnostic::error(
                "E0502",
                format!(
                    "the output of the steps is {}, but the model reads {}",
                    shown(&expected),
                    declared(&input.shape)
                ),
            )
            .at(input.shape.span.clone())
            .with_help("correct the shape or the steps"),
        );
    }
}

/// Checks that an input names its column, or its columns.
fn check_columns(input: &ModelInput, found: &mut Diagnostics) {
    let is_table = input.input_type == InputType::Features;
    if is_table != input.column.is_empty() || is_table == input.columns.is_empty() {
        let (message, help) = match is_table {
            true => {
                ("a tensor of features reads several columns", "write `columns: [a, b]`, and no `column`")
            }
            false => ("this input reads one column", "write `column: NAME`, and no `columns`"),
        };
        let message = format!("input `{}`: {message}", input.name);
        found.push(Diagnostic::error("E0503", message).at(input.name.span.clone()).with_help(help));
    }
    for feature in &input.columns {
        if feature.one_hot && feature.categories.is_empty() {
            let message = format!("`{}` has no categories", feature.column);
            let help = "write `categories: [...]`, or leave `one_hot` out";
            found.push(Diagnostic::error("E0503", message).at(feature.span.clone()).with_help(help));
        } else if feature.unknown.is_some() && feature.categories.is_empty() {
            let message = format!("`{}` has no categories, so none is unknown", feature.column);
            let help = "write `categories: [...]`, or `missing` for empty values instead of `unknown`";
            found.push(Diagnostic::error("E0503", message).at(feature.span.clone()).with_help(help));
        }
        if feature.column.is_empty() || feature.column.starts_with('_') {
            let message = format!("`{}` cannot be the name of a column", feature.column);
            let help = "names that start with `_` belong to the engine";
            found.push(Diagnostic::error("E0508", message).at(feature.span.clone()).with_help(help));
        }
    }
}

/// A model that takes the bytes of a picture normalizes them itself.
fn normalizes_bytes(input: &ModelInput, step: &Preprocess) -> bool {
    input.dtype == ElementType::Uint8 && matches!(step, Preprocess::Normalize { .. })
}

fn check_step(step: &Located<Preprocess>, found: &mut Diagnostics) {
    match &step.value {
        Preprocess::FitHeight { width: Some(0), .. } | Preprocess::FitHeight { height: 0, .. } => {
            let help = "write a width and height of 1 or more";
            unfit(found, step, "an image without pixels".to_string(), help);
        }
        Preprocess::Resize { width, height, .. }
        | Preprocess::Letterbox { width, height, .. }
        | Preprocess::CenterCrop { width, height }
            if *width == 0 || *height == 0 =>
        {
            unfit(
                found,
                step,
                "an image without pixels".to_string(),
                "write a width and height of 1 or more",
            );
        }
        Preprocess::ShorterSide { pixels: 0, .. } => {
            unfit(found, step, "an image without pixels".to_string(), "write a length of 1 or more");
        }
        Preprocess::Normalize { divide_by, .. } if !(*divide_by > 0.0 && divide_by.is_finite()) => {
            unfit(
                found,
                step,
                "`divide_by` must be above 0".to_string(),
                "write 255, or 1 to keep the values",
            );
        }
        Preprocess::Normalize { mean, std, .. } => {
            let fits = |values: &Vec<f64>| matches!(values.len(), 0 | 1 | 3);
            if !fits(mean) || !fits(std) {
                unfit(
                    found,
                    step,
                    "`mean` and `std` need one number per channel".to_string(),
                    "write three numbers each, or one after `grey`",
                );
            } else if std.contains(&0.0) {
                unfit(
                    found,
                    step,
                    "`std` divides and cannot be 0".to_string(),
                    "write the standard deviation of each channel",
                );
            }
        }
        Preprocess::Resample { sample_rate: 0 } => {
            unfit(found, step, "a sound without samples".to_string(), "write a rate such as 16000");
        }
        Preprocess::PadOrTrim { seconds } if seconds.0 == 0 => {
            unfit(found, step, "a sound of length 0".to_string(), "write a length such as `4s`");
        }
        Preprocess::LogMel { sample_rate, window, hop, fft, mels, low, high, floor, .. } => {
            let whole = [*sample_rate, *window, *hop, *fft, *mels].iter().all(|n| *n > 0);
            if !whole || window > fft {
                let help = "all of them are at least 1, and `window` is at most `fft`";
                unfit(found, step, "these settings do not make a spectrogram".to_string(), help);
            }
            if !(0.0 <= *low && low < high && *high <= f64::from(*sample_rate) / 2.0) {
                let help = "0 <= low < high <= sample_rate / 2";
                unfit(found, step, "these frequencies contain no mel bands".to_string(), help);
            }
            if *floor <= 0.0 {
                unfit(
                    found,
                    step,
                    "`floor` must be above 0, because its logarithm is used".to_string(),
                    "write a number above 0",
                );
            }
        }
        Preprocess::Characters { alphabet, length, .. } if alphabet.is_empty() || *length == Some(0) => {
            unfit(found, step, "no characters".to_string(), "write an alphabet and a length of 1 or more");
        }
        Preprocess::Gain { factor, .. } if !factor.is_finite() || *factor == 0.0 => {
            unfit(found, step, "`factor` must be a number other than 0".to_string(), "write such as 32768");
        }
        Preprocess::Gain { add, .. } if !add.is_finite() => {
            unfit(
                found,
                step,
                "`add` must be a finite number".to_string(),
                "write such as 2, or leave it out",
            );
        }
        Preprocess::Tokenize { length, most, .. } if *length == Some(0) || *most == 0 => {
            unfit(found, step, "a text of 0 tokens".to_string(), "write a length of 1 or more");
        }
        Preprocess::Ends { first: 0, last: 0, .. } => {
            unfit(found, step, "no bytes".to_string(), "write how many bytes `first` or `last` are");
        }
        _ => {}
    }
}

/// The shape after the steps; `None` as a dimension is unknown. None if the steps do not determine it.
fn expected_shape(input: &ModelInput) -> Option<Vec<Option<u32>>> {
    let mut shape: Option<Vec<Option<u32>>> = match input.input_type {
        InputType::Image => return expected_picture(input),
        _ => None,
    };
    let (mut length, mut rate) = (None, None);
    for step in &input.preprocess {
        match &step.value {
            Preprocess::Resample { sample_rate } => {
                rate = Some(*sample_rate);
                shape = Some(vec![None]);
            }
            Preprocess::PadOrTrim { seconds } => {
                length = Some(seconds.0);
                shape = rate.map(|rate| vec![samples(seconds.0, rate).and_then(|n| u32::try_from(n).ok())]);
            }
            Preprocess::LogMel { sample_rate, window, hop, fft, mels, in_middle, .. } => {
                let width = if *in_middle { *fft } else { *window };
                let frames = length.and_then(|length| frames(length, *sample_rate, width, *hop));
                shape = Some(vec![frames, Some(*mels)]);
            }
            Preprocess::Transpose {} => {
                if let Some(shape) = shape.as_mut().filter(|shape| shape.len() >= 2) {
                    let last = shape.len() - 1;
                    shape.swap(last - 1, last);
                }
            }
            Preprocess::Characters { alphabet, length, one_hot: true, .. } => {
                shape = Some(vec![*length, u32::try_from(alphabet.chars().count()).ok()]);
            }
            Preprocess::Characters { length, .. } => shape = Some(vec![*length]),
            Preprocess::Tokenize { length, .. } => shape = Some(vec![*length]),
            Preprocess::Ends { first, last, .. } => shape = Some(vec![Some(first.saturating_add(*last))]),
            _ => {}
        }
    }
    shape
}

/// The shape of a picture: channels first, or last if it is declared so.
fn expected_picture(input: &ModelInput) -> Option<Vec<Option<u32>>> {
    let (mut channels, mut size) = (3, (None, None));
    for step in &input.preprocess {
        match &step.value {
            Preprocess::FitHeight { width, height, .. } => size = (Some(*height), *width),
            Preprocess::Resize { width, height, .. }
            | Preprocess::Letterbox { width, height, .. }
            | Preprocess::CenterCrop { width, height } => size = (Some(*height), Some(*width)),
            Preprocess::ShorterSide { .. } | Preprocess::Square { .. } => size = (None, None),
            Preprocess::Grey {} => channels = 1,
            _ => {}
        }
    }
    let first = vec![Some(channels), size.0, size.1];
    let last = vec![size.0, size.1, Some(channels)];
    Some(if !matches(&first, &input.shape) && matches(&last, &input.shape) { last } else { first })
}

/// Full frames in a sound of `length` nanoseconds; none if that is no whole number of samples or no frame at all.
fn frames(length: u64, sample_rate: u32, window: u32, hop: u32) -> Option<u32> {
    let frames =
        samples(length, sample_rate)?.checked_sub(u128::from(window))?.checked_div(u128::from(hop))? + 1;
    u32::try_from(frames).ok()
}

/// Samples in a sound of `length` nanoseconds; none if that is no whole number.
fn samples(length: u64, sample_rate: u32) -> Option<u128> {
    let scaled = u128::from(length) * u128::from(sample_rate);
    scaled.is_multiple_of(1_000_000_000).then_some(scaled / 1_000_000_000)
}

/// Compares without the batch dimension; a channel dimension of 1 may stand before a spectrogram.
fn matches(expected: &[Option<u32>], declared: &[Dimension]) -> bool {
    let row = Dimension::row(declared);
    let rest = row.as_slice();
    let rest = match rest.split_first() {
        Some((Dimension::Fixed(1), inner)) if inner.len() == expected.len() => inner,
        _ => rest,
    };
    rest.len() == expected.len()
        && rest.iter().zip(expected).all(|(dimension, expected)| match (dimension, expected) {
            (Dimension::Fixed(size), Some(expected)) => size == expected,
            (Dimension::Fixed(_) | Dimension::Any, None) => true,
            (Dimension::Any, Some(_)) | (Dimension::Batch, _) => false,
        })
}

fn shown(shape: &[Option<u32>]) -> String {
    let dimensions = shape.iter().map(|size| size.map_or_else(|| "?".to_string(), |size| size.to_string()));
    format!("[batch, {}]", dimensions.collect::<Vec<_>>().join(", "))
}

pub(super) fn declared(shape: &[Dimension]) -> String {
    format!("[{}]", shape.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))
}

/// Checks a step that makes one of the places of the first dimension; `row` is the shape before it.
fn check_place(index: usize, step: &Located<Postprocess>, row: &[Dimension], found: &mut Diagnostics) {
    let is_mean = matches!(step.value, Postprocess::MeanPool { .. });
    if !is_mean && !matches!(step.value, Postprocess::Pick { .. }) {
        return;
    }
    let Some(first) = row.first() else {
        let help = "write it for an output such as [batch, any, 384]";
        return unfit(found, step, "mean_pool and pick need a dimension".to_owned(), help);
    };
    if is_mean && index > 0 {
        let help = "write it as the first step, for an output such as [batch, any, 384]";
        unfit(found, step, "mean_pool after another step".to_owned(), help);
    }
    if let (Postprocess::Pick { at }, Dimension::Fixed(places)) = (&step.value, first)
        && !(-i64::from(*places)..i64::from(*places)).contains(&i64::from(*at))
    {
        let message = format!("`pick` takes place {at} of {places}");
        unfit(found, step, message, "places count from 0, and from -1 at the end");
    }
}

/// Changes the shape and the element type of a row as a step does.
fn follow(step: &Postprocess, row: &mut Vec<Dimension>, element: &mut ElementType) {
    match step {
        Postprocess::MeanPool { .. } | Postprocess::Pick { .. } if !row.is_empty() => drop(row.remove(0)),
        Postprocess::Transpose {} => {
            if let [.., a, b] = row.as_mut_slice() {
                std::mem::swap(a, b);
            }
        }
        _ => {}
    }
    let computes = matches!(
        step,
        Postprocess::MeanPool { .. }
            | Postprocess::Softmax {}
            | Postprocess::Sigmoid {}
            | Postprocess::L2Norm {}
    );
    if computes && *element != ElementType::Text && !element.is_float() {
        *element = ElementType::Float64;
    }
}

/// Checks an output: its steps must end in the column's type.
pub(super) fn check_output(output: &ModelOutput, found: &mut Diagnostics) {
    // These steps give as much for an output of any length, the last one only if it comes first.
    let closes = |(index, step): (usize, &Located<Postprocess>)| {
        use Postprocess::{CtcDecode, DecodeBoxes, Entities, Join, MeanPool, Pick};
        matches!(
            step.value,
            DecodeBoxes(_) | CtcDecode { .. } | Entities { .. } | Join { .. } | MeanPool { .. }
        ) || index == 0 && matches!(step.value, Pick { .. })
    };
    let is_open =
        output.shape.contains(&Dimension::Any) && !output.postprocess.iter().enumerate().any(closes);
    if is_open || output.shape.iter().filter(|dimension| **dimension == Dimension::Batch).count() > 1 {
        found.push(
            Diagnostic::error("E0502", format!("output `{}` has no fixed size for a record", output.name))
                .at(output.shape.span.clone())
                .with_help("write `batch` once, where the file counts records, and numbers for the rest"),
        );
    }
    let last_step = |step: &Postprocess| {
        matches!(
            step,
            Postprocess::Argmax { .. }
                | Postprocess::CtcDecode { .. }
                | Postprocess::Entities { .. }
                | Postprocess::Join { .. }
                | Postprocess::Max {}
                | Postprocess::TopK { .. }
        )
    };
    let last = output.postprocess.len().saturating_sub(1);
    let (mut row, mut element) = (Dimension::row(&output.shape), output.dtype);
    for (index, step) in output.postprocess.iter().enumerate() {
        if let Postprocess::DecodeBoxes(decoding) = &step.value {
            check_boxes(output, step, decoding, found);
        }
        if let Postprocess::TextBoxes(decoding) = &step.value {
            check_text(output, step, decoding, found);
        }
        if last_step(step) && index != last {
            let message = "no step can follow argmax, max, top_k, ctc_decode, entities or join".to_string();
            unfit(found, step, message, "move it to the end");
        }
        if let Postprocess::TopK {
            give: Some(TopValues::Labels),
            labels,
            labels_file: None,
            labels_metadata: None,
            ..
        } = &step.value
            && labels.is_empty()
        {
            let help = "write `labels: [...]`, `labels_file` or `labels_metadata`, or `give: positions`";
            unfit(found, step, "`give: labels` needs labels".to_owned(), help);
        }
        check_place(index, step, &row, found);
        follow(&step.value, &mut row, &mut element);
        let classes = match row.last() {
            Some(Dimension::Fixed(size)) => *size,
            _ => continue,
        };
        // The best classes instead of scores.
        if row.len() == 1 && matches!(step.value, Postprocess::CtcDecode { .. }) {
            continue;
        }
        match &step.value {
            Postprocess::Argmax { labels, .. }
            | Postprocess::TopK { labels, .. }
            | Postprocess::Entities { labels, .. }
            | Postprocess::Join { labels, .. }
                if !labels.is_empty() && labels.len() as u64 != u64::from(classes) =>
            {
                let message = format!("{} labels for {classes} values", labels.len());
                unfit(found, step, message, "write one label for each value of the last dimension");
            }
            Postprocess::Entities { labels, labels_file: None, labels_metadata: None, .. }
            | Postprocess::Join { labels, labels_file: None, labels_metadata: None, .. }
                if labels.is_empty() =>
            {
                let help = "write `labels: [...]`, or `labels_file` or `labels_metadata`";
                unfit(found, step, "the step has no labels".to_string(), help);
            }
            Postprocess::TopK { k, .. } if *k == 0 || *k > classes => {
                unfit(
                    found,
                    step,
                    format!("the best {k} of {classes} values"),
                    "write a number from 1 to that",
                );
            }
            Postprocess::CtcDecode { alphabet, alphabet_metadata: None, alphabet_file: None, .. }
                if alphabet.is_empty() =>
            {
                unfit(
                    found,
                    step,
                    "`ctc_decode` has no characters".to_string(),
                    "write `alphabet: \"abc...\"`, or `alphabet_metadata: NAME` if the model file has them",
                );
            }
            // The number of characters in the file is checked when it is read.
            Postprocess::CtcDecode { alphabet_metadata: Some(_), .. }
            | Postprocess::CtcDecode { alphabet_file: Some(_), .. } => {}
            Postprocess::CtcDecode { alphabet, blank, .. } => {
                // The blank may have a character of its own in the alphabet, or none.
                let characters = alphabet.chars().count() as u64;
                if characters != u64::from(classes) && characters + 1 != u64::from(classes) {
                    let message = format!("{characters} characters for {classes} values");
                    unfit(
                        found,
                        step,
                        message,
                        "write one character for each value, with or without the blank",
                    );
                }
                if *blank >= classes {
                    let message = format!("the blank {blank} is outside of {classes} values");
                    unfit(found, step, message, "values count from 0");
                }
            }
            _ => {}
        }
    }
    let given = match output.postprocess.last().map(|step| &step.value) {
        Some(Postprocess::CtcDecode { .. } | Postprocess::Entities { .. } | Postprocess::Join { .. }) => {
            &[OutputType::Text][..]
        }
        Some(Postprocess::Argmax { labels, labels_file: None, labels_metadata: None })
            if labels.is_empty() =>
        {
            &[OutputType::Int64]
        }
        Some(Postprocess::Argmax { .. }) => &[OutputType::Text],
        Some(Postprocess::Max {}) => &[OutputType::Float64],
        Some(Postprocess::TopK { .. } | Postprocess::DecodeBoxes(_) | Postprocess::TextBoxes(_)) => {
            &[OutputType::Tensor]
        }
        _ if row.iter().all(|side| *side == Dimension::Fixed(1)) => {
            use OutputType::{Bool, Float64, Int64, Tensor, Text};
            match element {
                ElementType::Text => &[Text, Tensor][..],
                ElementType::Bool => &[Bool, Tensor],
                element if element.is_float() => &[Float64, Tensor],
                _ => &[Int64, Bool, Tensor],
            }
        }
        _ => &[OutputType::Tensor],
    };
    if !given.contains(&output.output_type) {
        let message = format!("the steps of output `{}` do not match its type", output.name);
        let help = "`text` needs `ctc_decode`, `entities`, `join` or `argmax` with labels as the last step, `int64` `argmax` without, `float64` \
                    `max` or one float for each record, as `pick` gives of a vector; all else is a `tensor`";
        found.push(Diagnostic::error("E0504", message).at(output.name.span.clone()).with_help(help));
    }
}
