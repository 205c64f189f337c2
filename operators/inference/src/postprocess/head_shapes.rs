//! Settings of a detection head that contradict the shapes of its outputs.
use super::head::{beside, cells_of};
use super::layout::{self, Reading, sizes};
use tidemill_spec::manifest::{BoxDecoding, BoxScores, GridForm};

/// Strides of common heads, for the number of their cells.
const STRIDES: [&[u32]; 4] = [&[8, 16, 32], &[8, 16, 32, 64], &[16, 32], &[4, 8, 16, 32]];
/// Most anchors of a cell in common heads.
const ANCHORS: usize = 3;

/// Returns why outputs of these shapes, without the batch, cannot be read. `picture`: width and height of the model's input.
pub(super) fn reason(decoding: &BoxDecoding, picture: Option<[f32; 2]>, shapes: &[&[usize]]) -> String {
    if let Err(contradiction) = layout::anchors_first(decoding, picture, shapes.iter().copied()) {
        return contradiction;
    }
    let mut shapes = shapes.iter();
    for level in 0..=decoding.levels.len() {
        let (has_scores, has_objectness) = beside(decoding, level);
        let grid = decoding.grid.as_ref();
        let reading = Reading::of(decoding, picture, level);
        let mut next = || sizes(shapes.next()?, reading);
        let Some((places, numbers)) = next() else { break };
        let scores = if has_scores { next() } else { None };
        let objectness = if has_objectness { next() } else { None };
        if let (Some(grid), true) = (grid, has_scores) {
            match grid.form {
                GridForm::Distances if numbers > 4 && numbers.is_multiple_of(4) => {
                    return format!(
                        "each place has {numbers} numbers, {} for each side: that is `form: distributions`",
                        numbers / 4
                    );
                }
                GridForm::Distances if numbers != 4 => {
                    return format!("each place has {numbers} numbers, `distances` are 4");
                }
                GridForm::Distributions if !numbers.is_multiple_of(4) => {
                    return format!(
                        "each place has {numbers} numbers, `distributions` have as many for each of 4 sides"
                    );
                }
                _ => {}
            }
        }
        for (other, name) in [(scores, "scores"), (objectness, "objectness")] {
            if let Some((others, _)) = other.filter(|other| other.0 != places) {
                return format!("there are {places} places with boxes, but {others} with {name}");
            }
        }
        if let Some((_, numbers)) = objectness.filter(|objectness| objectness.1 != 1) {
            return format!("`objectness` is one number for each place, found {numbers}");
        }
        if let Some(grid) = grid {
            let Some(picture) = picture else {
                return "a `grid` needs a picture of fixed size".to_owned();
            };
            let strides = match decoding.levels.is_empty() {
                true => grid.strides.as_slice(),
                false => grid.strides.get(level..=level).unwrap_or_default(),
            };
            let cells = cells_of(strides, picture);
            let expected: usize = match grid.anchors.is_empty() {
                true => cells,
                false => {
                    let anchors =
                        grid.anchors.iter().skip(if decoding.levels.is_empty() { 0 } else { level });
                    strides
                        .iter()
                        .zip(anchors)
                        .map(|(stride, all)| cells_of(&[*stride], picture) * all.len())
                        .sum()
                }
            };
            let fits = match grid.anchors.is_empty() {
                true => expected > 0 && places.is_multiple_of(expected),
                false => places == expected,
            };
            if !fits {
                return format!(
                    "the strides {strides:?} make {expected} places of a picture of {} x {} pixels, but there are {places}",
                    picture[0], picture[1]
                );
            }
        }
        if !has_scores {
            let (least, kind) = match decoding.scores {
                BoxScores::Best => (6, "a box, a score and a class"),
                BoxScores::Each => (5, "a box and a score for each class"),
                BoxScores::Objectness => (6, "a box, a score and one for each class"),
            };
            if numbers < least {
                return format!("each place has {numbers} numbers, too few for {kind}");
            }
        }
    }
    "compare strides, anchors and the outputs that it names".to_owned()
}

/// Returns why the two dimensions of a head without a grid are exchanged: the numbers of a place are as many as the
/// picture has cells.
pub(super) fn exchanged(decoding: &BoxDecoding, picture: [f32; 2], shape: &[usize]) -> Option<String> {
    let (places, numbers) = alone(decoding, shape)?;
    let is_count = |number: usize, strides: &[u32]| {
        let cells = cells_of(strides, picture);
        (1..=ANCHORS).any(|anchors| number == cells * anchors)
    };
    // A few numbers may be as many as a small picture has cells.
    let strides = STRIDES.iter().find(|strides| numbers > 100 && is_count(numbers, strides))?;
    (!STRIDES.iter().any(|strides| is_count(places, strides))).then(|| {
        format!(
            "each of {places} places would have {numbers} numbers, and a picture of {} x {} pixels has as many cells (strides {strides:?}): {}",
            picture[0],
            picture[1],
            remedy(decoding)
        )
    })
}

/// Returns why a head is not one of this number of classes, but would be with other settings. `task`: that of the file, by the
/// names of Ultralytics.
pub(crate) fn of_other_classes(
    decoding: &BoxDecoding,
    shape: &[usize],
    classes: usize,
    task: Option<&str>,
) -> Option<String> {
    let (places, numbers) = alone(decoding, shape).filter(|_| decoding.classes.is_none())?;
    let (each, objectness) = (4 + classes, 5 + classes);
    let named = format!("the file names {classes} classes");
    let is_head = |number: usize| number == each || number == objectness;
    let more = matches!(task, Some("segment" | "pose" | "obb"));
    let wanted = if decoding.scores == BoxScores::Objectness { objectness } else { each };
    match decoding.scores {
        _ if more && numbers > wanted && numbers < places => Some(format!(
            "{named}, but a place has {} numbers after its box and scores, those of masks, keypoints or angles: write `classes: {classes}`",
            numbers - wanted
        )),
        _ if !is_head(numbers) && is_head(places) => Some(format!(
            "{named}, so a place has {places} numbers instead of {numbers}: {}",
            remedy(decoding)
        )),
        BoxScores::Each if numbers == objectness => Some(format!(
            "{named}, so the {numbers} numbers of a place have one for any object: write `scores: objectness`"
        )),
        BoxScores::Objectness if numbers == each => Some(format!(
            "{named}, so the {numbers} numbers of a place have none for any object: write `scores: each`"
        )),
        _ => None,
    }
}

/// Places and numbers of a head of one output without a grid.
fn alone(decoding: &BoxDecoding, shape: &[usize]) -> Option<(usize, usize)> {
    let is_alone = decoding.grid.is_none()
        && decoding.levels.is_empty()
        && decoding.scores_from.is_none()
        && decoding.objectness_from.is_none()
        && decoding.scores != BoxScores::Best;
    sizes(shape, Reading::of(decoding, None, 0)).filter(|_| is_alone)
}

fn remedy(decoding: &BoxDecoding) -> &'static str {
    if decoding.transposed { "leave `transposed` out" } else { "write `transposed: true`" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postprocess::boxes::BoxDecoder;

    fn parsed(text: &str) -> BoxDecoding {
        let source = tidemill_spec::span::SourceFile::new(
            "boxes.yaml",
            format!("{{threshold: 0.3, iou: 0.5, {text}}}"),
        );
        tidemill_spec::yaml::parse(&source).unwrap().deserialize_into().unwrap()
    }

    fn refusal(text: &str, picture: f32, shapes: &[&[usize]]) -> Option<String> {
        BoxDecoder::new(&parsed(text), Some([picture, picture])).refusal(shapes)
    }

    #[test]
    fn distributions_are_not_distances() {
        let text = "scores_from: s, grid: {form: distances, strides: [32]}";
        let refused = refusal(text, 64.0, &[&[4, 32], &[4, 80]]).unwrap();
        assert!(
            refused.ends_with("each place has 32 numbers, 8 for each side: that is `form: distributions`"),
            "{refused}"
        );
        assert_eq!(refusal(text, 64.0, &[&[4, 4], &[4, 80]]), None);
        assert_eq!(refusal(&text.replace("distances", "distributions"), 64.0, &[&[4, 32], &[4, 80]]), None);
    }

    #[test]
    fn wrong_strides_are_counted() {
        let refused =
            refusal("scores: objectness, grid: {form: yolox, strides: [8, 16]}", 64.0, &[&[84, 7]]).unwrap();
        assert!(
            refused.ends_with(
                "the strides [8, 16] make 80 places of a picture of 64 x 64 pixels, but there are 84"
            ),
            "{refused}"
        );
        let text =
            "scores_from: s, grid: {form: distances, strides: [8, 16]}, levels: [{boxes: b, scores: c}]";
        let refused = refusal(text, 64.0, &[&[64, 4], &[64, 2], &[4, 4], &[4, 2]]).unwrap();
        assert!(
            refused
                .ends_with("the strides [16] make 16 places of a picture of 64 x 64 pixels, but there are 4"),
            "{refused}"
        );
        let refused = refusal(text, 64.0, &[&[64, 4], &[32, 2], &[16, 4], &[16, 2]]).unwrap();
        assert!(refused.ends_with("there are 64 places with boxes, but 32 with scores"), "{refused}");
    }

    #[test]
    fn a_head_of_as_many_numbers_as_cells_is_exchanged() {
        let refused = refusal("scores: each", 320.0, &[&[22, 2100]]).unwrap();
        assert!(refused.ends_with("(strides [8, 16, 32]): write `transposed: true`"), "{refused}");
        assert_eq!(refusal("scores: each, transposed: true", 320.0, &[&[22, 2100]]), None);
        let refused = refusal("scores: each, transposed: true", 640.0, &[&[25200, 85]]).unwrap();
        assert!(refused.ends_with("leave `transposed` out"), "{refused}");
        assert_eq!(refusal("scores: each", 640.0, &[&[300, 1207]]), None, "more classes than places");
    }

    #[test]
    fn classes_of_the_file_decide() {
        let each = parsed("scores: each");
        assert_eq!(of_other_classes(&each, &[100, 84], 80, None), None);
        assert!(of_other_classes(&each, &[84, 100], 80, None).unwrap().ends_with("write `transposed: true`"));
        assert!(
            of_other_classes(&each, &[100, 85], 80, None).unwrap().ends_with("write `scores: objectness`")
        );
        let objectness = parsed("scores: objectness");
        assert!(
            of_other_classes(&objectness, &[100, 84], 80, None).unwrap().ends_with("write `scores: each`")
        );
        let masks = of_other_classes(&each, &[8400, 116], 80, Some("segment")).unwrap();
        assert!(masks.contains("32 numbers after") && masks.ends_with("write `classes: 80`"), "{masks}");
        let angles = of_other_classes(&each, &[8400, 20], 15, Some("obb")).unwrap();
        assert!(angles.ends_with("write `classes: 15`"), "{angles}");
        assert_eq!(
            of_other_classes(&parsed("scores: each, classes: 80"), &[8400, 116], 80, Some("segment")),
            None
        );
    }
}
