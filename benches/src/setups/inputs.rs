//! The four setups of the publication as planning problems, with its figures and with those of our own models.
use super::own;
use anyhow::Context;
use std::path::Path;
use tidemill_app::preparation::kinds;
use tidemill_optimizer::assemble::{Inputs, Level, Model, Models, Options, assemble};
use tidemill_optimizer::problem::{ACCURACY_TOLERANCE, AccuracyModel, AccuracyRow, Problem, ReturnTraffic};
use tidemill_spec::infrastructure::Infrastructure;
use tidemill_spec::manifest::Manifest;
use tidemill_spec::profile::Profile;
use tidemill_spec::units::{Percent, Percentile, Rate};
use tidemill_spec::workflow::Workflow;

/// Workload and machines, VQA columns of the publication's table of setups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Setup {
    Small,
    Medium,
    Large,
    ExtraLarge,
}

impl Setup {
    pub(super) const ALL: [Self; 4] = [Self::Small, Self::Medium, Self::Large, Self::ExtraLarge];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Small => "small",
            Self::Medium => "medium",
            Self::Large => "large",
            Self::ExtraLarge => "xlarge",
        }
    }

    /// Requests per second.
    fn rate(self) -> f64 {
        match self {
            Self::Small => 9.0,
            Self::Medium => 40.0,
            Self::Large => 60.0,
            Self::ExtraLarge => 100.0,
        }
    }

    /// Least accuracy in percent.
    fn accuracy(self) -> f64 {
        match self {
            Self::Small => 55.0,
            Self::Medium | Self::Large => 56.0,
            Self::ExtraLarge => 57.0,
        }
    }

    /// File in `examples/published-vqa`.
    fn file(self) -> &'static str {
        match self {
            Self::Small => "small.yaml",
            Self::Medium => "infrastructure.yaml",
            Self::Large => "large.yaml",
            Self::ExtraLarge => "xlarge.yaml",
        }
    }
}

/// A planned workload.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Wanted {
    /// Machines.
    pub(super) setup: Setup,
    /// Requests per second.
    pub(super) rate: f64,
    /// Least accuracy in percent.
    pub(super) accuracy: f64,
    /// Percentile of service times.
    pub(super) percentile: f64,
    /// Whether traffic to the edge is allowed, at its price.
    pub(super) returns: bool,
}

/// Files with figures of one kind of models.
pub(super) struct Family {
    /// Name in results and files.
    pub(super) id: &'static str,
    /// Name in titles.
    pub(super) title: &'static str,
    /// Unit of costs.
    pub(super) unit: &'static str,
    pub(super) max_utilization: f64,
    /// Our requests per published request: our models are much smaller.
    pub(super) rate_factor: f64,
    /// The least and the largest accuracy of its models.
    pub(super) accuracies: (f64, f64),
    /// Description of the origin of its figures.
    pub(super) notes: Vec<String>,
    workflow: Workflow,
    profile: Profile,
    models: Models,
    infrastructures: Vec<Infrastructure>,
}

impl Family {
    /// Loads the published figures; `root` is the repository's folder.
    pub(super) fn published(root: &Path) -> anyhow::Result<Self> {
        let folder = root.join("examples/published-vqa");
        let workflow = Workflow::load(folder.join("workflow.yaml")).map_err(written)?;
        let profile = Profile::load(folder.join("profiles.yaml")).map_err(written)?;
        let mut family = Self {
            id: "published",
            title: "published models",
            unit: "$/h",
            max_utilization: 1.0,
            rate_factor: 1.0,
            accuracies: (0.0, 0.0),
            notes: vec![
                "published models: a machine of 8 vCPU has the row cpu-3 and one with a V100 the row gpu-1, but in the \
                 medium setup each machine has its own; $/GiB as published"
                    .into(),
            ],
            models: models(&workflow)?,
            workflow,
            profile,
            infrastructures: infrastructures(root)?,
        };
        family.measure_accuracies()?;
        Ok(family)
    }

    /// Loads our own models, with rates that load the smallest machine about as the published ones do.
    pub(super) fn own(root: &Path, published: &Self) -> anyhow::Result<Self> {
        let folder = root.join("examples/vqa");
        let workflow = Workflow::load(folder.join("workflow.yaml")).map_err(written)?;
        let measured = Profile::load(folder.join("profile.yaml")).map_err(written)?;
        let mut infrastructures = infrastructures(root)?;
        infrastructures.iter_mut().for_each(own::price);
        let mut family = Self {
            id: "own",
            title: "our models",
            unit: "units/h",
            max_utilization: Options::default().max_utilization,
            rate_factor: 1.0,
            accuracies: (0.0, 0.0),
            notes: own::notes(&published.profile)?,
            models: models(&workflow)?,
            workflow,
            profile: own::predicted(&measured, &published.profile)?,
            infrastructures,
        };
        family.measure_accuracies()?;
        let of_published = published.seconds(published.wanted(Setup::Medium))?;
        let of_own = family.seconds(family.wanted(Setup::Medium))?;
        let factors = [0, 1].map(|at| of_published[at] / of_own[at] * family.max_utilization);
        family.rate_factor = (factors[0] * factors[1]).sqrt().round();
        family.notes.push(format!(
            "our models: rates are the published ones x {}, the geometric mean of x {:.1} (equal load of a 2-vCPU machine by the \
             lightest models accurate enough for the medium setup: {:.1} ms for ours, {:.0} ms for the published ones) and x {:.1} \
             (by the most accurate models: {:.1} and {:.0} ms), at the workers' largest utilization",
            family.rate_factor,
            factors[0],
            1e3 * of_own[0],
            1e3 * of_published[0],
            factors[1],
            1e3 * of_own[1],
            1e3 * of_published[1]
        ));
        Ok(family)
    }

    /// Returns the setup's own workload.
    pub(super) fn wanted(&self, setup: Setup) -> Wanted {
        Wanted {
            setup,
            rate: setup.rate() * self.rate_factor,
            accuracy: self.accuracy(setup.accuracy()),
            percentile: 75.0,
            returns: false,
        }
    }

    /// Maps a published accuracy to the same position in the range of this family's models.
    pub(super) fn accuracy(&self, published: f64) -> f64 {
        const PUBLISHED: (f64, f64) = (54.02, 58.33);
        if self.accuracies == PUBLISHED {
            return published;
        }
        let part = (published - PUBLISHED.0) / (PUBLISHED.1 - PUBLISHED.0);
        let (low, high) = self.accuracies;
        ((low + part * (high - low)) * 10.0).round() / 10.0
    }

    /// Returns the planning problem.
    pub(super) fn problem(&self, wanted: Wanted) -> anyhow::Result<Problem> {
        let inputs = Inputs {
            workflow: &self.workflow,
            infrastructure: &self.infrastructures[wanted.setup as usize],
            profile: &self.profile,
            models: &self.models,
            kinds: kinds(),
        };
        let options = Options {
            rate: Some(Rate(wanted.rate)),
            accuracy: Some(Percent(wanted.accuracy)),
            without: [Level::Latency].into(),
            max_utilization: self.max_utilization,
            return_traffic: if wanted.returns { ReturnTraffic::Priced } else { ReturnTraffic::Forbid },
            percentile: Percentile(wanted.percentile),
            ..Options::default()
        };
        Ok(assemble(&inputs, &options).map_err(written)?.problem)
    }

    /// Sets the range of accuracies.
    fn measure_accuracies(&mut self) -> anyhow::Result<()> {
        let wanted = Wanted { accuracy: 0.0, ..self.wanted(Setup::Medium) };
        let AccuracyModel::Table(rows) = self.problem(wanted)?.accuracy else {
            anyhow::bail!("the profile of {} has no accuracies of the whole workflow", self.title);
        };
        let accuracies = rows.iter().map(|row| row.accuracy);
        self.accuracies =
            accuracies.fold((f64::INFINITY, 0.0), |(low, high), value| (low.min(value), high.max(value)));
        Ok(())
    }

    /// Returns the seconds of the smallest machine (2 vCPU, the first type of the medium setup) per request: with the
    /// fastest sufficiently accurate models, and with the most accurate ones.
    fn seconds(&self, wanted: Wanted) -> anyhow::Result<[f64; 2]> {
        let problem = self.problem(wanted)?;
        let AccuracyModel::Table(rows) = &problem.accuracy else {
            anyhow::bail!("the profile of {} has no accuracies of the whole workflow", self.title);
        };
        let of = |row: &AccuracyRow| -> Option<f64> {
            let operators = problem.operators.iter().zip(&row.variants).filter(|(of, _)| !of.weightless);
            let each = operators.map(|(operator, &variant)| {
                let modes = operator.variants[variant].modes[0].iter();
                modes.map(|mode| mode.seconds_per_record).reduce(f64::min)
            });
            each.sum()
        };
        let accurate = rows.iter().filter(|row| row.accuracy >= wanted.accuracy - ACCURACY_TOLERANCE);
        let lightest = accurate.filter_map(of).reduce(f64::min);
        let best = rows.iter().reduce(|best, row| if row.accuracy > best.accuracy { row } else { best });
        let seconds = lightest.zip(best.and_then(of)).map(|(lightest, best)| [lightest, best]);
        seconds.with_context(|| format!("no models of {} are accurate enough", self.title))
    }
}

/// Converts diagnostics to an error.
pub(crate) fn written(found: tidemill_spec::diagnostic::Diagnostics) -> anyhow::Error {
    anyhow::anyhow!("{}", found.render(false))
}

fn infrastructures(root: &Path) -> anyhow::Result<Vec<Infrastructure>> {
    let folder = root.join("examples/published-vqa");
    let load = |setup: Setup| Infrastructure::load(folder.join(setup.file())).map_err(written);
    Setup::ALL.into_iter().map(load).collect()
}

/// Returns all candidate models as if they were installed: only their figures count.
pub(crate) fn models(workflow: &Workflow) -> anyhow::Result<Models> {
    let mut models = Models::new();
    for operator in workflow.operators.iter().filter(|operator| !operator.variants.is_empty()) {
        let load = |path: &str| -> anyhow::Result<Model> {
            let manifest = Manifest::load(workflow.resolve(path)).map_err(written)?;
            let backends = manifest.backends.iter().map(ToString::to_string).collect();
            Ok(Model {
                id: manifest.id.value.clone(),
                backends,
                // No setup has a device.
                tensors: None,
                rows: None,
                obstacle: None,
            })
        };
        let list: anyhow::Result<Vec<Model>> =
            operator.variants.iter().map(|variant| load(&variant.value)).collect();
        models.insert(operator.id.value.clone(), list?);
    }
    Ok(models)
}
