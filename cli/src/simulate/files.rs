//! The files of a simulation: named, or beside the plan.
use crate::arguments::{
    LevelSetting, PlanningArguments, ReturnTrafficChoice, SimulateArguments, SolverChoice,
};
use crate::terminal::Terminal;
use std::path::{Path, PathBuf};
use tidemill_app::failure::{Failure, Kind};
use tidemill_app::planning::Case;
use tidemill_spec::plan::Plan;
use tidemill_spec::units::TimeSpan;

/// Reads them. The rate is the plan's, unless another one is requested.
///
/// # Errors
/// All mistakes in them, or a missing file.
pub(super) fn case(arguments: &SimulateArguments, plan: &Plan, terminal: &Terminal) -> anyhow::Result<Case> {
    let folder = arguments.plan.parent().unwrap_or(Path::new(""));
    let beside = |given: &Option<PathBuf>, names: &[&str], what: &str, say: &str| match given {
        Some(file) => Ok(file.clone()),
        None => found(folder, names, what, say),
    };
    let workflow =
        beside(&arguments.workflow, &["workflow.yaml"], "workflow", "name its file after the plan")?;
    let infrastructure =
        beside(&arguments.infrastructure, &["infrastructure.yaml"], "infrastructure", "give `--infra FILE`")?;
    let profiles = match arguments.profiles.is_empty() {
        false => arguments.profiles.clone(),
        true => {
            let names = ["profile.yaml", "profiles.yaml", "profile/profile.yaml"];
            vec![found(folder, &names, "profile", "give `--profiles PATH`")?]
        }
    };
    let mut slo = Vec::new();
    if let Some(rate) = plan.predicted.as_ref().and_then(|predicted| predicted.rate.as_ref()) {
        slo.push(LevelSetting::Rate(Some(rate.value)));
    }
    slo.extend(arguments.slo.iter().cloned());
    let planning = PlanningArguments {
        infrastructure: Some(infrastructure),
        profiles,
        slo,
        max_utilization: 1.0,
        return_traffic: ReturnTrafficChoice::Priced,
        one_operator_per_worker: false,
        keep_idle: false,
        percentile: plan.percentile,
        gap: 0.0,
        time_limit: TimeSpan(0),
        solver: SolverChoice::Microlp,
    };
    Case::load(&workflow, &planning.options(), terminal)
}

fn found(folder: &Path, names: &[&str], what: &str, say: &str) -> Result<PathBuf, Failure> {
    let files = names.iter().map(|name| folder.join(name));
    let shown = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    files.into_iter().find(|file| file.exists()).ok_or_else(|| {
        let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
        let message = format!("no {what}: no {} in {}", names.join(" or "), shown.display());
        Failure::new(Kind::Usage, message).with_help(say)
    })
}
