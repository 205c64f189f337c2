//! The steps of a manifest before a model, checked against the declared shapes and made ready to run.
use crate::origin::{Origin, TextParts};
use crate::preprocess::characters::{Characters, Settings};
use crate::preprocess::ends::Ends;
use crate::preprocess::features::{FeatureCell, Features};
use crate::preprocess::mel::MelSettings;
use crate::preprocess::picture::PictureSteps;
use crate::preprocess::sound::{SoundSteps, mel_settings};
use crate::preprocess::tokens::Tokenizer;
use crate::preprocess::{Rejected, image, signal};
use crate::tensor::TensorData;
use half::f16;
use std::path::Path;
use std::sync::Arc;
use tidemill_spec::manifest::{Dimension, Generate, InputType, ModelInput, PROMPT, Preprocess, TokenValues};
use tidemill_spec::span::Located;
use tidemill_spec::types::ElementType;

pub use crate::cell::Cell;
pub use crate::output_column::OutputColumn;
pub use crate::output_steps::OutputSteps;

/// Message about the steps of an input or output.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct StepsError {
    /// Expected and found.
    pub message: String,
}

pub(crate) fn wrong<T>(message: impl Into<String>) -> Result<T, StepsError> {
    Err(StepsError { message: message.into() })
}

/// The conversion of the values of one column, or of several, to one row of a model input.
pub struct InputSteps {
    shape: Vec<usize>,
    element: ElementType,
    columns: usize,
    /// Whether the parts of texts are kept for the output.
    keeps_text: bool,
    kind: InputKind,
}

enum InputKind {
    Picture(Box<PictureSteps>),
    PictureSize,
    Sound(Box<SoundSteps>),
    Characters(Characters),
    Tokens(Box<TokenSteps>),
    Text,
    Tensor(TensorSteps),
    Samples(Box<SoundSteps>),
    Features(Features),
    Ends(Ends),
}

/// The conversion of a tensor.
struct TensorSteps {
    /// Columns of the last two dimensions, which are exchanged.
    transpose: Option<usize>,
    /// Factor, and what is added.
    gain: Option<(f64, f64)>,
}

/// The conversion of a text to the numbers of its tokens.
struct TokenSteps {
    file: String,
    /// Read by [`InputSteps::open`].
    tokenizer: Option<Tokenizer>,
    give: TokenValues,
    length: Option<usize>,
    most: usize,
    special: bool,
    /// Set if the text is the prompt of a model that generates.
    prompt: Option<Prompt>,
}

/// What is around a prompt, which is never cut.
struct Prompt {
    before: String,
    after: String,
}

impl InputSteps {
    /// Prepares the steps of `input`. `shape`: the shape of one row, without the batch. No file is read: see
    /// [`InputSteps::open`].
    ///
    /// # Errors
    /// [`StepsError`] if the steps do not fit the input's type, each other or the shape.
    pub fn new(input: &ModelInput, shape: &[usize]) -> Result<Self, StepsError> {
        let kind = match input.input_type {
            InputType::Image => InputKind::Picture(Box::new(PictureSteps::new(input, shape)?)),
            InputType::PictureSize => {
                none(input)?;
                if shape.iter().product::<usize>() != 2 {
                    return wrong(format!("height and width are 2 values, but the shape is {shape:?}"));
                }
                InputKind::PictureSize
            }
            InputType::Audio => InputKind::Sound(Box::new(SoundSteps::new(input, shape)?)),
            InputType::Text => text_steps(input, shape)?,
            InputType::Tensor if mel(input).is_some() => {
                if input.dtype != ElementType::Float32 {
                    return wrong(format!("log_mel reads samples of float32, found {}", input.dtype));
                }
                InputKind::Samples(Box::new(SoundSteps::new(input, shape)?))
            }
            InputType::Tensor => {
                let column = column_shape(input, shape)?;
                // By the number of steps: a square matrix has the same shape afterwards.
                let exchanges = |step: &&Located<Preprocess>| matches!(step.value, Preprocess::Transpose {});
                let is_exchanged = input.preprocess.iter().filter(exchanges).count() % 2 == 1;
                let transpose = is_exchanged.then(|| column.last().copied().unwrap_or(1));
                InputKind::Tensor(TensorSteps { transpose, gain: gain(&input.preprocess) })
            }
            InputType::Features => {
                none(input)?;
                let features = Features::new(&input.columns);
                let features = features.map_err(|error| StepsError { message: error.to_string() })?;
                let width = features.width();
                if shape.iter().product::<usize>() != width {
                    return wrong(format!("the columns are {width} values, but the shape is {shape:?}"));
                }
                InputKind::Features(features)
            }
            InputType::Bytes => ends_steps(input, shape)?,
        };
        let columns = if input.input_type == InputType::Features { input.columns.len() } else { 1 };
        Ok(Self { shape: shape.to_vec(), element: input.dtype, columns, keeps_text: false, kind })
    }

    /// Reads the files that the steps name, relative to a folder.
    ///
    /// # Errors
    /// [`StepsError`] with the file and the reason.
    pub fn open(&mut self, folder: &Path) -> Result<(), StepsError> {
        if let InputKind::Tokens(steps) = &mut self.kind {
            let read = Tokenizer::read(&folder.join(&steps.file));
            let read = read.map_err(|error| StepsError { message: format!("{error}; {}", error.fix()) })?;
            let added = read.added(steps.special);
            if steps.length.unwrap_or(steps.most) <= added {
                return wrong(format!(
                    "the tokenizer adds {added} tokens to each text, so there is no place for others"
                ));
            }
            steps.tokenizer = Some(read);
        }
        Ok(())
    }

    /// The tokenizer that [`InputSteps::open`] read, if there is one.
    pub(crate) fn tokenizer(&self) -> Option<&Tokenizer> {
        match &self.kind {
            InputKind::Tokens(steps) => steps.tokenizer.as_ref(),
            _ => None,
        }
    }

    /// Returns the steps with a limit: longer sounds are refused before they are decoded.
    #[must_use]
    pub fn at_most(mut self, seconds: Option<f64>) -> Self {
        if let InputKind::Sound(steps) = &mut self.kind {
            steps.limit(seconds);
        }
        self
    }

    /// Returns whether texts become one value, or vector, for each of their parts.
    pub(crate) fn splits_text(&self) -> bool {
        matches!(self.kind, InputKind::Tokens(_) | InputKind::Characters(_))
    }

    /// Makes [`InputSteps::append`] return the parts of texts.
    pub(crate) fn keep_text(&mut self) {
        self.keeps_text = true;
    }

    /// Returns the steps for the prompt of a model that generates: with the text of its template around it, and refused if it
    /// is too long or has no tokens. Other inputs stay.
    #[must_use]
    pub(crate) fn for_prompt(mut self, generate: &Generate) -> Self {
        if let InputKind::Tokens(steps) = &mut self.kind {
            if let Some(context) = &generate.max_context {
                steps.most = steps.most.min(context.value.saturating_sub(1) as usize);
            }
            let template = generate.template.as_ref().map_or(PROMPT, |template| template.as_str());
            let (before, after) = template.split_once(PROMPT).unwrap_or((template, ""));
            steps.prompt = Some(Prompt { before: before.to_owned(), after: after.to_owned() });
        }
        self
    }

    /// Number of columns that the input reads.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Value with which shorter rows of a batch are filled, and whether it comes before them; `None` if rows of other
    /// lengths cannot be joined.
    pub(crate) fn filling(&self) -> Option<(f64, bool)> {
        let steps = match &self.kind {
            InputKind::Tokens(steps) => steps,
            InputKind::Characters(characters) => return Some((f64::from(characters.padding()), false)),
            _ => return None,
        };
        let tokenizer = steps.tokenizer.as_ref()?;
        let value = match steps.give {
            TokenValues::Ids => tokenizer.pad_id(),
            TokenValues::Mask => 0,
            TokenValues::Types => tokenizer.pad_type(),
        };
        Some((f64::from(value), tokenizer.pads_left()))
    }

    /// Converts one value to one row of the input.
    ///
    /// # Errors
    /// [`Rejected`] if this record's value is unusable.
    pub fn apply(&mut self, cell: Cell<'_>) -> Result<TensorData, Rejected> {
        let mut values = TensorData::zeros(self.element(), 0);
        self.append(&[cell], &mut values)?;
        Ok(values)
    }

    /// Type of the values.
    pub fn element(&self) -> ElementType {
        self.element
    }

    /// Appends the values of one row of the input to those of other rows, of type [`InputSteps::element`]. `cells`: one for
    /// each of [`InputSteps::columns`]. Returns what results refer to.
    ///
    /// # Errors
    /// [`Rejected`] if this record's value is unusable; then nothing may be appended, or a part that the caller removes.
    pub fn append(&mut self, cells: &[Cell<'_>], values: &mut TensorData) -> Result<Origin, Rejected> {
        // The steps for pictures and sounds compute with 32 bits.
        if let TensorData::Float16(narrow) = values
            && matches!(self.kind, InputKind::Picture(_) | InputKind::Sound(_))
        {
            let mut wide = TensorData::Float32(Vec::new());
            let origin = self.append(cells, &mut wide)?;
            if let TensorData::Float32(wide) = wide {
                narrow.extend(wide.into_iter().map(f16::from_f32));
            }
            return Ok(origin);
        }
        if let InputKind::Features(features) = &self.kind {
            let cells: Option<Vec<FeatureCell<'_>>> = cells.iter().map(feature).collect();
            features.append(&cells.ok_or_else(wrong_type)?, values)?;
            return Ok(Origin::default());
        }
        let &[cell] = cells else { return Err(wrong_type()) };
        match (&mut self.kind, cell, values) {
            (_, Cell::Missing, _) => return Err(Rejected::new("missing_value", "the column is empty")),
            (InputKind::Picture(steps), Cell::Bytes(bytes), values) => {
                let frame = Some(steps.append(bytes, values)?);
                return Ok(Origin { frame, ..Origin::default() });
            }
            (InputKind::PictureSize, Cell::Bytes(bytes), values) => {
                let (width, height) = image::decode(bytes)?.dimensions();
                values.push(f64::from(height));
                values.push(f64::from(width));
            }
            (InputKind::Sound(steps), Cell::Bytes(bytes), TensorData::Float32(values)) => {
                steps.append(bytes, &self.shape, values)?;
            }
            (InputKind::Ends(ends), Cell::Bytes(bytes), values) => {
                ends.append(bytes, |value| values.push(f64::from(value)));
            }
            (InputKind::Characters(characters), Cell::Text(text), values) => {
                let width = self.shape.last().copied().unwrap_or(1);
                characters.append(text, width, |number| values.push(number));
                if self.keeps_text {
                    return Ok(with_text(characters.parts(text)));
                }
            }
            (InputKind::Text, Cell::Text(text), TensorData::Text(values)) => values.push(text.to_owned()),
            (InputKind::Tokens(steps), Cell::Text(text), values) => {
                steps.append(text, values)?;
                if self.keeps_text {
                    return Ok(with_text(steps.parts(text)?));
                }
            }
            (InputKind::Samples(steps), Cell::Float32(samples), TensorData::Float32(values)) => {
                steps.append_samples(samples.to_vec(), &self.shape, values)?;
            }
            (InputKind::Tensor(steps), cell, values) => {
                let first = values.len();
                append_tensor(cell, &self.shape, steps.transpose, values)?;
                if let Some(gain) = steps.gain {
                    amplify(values, first, gain);
                }
            }
            _ => return Err(wrong_type()),
        }
        Ok(Origin::default())
    }
}

impl TokenSteps {
    fn append(&self, text: &str, values: &mut TensorData) -> Result<(), Rejected> {
        let Some(tokenizer) = &self.tokenizer else {
            return Err(Rejected::new("model_failed", "the tokenizer was not read"));
        };
        let tokens = match &self.prompt {
            None => tokenizer.encode(text, self.special, self.most, self.length)?,
            Some(Prompt { before, after }) => {
                let text = format!("{before}{text}{after}");
                let tokens = tokenizer.encode(&text, self.special, self.most + 1, None)?;
                if tokens.ids.len() > self.most {
                    let detail = format!("the prompt has more than {} tokens", self.most);
                    return Err(Rejected::new("prompt_too_long", detail));
                }
                if tokens.ids.is_empty() {
                    return Err(Rejected::new("prompt_empty", "the prompt has no tokens"));
                }
                tokens
            }
        };
        let given = match self.give {
            TokenValues::Ids => &tokens.ids,
            TokenValues::Mask => &tokens.mask,
            TokenValues::Types => &tokens.types,
        };
        given.iter().for_each(|value| values.push(f64::from(*value)));
        Ok(())
    }

    /// Returns the places of the tokens that [`TokenSteps::append`] gives, without padding.
    fn parts(&self, text: &str) -> Result<TextParts, Rejected> {
        let Some(tokenizer) = &self.tokenizer else {
            return Err(Rejected::new("model_failed", "the tokenizer was not read"));
        };
        tokenizer.parts(text, self.special, self.length.unwrap_or(self.most))
    }
}

fn with_text(parts: TextParts) -> Origin {
    Origin { text: Some(Arc::new(parts)), ..Origin::default() }
}

fn wrong_type() -> Rejected {
    Rejected::new("wrong_type", "the value has another type than the manifest declares")
}

/// Refuses steps for an input that needs none.
fn none(input: &ModelInput) -> Result<(), StepsError> {
    match input.preprocess.first() {
        None => Ok(()),
        Some(step) => wrong(format!("there are no steps for this type, found {}", step_name(step))),
    }
}

fn feature<'a>(cell: &Cell<'a>) -> Option<FeatureCell<'a>> {
    Some(match *cell {
        Cell::Missing => FeatureCell::Missing,
        Cell::Float(value) => FeatureCell::Float(value),
        Cell::Integer(value) => FeatureCell::Int(value),
        Cell::Truth(value) => FeatureCell::Bool(value),
        Cell::Text(text) => FeatureCell::Text(text),
        _ => return None,
    })
}

/// The settings of the spectrogram among the steps of an input.
fn mel(input: &ModelInput) -> Option<MelSettings> {
    input.preprocess.iter().find_map(|step| mel_settings(step))
}

/// Factor and addend of all gains together.
fn gain(steps: &[Located<Preprocess>]) -> Option<(f64, f64)> {
    let gains = steps.iter().filter_map(|step| match step.value {
        Preprocess::Gain { factor, add } => Some((factor, add)),
        _ => None,
    });
    gains.reduce(|(first, sum), (factor, add)| (first * factor, sum * factor + add))
}

/// Multiplies the values from this place on and adds to them.
fn amplify(values: &mut TensorData, first: usize, (factor, add): (f64, f64)) {
    let of = |value: f64| value * factor + add;
    match values {
        TensorData::Float32(values) => {
            values[first..].iter_mut().for_each(|value| *value = of(f64::from(*value)) as f32);
        }
        TensorData::Float16(values) => {
            values[first..].iter_mut().for_each(|value| *value = f16::from_f64(of(value.to_f64())));
        }
        TensorData::Float64(values) => values[first..].iter_mut().for_each(|value| *value = of(*value)),
        // The checks of manifests allow no other.
        _ => {}
    }
}

fn append_tensor(
    cell: Cell<'_>,
    shape: &[usize],
    transpose: Option<usize>,
    values: &mut TensorData,
) -> Result<(), Rejected> {
    match (cell, values) {
        (Cell::Float32(given), TensorData::Float32(to)) => append_exchanged(given, shape, transpose, to),
        (Cell::Float16(given), TensorData::Float16(to)) => append_exchanged(given, shape, transpose, to),
        (Cell::Float64(given), TensorData::Float64(to)) => append_exchanged(given, shape, transpose, to),
        (Cell::Int64(given), TensorData::Int64(to)) => append_exchanged(given, shape, transpose, to),
        (Cell::Int32(given), TensorData::Int32(to)) => append_exchanged(given, shape, transpose, to),
        (Cell::Int8(given), TensorData::Int8(to)) => append_exchanged(given, shape, transpose, to),
        (Cell::Uint8(given), TensorData::Uint8(to)) => append_exchanged(given, shape, transpose, to),
        (Cell::Bool(given), TensorData::Bool(to)) => append_exchanged(given, shape, transpose, to),
        (Cell::Texts(given), TensorData::Text(to)) => append_exchanged(given, shape, transpose, to),
        _ => return Err(wrong_type()),
    }
    Ok(())
}

/// Shape of one value of the column that a tensor input reads: that of the model's row, with the last two
/// dimensions exchanged if the steps exchange them, or the samples of its spectrogram.
///
/// # Errors
/// [`StepsError`] if there are other steps, or only one dimension to exchange.
pub fn column_shape(input: &ModelInput, row: &[usize]) -> Result<Vec<usize>, StepsError> {
    if let Some(settings) = mel(input) {
        return Ok(vec![settings.samples(row.iter().product::<usize>() / settings.mels.max(1))]);
    }
    let mut shape = row.to_vec();
    for step in &input.preprocess {
        match step.value {
            Preprocess::Transpose {} => {}
            Preprocess::Gain { .. } if input.dtype.is_float() => continue,
            Preprocess::Gain { .. } => return wrong(format!("gain needs floats, found {}", input.dtype)),
            _ => {
                let found = step_name(step);
                return wrong(format!("the steps of a tensor are gain and transpose, found {found}"));
            }
        }
        let last = shape.len();
        if last < 2 {
            return wrong(format!("transpose needs two dimensions, but the shape is {row:?}"));
        }
        shape.swap(last - 2, last - 1);
    }
    Ok(shape)
}

/// Appends the values of a tensor of shape `row`; with `columns` the given values have that many columns and their last two
/// dimensions exchanged.
fn append_exchanged<T: Clone>(values: &[T], row: &[usize], columns: Option<usize>, to: &mut Vec<T>) {
    match (columns, row) {
        (Some(columns), [.., a, b]) => {
            for matrix in values.chunks((a * b).max(1)) {
                signal::append_transposed(matrix, columns, to);
            }
        }
        _ => to.extend_from_slice(values),
    }
}

fn text_steps(input: &ModelInput, shape: &[usize]) -> Result<InputKind, StepsError> {
    let step = match input.preprocess.as_slice() {
        [] if input.dtype == ElementType::Text => {
            if shape.iter().product::<usize>() != 1 {
                return wrong(format!("a text is 1 value, but the shape is {shape:?}"));
            }
            return Ok(InputKind::Text);
        }
        [step] => &step.value,
        [] => return wrong("a text needs the step characters or tokenize"),
        [_, step, ..] => {
            return wrong(format!("a text has one step, found another one: {}", step_name(step)));
        }
    };
    match step {
        Preprocess::Characters { alphabet, length, first, padding, unknown, one_hot } => {
            if !matches!(input.dtype, ElementType::Int64 | ElementType::Int32 | ElementType::Float32) {
                return wrong(format!(
                    "characters become int64, int32 or float32 values, but the input is {}",
                    input.dtype
                ));
            }
            let classes = alphabet.chars().count();
            let row = Dimension::row(&input.shape);
            let row: &[Dimension] = match row.as_slice() {
                [Dimension::Fixed(1), inner @ ..] if inner.len() > usize::from(*one_hot) => inner,
                row => row,
            };
            let (places, fits) = match row {
                [places] => (places, !one_hot),
                [places, Dimension::Fixed(width)] => (places, *one_hot && *width as usize == classes),
                _ => (&Dimension::Batch, false),
            };
            if !fits || *places != length.map_or(Dimension::Any, Dimension::Fixed) {
                let length = length.map_or_else(|| "any".to_owned(), |length| length.to_string());
                let vector = if *one_hot { format!(", {classes}") } else { String::new() };
                return wrong(format!(
                    "characters become [batch, {length}{vector}] values, but the shape differs"
                ));
            }
            let length = length.map(|length| length as usize);
            let (first, padding, unknown, one_hot) = (*first, *padding, *unknown, *one_hot);
            let settings = Settings { length, first, padding, unknown, one_hot };
            Ok(InputKind::Characters(Characters::new(alphabet, settings)))
        }
        Preprocess::Tokenize { file, give, length, most, special } => {
            if !matches!(input.dtype, ElementType::Int64 | ElementType::Int32) {
                return wrong(format!(
                    "tokens become int64 or int32 values, but the input is {}",
                    input.dtype
                ));
            }
            let is_open = Dimension::row(&input.shape) == [Dimension::Any];
            let fits = match length {
                Some(length) => shape == [*length as usize] && !is_open,
                None => is_open,
            };
            if !fits {
                let expected = length.map_or_else(|| "any".to_owned(), |length| length.to_string());
                return wrong(format!(
                    "tokens become [batch, {expected}] values, but the shape differs; `length` in the step sets a fixed number"
                ));
            }
            Ok(InputKind::Tokens(Box::new(TokenSteps {
                file: file.value.clone(),
                tokenizer: None,
                give: *give,
                length: length.map(|length| length as usize),
                most: *most as usize,
                special: *special,
                prompt: None,
            })))
        }
        other => wrong(format!("the steps of a text are characters or tokenize, found {}", step_name(other))),
    }
}

fn ends_steps(input: &ModelInput, shape: &[usize]) -> Result<InputKind, StepsError> {
    let [step] = input.preprocess.as_slice() else {
        return wrong(format!("bytes have the step `ends`, found {} steps", input.preprocess.len()));
    };
    let Preprocess::Ends { first, last, padding } = step.value else {
        return wrong(format!("bytes have the step `ends`, found {}", step_name(step)));
    };
    let ends = Ends::new(first, last, padding);
    if shape.iter().product::<usize>() != ends.width() {
        return wrong(format!("ends become {} values, but the shape is {shape:?}", ends.width()));
    }
    Ok(InputKind::Ends(ends))
}

pub(crate) fn step_name(step: &Preprocess) -> &'static str {
    match step {
        Preprocess::Resize { .. } => "resize",
        Preprocess::FitHeight { .. } => "fit_height",
        Preprocess::ShorterSide { .. } => "shorter_side",
        Preprocess::CenterCrop { .. } => "center_crop",
        Preprocess::Letterbox { .. } => "letterbox",
        Preprocess::Square { .. } => "square",
        Preprocess::Grey {} => "grey",
        Preprocess::Bgr {} => "bgr",
        Preprocess::Normalize { .. } => "normalize",
        Preprocess::Resample { .. } => "resample",
        Preprocess::PadOrTrim { .. } => "pad_or_trim",
        Preprocess::Gain { .. } => "gain",
        Preprocess::LogMel { .. } => "log_mel",
        Preprocess::Standardize {} => "standardize",
        Preprocess::Transpose {} => "transpose",
        Preprocess::Characters { .. } => "characters",
        Preprocess::Tokenize { .. } => "tokenize",
        Preprocess::Ends { .. } => "ends",
    }
}
