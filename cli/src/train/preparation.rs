//! A training from its file: model, options and examples.
use super::model::Origin;
use std::path::{Path, PathBuf};
use tidemill_app::failure::{Failure, Kind};
use tidemill_spec::job::train::{TrainSpec, TrainedKind};
use tidemill_spec::job::{JobFile, JobKind};
use tidemill_training::classifier::Classifier;
use tidemill_training::collected::Collected;
use tidemill_training::data::Examples;
use tidemill_training::{Member, Model, Options, Replicas, dataset};

/// Everything that all ranks of a training have.
pub(super) struct Prepared {
    /// Name of the job.
    pub(super) name: String,
    /// Number of ranks.
    pub(super) ranks: u32,
    pub(super) spec: TrainSpec,
    pub(super) model: Model,
    pub(super) options: Options,
    pub(super) replicas: Replicas,
    /// Steps of the whole training.
    pub(super) steps: u64,
    /// The model as a classifier of columns, if it can become a model of workflows.
    pub(super) classifier: Option<Classifier>,
    /// Its beginning.
    pub(super) start: Origin,
    /// Examples to train with, as the model gets them.
    pub(super) examples: Examples,
    /// Examples for the accuracy.
    pub(super) held_out: Examples,
    /// Names of the classes.
    pub(super) names: Vec<String>,
    /// Columns of the inputs, with the values of each.
    pub(super) columns: Vec<(String, usize)>,
}

impl Prepared {
    /// Reads a job; its `gang` is the number of ranks where none is given.
    pub(super) fn load(file: &Path, ranks: Option<u32>) -> anyhow::Result<Self> {
        let job = JobFile::load(file)?.job;
        let spec = job.train.clone().filter(|_| job.kind == JobKind::Train).ok_or_else(|| {
            Failure::new(Kind::Configuration, format!("job `{}` trains nothing", job.name))
                .at(job.name.span.clone())
                .with_help("write `kind: train`, or queue it with `tidemill job submit`")
        })?;
        let ranks = ranks.unwrap_or(job.gang.value);
        if ranks == 0 {
            return Err(Failure::new(Kind::Usage, "a training needs at least one rank").into());
        }
        if ranks != job.gang.value {
            spec.check(ranks).into_result(())?;
        }
        let folder = folder_of(file);
        let path = folder.join(&spec.dataset.value);
        let inputs: Vec<String> = spec.inputs.iter().map(|input| input.value.clone()).collect();
        let wrong = |text: String| Failure::new(Kind::Configuration, text).at(spec.dataset.span.clone());
        let start = Origin::load(&spec, &folder)?;
        let read = dataset::read(&path, &inputs, &spec.label.value, &start.encodings());
        let read = read.map_err(|error| {
            let columns = spec.inputs.iter().chain([&spec.label]);
            let span = columns.into_iter().find(|named| error.column() == Some(&named.value));
            let span = span.unwrap_or(&spec.dataset).span.clone();
            Failure::new(Kind::Configuration, error.to_string()).at(span)
        })?;
        let read = start.named(read);
        let share = spec.held_out.value.0 / 100.0;
        // Rows of a folder come again in a later dataset, and those that were held out stay so.
        let (examples, held_out) = match path.is_dir() {
            true => read.split(share),
            false => read.examples.divided(share, spec.seed),
        };
        if examples.is_empty() || read.names.len() < 2 {
            let text = format!(
                "{}: {} examples of {} classes are no dataset to train with",
                path.display(),
                examples.len(),
                read.names.len()
            );
            return Err(wrong(text).with_help("collect more examples, of two classes at least").into());
        }
        let options = Options {
            batch: (spec.batch.value as usize).min(examples.len()),
            rate: spec.rate.value,
            momentum: spec.momentum.value,
            seed: spec.seed,
            ..Options::default()
        };
        let steps = match (&spec.steps, &spec.epochs) {
            (Some(steps), _) => steps.value,
            (None, Some(epochs)) => epochs.value.saturating_mul(options.steps_of_epoch(examples.len())),
            (None, None) => 0,
        };
        let replicas = Replicas { slots: spec.slots(ranks) as usize, survive: spec.survive.value as usize };
        let learnt = Collected { examples, names: read.names, columns: read.columns };
        let classifier = start.classifier(&spec, &learnt, path.is_dir())?;
        let model = match &classifier {
            Some(classifier) => classifier.model(),
            None => model_of(&spec, &learnt.examples),
        };
        let scaled = |examples: &Examples| match &classifier {
            Some(classifier) => classifier.scaled(examples),
            None => examples.clone(),
        };
        let columns = learnt.columns.iter().map(|column| (column.name.clone(), column.width())).collect();
        Ok(Self {
            name: job.name.value.clone(),
            ranks,
            model,
            options,
            replicas,
            steps,
            examples: scaled(&learnt.examples),
            held_out: scaled(&held_out),
            names: learnt.names,
            columns,
            classifier,
            start,
            spec,
        })
    }

    /// Creates the state of a rank.
    pub(super) fn member(&self, folder: &Path) -> anyhow::Result<Member> {
        let member = Member::new(self.model.clone(), self.options, self.replicas, self.examples.clone())
            .map_err(|error| Failure::new(Kind::Configuration, error.to_string()))?;
        Ok(match self.initial(folder)? {
            None => member,
            Some(parameters) => member.starting_from(parameters)?,
        })
    }

    /// Returns the parameters that the training starts from; none: random ones.
    pub(super) fn initial(&self, folder: &Path) -> anyhow::Result<Option<Vec<f64>>> {
        match (&self.start, &self.classifier, &self.spec.from) {
            (Origin::Model(_), Some(classifier), _) => Ok(Some(classifier.parameters.clone())),
            (Origin::Weights, _, Some(from)) => self.weights(&folder.join(&from.value)).map(Some),
            _ => Ok(None),
        }
    }

    /// Reads the weights of a model that an earlier training has left.
    fn weights(&self, path: &Path) -> anyhow::Result<Vec<f64>> {
        let from = self.spec.from.as_ref().map(|from| from.span.clone()).unwrap_or_default();
        let wrong = |text: String| {
            Failure::new(Kind::Configuration, format!("{}: {text}", path.display())).at(from.clone())
        };
        let read = super::report::Weights::read(path).map_err(|error| wrong(error.to_string()))?;
        if read.model != self.model || read.classes != self.names {
            let text = "it is a model of another shape or of other classes".to_owned();
            let help = "use the same inputs, label and hidden layers, or leave `from` out";
            return Err(wrong(text).with_help(help).into());
        }
        Ok(read.parameters)
    }
}

fn model_of(spec: &TrainSpec, examples: &Examples) -> Model {
    let hidden = spec.model.hidden.value.0.iter().map(|size| *size as usize);
    match spec.model.kind.value {
        TrainedKind::Perceptron => {
            let sizes = std::iter::once(examples.inputs).chain(hidden).chain([examples.classes]);
            Model::Perceptron { sizes: sizes.collect() }
        }
        TrainedKind::Mixture => Model::Mixture {
            inputs: examples.inputs,
            hidden: hidden.sum(),
            experts: spec.model.experts.as_ref().map_or(1, |experts| experts.value as usize),
            classes: examples.classes,
            balance: spec.balance(),
        },
    }
}

/// The folder of a file.
pub(super) fn folder_of(file: &Path) -> PathBuf {
    file.parent().unwrap_or(Path::new("")).to_owned()
}
