//! Detectors that give the maps of a head before its last layer: YOLOv5 and v7, and those with an output of 255 channels.
use super::cells::STRIDES;
use super::draft::{Draft, Entry, Step};
use super::heads::class_names;
use super::pictures;
use super::ports::{self, Side};
use super::subject::Subject;
use super::yaml;
use tidemill_inference::facts::Port;

/// Side of pictures if the file accepts any.
const SIDE: usize = 640;
/// Anchors of a cell.
const ANCHORS: usize = 3;
/// Channels of a map of the 80 classes of COCO.
const COCO: usize = 255;
/// Anchors of YOLOv5 for COCO.
const SIZES: &str =
    "[[[10, 13], [16, 30], [33, 23]], [[30, 61], [62, 45], [59, 119]], [[116, 90], [156, 198], [373, 326]]]";

/// A map of one stride.
struct Map<'a> {
    port: &'a Port,
    shape: Vec<Side>,
    stride: usize,
    numbers: usize,
    /// Whether anchors are a dimension of their own, before the cells.
    anchors_first: bool,
}

fn map<'a>(subject: &Subject<'_>, port: &'a Port, shape: Vec<Side>, height: usize) -> Option<Map<'a>> {
    let (rows, numbers, anchors_first) = match *shape.as_slice() {
        [Side::Batch, Side::Size(ANCHORS), Side::Size(rows), Side::Size(_), Side::Size(numbers)] => {
            (rows, numbers, true)
        }
        [Side::Batch, Side::Size(channels), Side::Size(rows), Side::Size(_)]
            if channels.is_multiple_of(ANCHORS) =>
        {
            let numbers = channels / ANCHORS;
            let known = subject.exporter.labels.len();
            if channels != COCO && (known == 0 || numbers != known + 5) {
                return None;
            }
            (rows, numbers, false)
        }
        _ => return None,
    };
    let fits = numbers > 5 && rows > 0 && height.is_multiple_of(rows);
    fits.then(|| Map { port, shape, stride: height / rows, numbers, anchors_first })
}

/// Drafts a detector with three maps.
pub(super) fn draft(subject: &Subject<'_>) -> Option<Draft> {
    let picture = pictures::of(subject)?;
    if subject.outputs.len() != STRIDES.len() || !subject.outputs.iter().all(|port| ports::is_float(port)) {
        return None;
    }
    let size = picture.size(subject, SIDE);
    let tried = picture.tried(subject, size);
    let maps = subject.outputs.iter().map(|port| {
        let shape = subject.output_sides(port, tried.as_ref());
        map(subject, port, shape, size.0)
    });
    let mut maps = maps.collect::<Option<Vec<Map<'_>>>>()?;
    maps.sort_by_key(|map| map.stride);
    let [first, further @ ..] = maps.as_slice() else { return None };
    let is_same = |map: &Map<'_>| map.numbers == first.numbers && map.anchors_first == first.anchors_first;
    if !maps.iter().map(|map| map.stride).eq(STRIDES) || !further.iter().all(is_same) {
        return None;
    }
    let levels: Vec<String> =
        further.iter().map(|map| format!("{{boxes: {}}}", yaml::scalar(&map.port.name))).collect();
    let order = if first.anchors_first { ", anchors_first: true" } else { "" };
    let settings = format!(
        "decode_boxes: {{scores: objectness, grid: {{form: yolov5, strides: [8, 16, 32], anchors: {SIZES}{order}}}, \
         levels: [{}], threshold: 0.25, iou: 0.45}}",
        levels.join(", ")
    );
    let (height, width) = size;
    let steps = picture.boxed_steps(
        Step::guessed(format!("letterbox: {{width: {width}, height: {height}}}"), "as Ultralytics"),
        Vec::new(),
    );
    let entry =
        Entry::new(&first.port.name, "boxes", "tensor", ports::dtype(first.port), first.shape.clone());
    let entry = class_names(subject, Some(first.numbers - 5)).into_iter().fold(entry, Entry::note);
    let guess = "as YOLOv5 with its anchors for COCO; v7 has others, v4 and before `form: yolov4`";
    let mut inputs = vec![picture.entry(subject, size, steps)];
    inputs.extend(pictures::others(subject, &picture));
    Some(Draft { inputs, outputs: vec![entry.step(Step::guessed(settings, guess))], ..Draft::default() })
}

#[cfg(test)]
mod tests {
    use super::super::cases::{Case, body};

    #[test]
    fn maps_are_joined_from_the_smallest_stride_on() {
        let text = Case::new("yolov5s")
            .input("images", "float32 [1, 3, 640, 640]")
            .output("352", "float32 [1, 3, 20, 20, 85]")
            .output("output", "float32 [1, 3, 80, 80, 85]")
            .output("339", "float32 [1, 3, 40, 40, 85]")
            .draft();
        assert_eq!(
            body(&text),
            "\
backends: [ort, rten]
inputs:
  - name: images
    column: image
    type: image
    dtype: float32
    shape: [batch, 3, 640, 640]
    preprocess:
      - letterbox: {width: 640, height: 640} # guessed: as Ultralytics
outputs:
  - name: output
    column: boxes
    type: tensor
    dtype: float32
    shape: [batch, 3, 80, 80, 85]
    postprocess:
      - decode_boxes: {scores: objectness, grid: {form: yolov5, strides: [8, 16, 32], anchors: [[[10, 13], [16, 30], [33, 23]], [[30, 61], [62, 45], [59, 119]], [[116, 90], [156, 198], [373, 326]]], anchors_first: true}, levels: [{boxes: \"339\"}, {boxes: \"352\"}], threshold: 0.25, iou: 0.45} # guessed: as YOLOv5 with its anchors for COCO; v7 has others, v4 and before `form: yolov4`
"
        );
    }

    #[test]
    fn features_are_no_maps_of_a_head() {
        let text = Case::new("fpn")
            .input("x", "float32 [1, 3, 640, 640]")
            .output("p3", "float32 [1, 384, 80, 80]")
            .output("p4", "float32 [1, 384, 40, 40]")
            .output("p5", "float32 [1, 384, 20, 20]")
            .draft();
        assert!(!text.contains("decode_boxes") && text.contains("[batch, 384, 20, 20]"), "{text}");
    }
}
