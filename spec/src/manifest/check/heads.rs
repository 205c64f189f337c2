//! Checks of the steps that find boxes.
use super::steps::{declared, unfit};
use super::{
    BoxDecoding, BoxScores, Diagnostic, Diagnostics, Dimension, GridForm, Located, ModelOutput, Postprocess,
    TextDecoding,
};

/// Checks that a detection head can be decoded.
pub(super) fn check_boxes(
    output: &ModelOutput,
    step: &Located<Postprocess>,
    decoding: &BoxDecoding,
    found: &mut Diagnostics,
) {
    let row = Dimension::row(&output.shape);
    let numbers = match (&row[..], decoding.transposed) {
        ([_, Dimension::Fixed(numbers)], false) | ([Dimension::Fixed(numbers), _], true) => *numbers,
        // Maps of numbers, anchors and cells are joined to places.
        ([_, _, _] | [_, _, _, _], _) if decoding.grid.is_some() => u32::MAX,
        _ => 0,
    };
    let (least, behind) = match decoding.scores {
        _ if decoding.scores_from.is_some() => (4, "nothing else"),
        BoxScores::Best => (6, "a score and a class"),
        BoxScores::Each => (5, "a score for each class"),
        BoxScores::Objectness => (6, "a score and one for each class"),
    };
    let before = if decoding.scores == BoxScores::Objectness { 5 } else { 4 };
    let has_classes = decoding.scores != BoxScores::Best || decoding.scores_from.is_some();
    if let Some(classes) = decoding.classes {
        let is_too_many = decoding.scores_from.is_none() && numbers < classes.saturating_add(before);
        if !has_classes || classes == 0 || numbers >= least && is_too_many {
            let message = format!("`classes: {classes}` does not fit the scores");
            let help = "write how many scores of classes each place has, with `scores: each` or `objectness`";
            unfit(found, step, message, help);
        }
    }
    if numbers < least {
        let help = format!(
            "it reads [batch, places, numbers], for each place 4 numbers and {behind}; `transposed: true` for [batch, numbers, places]"
        );
        let message = format!("`decode_boxes` cannot read the shape {}", declared(&output.shape));
        found.push(Diagnostic::error("E0504", message).at(step.span.clone()).with_help(help));
    }
    check_grid(step, decoding, found);
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

/// Checks the cells of a head.
fn check_grid(step: &Located<Postprocess>, decoding: &BoxDecoding, found: &mut Diagnostics) {
    let Some(grid) = &decoding.grid else {
        if !decoding.levels.is_empty() {
            let help = "write `grid: {form: ..., strides: [...]}`, with a stride for each level";
            unfit(found, step, "`levels` without a `grid`".to_string(), help);
        }
        return;
    };
    if grid.strides.is_empty() || grid.strides.contains(&0) {
        unfit(
            found,
            step,
            "a `grid` without strides".to_string(),
            "write them such as `strides: [8, 16, 32]`",
        );
    }
    if !decoding.levels.is_empty() && decoding.levels.len() + 1 != grid.strides.len() {
        let message = format!("{} levels for {} strides", decoding.levels.len() + 1, grid.strides.len());
        let help = "the output itself is the first level; write an entry of `levels` for each further stride";
        unfit(found, step, message, help);
    }
    let needs_anchors = matches!(grid.form, GridForm::Yolov4 | GridForm::Yolov5 | GridForm::Ssd);
    let fits = match grid.anchors.len() {
        0 => !needs_anchors,
        given => given == grid.strides.len() && grid.anchors.iter().all(|anchors| !anchors.is_empty()),
    };
    if !fits {
        let help = "write `anchors: [[[width, height], ...], ...]`, a list for each stride, in pixels";
        unfit(found, step, "the `grid` needs anchors for each stride".to_string(), help);
    }
}

/// Checks that a map of text can be decoded.
pub(super) fn check_text(
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
