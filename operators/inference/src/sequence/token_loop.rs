//! The loop that writes a text token by token: a model reads tokens, a token is chosen by its scores, and is read next. What
//! the model computed for earlier tokens comes back as its cache: the tensors move from the outputs to the inputs.
//!
//! It writes one text at a time: texts end at different lengths.
use super::chooser::Chooser;
use crate::backend::{BackendError, Feedback, Session};
use crate::tensor::{Tensor, TensorData};
use tidemill_spec::types::ElementType;

/// Source of the values of one input of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// The tokens that are not in the cache: those to begin with, then one at a time. Without a cache, all.
    Tokens,
    /// A 1 for each token so far.
    Mask,
    /// The position of each token that is read.
    Positions,
    /// 0 in the first step, 1 after it.
    Flag,
    /// Tensor `i` of the cache.
    Cache(usize),
    /// Tensor `i` of those that are the same in each step.
    Fixed(usize),
}

/// One input of the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StepInput {
    pub(crate) source: Source,
    /// Type of the values that the loop makes.
    pub(crate) element: ElementType,
    /// Whether there is a dimension for the record before that of the tokens.
    pub(crate) counts_records: bool,
}

/// One tensor of the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CacheTensor {
    /// Position among the outputs.
    pub(crate) output: usize,
    /// Shape before the first step, with no elements.
    pub(crate) empty: Vec<usize>,
    pub(crate) element: ElementType,
    /// Whether it is constant after the first step.
    pub(crate) fixed: bool,
}

/// The inputs and outputs of a model that writes token by token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TokenLoop {
    /// One entry for each input of the file, in its order.
    pub(crate) inputs: Vec<StepInput>,
    /// Position among the outputs of the token scores.
    pub(crate) scores: usize,
    pub(crate) cache: Vec<CacheTensor>,
}

/// The text to write.
pub(crate) struct Task<'a> {
    /// Name of the model in messages.
    pub(crate) model: &'a str,
    /// The tokens to begin with, 1 or more.
    pub(crate) tokens: Vec<u32>,
    /// The tensors that are the same in each step.
    pub(crate) fixed: Vec<Tensor>,
    pub(crate) chooser: Chooser,
    /// Tokens that end the text.
    pub(crate) end: &'a [u32],
    /// Largest number of new tokens.
    pub(crate) most: u32,
    /// Whether the new tokens so far end the text.
    pub(crate) is_whole: &'a dyn Fn(&[u32]) -> bool,
}

/// A text.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Written {
    /// The new tokens without the end token.
    pub(crate) tokens: Vec<u32>,
    /// Whether the text ended by itself; else the largest number of tokens ended it.
    pub(crate) ended: bool,
    /// Whether a token was chosen among scores that are not numbers.
    pub(crate) undecided: bool,
    /// The scores of the first new token.
    pub(crate) first_scores: Vec<f32>,
}

impl TokenLoop {
    /// Writes a text.
    pub(crate) fn write(&self, session: &mut dyn Session, task: Task<'_>) -> Result<Written, BackendError> {
        let Task { model, mut tokens, fixed, mut chooser, end, most, is_whole } = task;
        let failed = |reason: String| failed(model, reason);
        let given = tokens.len();
        let mut inputs = self.first_inputs(&tokens, fixed).map_err(failed)?;
        let mut written =
            Written { tokens: Vec::new(), ended: false, undecided: false, first_scores: Vec::new() };
        chooser.note(&tokens);
        for step in 0..most {
            let results = session.step(&mut inputs, &[self.scores], &self.feedback(step == 0), step == 0)?;
            let mut scores = results
                .first()
                .and_then(last_scores)
                .ok_or_else(|| failed("the token scores are not floats for each token".to_owned()))?;
            if step == 0 {
                written.first_scores.clone_from(&scores);
            }
            let choice = chooser.choose(&mut scores);
            written.undecided |= choice.undecided;
            if end.contains(&choice.token) {
                written.ended = true;
                break;
            }
            tokens.push(choice.token);
            chooser.note(&[choice.token]);
            if is_whole(&tokens[given..]) {
                written.ended = true;
                break;
            }
            if step + 1 < most {
                self.renew(&mut inputs, &tokens);
            }
        }
        written.tokens = tokens.split_off(given);
        Ok(written)
    }

    /// Returns the inputs of the first step.
    fn first_inputs(&self, tokens: &[u32], fixed: Vec<Tensor>) -> Result<Vec<Tensor>, String> {
        let mut fixed: Vec<Option<Tensor>> = fixed.into_iter().map(Some).collect();
        let input = |input: &StepInput| match input.source {
            Source::Fixed(at) => {
                let tensor = fixed.get_mut(at).and_then(Option::take);
                tensor.ok_or_else(|| "an input has no values, or is read twice".to_owned())
            }
            Source::Cache(at) => {
                let CacheTensor { empty, element, .. } = &self.cache[at];
                Tensor::new(empty.clone(), TensorData::zeros(*element, 0))
                    .map_err(|error| format!("the empty cache: {error}"))
            }
            Source::Flag => Ok(input.tensor([0.0])),
            Source::Mask => Ok(input.tensor(tokens.iter().map(|_| 1.0))),
            Source::Tokens => Ok(input.tensor(tokens.iter().map(|token| f64::from(*token)))),
            Source::Positions => Ok(input.tensor((0..tokens.len()).map(|at| at as f64))),
        };
        self.inputs.iter().map(input).collect()
    }

    /// Returns the outputs that the next step reads.
    fn feedback(&self, is_first: bool) -> Vec<Feedback> {
        let fed = |(input, step): (usize, &StepInput)| match step.source {
            Source::Cache(at) if is_first || !self.cache[at].fixed => {
                Some(Feedback { output: self.cache[at].output, input })
            }
            _ => None,
        };
        self.inputs.iter().enumerate().filter_map(fed).collect()
    }

    /// Changes the inputs to those of the next step, except the cache.
    fn renew(&self, inputs: &mut [Tensor], tokens: &[u32]) {
        let read = if self.cache.is_empty() { 0 } else { tokens.len() - 1 };
        for (tensor, input) in inputs.iter_mut().zip(&self.inputs) {
            match input.source {
                Source::Fixed(_) | Source::Cache(_) => {}
                Source::Flag => *tensor = input.tensor([1.0]),
                Source::Mask => *tensor = input.tensor(tokens.iter().map(|_| 1.0)),
                Source::Tokens => {
                    *tensor = input.tensor(tokens[read..].iter().map(|token| f64::from(*token)));
                }
                Source::Positions => *tensor = input.tensor((read..tokens.len()).map(|at| at as f64)),
            }
        }
    }
}

impl StepInput {
    fn tensor(&self, values: impl IntoIterator<Item = f64>) -> Tensor {
        let mut data = TensorData::zeros(self.element, 0);
        values.into_iter().for_each(|value| data.push(value));
        let shape = if self.counts_records { vec![1, data.len()] } else { vec![data.len()] };
        Tensor::new(shape, data).expect("the shape is that of the values")
    }
}

/// Returns the scores after the last token that was read.
fn last_scores(scores: &Tensor) -> Option<Vec<f32>> {
    let (width, values) = (*scores.shape().last()?, scores.data());
    if width == 0 || values.len() < width {
        return None;
    }
    match values.part(values.len() - width..values.len()) {
        TensorData::Float32(values) => Some(values),
        other @ TensorData::Float16(_) => match other.into_f32() {
            TensorData::Float32(values) => Some(values),
            _ => None,
        },
        _ => None,
    }
}

/// Returns the error of a loop.
pub(crate) fn failed(model: &str, reason: String) -> BackendError {
    BackendError::Run { backend: "decoder", model: model.to_owned(), reason }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16;

    /// The next token is one more than the last; its cache is a list of the tokens that it read.
    struct Counter {
        runs: Vec<Vec<Tensor>>,
        classes: usize,
    }

    impl Session for Counter {
        fn run(&mut self, inputs: &[Tensor], outputs: &[usize]) -> Result<Vec<Tensor>, BackendError> {
            self.runs.push(inputs.to_vec());
            let tokens = inputs[0].as_i64().unwrap();
            let last = *tokens.last().unwrap() as usize;
            let mut scores = vec![f16::ZERO; tokens.len() * self.classes];
            let start = scores.len() - self.classes;
            scores[start + (last + 1) % self.classes] = f16::ONE;
            let scores =
                Tensor::new(vec![1, tokens.len(), self.classes], TensorData::Float16(scores)).unwrap();
            let mut cache = inputs.get(3).map_or_else(Vec::new, |past| past.as_f32().unwrap().to_vec());
            cache.extend(tokens.iter().map(|token| *token as f32));
            let cache = Tensor::new(vec![1, cache.len()], TensorData::Float32(cache)).unwrap();
            let all = [scores, cache];
            Ok(outputs.iter().map(|at| all[*at].clone()).collect())
        }
    }

    fn token_loop(cached: bool) -> TokenLoop {
        let input = |source| StepInput { source, element: ElementType::Int64, counts_records: true };
        let mut inputs: Vec<_> = [Source::Tokens, Source::Mask, Source::Positions].map(input).into();
        let mut cache = Vec::new();
        if cached {
            inputs.push(input(Source::Cache(0)));
            cache.push(CacheTensor {
                output: 1,
                empty: vec![1, 0],
                element: ElementType::Float32,
                fixed: false,
            });
        }
        TokenLoop { inputs, scores: 0, cache }
    }

    fn write(cached: bool, end: &[u32], most: u32, is_whole: &dyn Fn(&[u32]) -> bool) -> (Written, Counter) {
        let mut session = Counter { runs: Vec::new(), classes: 10 };
        let task = Task {
            model: "counter",
            tokens: vec![3, 4],
            fixed: Vec::new(),
            chooser: Chooser::new(None, None, || 0),
            end,
            most,
            is_whole,
        };
        let written = token_loop(cached).write(&mut session, task).unwrap();
        (written, session)
    }

    #[test]
    fn a_cache_gives_the_tokens_one_at_a_time() {
        let (written, session) = write(true, &[9], 20, &|_| false);
        assert_eq!((written.tokens.as_slice(), written.ended), (&[5, 6, 7, 8][..], true));
        assert_eq!(written.first_scores.iter().position(|score| *score > 0.0), Some(5));
        let run = |at: usize| -> Vec<Vec<f64>> {
            session.runs[at].iter().map(|tensor| tensor.data().to_f64()).collect()
        };
        let none: Vec<f64> = Vec::new();
        assert_eq!(run(0), [vec![3.0, 4.0], vec![1.0; 2], vec![0.0, 1.0], none]);
        assert_eq!(run(2), [vec![6.0], vec![1.0; 4], vec![3.0], vec![3.0, 4.0, 5.0]]);
        assert_eq!(session.runs.len(), 5);
    }

    #[test]
    fn without_a_cache_all_tokens_are_read_again() {
        let (written, session) = write(false, &[9], 20, &|_| false);
        assert_eq!(written, write(true, &[9], 20, &|_| false).0);
        assert_eq!(session.runs[2][0].as_i64(), Some(&[3, 4, 5, 6][..]));
        assert_eq!(session.runs[2][2].as_i64(), Some(&[0, 1, 2, 3][..]));
    }

    #[test]
    fn a_text_ends_by_its_tokens_or_its_length() {
        let (cut, session) = write(true, &[9], 3, &|_| false);
        assert_eq!((cut.tokens.as_slice(), cut.ended, session.runs.len()), (&[5, 6, 7][..], false, 3));
        let (stopped, session) = write(true, &[9, 0], 20, &|tokens| tokens.ends_with(&[6]));
        assert_eq!((stopped.tokens.as_slice(), stopped.ended, session.runs.len()), (&[5, 6][..], true, 2));
        assert!(write(true, &[5], 20, &|_| false).0.tokens.is_empty());
    }

    #[test]
    fn other_inputs_stay_and_the_flag_says_whether_there_is_a_cache() {
        let input = |source| StepInput { source, element: ElementType::Int64, counts_records: false };
        let mut steps = token_loop(true);
        steps.inputs.extend([input(Source::Flag), input(Source::Fixed(1))]);
        let mut session = Counter { runs: Vec::new(), classes: 10 };
        let picture = Tensor::new(vec![1, 2], TensorData::Float32(vec![0.5, 1.5])).unwrap();
        let task = Task {
            model: "counter",
            tokens: vec![3],
            fixed: vec![Tensor::zeros(ElementType::Float32, vec![0]), picture.clone()],
            chooser: Chooser::new(None, None, || 0),
            end: &[],
            most: 3,
            is_whole: &|_| false,
        };
        steps.write(&mut session, task).unwrap();
        let flags: Vec<i64> = session.runs.iter().map(|run| run[4].as_i64().unwrap()[0]).collect();
        assert_eq!((flags, session.runs[0][4].shape()), (vec![0, 1, 1], &[1][..]));
        assert!(session.runs.iter().all(|run| run[5] == picture));
    }

    #[test]
    fn scores_of_another_type_are_an_error() {
        let tensor = |data: TensorData| Tensor::new(vec![1, 2, 2], data).unwrap();
        assert_eq!(last_scores(&tensor(TensorData::Float32(vec![1.0, 2.0, 3.0, 4.0]))), Some(vec![3.0, 4.0]));
        assert_eq!(last_scores(&tensor(TensorData::Int64(vec![0; 4]))), None);
        assert_eq!(last_scores(&Tensor::zeros(ElementType::Float32, vec![1, 0])), None);
    }
}
