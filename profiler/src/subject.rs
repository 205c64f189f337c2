//! The subject of a profile: a workflow and the models that can run on this machine.
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use tidemill_operators::kind::OperatorKind;
use tidemill_operators::registry::Registry;
use tidemill_spec::digest::sha256;
use tidemill_spec::manifest::Manifest;
use tidemill_spec::units::Percent;
use tidemill_spec::workflow::{Input, Operator, Workflow};

/// Variant (the manifest's id) by operator.
pub type Choice = BTreeMap<String, String>;

/// Most combinations of models that are all tried; beyond it only the first choice and each of its neighbours.
const MOST_COMBINATIONS: usize = 256;

/// Records of a source that are due within this many seconds leave it together.
const TOGETHER_SECONDS: f64 = 1e-3;

/// A model that can run here.
#[derive(Debug, Clone)]
pub struct Model {
    /// The manifest's path as written in the workflow.
    pub written: String,
    /// The manifest.
    pub manifest: Manifest,
    /// Backends to measure, all of them available here.
    pub backends: Vec<String>,
}

impl Model {
    /// The manifest's id.
    pub fn id(&self) -> &str {
        &self.manifest.id
    }

    /// Returns a digest that changes whenever the model's outputs may: sha256 of the manifest, which has those of its
    /// files.
    pub fn digest(&self) -> String {
        sha256(&serde_json::to_vec(&self.manifest).unwrap_or_default())
    }

    /// Converts the manifest's metric to an accuracy, if it is a share of right answers, or one minus a share of wrong
    /// ones.
    pub fn accuracy(&self) -> Option<Percent> {
        let metric = self.manifest.metric.as_ref()?;
        let value = metric.value.value;
        let share = if metric.higher_is_better { value } else { 1.0 - value };
        // Removes the rounding error of the subtraction.
        (0.0..=1.0).contains(&value).then(|| Percent((share * 1e8).round() / 1e6))
    }
}

/// A workflow with its usable models.
#[derive(Clone)]
pub struct Subject {
    /// The workflow file.
    pub file: PathBuf,
    /// The workflow.
    pub workflow: Workflow,
    /// All kinds.
    pub registry: Registry,
    /// Models by operator, in the order of the workflow; an operator with models has at least one.
    pub models: BTreeMap<String, Vec<Model>>,
}

impl Subject {
    /// Returns the workflow with only the usable variants.
    pub fn usable(&self) -> Workflow {
        let mut workflow = self.workflow.clone();
        for operator in &mut workflow.operators {
            if let Some(models) = self.models.get(&operator.id.value) {
                operator.variants.retain(|written| models.iter().any(|model| model.written == written.value));
            }
        }
        workflow
    }

    /// The model of that id of an operator.
    pub fn model(&self, operator: &str, id: &str) -> Option<&Model> {
        self.models.get(operator)?.iter().find(|model| model.id() == id)
    }

    /// Returns for every operator with models the most accurate one by the manifests' metrics, else the last, which by
    /// convention is the largest.
    pub fn reference(&self) -> Choice {
        let best = |models: &Vec<Model>| {
            let key = |model: &Model| model.accuracy().map(|accuracy| (accuracy.0 * 1e6) as u64);
            models.iter().max_by_key(|model| key(model)).map(|model| model.id().to_owned())
        };
        self.models.iter().filter_map(|(operator, models)| Some((operator.clone(), best(models)?))).collect()
    }

    /// Returns all combinations of models; if they are too many, the reference and those that differ from it in one model.
    pub fn combinations(&self) -> Vec<Choice> {
        let product: usize = self.models.values().map(Vec::len).fold(1, usize::saturating_mul);
        if product > MOST_COMBINATIONS {
            let reference = self.reference();
            let mut all = vec![reference.clone()];
            for (operator, models) in &self.models {
                for model in
                    models.iter().filter(|model| reference.get(operator).is_none_or(|r| r != model.id()))
                {
                    let mut other = reference.clone();
                    other.insert(operator.clone(), model.id().to_owned());
                    all.push(other);
                }
            }
            return all;
        }
        let mut all = vec![Choice::new()];
        for (operator, models) in &self.models {
            let with = |choice: &Choice| {
                let choice = choice.clone();
                models.iter().map(move |model| {
                    let mut choice = choice.clone();
                    choice.insert(operator.clone(), model.id().to_owned());
                    choice
                })
            };
            all = all.iter().flat_map(with).collect();
        }
        all
    }

    /// Ids that an operator or sink receives from, in the order of its inputs.
    pub fn inputs_of(&self, id: &str) -> Vec<&str> {
        let operator = self.workflow.operators.iter().find(|operator| operator.id == *id);
        let sink = self.workflow.sinks.iter().find(|sink| sink.id == *id);
        let from = operator.iter().flat_map(|operator| &operator.inputs).chain(sink.map(|sink| &sink.input));
        from.map(|input| input.from.value.as_str()).collect()
    }

    /// Returns the inputs of each operator and sink.
    fn inputs(&self) -> BTreeMap<&str, Vec<&str>> {
        fn from(input: &Input) -> &str {
            &input.from.value
        }
        let (operators, sinks) = (&self.workflow.operators, &self.workflow.sinks);
        let operators = operators.iter().map(|o| (o.id.value.as_str(), o.inputs.iter().map(from).collect()));
        operators.chain(sinks.iter().map(|s| (s.id.value.as_str(), vec![from(&s.input)]))).collect()
    }

    /// Operators with models before `id`, excluding itself: all of them, or only the `nearest`.
    fn models_upstream(&self, id: &str, nearest: bool) -> BTreeSet<String> {
        let inputs = self.inputs();
        let of = |id: &str| inputs.get(id).into_iter().flatten().copied();
        let (mut found, mut seen) = (BTreeSet::new(), BTreeSet::new());
        let mut open: Vec<&str> = of(id).collect();
        while let Some(from) = open.pop() {
            if !seen.insert(from) {
                continue;
            }
            let has_models = self.models.contains_key(from);
            if has_models {
                found.insert(from.to_owned());
            }
            if !(nearest && has_models) {
                open.extend(of(from));
            }
        }
        found
    }

    /// Operators with models that affect the output of `id`: itself and all before it.
    pub fn models_before(&self, id: &str) -> BTreeSet<String> {
        let mut found = self.models_upstream(id, false);
        found.extend(self.models.contains_key(id).then(|| id.to_owned()));
        found
    }

    /// The nearest operators with models before `id`, excluding itself.
    pub fn nearest_models(&self, id: &str) -> BTreeSet<String> {
        self.models_upstream(id, true)
    }

    /// Returns the part of a choice that affects the output of `id`.
    pub fn relevant(&self, id: &str, choice: &Choice) -> Choice {
        if choice.is_empty() {
            return Choice::new();
        }
        let before = self.models_before(id);
        choice
            .iter()
            .filter(|(operator, _)| before.contains(*operator))
            .map(|(o, v)| (o.clone(), v.clone()))
            .collect()
    }

    /// Number of records per frame from `id`. Records that arrive singly travel singly: a frame has those that become due
    /// while a source sleeps, which is one except at high rates. A window emits the results of a tick at once.
    pub fn rows_per_frame(&self, id: &str) -> usize {
        let rates = self.workflow.sources.iter().filter_map(|source| Some(source.rate.as_ref()?.value.0));
        let rate =
            rates.fold(0.0, f64::max).max(self.workflow.slo.rate.as_ref().map_or(0.0, |rate| rate.value.0));
        let is_window = |operator: &&Operator| {
            let has_windows = |kind: &dyn OperatorKind| kind.facts().has_windows;
            operator.id == *id && self.registry.operator(&operator.kind).is_some_and(has_windows)
        };
        let together = match self.workflow.operators.iter().find(is_window) {
            Some(_) => self.workflow.run.tick.value.0 as f64 / 1e9,
            None => TOGETHER_SECONDS,
        };
        ((rate * together).round() as usize).clamp(1, 1024)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const WORKFLOW: &str = "
version: 1
name: w
sources: [{id: a, kind: csv, rate: 100/s}, {id: b, kind: csv}]
operators:
  - {id: eye, kind: ml, input: a, variants: [e1, e2]}
  - {id: ear, kind: ml, input: b, variants: [s1]}
  - {id: pair, kind: join, inputs: [eye, ear]}
  - {id: mind, kind: ml, input: pair, variants: [m1, m2]}
sinks: [{id: out, kind: jsonl, input: mind}]
";

    fn model(id: &str, metric: &str) -> Model {
        let text = format!(
            "version: 1\nid: {id}\ndescription: x\nfile: m.onnx\nsha256: {}\nlicence: MIT\n\
             origin: {{kind: external, note: x}}\nbackends: [rten]\n\
             inputs: [{{name: x, column: x, type: tensor, dtype: float32, shape: [batch, 4]}}]\n\
             outputs: [{{name: y, column: y, type: tensor, dtype: float32, shape: [batch, 3]}}]\n{metric}",
            "a".repeat(64)
        );
        let manifest = Manifest::parse(&text, "m").unwrap_or_else(|error| panic!("{error}"));
        Model { written: id.to_owned(), manifest, backends: vec!["rten".to_owned()] }
    }

    fn metric(value: f64, higher: bool) -> String {
        format!(
            "metric: {{name: m, value: {value}, interval: [0, 1], samples: 9, higher_is_better: {higher}}}\n"
        )
    }

    pub(crate) fn subject() -> Subject {
        let models = [
            ("eye", vec![model("e1", &metric(0.5, true)), model("e2", &metric(0.7, true))]),
            ("ear", vec![model("s1", &metric(0.1, false))]),
            ("mind", vec![model("m1", ""), model("m2", "")]),
        ];
        Subject {
            file: "w.yaml".into(),
            workflow: Workflow::parse(WORKFLOW, "w.yaml").unwrap_or_else(|errors| panic!("{errors}")),
            registry: Registry::builtin(),
            models: models.into_iter().map(|(operator, list)| (operator.to_owned(), list)).collect(),
        }
    }

    #[test]
    fn choices_and_what_depends_on_them() {
        let subject = subject();
        assert_eq!(subject.combinations().len(), 4);
        let reference = subject.reference();
        assert_eq!((reference["eye"].as_str(), reference["mind"].as_str()), ("e2", "m2"));
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        assert_eq!(subject.models_before("pair"), set(&["ear", "eye"]));
        assert_eq!(subject.nearest_models("mind"), set(&["ear", "eye"]));
        assert_eq!(subject.nearest_models("out"), set(&["mind"]));
        assert_eq!(subject.relevant("eye", &reference).len(), 1);
        assert_eq!(subject.inputs_of("out"), ["mind"]);
        assert_eq!(subject.rows_per_frame("a"), 1);
    }

    /// Each of forty joins has two paths to the one before it, so there are 2^40 paths to the first.
    #[test]
    fn models_are_found_behind_many_ways() {
        let mut subject = subject();
        let mut text = WORKFLOW.split("sinks:").next().unwrap().to_owned();
        let mut last = "eye".to_owned();
        for n in 0..40 {
            text.push_str(&format!("  - {{id: j{n}, kind: join, inputs: [{last}, {last}]}}\n"));
            last = format!("j{n}");
        }
        text.push_str(&format!("sinks: [{{id: out, kind: jsonl, input: {last}}}]\n"));
        subject.workflow = Workflow::parse(&text, "w.yaml").unwrap_or_else(|errors| panic!("{errors}"));
        let eye = BTreeSet::from(["eye".to_owned()]);
        assert_eq!((subject.models_before("out"), subject.nearest_models("out")), (eye.clone(), eye));
    }

    #[test]
    fn metrics_as_accuracies() {
        let subject = subject();
        let accuracy = |operator: &str, id: &str| subject.model(operator, id).unwrap().accuracy();
        assert_eq!(accuracy("ear", "s1"), Some(Percent(90.0)));
        assert_eq!(accuracy("eye", "e2"), Some(Percent(70.0)));
        assert_eq!(accuracy("mind", "m1"), None);
    }
}
