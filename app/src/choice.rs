//! Chooses an operator's model without a plan: the most accurate that this machine can run, or the smallest of those that
//! are statistically as accurate.
use crate::failure::{Failure, Kind};
use std::collections::BTreeMap;
use std::path::Path;
use tidemill_inference::{backend, load_manifest, location};
use tidemill_spec::diagnostic::{Diagnostics, suggestion};
use tidemill_spec::manifest::{Manifest, Metric, OriginKind};
use tidemill_spec::workflow::{Operator, Workflow};

/// A user's choice of a variant for an operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// Operator id.
    pub operator: String,
    /// Id or path of a manifest.
    pub variant: String,
}

/// A model that an operator may run.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// The manifest's path as written in the workflow.
    pub written: String,
    /// The manifest.
    pub manifest: Manifest,
    /// Bytes of its files, if they are here.
    pub bytes: Option<u64>,
    /// Reason why this machine cannot run it, with advice.
    pub obstacle: Option<String>,
    /// Whether the only reason is that it was not fetched or exported.
    pub absent: bool,
}

impl Candidate {
    /// Whether this is its id, or its path as written in the workflow.
    pub(crate) fn is_named(&self, variant: Option<&str>) -> bool {
        variant.is_some_and(|variant| self.manifest.id == *variant || self.written == variant)
    }
}

/// A variant that is left out, for a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Skipped {
    /// It was not fetched or exported; most users never do.
    Note(String),
    /// Something is probably wrong.
    Warning(String),
}

/// Models by operator, in the order of the workflow; operators without models are left out.
pub type Candidates = BTreeMap<String, Vec<Candidate>>;

/// A chosen model.
#[derive(Debug, Clone)]
pub struct Chosen {
    /// The manifest's id.
    pub id: String,
    /// Reason.
    pub why: String,
}

/// Reads the manifests of all operators and checks them against this machine.
///
/// # Errors
/// Mistakes in a manifest. A missing model file or backend is no error here.
pub fn candidates(workflow: &Workflow) -> Result<Candidates, Diagnostics> {
    candidates_of(workflow, &workflow.directory.0, |_, _| Ok(true))
}

/// Reads candidates with a folder `libraries`, where the search for backends starts, and `may_look`, which decides per
/// manifest whether its model's files are checked here.
///
/// # Errors
/// See [`candidates`], and the refusals of `may_look`.
pub(crate) fn candidates_of(
    workflow: &Workflow,
    libraries: &Path,
    may_look: impl Fn(&Path, &Manifest) -> Result<bool, Diagnostics>,
) -> Result<Candidates, Diagnostics> {
    let mut backends = Backends { libraries, known: BTreeMap::new() };
    let mut errors = Diagnostics::new();
    let mut all = Candidates::new();
    for operator in workflow.operators.iter().filter(|operator| !operator.variants.is_empty()) {
        let mut list = Vec::new();
        for written in &operator.variants {
            let path = workflow.resolve(&written.value);
            let manifest =
                load_manifest(&path).and_then(|manifest| Ok((may_look(&path, &manifest)?, manifest)));
            match manifest {
                Ok((is_looked_at, manifest)) => {
                    let bytes = if is_looked_at { location::bytes(&manifest, &path) } else { None };
                    // Files of a worker are unknown here: the worker reports missing ones.
                    let absent = is_looked_at && location::command(&manifest).is_some() && bytes.is_none();
                    let obstacle =
                        is_looked_at.then(|| backends.obstacle(operator, &path, &manifest)).flatten();
                    list.push(Candidate {
                        written: written.value.clone(),
                        manifest,
                        bytes,
                        obstacle,
                        absent,
                    });
                }
                // A manifest that cannot be opened has no position of its own.
                Err(found) => errors.extend(found.into_iter().map(|finding| match finding.span.source() {
                    None => finding.at(written.span.clone()),
                    Some(_) => finding,
                })),
            }
        }
        all.insert(operator.id.value.clone(), list);
    }
    errors.into_result(all)
}

/// The backends checked so far, each with the reason why it cannot be used.
struct Backends<'a> {
    /// Start of the search for libraries.
    libraries: &'a Path,
    known: BTreeMap<String, Option<String>>,
}

impl Backends<'_> {
    fn obstacle(&mut self, operator: &Operator, path: &Path, manifest: &Manifest) -> Option<String> {
        if location::bytes(manifest, path).is_none() {
            return Some(match location::command(manifest) {
                Some(command) => {
                    let obtained = location::obtained(manifest).unwrap_or("here");
                    format!("not {obtained}, skipped ({command})")
                }
                None if manifest.origin.kind == OriginKind::Published => {
                    "only published figures of it are known; the model itself is not available".to_owned()
                }
                None => format!(
                    "its file {} is missing (a path is relative to the folder of the manifest)",
                    location::file(manifest, path).display()
                ),
            });
        }
        let names: Vec<String> = match operator.named_backend() {
            Some(backend) => vec![backend.to_owned()],
            None => manifest.backends.iter().map(ToString::to_string).collect(),
        };
        let reasons: Vec<Option<String>> = names.into_iter().map(|name| self.reason(name)).collect();
        if reasons.iter().any(Option::is_none) {
            return None;
        }
        reasons.into_iter().flatten().next()
    }

    fn reason(&mut self, name: String) -> Option<String> {
        let libraries = self.libraries;
        let reason = |name: &String| backend::backend(name, libraries).err().map(|error| error.to_string());
        self.known.entry(name).or_insert_with_key(reason).clone()
    }
}

/// Chooses the variant of every operator with models.
///
/// # Errors
/// When a setting names an unknown operator or variant.
pub fn choose(
    workflow: &Workflow,
    candidates: &Candidates,
    settings: &[Setting],
) -> Result<BTreeMap<String, Chosen>, Failure> {
    for setting in settings {
        if !candidates.contains_key(&setting.operator) {
            let message = match workflow.operators.iter().any(|operator| operator.id == *setting.operator) {
                true => format!("operator `{}` has no variants to set", setting.operator),
                false => {
                    format!("--set names `{}`, which is not an operator of the workflow", setting.operator)
                }
            };
            let names = candidates.keys().map(String::as_str);
            return Err(Failure::new(Kind::Usage, message).with_help(suggestion(
                &setting.operator,
                names,
                "operators with variants",
            )));
        }
    }
    let mut all = BTreeMap::new();
    for (operator, list) in candidates {
        let setting = settings.iter().rev().find(|setting| setting.operator == *operator);
        let chosen = match setting {
            Some(setting) => set(setting, list)?,
            None => most_accurate(list),
        };
        all.insert(operator.clone(), chosen);
    }
    Ok(all)
}

fn set(setting: &Setting, list: &[Candidate]) -> Result<Chosen, Failure> {
    let found = list.iter().find(|c| c.manifest.id == *setting.variant || c.written == setting.variant);
    let Some(found) = found else {
        let message = format!("operator `{}` has no variant `{}`", setting.operator, setting.variant);
        let ids = list.iter().map(|candidate| candidate.manifest.id.value.as_str());
        return Err(Failure::new(Kind::Usage, message).with_help(suggestion(
            &setting.variant,
            ids,
            "variants",
        )));
    };
    Ok(chosen(found, "as set".to_owned()))
}

fn chosen(candidate: &Candidate, why: String) -> Chosen {
    Chosen { id: candidate.manifest.id.value.clone(), why }
}

fn most_accurate(list: &[Candidate]) -> Chosen {
    let usable: Vec<&Candidate> = list.iter().filter(|candidate| candidate.obstacle.is_none()).collect();
    // When none can run, binding the first one gives the error.
    let Some(first) = usable.first().copied().or(list.first()) else {
        return Chosen { id: String::new(), why: String::new() };
    };
    let best = usable.iter().copied().reduce(|best, next| if better(next, best) { next } else { best });
    let best = best.unwrap_or(first);
    let smallest = usable.iter().copied().filter(|candidate| as_good(candidate, best));
    let smallest = smallest.min_by_key(|candidate| candidate.bytes.unwrap_or(u64::MAX)).unwrap_or(best);
    let comparable = usable.iter().all(|c| name(c).is_some() && name(c) == name(best));
    let why = match (&best.manifest.metric, usable.len()) {
        (Some(metric), 0 | 1) => format!("the only one; {}", metric_text(metric)),
        (None, 0 | 1) => "the only one".to_owned(),
        (Some(metric), n) if comparable && smallest.manifest.id == best.manifest.id => {
            format!("best of {n}; {}", metric_text(metric))
        }
        (Some(metric), n) if comparable => {
            let own = smallest.manifest.metric.as_ref().map(metric_text).unwrap_or_default();
            format!(
                "best of {n} by the interval of {} {:.3}, and smaller; {own}",
                best.manifest.id, metric.value.value
            )
        }
        _ => "the first; the manifests do not all give the same metric".to_owned(),
    };
    let best = if usable.len() > 1 && !comparable { first } else { smallest };
    chosen(best, why)
}

fn name(candidate: &Candidate) -> Option<&str> {
    candidate.manifest.metric.as_ref().map(|metric| metric.name.as_str())
}

fn better(a: &Candidate, b: &Candidate) -> bool {
    match (&a.manifest.metric, &b.manifest.metric) {
        (Some(a), Some(b)) if a.higher_is_better => a.value.value > b.value.value,
        (Some(a), Some(b)) => a.value.value < b.value.value,
        _ => false,
    }
}

/// Whether the samples do not distinguish it from the best: its value is within the best one's interval.
fn as_good(candidate: &Candidate, best: &Candidate) -> bool {
    match (&candidate.manifest.metric, &best.manifest.metric) {
        (Some(own), Some(best)) => {
            let (low, high) = best.interval.value;
            (low..=high).contains(&own.value.value)
        }
        _ => candidate.manifest.id == best.manifest.id,
    }
}

/// Formats a metric: `answer_accuracy 0.982 (0.975 to 0.987)`.
pub fn metric_text(metric: &Metric) -> String {
    let (low, high) = metric.interval.value;
    format!("{} {:.3} ({low:.3} to {high:.3})", metric.name, metric.value.value)
}

/// Returns the workflow without the variants that cannot run here, so that the others can be bound; passes the reasons to
/// `tell`. An operator without any usable variant keeps them all: binding then gives the error.
pub fn without_obstacles(
    workflow: &Workflow,
    candidates: &Candidates,
    needed: impl Fn(&str, &Candidate) -> bool,
    mut tell: impl FnMut(Skipped),
) -> Workflow {
    let mut pruned = workflow.clone();
    for operator in &mut pruned.operators {
        let Some(list) = candidates.get(&operator.id.value) else { continue };
        if list.iter().all(|candidate| candidate.obstacle.is_some()) {
            continue;
        }
        let mut absent = Vec::new();
        for candidate in list {
            if let Some(obstacle) = &candidate.obstacle
                && !needed(&operator.id.value, candidate)
            {
                operator.variants.retain(|written| written.value != candidate.written);
                match candidate.absent {
                    true => absent.push(&candidate.manifest),
                    false => {
                        let id = &candidate.manifest.id;
                        tell(Skipped::Warning(format!("{}: {id} is left out: {obstacle}", operator.id)));
                    }
                }
            }
        }
        for obtained in ["fetched", "exported"] {
            let these = absent.iter().copied();
            let these: Vec<&Manifest> =
                these.filter(|manifest| location::obtained(manifest) == Some(obtained)).collect();
            if !these.is_empty() {
                let ids: Vec<&str> = these.iter().map(|manifest| manifest.id.value.as_str()).collect();
                let commands = location::commands(these).join(", ");
                tell(Skipped::Note(format!("{}: not {obtained}, skipped ({commands})", ids.join(", "))));
            }
        }
    }
    pruned
}
