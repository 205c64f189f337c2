//! Preparation of pictures from settings beside a model: `preprocessor_config.json` of Hugging Face, `config.json` of timm.
use super::beside::Beside;
use super::draft::Step;
use super::yaml;
use serde_json::Value;

/// The preparation.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Preparation {
    sizing: Sizing,
    /// Height and width that are cut out of the middle.
    crop: Option<(usize, usize)>,
    filter: Option<&'static str>,
    divide_by: Option<f64>,
    mean: Vec<f64>,
    std: Vec<f64>,
    is_bgr: bool,
}

#[derive(Debug, Clone, Default, PartialEq)]
enum Sizing {
    #[default]
    Unknown,
    /// To height and width.
    Stretch(usize, usize),
    /// Until the shorter side has this length.
    ShorterSide(usize),
}

impl Preparation {
    /// Reads the settings beside a model.
    pub(super) fn beside(beside: &Beside) -> Option<Self> {
        if let Some(settings) = beside.json("preprocessor_config.json") {
            return Some(Self::of_hugging_face(&settings));
        }
        let config = beside.json("config.json")?;
        let settings = config.get("pretrained_cfg").or_else(|| config.get("default_cfg"));
        let settings = settings.unwrap_or(&config);
        settings.get("input_size").is_some().then(|| Self::of_timm(settings))
    }

    fn of_hugging_face(settings: &Value) -> Self {
        let flag = |key: &str| settings.get(key).and_then(Value::as_bool).unwrap_or(true);
        let size = |key: &str| {
            settings.get(key).map(|size| {
                let side = |key: &str| size.get(key).and_then(whole);
                match (whole(size), side("height").zip(side("width")), side("shortest_edge")) {
                    (Some(side), ..) => Sizing::ShorterSide(side),
                    (None, Some((height, width)), _) => Sizing::Stretch(height, width),
                    (None, None, Some(side)) => Sizing::ShorterSide(side),
                    (None, None, None) => Sizing::Unknown,
                }
            })
        };
        let mut sizing = size("size").filter(|_| flag("do_resize")).unwrap_or_default();
        let is_cropped = settings.get("do_center_crop").and_then(Value::as_bool);
        let mut crop = match size("crop_size").filter(|_| is_cropped.unwrap_or(false)) {
            Some(Sizing::Stretch(height, width)) => Some((height, width)),
            Some(Sizing::ShorterSide(side)) => Some((side, side)),
            _ => None,
        };
        let share = settings.get("crop_pct").and_then(Value::as_f64).filter(|share| *share > 0.0);
        match (&sizing, share) {
            // ConvNeXt: larger by the share, then cut.
            (Sizing::ShorterSide(side), Some(share)) if *side < 384 => {
                crop = Some((*side, *side));
                sizing = Sizing::ShorterSide((*side as f64 / share) as usize);
            }
            // A number alone is a square where nothing is cut.
            (Sizing::ShorterSide(side), _)
                if crop.is_none() && settings.get("size").and_then(whole).is_some() =>
            {
                sizing = Sizing::Stretch(*side, *side);
            }
            _ => {}
        }
        let factor = settings.get("rescale_factor").and_then(Value::as_f64).filter(|factor| *factor > 0.0);
        let divide_by = match flag("do_rescale") {
            true => factor.map(|factor| (1e6 / factor).round() / 1e6),
            false => Some(1.0),
        };
        let normalizes = flag("do_normalize");
        let values = |key: &str| if normalizes { numbers(settings.get(key)) } else { Vec::new() };
        Self {
            sizing,
            crop,
            filter: settings.get("resample").and_then(Value::as_u64).and_then(pillow),
            divide_by,
            mean: values("image_mean"),
            std: values("image_std"),
            is_bgr: settings.get("do_flip_channel_order").and_then(Value::as_bool).unwrap_or(false),
        }
    }

    fn of_timm(settings: &Value) -> Self {
        let sizes = numbers(settings.get("input_size"));
        let size = match sizes.as_slice() {
            [_, height, width] => Some((*height as usize, *width as usize)),
            _ => None,
        };
        let share =
            settings.get("crop_pct").and_then(Value::as_f64).filter(|share| *share > 0.0).unwrap_or(1.0);
        let larger = |side: usize| (side as f64 / share) as usize;
        let mode = settings.get("crop_mode").and_then(Value::as_str).unwrap_or("center");
        let sizing = match size {
            Some((height, width)) if mode == "squash" => Sizing::Stretch(larger(height), larger(width)),
            Some((height, width)) => Sizing::ShorterSide(larger(height.min(width))),
            None => Sizing::Unknown,
        };
        let filter = match settings.get("interpolation").and_then(Value::as_str) {
            Some("bicubic") => Some("pillow_bicubic"),
            Some("lanczos") => Some("pillow_lanczos"),
            Some("nearest") => Some("pillow_nearest"),
            Some("box") => Some("pillow_box"),
            _ => None,
        };
        let (mean, std) = (numbers(settings.get("mean")), numbers(settings.get("std")));
        Self { sizing, crop: size, filter, divide_by: None, mean, std, is_bgr: false }
    }

    /// Height and width of the result, if the settings say it.
    pub(super) fn size(&self) -> Option<(usize, usize)> {
        self.crop.or(match self.sizing {
            Sizing::Stretch(height, width) => Some((height, width)),
            Sizing::ShorterSide(side) => Some((side, side)),
            Sizing::Unknown => None,
        })
    }

    /// Returns the steps for a model that reads pictures of this size. `channels`: 3, or 1 of brightness.
    pub(super) fn steps(&self, height: usize, width: usize, channels: usize, is_float: bool) -> Vec<Step> {
        let filter = self.filter.map_or_else(String::new, |filter| format!(", filter: {filter}"));
        let (tall, wide) = (height, width);
        let mut steps = match self.sizing {
            Sizing::ShorterSide(side) => {
                vec![Step::known(format!("shorter_side: {{pixels: {side}{filter}}}"))]
            }
            Sizing::Stretch(height, width) => {
                vec![Step::known(format!("resize: {{width: {width}, height: {height}{filter}}}"))]
            }
            Sizing::Unknown => {
                vec![Step::guessed(
                    format!("resize: {{width: {wide}, height: {tall}{filter}}}"),
                    "without keeping the ratio of the sides",
                )]
            }
        };
        let is_right = match self.sizing {
            Sizing::Stretch(height, width) => (height, width) == (tall, wide),
            Sizing::ShorterSide(_) => false,
            Sizing::Unknown => true,
        };
        if !is_right {
            let crop = format!("center_crop: {{width: {wide}, height: {tall}}}");
            steps.push(match self.crop {
                Some(size) if size == (tall, wide) => Step::known(crop),
                _ => Step::guessed(crop, "the model reads this size"),
            });
        }
        if channels == 1 {
            steps.push(Step::known("grey: {}"));
        } else if self.is_bgr {
            steps.push(Step::known("bgr: {}"));
        }
        let divide_by = self.divide_by.filter(|divisor| (divisor - 255.0).abs() > 0.5);
        let mut keys: Vec<String> =
            divide_by.map(|divisor| format!("divide_by: {divisor}")).into_iter().collect();
        for (key, values) in [("mean", &self.mean), ("std", &self.std)] {
            if matches!(values.len(), 1 | 3) {
                keys.push(format!("{key}: {}", yaml::numbers(values)));
            }
        }
        if is_float && !keys.is_empty() {
            steps.push(Step::known(format!("normalize: {{{}}}", keys.join(", "))));
        }
        steps
    }
}

fn whole(value: &Value) -> Option<usize> {
    value.as_u64().and_then(|value| usize::try_from(value).ok()).filter(|value| *value > 0)
}

fn numbers(value: Option<&Value>) -> Vec<f64> {
    value.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_f64).collect()
}

/// The filter of Pillow with this number; none for the default.
fn pillow(number: u64) -> Option<&'static str> {
    match number {
        0 => Some("pillow_nearest"),
        1 => Some("pillow_lanczos"),
        3 => Some("pillow_bicubic"),
        4 => Some("pillow_box"),
        // Hamming has no counterpart; its results are near those of the bilinear filter.
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(settings: &str, is_timm: bool) -> Vec<Step> {
        let settings = serde_json::from_str(settings).unwrap();
        let made =
            if is_timm { Preparation::of_timm(&settings) } else { Preparation::of_hugging_face(&settings) };
        made.steps(224, 224, 3, true)
    }

    #[test]
    fn settings_of_hugging_face() {
        let vit = r#"{"do_normalize": true, "do_resize": true, "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5], "resample": 2, "size": {"height": 224, "width": 224},
            "rescale_factor": 0.00392156862745098}"#;
        let normalize = Step::known("normalize: {mean: [0.5, 0.5, 0.5], std: [0.5, 0.5, 0.5]}");
        assert_eq!(steps(vit, false), [Step::known("resize: {width: 224, height: 224}"), normalize]);
        let convnext =
            r#"{"crop_pct": 0.875, "size": {"shortest_edge": 224}, "resample": 3, "do_normalize": false}"#;
        let filter = "filter: pillow_bicubic";
        assert_eq!(
            steps(convnext, false),
            [
                Step::known(format!("shorter_side: {{pixels: 256, {filter}}}")),
                Step::known("center_crop: {width: 224, height: 224}")
            ]
        );
        let clip = r#"{"do_center_crop": true, "crop_size": 224, "size": 224, "resample": 3, "do_rescale": false,
            "image_mean": [1], "image_std": [2]}"#;
        assert_eq!(
            steps(clip, false),
            [
                Step::known(format!("shorter_side: {{pixels: 224, {filter}}}")),
                Step::known("center_crop: {width: 224, height: 224}"),
                Step::known("normalize: {divide_by: 1, mean: [1], std: [2]}")
            ]
        );
    }

    #[test]
    fn settings_of_timm() {
        let resnet = r#"{"input_size": [3, 224, 224], "crop_pct": 0.95, "interpolation": "bicubic",
            "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}"#;
        assert_eq!(
            steps(resnet, true),
            [
                Step::known("shorter_side: {pixels: 235, filter: pillow_bicubic}"),
                Step::known("center_crop: {width: 224, height: 224}"),
                Step::known("normalize: {mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]}")
            ]
        );
    }
}
