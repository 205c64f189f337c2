//! The workloads, the day, and the planning command.
use super::judge::Level;
use crate::setups::{models, written};
use anyhow::Context;
use std::path::{Path, PathBuf};
use std::process::Command;
use tidemill_app::preparation::kinds;
use tidemill_optimizer::assemble::{Assembly, Inputs, Models, Options, assemble};
use tidemill_optimizer::cost::cost;
use tidemill_optimizer::physical::solution_of;
use tidemill_optimizer::summary::headroom;
use tidemill_spec::infrastructure::Infrastructure;
use tidemill_spec::plan::PlanFile;
use tidemill_spec::profile::Profile;
use tidemill_spec::units::{Percentile, Rate, TimeSpan};
use tidemill_spec::workflow::{LatencySlo, Workflow};

/// A planned workload.
pub(super) struct Workload {
    pub(super) title: String,
    /// Records per second at factor 1 of the day.
    pub(super) rate: f64,
    /// Least accuracy in percent.
    pub(super) accuracy: f64,
    files: [PathBuf; 3],
    /// The latency level on the command line, where the workflow has none.
    latency: Option<&'static str>,
    workflow: Workflow,
    infrastructure: Infrastructure,
    profile: Profile,
    models: Models,
    options: Options,
}

/// Generates a day with bursts.
pub(super) fn bursty(root: &Path, seed: u64) -> anyhow::Result<String> {
    let script = root.join("scripts/bursty_trace.py");
    let made = Command::new("python3").arg(&script).args(["--seed", &seed.to_string()]).output();
    let made = made.with_context(|| format!("cannot run {}", script.display()))?;
    anyhow::ensure!(made.status.success(), "{}: {}", script.display(), String::from_utf8_lossy(&made.stderr));
    Ok(String::from_utf8(made.stdout)?)
}

/// Plans for a workload; returns the printed text.
pub(super) fn tidemill(binary: &Path, workload: &Workload, more: &[&str]) -> anyhow::Result<String> {
    let [workflow, infrastructure, profile] = &workload.files;
    let mut command = Command::new(binary);
    command.arg("plan").arg(workflow).arg("--infra").arg(infrastructure).arg("--profiles").arg(profile);
    let rate = format!("rate={}/s", workload.rate);
    command.args(["--quiet", "--slo", &rate]);
    if let Some(latency) = workload.latency {
        command.args(["--slo", latency]);
    }
    let done = command.args(more).output().with_context(|| format!("cannot run {}", binary.display()))?;
    anyhow::ensure!(
        done.status.success(),
        "{command:?} ended with {}: {}",
        done.status,
        String::from_utf8_lossy(&done.stderr)
    );
    Ok(String::from_utf8(done.stdout)?)
}

impl Workload {
    /// Returns the published models, and our own.
    pub(super) fn all(root: &Path) -> anyhow::Result<Vec<Self>> {
        let published = root.join("examples/published-vqa");
        let own = root.join("examples/vqa");
        let files = |folder: &Path, profile: &str| {
            [folder.join("workflow.yaml"), folder.join("infrastructure.yaml"), folder.join(profile)]
        };
        // A pair waits up to 2 s for its other half in this workflow, and gets no answer after that.
        let published =
            Self::read("published models", 12.0, files(&published, "profiles.yaml"), Some("latency=p99:2s"))?;
        let own = Self::read("our models", 40.0, files(&own, "profile.yaml"), None)?;
        Ok(vec![published, own])
    }

    fn read(
        title: &str,
        rate: f64,
        files: [PathBuf; 3],
        latency: Option<&'static str>,
    ) -> anyhow::Result<Self> {
        let workflow = Workflow::load(&files[0]).map_err(written)?;
        let limit = LatencySlo { percentile: Percentile(99.0).into(), below: TimeSpan(2_000_000_000).into() };
        let accuracy = workflow.slo.accuracy.as_ref().context("the workflow asks for no accuracy")?.value.0;
        Ok(Self {
            title: title.to_owned(),
            rate,
            accuracy,
            latency,
            infrastructure: Infrastructure::load(&files[1]).map_err(written)?,
            profile: Profile::load(&files[2]).map_err(written)?,
            models: models(&workflow)?,
            options: Options { latency: latency.map(|_| limit), ..Options::default() },
            workflow,
            files,
        })
    }

    /// Returns the files as inputs of the optimizer.
    pub(super) fn inputs(&self) -> Inputs<'_> {
        Inputs {
            workflow: &self.workflow,
            infrastructure: &self.infrastructure,
            profile: &self.profile,
            models: &self.models,
            kinds: kinds(),
        }
    }

    fn assembled(&self, factor: f64) -> anyhow::Result<Assembly> {
        let options = Options { rate: Some(Rate(factor * self.rate)), ..self.options.clone() };
        assemble(&self.inputs(), &options).map_err(written)
    }

    /// Reads a plan made for loads up to a factor.
    pub(super) fn level(&self, file: &Path, top: f64) -> anyhow::Result<Level> {
        let plan = PlanFile::load(file).map_err(written)?.plan;
        let assembly = self.assembled(top)?;
        let solution = solution_of(&self.inputs(), &assembly, &plan)?;
        let cost = cost(&assembly.problem, &solution)?;
        let carries = top * headroom(&assembly.problem, &solution).unwrap_or(1.0).max(1.0);
        let accuracy = assembly.problem.accuracy_of(&solution.variants);
        let lead = u32::try_from(plan.checkpoint_every.saturating_mul(2))?;
        Ok(Level {
            top,
            carries,
            compute: cost.compute,
            network: cost.network,
            accuracy,
            lead_ticks: lead,
            assembly,
            solution,
        })
    }
}
