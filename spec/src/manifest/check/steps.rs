//! Checks that the steps of a model's inputs and outputs fit its declared types and shapes.
use super::{
    BoxDecoding, BoxScores, Diagnostic, Diagnostics, Dimension, ElementType, InputType, Located, ModelInput,
    ModelOutput, OutputType, Postprocess, Preprocess, TextDecoding,
};

fn unfit(found: &mut Diagnostics, step: &Located<impl Sized>, message: String, help: &str) {
    found.push(Diagnostic::error("E0503", message).at(step.span.clone()).with_help(help));
}

/// Checks an input: the steps that its type allows, and their resulting shape.
pub(super) fn check_input(input: &ModelInput, found: &mut Diagnostics) {
    let mut fits = true;
    for step in &input.preprocess {
        let (name, on): (&str, &[InputType]) = match &step.value {
            Preprocess::Resize { .. } => ("resize", &[InputType::Image]),
            Preprocess::FitHeight { .. } => ("fit_height", &[InputType::Image]),
            Preprocess::Bgr {} => ("bgr", &[InputType::Image]),
            Preprocess::Normalize { .. } => ("normalize", &[InputType::Image]),
            Preprocess::Resample { .. } => ("resample", &[InputType::Audio]),
            Preprocess::PadOrTrim { .. } => ("pad_or_trim", &[InputType::Audio]),
            Preprocess::LogMel { .. } => ("log_mel", &[InputType::Audio]),
            Preprocess::Standardize {} => ("standardize", &[InputType::Audio]),
            Preprocess::Transpose {} => ("transpose", &[InputType::Audio, InputType::Tensor]),
            Preprocess::Characters { .. } => ("characters", &[InputType::Text]),
        };
        if !on.contains(&input.input_type) {
            fits = false;
            let help = "image: resize, fit_height, bgr, normalize; audio: resample, pad_or_trim, log_mel, standardize, \
                        transpose; text: characters";
            unfit(found, step, format!("step `{name}` does not fit an input of this type"), help);
        }
        if normalizes_bytes(input, &step.value) {
            let help = "leave `normalize` out, or write the float type that the model takes";
            unfit(found, step, "the output of `normalize` is not uint8".to_owned(), help);
        }
        check_step(step, found);
    }
    if !fits {
        return;
    }
    use ElementType::{Float16, Float32, Int64, Uint8};
    let given: &[ElementType] = match input.input_type {
        InputType::Image => &[Float32, Float16, Uint8],
        InputType::Audio => &[Float32, Float16],
        InputType::Text => &[Int64],
        InputType::Tensor => &[Float32, Float16, Int64, Uint8],
    };
    if !given.contains(&input.dtype) {
        let message = format!("the steps of input `{}` have another element type", input.name);
        let help = "image: float32, float16 or uint8; audio: float32 or float16; text: int64";
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

/// A model that takes the bytes of a picture normalizes them itself.
fn normalizes_bytes(input: &ModelInput, step: &Preprocess) -> bool {
    input.dtype == ElementType::Uint8 && matches!(step, Preprocess::Normalize { .. })
}

fn check_step(step: &Located<Preprocess>, found: &mut Diagnostics) {
    match &step.value {
        Preprocess::Resize { width, height } | Preprocess::FitHeight { width, height }
            if *width == 0 || *height == 0 =>
        {
            unfit(
                found,
                step,
                "an image without pixels".to_string(),
                "write a width and height of 1 or more",
            );
        }
        Preprocess::Normalize { mean, std } => {
            if mean.len() != 3 || std.len() != 3 {
                unfit(
                    found,
                    step,
                    "`mean` and `std` need one number per channel".to_string(),
                    "write three numbers each",
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
        Preprocess::LogMel { sample_rate, window, hop, fft, mels, low, high, floor } => {
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
        Preprocess::Characters { alphabet, length } if alphabet.is_empty() || *length == 0 => {
            unfit(found, step, "no characters".to_string(), "write an alphabet and a length of 1 or more");
        }
        _ => {}
    }
}

/// The shape after the steps; `None` as a dimension is unknown. None if the steps do not determine it.
fn expected_shape(input: &ModelInput) -> Option<Vec<Option<u32>>> {
    let mut shape: Option<Vec<Option<u32>>> = match input.input_type {
        InputType::Image => Some(vec![Some(3), None, None]),
        _ => None,
    };
    let (mut length, mut rate) = (None, None);
    for step in &input.preprocess {
        match &step.value {
            Preprocess::Resize { width, height } | Preprocess::FitHeight { width, height } => {
                shape = Some(vec![Some(3), Some(*height), Some(*width)]);
            }
            Preprocess::Resample { sample_rate } => {
                rate = Some(*sample_rate);
                shape = Some(vec![None]);
            }
            Preprocess::PadOrTrim { seconds } => {
                length = Some(seconds.0);
                shape = rate.map(|rate| vec![samples(seconds.0, rate).and_then(|n| u32::try_from(n).ok())]);
            }
            Preprocess::LogMel { sample_rate, window, hop, mels, .. } => {
                let frames = length.and_then(|length| frames(length, *sample_rate, *window, *hop));
                shape = Some(vec![frames, Some(*mels)]);
            }
            Preprocess::Transpose {} => {
                if let Some(shape) = shape.as_mut().filter(|shape| shape.len() >= 2) {
                    let last = shape.len() - 1;
                    shape.swap(last - 1, last);
                }
            }
            Preprocess::Characters { length, .. } => shape = Some(vec![Some(*length)]),
            Preprocess::Normalize { .. } | Preprocess::Bgr {} | Preprocess::Standardize {} => {}
        }
    }
    shape
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
    let Some((Dimension::Batch, rest)) = declared.split_first() else { return false };
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

fn declared(shape: &[Dimension]) -> String {
    format!("[{}]", shape.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))
}

/// Checks that a detection head can be decoded.
fn check_boxes(
    output: &ModelOutput,
    step: &Located<Postprocess>,
    decoding: &BoxDecoding,
    found: &mut Diagnostics,
) {
    let numbers = match (&output.shape[..], decoding.transposed) {
        ([_, _, Dimension::Fixed(numbers)], false) | ([_, Dimension::Fixed(numbers), _], true) => *numbers,
        _ => 0,
    };
    let (least, behind) = match decoding.scores {
        BoxScores::Best => (6, "a score and a class"),
        BoxScores::Each => (5, "a score for each class"),
        BoxScores::Objectness => (6, "a score and one for each class"),
    };
    if numbers < least || decoding.scores == BoxScores::Best && numbers > least {
        let help = format!(
            "it reads [batch, places, numbers], for each place 4 numbers and {behind}; `transposed: true` for [batch, numbers, places]"
        );
        let message = format!("`decode_boxes` cannot read the shape {}", declared(&output.shape));
        found.push(Diagnostic::error("E0504", message).at(step.span.clone()).with_help(help));
    }
    if output.postprocess.len() > 1 {
        unfit(found, step, "`decode_boxes` has other steps beside it".to_string(), "leave only this one");
    }
    let share = |value: f32| (0.0..=1.0).contains(&value);
    if !share(decoding.threshold) || !share(decoding.iou) {
        unfit(found, step, "`threshold` and `iou` are shares".to_string(), "write numbers from 0 to 1");
    }
    if !(1..=4096).contains(&decoding.most) {
        unfit(found, step, format!("`most` is {}", decoding.most), "write a number from 1 to 4096");
    }
    if decoding.picture.is_some_and(|size| size.iter().any(|side| !(*side > 0.0 && side.is_finite()))) {
        unfit(
            found,
            step,
            "`picture` is not a size".to_string(),
            "write width and height, such as [416, 416]",
        );
    }
}

/// Checks that a map of text can be decoded.
fn check_text(
    output: &ModelOutput,
    step: &Located<Postprocess>,
    decoding: &TextDecoding,
    found: &mut Diagnostics,
) {
    if !matches!(&output.shape[..], [_, _, _] | [_, Dimension::Fixed(1), _, _]) {
        let message = format!("`text_boxes` cannot read the shape {}", declared(&output.shape));
        let help = "it reads [batch, height, width] or [batch, 1, height, width]";
        found.push(Diagnostic::error("E0504", message).at(step.span.clone()).with_help(help));
    }
    if output.postprocess.len() > 1 {
        unfit(found, step, "`text_boxes` has other steps beside it".to_string(), "leave only this one");
    }
    let share = |value: f32| (0.0..=1.0).contains(&value);
    if !share(decoding.threshold) || !share(decoding.score) {
        unfit(found, step, "`threshold` and `score` are shares".to_string(), "write numbers from 0 to 1");
    }
    if !(0.0..=10.0).contains(&decoding.grow) {
        unfit(found, step, format!("`grow` is {}", decoding.grow), "write a number from 0 to 10");
    }
    if !(1..=4096).contains(&decoding.most) {
        unfit(found, step, format!("`most` is {}", decoding.most), "write a number from 1 to 4096");
    }
}

/// Checks an output: its steps must end in the column's type.
pub(super) fn check_output(output: &ModelOutput, found: &mut Diagnostics) {
    if !matches!(output.shape.first(), Some(Dimension::Batch))
        || output.shape[1..].iter().any(|dimension| !matches!(dimension, Dimension::Fixed(_)))
    {
        found.push(
            Diagnostic::error("E0502", format!("output `{}` does not start with the batch", output.name))
                .at(output.shape.span.clone())
                .with_help("write `[batch, ...]` with numbers after it"),
        );
    }
    let text =
        |step: &Postprocess| matches!(step, Postprocess::Argmax { .. } | Postprocess::CtcDecode { .. });
    let last = output.postprocess.len().saturating_sub(1);
    for (index, step) in output.postprocess.iter().enumerate() {
        if let Postprocess::DecodeBoxes(decoding) = &step.value {
            check_boxes(output, step, decoding, found);
        }
        if let Postprocess::TextBoxes(decoding) = &step.value {
            check_text(output, step, decoding, found);
        }
        if text(step) && index != last {
            unfit(
                found,
                step,
                "no step can follow one whose output is text".to_string(),
                "move it to the end",
            );
        }
        let classes = match output.shape.last() {
            Some(Dimension::Fixed(size)) => *size,
            _ => continue,
        };
        match &step.value {
            Postprocess::Argmax { labels } if labels.len() as u64 != u64::from(classes) => {
                let message = format!("{} labels for {classes} values", labels.len());
                unfit(found, step, message, "write one label for each value of the last dimension");
            }
            Postprocess::CtcDecode { alphabet, alphabet_metadata: None, .. } if alphabet.is_empty() => {
                unfit(
                    found,
                    step,
                    "`ctc_decode` has no characters".to_string(),
                    "write `alphabet: \"abc...\"`, or `alphabet_metadata: NAME` if the model file has them",
                );
            }
            // The number of characters in the file is checked when it is read.
            Postprocess::CtcDecode { alphabet_metadata: Some(_), .. } => {}
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
    let gives_text = output.postprocess.last().is_some_and(|step| text(step));
    if gives_text != (output.output_type == OutputType::Text) {
        let message = format!("the steps of output `{}` do not match its type", output.name);
        let help = "`text` needs `argmax` or `ctc_decode` as the last step; `tensor` must have neither";
        found.push(Diagnostic::error("E0504", message).at(output.name.span.clone()).with_help(help));
    }
}
