//! A model as used by a hand-written loop: rows are added to a batch, the batch is run, and its buffers are reused.
use anyhow::{Context, anyhow, bail, ensure};
use std::path::Path;
use tidemill_inference::backend::{Session, backend};
use tidemill_inference::blueprint::Blueprint;
use tidemill_inference::error::ModelError;
use tidemill_inference::steps::{Cell, InputSteps, OutputColumn, OutputSteps};
use tidemill_inference::tensor::{Tensor, TensorData};
use tidemill_spec::manifest::Dimension;

/// One input of a model: its steps and the batch that they fill.
struct Feed {
    column: String,
    steps: InputSteps,
    row: Vec<usize>,
    batch: TensorData,
}

/// A model with its batch.
pub(crate) struct Stage {
    session: Box<dyn Session>,
    /// Inputs in the order of the file.
    feeds: Vec<Feed>,
    after: OutputSteps,
    wanted: [usize; 1],
    rows: usize,
}

impl Stage {
    /// Loads the model of a manifest; it must have one output and take batches.
    pub(crate) fn load(manifest: &Path, backend_name: &str) -> anyhow::Result<Self> {
        let blueprint = Blueprint::read(manifest)
            .map_err(|errors| anyhow!("{}", ModelError::collect(errors).render(false)))?;
        let manifest = &blueprint.manifest;
        let [output] = manifest.outputs.as_slice() else { bail!("`{}` has several outputs", manifest.id) };
        let plain = manifest.repeat.is_none() && manifest.decoder.is_none() && !blueprint.one_by_one;
        ensure!(plain, "`{}` takes no batches", manifest.id);
        let feeds = blueprint.facts.inputs.iter().map(|port| -> anyhow::Result<Feed> {
            let input = manifest.inputs.iter().find(|input| input.name.value == port.name);
            let input = input.with_context(|| format!("nothing feeds `{}`", port.name))?;
            let row = row_shape(&input.shape);
            let steps = InputSteps::new(input, &row)?;
            let batch = TensorData::zeros(input.dtype, 0);
            Ok(Feed { column: input.column.to_string(), steps, row, batch })
        });
        let wanted = blueprint.facts.outputs.iter().position(|port| output.name.value == port.name);
        Ok(Self {
            feeds: feeds.collect::<anyhow::Result<_>>()?,
            after: OutputSteps::new(output, &row_shape(&output.shape))?,
            wanted: [wanted.context("the output is not in the file")?],
            session: backend(backend_name, Path::new("."))?.load(&blueprint.facts)?,
            rows: 0,
        })
    }

    /// Runs the model before the first record, as a workflow does: the first run of a session sets it up.
    pub(crate) fn warm_up(&mut self) -> anyhow::Result<()> {
        for rows in [1, 2] {
            for feed in &mut self.feeds {
                let length = rows * feed.row.iter().product::<usize>();
                feed.batch = TensorData::zeros(feed.batch.element(), length);
            }
            self.rows = rows;
            self.run()?;
        }
        Ok(())
    }

    /// Number of added rows that were not run yet.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Adds a record; `cell` gives the value of a column.
    pub(crate) fn push<'a>(&mut self, cell: impl Fn(&str) -> Cell<'a>) -> anyhow::Result<()> {
        for feed in &mut self.feeds {
            let cell = cell(&feed.column);
            feed.steps.append(&[cell], &mut feed.batch).map_err(|rejected| anyhow!("{rejected}"))?;
        }
        self.rows += 1;
        Ok(())
    }

    /// Runs the added rows and empties the batch.
    pub(crate) fn run(&mut self) -> anyhow::Result<OutputColumn> {
        let mut inputs = Vec::with_capacity(self.feeds.len());
        for feed in &mut self.feeds {
            let mut shape = Vec::with_capacity(feed.row.len() + 1);
            shape.push(self.rows);
            shape.extend_from_slice(&feed.row);
            let empty = TensorData::zeros(feed.batch.element(), 0);
            inputs.push(Tensor::new(shape, std::mem::replace(&mut feed.batch, empty))?);
        }
        let mut outputs = self.session.run(&inputs, &self.wanted)?;
        for (feed, tensor) in self.feeds.iter_mut().zip(inputs) {
            feed.batch = tensor.into_data();
            feed.batch.truncate(0);
        }
        self.rows = 0;
        let output = outputs.pop().context("the model gave nothing")?;
        Ok(self.after.apply(output.into_data()))
    }
}

fn row_shape(shape: &[Dimension]) -> Vec<usize> {
    let fixed = |dimension: &Dimension| match dimension {
        Dimension::Fixed(size) => Some(*size as usize),
        _ => None,
    };
    shape.iter().skip(1).filter_map(fixed).collect()
}
