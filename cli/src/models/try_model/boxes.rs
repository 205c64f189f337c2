//! Boxes that a model finds: their classes, their places in pixels, and the picture with them.
use super::given::Given;
use super::records::Record;
use super::results::{Results, Shown};
use super::shown::shortest;
use super::usage;
use image::{ImageFormat, RgbImage};
use std::path::{Path, PathBuf};
use tidemill_app::failure::{Failure, Kind};
use tidemill_inference::alphabet;
use tidemill_inference::blueprint::Blueprint;
use tidemill_inference::postprocess::boxes::BOX_NUMBERS;
use tidemill_inference::preprocess::image::decode;
use tidemill_inference::tensor::TensorData;
use tidemill_operators::video::drawing::{Canvas, Label};
use tidemill_spec::manifest::{InputType, ModelOutput, Postprocess};

/// Entry of the metadata in which Ultralytics writes the names of the classes.
const NAMES: &str = "names";
/// Entry with a name in each line, as PaddlePaddle's models have it.
const LINES: &str = "character";

/// A box.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Found {
    /// Number of the class.
    pub(super) class: u64,
    /// Its name, if the file has one.
    pub(super) label: Option<String>,
    pub(super) score: f64,
    /// Left, top, width and height as shares of the picture.
    shares: [f64; 4],
}

impl Found {
    /// Left, top, width and height in pixels of a picture of this size; without one, as shares of it.
    pub(super) fn sides(&self, size: Option<(u32, u32)>) -> [f64; 4] {
        let Some((width, height)) = size else { return self.shares };
        let (width, height) = (f64::from(width), f64::from(height));
        let [left, top, wide, high] = self.shares;
        [left * width, top * height, wide * width, high * height]
    }

    /// The class: its name, or its number.
    pub(super) fn class_text(&self) -> String {
        self.label.clone().unwrap_or_else(|| self.class.to_string())
    }
}

/// Whether a column has boxes.
pub(super) fn gives_boxes(output: &ModelOutput) -> bool {
    let last = output.postprocess.last().map(|step| &step.value);
    matches!(last, Some(Postprocess::DecodeBoxes(_) | Postprocess::TextBoxes(_)))
}

/// The boxes of a column; the rest of it is 0.
pub(super) fn found(blueprint: &Blueprint, output: &ModelOutput, data: &TensorData) -> Vec<Found> {
    let TensorData::Float32(values) = data else { return Vec::new() };
    let has_classes =
        matches!(output.postprocess.last().map(|step| &step.value), Some(Postprocess::DecodeBoxes(_)));
    if !has_classes {
        return of_values(values, &[]);
    }
    let metadata = &blueprint.facts.metadata;
    let lines = || Some(metadata.get(LINES)?.lines().map(str::to_owned).collect());
    let names = metadata.get(NAMES).and_then(|names| alphabet::dictionary(names)).or_else(lines);
    of_values(values, &names.unwrap_or_default())
}

fn of_values(values: &[f32], names: &[String]) -> Vec<Found> {
    let boxes = values.chunks_exact(BOX_NUMBERS).filter(|numbers| numbers[4] > 0.0);
    let boxes = boxes.map(|numbers| {
        let class = numbers[5] as u64;
        Found {
            class,
            label: usize::try_from(class).ok().and_then(|class| names.get(class)).cloned(),
            score: shortest(numbers[4]),
            shares: [numbers[0], numbers[1], numbers[2], numbers[3]].map(shortest),
        }
    });
    boxes.collect()
}

/// Decodes the picture that the model reads.
pub(super) fn picture(blueprint: &Blueprint, record: &Record) -> Option<RgbImage> {
    let input = blueprint.manifest.inputs.iter().find(|input| input.input_type == InputType::Image)?;
    match &**record.values.get(&input.column.value)? {
        Given::Bytes(bytes) => decode(bytes).ok(),
        _ => None,
    }
}

/// The pictures with boxes.
pub(super) struct Pictures<'a> {
    blueprint: &'a Blueprint,
}

impl<'a> Pictures<'a> {
    pub(super) fn of(blueprint: &'a Blueprint) -> Self {
        Self { blueprint }
    }

    /// Checks that there will be something to draw, before the model is loaded.
    ///
    /// # Errors
    /// The model finds no boxes in pictures; the file has another format.
    pub(super) fn are_drawn_into(&self, file: &Path, model: &str) -> Result<(), Failure> {
        let manifest = &self.blueprint.manifest;
        let reads_picture = manifest.inputs.iter().any(|input| input.input_type == InputType::Image);
        if !reads_picture || !manifest.outputs.iter().any(gives_boxes) {
            let message = format!("--save draws boxes, and `{model}` finds none in pictures");
            let help = "leave it out, or add `decode_boxes` or `text_boxes` to an output in the manifest";
            return Err(usage(message, help));
        }
        if !file.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("png")) {
            let message = format!("--save {}: pictures are written as PNG", file.display());
            return Err(usage(message, "end the name in `.png`"));
        }
        Ok(())
    }

    /// Writes the picture of each record with its boxes; returns the files.
    ///
    /// # Errors
    /// A file cannot be written.
    pub(super) fn save(
        &self,
        file: &Path,
        records: &[Record],
        results: &[Results],
    ) -> Result<Vec<PathBuf>, Failure> {
        let pictures = records.iter().zip(results).filter_map(|(record, results)| {
            let Results::Columns(items) = results else { return None };
            Some((picture(self.blueprint, record)?, items))
        });
        let pictures: Vec<_> = pictures.collect();
        let is_alone = pictures.len() == 1;
        let mut saved = Vec::new();
        for (number, (mut picture, items)) in pictures.into_iter().enumerate() {
            for item in items {
                if let Shown::Boxes(found, _) = &item.value {
                    draw(&mut picture, found);
                }
            }
            let path = if is_alone { file.to_owned() } else { numbered(file, number + 1) };
            picture.save_with_format(&path, ImageFormat::Png).map_err(|error| {
                Failure::new(Kind::Unavailable, format!("cannot write {}: {error}", path.display()))
            })?;
            saved.push(path);
        }
        Ok(saved)
    }
}

/// `found.png` becomes `found-2.png`.
fn numbered(file: &Path, number: usize) -> PathBuf {
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    file.with_file_name(format!("{stem}-{number}.png"))
}

/// Draws boxes with class and score.
fn draw(picture: &mut RgbImage, found: &[Found]) {
    let (width, height) = picture.dimensions();
    let Some(mut canvas) = Canvas::new(width, height, picture) else { return };
    // The best are drawn last, above the others.
    for one in found.iter().rev() {
        let [left, top, width, height] = one.sides(Some((width, height)));
        let text = format!("{} {:.2}", one.class_text(), one.score);
        // The letters are ASCII.
        let text: String =
            text.chars().map(|c| if c.is_ascii_graphic() || c == ' ' { c } else { '?' }).collect();
        canvas.label(&Label { left, top, width, height, colour: one.class, text: text.into() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boxes_have_names_and_places_in_pixels() {
        let values =
            [0.5, 0.25, 0.1, 0.2, 0.9, 1.0, 0.0, 0.0, 1.0, 1.0, 0.4, 7.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
        let found = of_values(&values, &["cat".to_owned(), "dog".to_owned()]);
        assert_eq!(found.len(), 2, "the rest is 0");
        assert_eq!((found[0].class_text().as_str(), found[1].class_text().as_str()), ("dog", "7"));
        assert_eq!(found[0].sides(Some((200, 100))), [100.0, 25.0, 20.0, 20.0]);
        assert_eq!((found[0].sides(None), found[0].score), ([0.5, 0.25, 0.1, 0.2], 0.9));
    }

    #[test]
    fn boxes_are_drawn_at_their_places() {
        let mut picture = RgbImage::new(60, 40);
        draw(&mut picture, &of_values(&[0.5, 0.5, 0.25, 0.25, 0.9, 0.0], &["ä".to_owned()]));
        assert_ne!(picture.get_pixel(30, 20).0, [0; 3], "its corner");
        assert_eq!(picture.get_pixel(37, 25).0, [0; 3], "inside");
        assert_eq!(picture.get_pixel(5, 35).0, [0; 3], "outside");
    }

    #[test]
    fn files_of_several_pictures_are_numbered() {
        assert_eq!(numbered(Path::new("out/found.png"), 2), Path::new("out/found-2.png"));
    }
}
