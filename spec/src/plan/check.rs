//! Checks of a plan, alone and together with its workflow.
use super::{Plan, RouteClass, Stage};
use crate::diagnostic::{Diagnostic, Diagnostics, ENOUGH, suggestion};
use crate::identifier;
use crate::value::{
    Step::{self, Index, Key},
    Value,
};
use crate::workflow::{Operator, Workflow};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Tolerance for sums of shares, which are written by hand with a few digits.
pub(super) const LOOSE: f64 = 1e-6;

impl Plan {
    /// Returns all findings about the plan alone. `tree` has the positions, where the plan came from a file.
    pub fn check(&self, tree: Option<&Value>) -> Diagnostics {
        let mut check = Check::new(tree);
        check.numbers(self);
        check.ids(self);
        check.classes(self);
        check.shares(self);
        check.edges(self);
        check.devices(self);
        check.policies(self);
        check.fallbacks(self);
        check.found
    }

    /// Returns all findings about the plan with this workflow; see [`super::PlanFile`] for positions.
    pub fn validate_against(&self, workflow: &Workflow) -> Diagnostics {
        self.check_against(workflow, None)
    }

    /// As [`Plan::validate_against`], with positions.
    pub(super) fn check_against(&self, workflow: &Workflow, tree: Option<&Value>) -> Diagnostics {
        let mut found = self.check(tree);
        if found.has_errors() {
            return found;
        }
        let mut check = Check::new(tree);
        if check.same_workflow(self, workflow) {
            check.operators(self, workflow);
            check.hops(self, workflow);
        }
        found.append(check.found);
        found
    }
}

/// Collects findings and looks up their places.
pub(super) struct Check<'a> {
    tree: Option<&'a Value>,
    found: Diagnostics,
}

impl<'a> Check<'a> {
    fn new(tree: Option<&'a Value>) -> Self {
        Self { tree, found: Diagnostics::new() }
    }

    fn full(&self) -> bool {
        self.found.len() >= ENOUGH
    }

    pub(super) fn report(
        &mut self,
        path: &[Step<'_>],
        code: &'static str,
        message: String,
        help: impl Into<String>,
    ) {
        let mut diagnostic = Diagnostic::error(code, message).with_help(help);
        if let Some(tree) = self.tree {
            diagnostic.span = tree.span_at(path);
        }
        if !self.full() {
            self.found.push(diagnostic);
        }
    }

    fn numbers(&mut self, plan: &Plan) {
        if plan.tick.0 == 0 {
            self.report(&[Key("tick")], "E0413", "a tick of length 0".to_string(), "write 10ms to 100ms");
        }
        if plan.checkpoint_every == 0 {
            let message = "a checkpoint every 0 ticks".to_string();
            self.report(&[Key("checkpoint_every")], "E0413", message, "write 1 or more");
        }
        if plan.plan_version == 0 {
            self.report(
                &[Key("plan_version")],
                "E0413",
                "versions of plans start at 1".to_string(),
                "write 1 or more",
            );
        }
        for (index, stage) in plan.stages.iter().enumerate() {
            let at = |key| [Key("stages"), Index(index), Key(key)];
            if !(stage.share > 0.0 && stage.share <= 1.0 + LOOSE) {
                let message = format!("the share {} of stage `{}`", stage.share, stage.id);
                self.report(&at("share"), "E0413", message, "a share must be above 0 and at most 1");
            }
            for (key, number) in [("partitions", stage.partitions), ("max_batch", stage.max_batch)] {
                if number == 0 {
                    let message = format!("`{key}: 0` of stage `{}`", stage.id);
                    self.report(&at(key), "E0413", message, "write 1 or more");
                }
            }
            if stage.byte_budget.0 == 0 {
                let message = format!("stage `{}` has a budget of 0 bytes", stage.id);
                self.report(&at("byte_budget"), "E0413", message, "write a budget such as `64MiB`");
            }
        }
        for (index, class) in plan.classes.iter().enumerate() {
            if !(class.share > 0.0 && class.share <= 1.0 + LOOSE) {
                let path = [Key("classes"), Index(index), Key("share")];
                let message = format!("the share {} of class {}", class.share, class.id);
                self.report(&path, "E0413", message, "a share must be above 0 and at most 1");
            }
        }
    }

    fn ids(&mut self, plan: &Plan) {
        for (index, digest) in plan.profiles.iter().enumerate() {
            self.digest(&[Key("profiles"), Index(index)], digest);
        }
        if let Some(digest) = &plan.workflow.digest {
            self.digest(&[Key("workflow"), Key("digest")], digest);
        }
        let workers: Vec<&str> = plan.workers.iter().map(|worker| worker.id.as_str()).collect();
        self.unique("workers", "worker", &workers);
        let stages: Vec<&str> = plan.stages.iter().map(|stage| stage.id.as_str()).collect();
        self.unique("stages", "stage", &stages);
        let known: HashSet<&str> = workers.iter().copied().collect();
        for (index, stage) in plan.stages.iter().enumerate() {
            if self.full() {
                return;
            }
            if !known.contains(stage.worker.as_str()) {
                let path = [Key("stages"), Index(index), Key("worker")];
                let message =
                    format!("stage `{}` is on the worker `{}`, which does not exist", stage.id, stage.worker);
                self.report(
                    &path,
                    "E0402",
                    message,
                    suggestion(&stage.worker, workers.iter().copied(), "workers"),
                );
            }
            if let Some((message, help)) = identifier::wrong(&stage.slot_group, "@./") {
                self.report(&[Key("stages"), Index(index), Key("slot_group")], "E0115", message, help);
            }
        }
        if plan.stages.is_empty() || plan.workers.is_empty() {
            let what = if plan.workers.is_empty() { "workers" } else { "stages" };
            self.report(
                &[Key(what)],
                "E0416",
                format!("the plan has no {what}"),
                format!("list them under `{what}:`"),
            );
        }
    }

    /// Their edges may be of other workflows, so only their form is checked.
    fn policies(&mut self, plan: &Plan) {
        let ids: Vec<&str> = plan.policies.iter().map(|policy| policy.id.as_str()).collect();
        self.unique("policies", "policy", &ids);
        for (index, policy) in plan.policies.iter().enumerate() {
            let texts = [
                ("from", policy.from.as_deref()),
                ("to", policy.to.as_deref()),
                ("kind", Some(policy.kind.as_str())),
            ];
            for (key, text) in texts {
                let Some((message, help)) = text.and_then(|text| identifier::wrong(text, "")) else {
                    continue;
                };
                let help = match text {
                    Some("*") => format!("leave `{key}` out: it is any then"),
                    _ => help,
                };
                self.report(&[Key("policies"), Index(index), Key(key)], "E0115", message, help);
            }
        }
    }

    fn digest(&mut self, path: &[Step<'_>], digest: &str) {
        if digest.len() != 64 || !digest.chars().all(|c| c.is_ascii_digit() || ('a'..='f').contains(&c)) {
            self.report(
                path,
                "E0413",
                "this is not a sha256".to_string(),
                "write 64 lower-case hexadecimal digits",
            );
        }
    }

    pub(super) fn unique(&mut self, list: &'static str, what: &str, ids: &[&str]) {
        let mut seen = HashSet::new();
        for (index, id) in ids.iter().enumerate() {
            let path = [Key(list), Index(index), Key("id")];
            if self.full() {
                return;
            }
            if let Some((message, help)) = identifier::wrong(id, "@./") {
                self.report(&path, "E0115", message, help);
            }
            if !seen.insert(*id) {
                self.report(
                    &path,
                    "E0401",
                    format!("the {what} `{id}` is given twice"),
                    "give it another id",
                );
            }
        }
    }

    fn classes(&mut self, plan: &Plan) {
        let sum: f64 = plan.classes.iter().map(|class| class.share).sum();
        if (sum - 1.0).abs() > LOOSE {
            let message = format!("the shares of the classes add up to {}", rounded(sum));
            self.report(&[Key("classes")], "E0403", message, "correct the shares so that they add up to 1");
        }
        for (index, class) in plan.classes.iter().enumerate() {
            if usize::from(class.id) != index {
                let message = format!("class {} is where class {index} is expected", class.id);
                let help = "number the classes 0, 1, 2, ... in order";
                self.report(&[Key("classes"), Index(index), Key("id")], "E0404", message, help);
            }
        }
        let stages = by_id(plan);
        for (index, class) in plan.classes.iter().enumerate() {
            for (operator, stage) in &class.route {
                if self.full() {
                    return;
                }
                let path = [Key("classes"), Index(index), Key("route"), Key(operator)];
                match stages.get(stage.as_str()) {
                    None => {
                        let candidates =
                            plan.stages.iter().filter(|s| s.operator == *operator).map(|s| s.id.as_str());
                        let message =
                            format!("class {} names the stage `{stage}`, which does not exist", class.id);
                        let what = format!("stages of `{operator}`");
                        self.report(&path, "E0406", message, suggestion(stage, candidates, &what));
                    }
                    Some(found) if found.operator != *operator => {
                        let message =
                            format!("stage `{stage}` belongs to `{}`, not to `{operator}`", found.operator);
                        self.report(&path, "E0407", message, format!("name a stage of `{operator}`"));
                    }
                    Some(_) => {}
                }
            }
        }
    }

    /// A stage takes exactly the share that the classes send to it.
    fn shares(&mut self, plan: &Plan) {
        if self.found.has_errors() {
            return; // sums of wrong numbers tell nothing new
        }
        let mut taken: HashMap<&str, f64> = HashMap::new();
        for class in &plan.classes {
            for stage in class.route.values() {
                *taken.entry(stage).or_default() += class.share;
            }
        }
        for (index, stage) in plan.stages.iter().enumerate() {
            let path = [Key("stages"), Index(index), Key("share")];
            match taken.get(stage.id.as_str()) {
                None => {
                    let message = format!("no class sends records to stage `{}`", stage.id);
                    let help = "name it in a route, or remove it";
                    self.report(&[Key("stages"), Index(index), Key("id")], "E0414", message, help);
                }
                Some(sum) if (sum - stage.share).abs() > LOOSE => {
                    let sum = rounded(*sum);
                    let message = format!(
                        "stage `{}` has the share {}, but the classes send it {sum}",
                        stage.id, stage.share
                    );
                    self.report(
                        &path,
                        "E0410",
                        message,
                        format!("write `share: {sum}`, or change the classes"),
                    );
                }
                Some(_) => {}
            }
        }
    }

    fn edges(&mut self, plan: &Plan) {
        let stages = by_id(plan);
        let mut seen = HashSet::new();
        for (index, edge) in plan.edges.iter().enumerate() {
            for (key, id) in [("from", &edge.from), ("to", &edge.to)] {
                if !stages.contains_key(id.as_str()) && !self.full() {
                    let all = plan.stages.iter().map(|stage| stage.id.as_str());
                    let message = format!("the edge names the stage `{id}`, which does not exist");
                    self.report(
                        &[Key("edges"), Index(index), Key(key)],
                        "E0409",
                        message,
                        suggestion(id, all, "stages"),
                    );
                }
            }
            if !seen.insert((&edge.from, &edge.to, edge.input)) {
                let message = format!("the edge from `{}` to `{}` is given twice", edge.from, edge.to);
                self.report(&[Key("edges"), Index(index)], "E0415", message, "keep one of the two");
            }
        }
    }

    /// Reports another workflow, or another state of it; returns whether its parts are worth checking. Errors of a plan
    /// for another workflow would only follow from that.
    fn same_workflow(&mut self, plan: &Plan, workflow: &Workflow) -> bool {
        let changed = plan.workflow.digest.as_ref().is_some_and(|digest| *digest != workflow.digest());
        let renamed = workflow.name != plan.workflow.name.as_str();
        let parts = differing_parts(plan, workflow);
        let (path, mut message) = match (renamed, changed) {
            (false, false) => return true,
            (true, _) => (
                [Key("workflow"), Key("name")],
                format!("the plan is for the workflow `{}`, this is `{}`", plan.workflow.name, workflow.name),
            ),
            (false, true) => (
                [Key("workflow"), Key("digest")],
                "the workflow has changed since the plan was made".to_string(),
            ),
        };
        let file = workflow.name.span.source().map_or("workflow.yaml", |source| source.name());
        let again = format!("`tidemill plan {file} --infra FILE --profiles FILE --out PLAN`");
        let help = match (&parts, renamed) {
            (Some(parts), true) => {
                message.push_str(&format!("; {parts}"));
                format!("give the workflow of the plan, or create a new plan: {again}")
            }
            (Some(parts), false) => {
                message.push_str(&format!(": {parts}"));
                format!("create a new plan: {again}")
            }
            (None, true) => "use the workflow of the plan, or create a new plan".to_string(),
            (None, false) => {
                format!(
                    "create a new plan; or, if the plan still fits, write `digest: {}`",
                    workflow.digest()
                )
            }
        };
        self.report(&path, "E0411", message, help);
        parts.is_none()
    }

    fn operators(&mut self, plan: &Plan, workflow: &Workflow) {
        let all = items(workflow);
        let models: HashMap<&str, &Operator> =
            workflow.operators.iter().map(|op| (op.id.as_str(), op)).collect();
        for (index, stage) in plan.stages.iter().enumerate() {
            if self.full() {
                return;
            }
            if !all.contains(&stage.operator.as_str()) {
                let message = format!(
                    "stage `{}` is of `{}`, which the workflow does not have",
                    stage.id, stage.operator
                );
                let help = suggestion(&stage.operator, all.iter().copied(), "operators");
                self.report(&[Key("stages"), Index(index), Key("operator")], "E0412", message, help);
                continue;
            }
            let has_models = models.get(stage.operator.as_str()).is_some_and(|op| !op.variants.is_empty());
            match (&stage.variant, has_models) {
                (None, true) => {
                    let message = format!("stage `{}` names no variant", stage.id);
                    let help = "add `variant:` with the id of one of the operator's model manifests";
                    self.report(&[Key("stages"), Index(index)], "E0412", message, help);
                }
                (Some(variant), false) => {
                    let message = format!("`{}` has no models, so `{variant}` cannot be one", stage.operator);
                    let path = [Key("stages"), Index(index), Key("variant")];
                    self.report(&path, "E0412", message, "remove `variant`");
                }
                _ => {}
            }
            if !has_models {
                self.without_model(stage, index);
            }
        }
        for (index, class) in plan.classes.iter().enumerate() {
            if self.full() {
                return;
            }
            for operator in &all {
                if !class.route.contains_key(*operator) {
                    let message = format!("class {} has no stage for `{operator}`", class.id);
                    let candidates =
                        plan.stages.iter().filter(|s| s.operator == *operator).map(|s| s.id.as_str());
                    let help = match candidates.clone().next() {
                        Some(stage) => format!("add `{operator}: {stage}`"),
                        None => format!("add a stage of `{operator}` and name it here"),
                    };
                    self.report(&[Key("classes"), Index(index), Key("route")], "E0405", message, help);
                }
            }
            // Unknown operators in a route were found with the stages: a stage of that operator must exist.
        }
    }

    /// Every hop of every class has its edge, and every edge is one of the workflow.
    fn hops(&mut self, plan: &Plan, workflow: &Workflow) {
        if self.found.has_errors() {
            return; // routes with holes would only repeat what was said
        }
        let connections = connections(workflow);
        let mut ports_of: HashMap<(&str, &str), Vec<u32>> = HashMap::new();
        for (from, to, input) in &connections {
            ports_of.entry((from, to)).or_default().push(*input);
        }
        let stages = by_id(plan);
        let edges: HashSet<(&str, &str, u32)> =
            plan.edges.iter().map(|edge| (edge.from.as_str(), edge.to.as_str(), edge.input)).collect();
        let mut missing: BTreeMap<(&str, &str, u32), (usize, &RouteClass)> = BTreeMap::new();
        for (index, class) in plan.classes.iter().enumerate() {
            for (from, to, input) in &connections {
                if let (Some(from), Some(to)) = (class.route.get(*from), class.route.get(*to))
                    && !edges.contains(&(from.as_str(), to.as_str(), *input))
                {
                    missing.entry((from, to, *input)).or_insert((index, class));
                }
            }
        }
        for ((from, to, input), (index, class)) in missing {
            let message = format!("class {} goes from `{from}` to `{to}`, where there is no edge", class.id);
            let help = match input {
                0 => format!("add `- {{from: {from}, to: {to}}}` to `edges`"),
                input => format!("add `- {{from: {from}, to: {to}, input: {input}}}` to `edges`"),
            };
            let operator = stages.get(to).map_or("", |stage| stage.operator.as_str());
            self.report(&[Key("classes"), Index(index), Key("route"), Key(operator)], "E0408", message, help);
        }
        for (index, edge) in plan.edges.iter().enumerate() {
            let (Some(from), Some(to)) = (stages.get(edge.from.as_str()), stages.get(edge.to.as_str()))
            else {
                continue;
            };
            let ports = ports_of.get(&(from.operator.as_str(), to.operator.as_str()));
            let ports = ports.map(Vec::as_slice).unwrap_or_default();
            if !ports.contains(&edge.input) {
                let message = format!(
                    "the workflow does not lead from `{}` to input {} of `{}`",
                    from.operator, edge.input, to.operator
                );
                let help = match ports.first() {
                    Some(port) => format!("write `input: {port}`"),
                    None => "remove the edge".to_string(),
                };
                self.report(&[Key("edges"), Index(index)], "E0409", message, help);
            }
        }
    }
}

fn by_id(plan: &Plan) -> HashMap<&str, &Stage> {
    plan.stages.iter().map(|stage| (stage.id.as_str(), stage)).collect()
}

/// All parts of a workflow that a plan places, in the order of the workflow.
fn items(workflow: &Workflow) -> Vec<&str> {
    let sources = workflow.sources.iter().map(|source| source.id.as_str());
    let operators = workflow.operators.iter().map(|operator| operator.id.as_str());
    sources.chain(operators).chain(workflow.sinks.iter().map(|sink| sink.id.as_str())).collect()
}

/// Most names in a message.
const LISTED: usize = 6;

/// The parts that a plan lacks, and those that it has in addition, as text; none where the parts agree.
fn differing_parts(plan: &Plan, workflow: &Workflow) -> Option<String> {
    let own = items(workflow);
    let mut planned: Vec<&str> = plan.stages.iter().map(|stage| stage.operator.as_str()).collect();
    planned.sort_unstable();
    planned.dedup();
    let without = |all: &[&str], others: &[&str]| -> String {
        let names: Vec<String> =
            all.iter().filter(|name| !others.contains(name)).map(|name| format!("`{name}`")).collect();
        match names.len() {
            0..=LISTED => names.join(", "),
            count => format!("{} and {} more", names[..LISTED].join(", "), count - LISTED),
        }
    };
    let (lacking, beside) = (without(&own, &planned), without(&planned, &own));
    match (lacking.is_empty(), beside.is_empty()) {
        (true, true) => None,
        (false, true) => Some(format!("the plan has no stage of {lacking}")),
        (true, false) => Some(format!("the plan has stages of {beside}, which the workflow does not have")),
        (false, false) => Some(format!(
            "the plan has no stage of {lacking}, and stages of {beside}, which the workflow does not have"
        )),
    }
}

/// All edges of a workflow: from, to, input.
fn connections(workflow: &Workflow) -> Vec<(&str, &str, u32)> {
    let mut all = Vec::new();
    for operator in &workflow.operators {
        for (port, input) in (0u32..).zip(&operator.inputs) {
            all.push((input.from.as_str(), operator.id.as_str(), port));
        }
    }
    all.extend(workflow.sinks.iter().map(|sink| (sink.input.from.as_str(), sink.id.as_str(), 0)));
    all
}

/// Rounds off errors of sums.
fn rounded(share: f64) -> f64 {
    (share * 1e9).round() / 1e9
}
