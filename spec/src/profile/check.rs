//! Checks of a profile, alone and together with its workflow.
use super::merge::message_key;
use super::{Accuracy, BatchTime, Profile, Service};
use crate::diagnostic::{Diagnostic, Diagnostics, ENOUGH, suggestion};
use crate::identifier;
use crate::overheads::Overheads;
use crate::value::{
    Step::{self, Index, Key},
    Value,
};
use crate::workflow::Workflow;
use std::collections::{BTreeMap, BTreeSet, HashSet};

impl Profile {
    /// Returns all findings about the profile alone. `tree` has the positions, where it came from a file.
    pub fn check(&self, tree: Option<&Value>) -> Diagnostics {
        let mut check = Check::new(tree);
        check.digests(self);
        check.machines(self);
        check.overheads(self);
        check.services(self);
        check.ratios(self);
        check.messages(self);
        if let Some(accuracy) = &self.accuracy {
            check.accuracy(accuracy);
        }
        check.found
    }

    /// Returns all findings about the profile with this workflow; see [`super::ProfileFile`] for positions. A workflow
    /// that only changed since is a warning.
    pub fn validate_against(&self, workflow: &Workflow) -> Diagnostics {
        self.check_against(workflow, None)
    }

    /// As [`Profile::validate_against`], with positions.
    pub(super) fn check_against(&self, workflow: &Workflow, tree: Option<&Value>) -> Diagnostics {
        let mut found = self.check(tree);
        if found.has_errors() {
            return found;
        }
        let mut parts = Check::new(tree);
        parts.operators(self, workflow);
        parts.edges(self, workflow);
        let mut check = Check::new(tree);
        // Another workflow naturally has other operators; a renamed one has the same.
        let is_another = check.other_name(self, workflow, parts.found.has_errors());
        if !is_another {
            check.changed(self, workflow);
            found.append(parts.found);
        }
        found.append(check.found);
        found
    }
}

/// Collects findings and looks up their places.
struct Check<'a> {
    tree: Option<&'a Value>,
    found: Diagnostics,
}

impl<'a> Check<'a> {
    fn new(tree: Option<&'a Value>) -> Self {
        Self { tree, found: Diagnostics::new() }
    }

    fn report(&mut self, path: &[Step<'_>], code: &'static str, message: String, help: impl Into<String>) {
        self.add(path, Diagnostic::error(code, message).with_help(help));
    }

    fn add(&mut self, path: &[Step<'_>], mut diagnostic: Diagnostic) {
        if let Some(tree) = self.tree {
            diagnostic.span = tree.span_at(path);
        }
        if self.found.len() < ENOUGH {
            self.found.push(diagnostic);
        }
    }

    fn twice(&mut self, path: &[Step<'_>], what: &str) {
        self.report(path, "E0801", format!("{what} is given twice"), "keep one of the two");
    }

    fn digests(&mut self, profile: &Profile) {
        if let Some(digest) = &profile.workflow.digest {
            self.digest(&[Key("workflow"), Key("digest")], digest);
        }
        for (index, service) in profile.services.iter().enumerate() {
            if let Some(digest) = &service.model {
                self.digest(&[Key("services"), Index(index), Key("model")], digest);
            }
        }
    }

    fn digest(&mut self, path: &[Step<'_>], digest: &str) {
        if digest.len() != 64 || !digest.chars().all(|c| c.is_ascii_digit() || ('a'..='f').contains(&c)) {
            let message = "this is not a sha256".to_string();
            self.report(path, "E0803", message, "write 64 lower-case hexadecimal digits");
        }
    }

    fn machines(&mut self, profile: &Profile) {
        let mut seen = HashSet::new();
        for (index, machine) in profile.machines.iter().enumerate() {
            let at = |key| [Key("machines"), Index(index), Key(key)];
            if let Some((message, help)) = identifier::wrong(&machine.worker_type, ".") {
                self.report(&at("worker_type"), "E0115", message, help);
            }
            if !seen.insert(&machine.worker_type) {
                self.twice(&at("worker_type"), &format!("the type of worker `{}`", machine.worker_type));
            }
            for (key, number) in [("cores", machine.cores), ("factor", machine.factor)] {
                if number.is_some_and(|number| !(number > 0.0 && number.is_finite())) {
                    let message = format!("`{key}` of `{}` is not above 0", machine.worker_type);
                    self.report(&at(key), "E0803", message, "write a number above 0, or leave it out");
                }
            }
        }
    }

    fn overheads(&mut self, profile: &Profile) {
        for (index, machine) in profile.machines.iter().enumerate() {
            let times = machine.overheads.iter().flat_map(Overheads::times);
            for (key, _) in times.filter(|(_, time)| !time.is_in_order()) {
                let at = [Key("machines"), Index(index), Key("overheads"), Key(key)];
                let message = format!("the percentiles of `{key}` do not rise");
                self.report(&at, "E0804", message, "percentiles must rise: check the figures");
            }
        }
    }

    fn services(&mut self, profile: &Profile) {
        let known: Vec<&str> = profile.machines.iter().map(|machine| machine.worker_type.as_str()).collect();
        let mut seen = HashSet::new();
        for (index, service) in profile.services.iter().enumerate() {
            let here = [Key("services"), Index(index)];
            if !known.contains(&service.worker_type.as_str()) {
                let message = format!(
                    "`{}` is measured on `{}`, which is not a machine",
                    service.operator, service.worker_type
                );
                let help = suggestion(&service.worker_type, known.iter().copied(), "machines");
                self.report(&[here[0], here[1], Key("worker_type")], "E0802", message, help);
            }
            if !seen.insert((&service.operator, &service.variant, &service.backend, &service.worker_type)) {
                let what = format!("{} on `{}`", named(service), service.worker_type);
                self.twice(&here, &what);
            }
            if service.batches.is_empty() {
                let message = format!("{} has no times", named(service));
                let help = "write at least `batches: [{batch: 1, p75: 10ms}]`";
                self.report(&[here[0], here[1], Key("batches")], "E0803", message, help);
            }
            if service.model_part.is_some_and(|part| !(part.0 > 0.0 && part.0 <= 100.0)) {
                let message = format!("{} without a part of the model in its times", named(service));
                let help = "write a part above 0% and at most 100%, or leave it out";
                self.report(&[here[0], here[1], Key("model_part")], "E0803", message, help);
            }
            if service.within.is_some_and(|factor| !(factor >= 1.0 && factor.is_finite())) {
                let message = format!("{} cannot be within a factor below 1", named(service));
                let help = "write a factor of 1 or more, such as `within: 1.5`, or leave it out";
                self.report(&[here[0], here[1], Key("within")], "E0803", message, help);
            }
            let mut batches = BTreeSet::new();
            for (place, times) in service.batches.iter().enumerate() {
                let at = [here[0], here[1], Key("batches"), Index(place)];
                if !batches.insert(times.batch) {
                    self.twice(&at, &format!("a batch of {}", times.batch));
                }
                self.times(&at, times);
            }
            if let Some(after) = &service.after_pause {
                let at = [here[0], here[1], Key("after_pause"), Key("times")];
                self.times(&at, &after.times);
                if after.times.batch > 1 {
                    let message = format!("calls of {} records after a pause", after.times.batch);
                    let help = "write the times of one record, with `batch: 1`: larger batches take proportionally longer";
                    self.report(&[at[0], at[1], at[2], at[3], Key("batch")], "E0803", message, help);
                }
            }
        }
    }

    fn times(&mut self, at: &[Step<'_>; 4], times: &BatchTime) {
        let key = |key| [at[0], at[1], at[2], at[3], Key(key)];
        if times.batch == 0 {
            self.report(&key("batch"), "E0803", "a batch of 0 records".to_string(), "write 1 or more");
        }
        if times.samples == Some(0) {
            self.report(&key("samples"), "E0803", "figures of 0 samples".to_string(), "write 1 or more");
        }
        let named: Vec<_> =
            times.percentiles().into_iter().filter_map(|(p, time)| Some((p, time?))).collect();
        if named.is_empty() && times.mean.is_none() && times.points.is_empty() {
            let message = "a batch without times".to_string();
            self.report(at, "E0803", message, "write its `mean`, or percentiles such as `p75: 10ms`");
        }
        for pair in named.windows(2) {
            if pair[0].1 > pair[1].1 {
                let ((low, before), (high, after)) = (pair[0], pair[1]);
                let message = format!("p{high} is less than p{low}: {after} and {before}");
                let place = format!("p{high}");
                self.report(
                    &[at[0], at[1], at[2], at[3], Key(&place)],
                    "E0804",
                    message,
                    "percentiles must rise: check the two figures",
                );
            }
        }
        if times.points.len() == 1 {
            let message = "a distribution of one point".to_string();
            self.report(&key("points"), "E0803", message, "write two points or more, or none");
        }
        if !times.points.is_sorted() {
            let message = "the points are not in order".to_string();
            self.report(
                &key("points"),
                "E0804",
                message,
                "quantiles must rise from the least to the largest",
            );
        }
    }

    fn ratios(&mut self, profile: &Profile) {
        let mut seen = HashSet::new();
        for (index, ratio) in profile.ratios.iter().enumerate() {
            let at = [Key("ratios"), Index(index)];
            if !seen.insert((&ratio.operator, ratio.holds_for())) {
                self.twice(&at, &format!("the ratio of `{}`", ratio.operator));
            }
            if let (Some(own), Some(named)) = (&ratio.variant, ratio.variants.get(&ratio.operator))
                && own != named
            {
                let message = format!("`variant` says `{own}` and `variants` says `{named}`");
                self.report(&[at[0], at[1], Key("variant")], "E0803", message, "remove `variant`");
            }
            if !(ratio.output_per_input >= 0.0 && ratio.output_per_input.is_finite()) {
                let message = format!("`{}` cannot be a ratio", ratio.output_per_input);
                self.report(&[at[0], at[1], Key("output_per_input")], "E0803", message, "write 0 or more");
            }
        }
    }

    fn messages(&mut self, profile: &Profile) {
        let mut seen = BTreeSet::new();
        for (index, message) in profile.messages.iter().enumerate() {
            if !seen.insert(message_key(message)) {
                let what = format!("the message from `{}` to `{}`", message.from, message.to);
                self.twice(&[Key("messages"), Index(index)], &what);
            }
        }
    }

    fn accuracy(&mut self, accuracy: &Accuracy) {
        let mut seen = BTreeSet::new();
        for (index, row) in accuracy.end_to_end.iter().enumerate() {
            let at = [Key("accuracy"), Key("end_to_end"), Index(index)];
            if !seen.insert(&row.variants) {
                self.twice(&at, "the accuracy of these variants");
            }
            if let Some((low, high)) = row.interval
                && !(low <= row.accuracy && row.accuracy <= high)
            {
                let message = format!("{} is not between {low} and {high}", row.accuracy);
                let help = "an interval is written as [low, high] and holds the value";
                self.report(&[at[0], at[1], at[2], Key("interval")], "E0803", message, help);
            }
        }
        for (index, row) in accuracy.response.iter().enumerate() {
            let earlier = &accuracy.response[..index];
            if earlier
                .iter()
                .any(|e| (&e.operator, &e.variant, &e.inputs) == (&row.operator, &row.variant, &row.inputs))
            {
                let at = [Key("accuracy"), Key("response"), Index(index)];
                self.twice(&at, &format!("the response of `{}` to these inputs", row.operator));
            }
        }
        let mut seen = HashSet::new();
        for (index, metric) in accuracy.models.iter().enumerate() {
            let at = [Key("accuracy"), Key("models"), Index(index)];
            if !seen.insert((&metric.operator, &metric.variant)) {
                self.twice(&at, &format!("the metric of `{}`", metric.variant));
            }
            if !metric.value.is_finite() {
                let message = format!("`{}` cannot be a metric", metric.value);
                self.report(&[at[0], at[1], at[2], Key("value")], "E0803", message, "write a number");
            }
        }
    }

    /// Whether the profile is of another workflow with other operators, and thus useless.
    fn other_name(&mut self, profile: &Profile, workflow: &Workflow, has_others: bool) -> bool {
        if workflow.name == profile.workflow.name.as_str() {
            return false;
        }
        let at = [Key("workflow"), Key("name")];
        let message = format!(
            "the profile is of the workflow `{}`, this is `{}`",
            profile.workflow.name, workflow.name
        );
        if has_others {
            let help = "use the profile of this workflow, or create one: `tidemill profile`";
            self.report(&at, "E0805", message, help);
            return true;
        }
        let renamed = Diagnostic::warning("E0807", format!("{message}, with the same operators"))
            .with_help("ignore this if you only renamed it; else profile it: `tidemill profile`");
        self.add(&at, renamed);
        false
    }

    fn changed(&mut self, profile: &Profile, workflow: &Workflow) {
        if let Some(digest) = &profile.workflow.digest
            && *digest != workflow.profiled_digest()
        {
            let changed = Diagnostic::warning(
                "E0807",
                "sources, operators or truths of the workflow have changed since the profile was made",
            )
            .with_help("profile again: `tidemill profile`; still valid figures are kept");
            self.add(&[Key("workflow"), Key("digest")], changed);
        }
    }

    fn operators(&mut self, profile: &Profile, workflow: &Workflow) {
        let ids: Vec<&str> = {
            let sources = workflow.sources.iter().map(|source| source.id.as_str());
            let operators = workflow.operators.iter().map(|operator| operator.id.as_str());
            sources.chain(operators).chain(workflow.sinks.iter().map(|sink| sink.id.as_str())).collect()
        };
        let with_models: HashSet<&str> = {
            let all = workflow.operators.iter().filter(|operator| !operator.variants.is_empty());
            all.map(|operator| operator.id.as_str()).collect()
        };
        let mut named: Vec<([Step<'_>; 3], &str)> = Vec::new();
        for (index, service) in profile.services.iter().enumerate() {
            named.push(([Key("services"), Index(index), Key("operator")], &service.operator));
            let has_models = with_models.contains(service.operator.as_str());
            if ids.contains(&service.operator.as_str()) && service.variant.is_some() != has_models {
                let (message, help) = match has_models {
                    true => (
                        format!("`{}` has models, but no variant is named", service.operator),
                        "add `variant:`",
                    ),
                    false => (format!("`{}` has no models", service.operator), "remove `variant`"),
                };
                self.report(&[Key("services"), Index(index)], "E0805", message, help);
            }
        }
        for (index, ratio) in profile.ratios.iter().enumerate() {
            named.push(([Key("ratios"), Index(index), Key("operator")], &ratio.operator));
            for (operator, _) in ratio.holds_for().iter().filter(|(other, _)| **other != ratio.operator) {
                if !with_models.contains(operator.as_str()) {
                    let message = format!("the workflow has no operator `{operator}` with models");
                    let help = suggestion(operator, with_models.iter().copied(), "operators with models");
                    self.report(&[Key("ratios"), Index(index), Key("variants")], "E0805", message, help);
                }
            }
        }
        for (path, operator) in named {
            if !ids.contains(&operator) {
                let message = format!("the workflow has no operator `{operator}`");
                self.report(&path, "E0805", message, suggestion(operator, ids.iter().copied(), "operators"));
            }
        }
        let Some(accuracy) = &profile.accuracy else { return };
        let rows = |variants: &BTreeMap<String, String>| variants.keys().cloned().collect::<Vec<_>>();
        let mut named: Vec<(&str, usize, String)> = Vec::new();
        for (index, row) in accuracy.end_to_end.iter().enumerate() {
            named.extend(rows(&row.variants).into_iter().map(|operator| ("end_to_end", index, operator)));
        }
        for (index, row) in accuracy.response.iter().enumerate() {
            named.push(("response", index, row.operator.clone()));
            named.extend(row.inputs.keys().map(|operator| ("response", index, operator.clone())));
        }
        for (index, metric) in accuracy.models.iter().enumerate() {
            named.push(("models", index, metric.operator.clone()));
        }
        for (list, index, operator) in named {
            if !with_models.contains(operator.as_str()) {
                let message = format!("the workflow has no operator `{operator}` with models");
                let help = suggestion(&operator, with_models.iter().copied(), "operators with models");
                self.report(&[Key("accuracy"), Key(list), Index(index)], "E0805", message, help);
            }
        }
    }

    fn edges(&mut self, profile: &Profile, workflow: &Workflow) {
        let mut edges: HashSet<(&str, &str, u32)> = HashSet::new();
        for operator in &workflow.operators {
            for (port, input) in (0u32..).zip(&operator.inputs) {
                edges.insert((input.from.as_str(), operator.id.as_str(), port));
            }
        }
        edges.extend(workflow.sinks.iter().map(|sink| (sink.input.from.as_str(), sink.id.as_str(), 0)));
        for (index, message) in profile.messages.iter().enumerate() {
            let (from, to) = (message.from.as_str(), message.to.as_str());
            if edges.contains(&(from, to, message.input)) {
                continue;
            }
            let port = edges.iter().find(|edge| (edge.0, edge.1) == (from, to)).map(|edge| edge.2);
            let text =
                format!("the workflow does not lead from `{from}` to input {} of `{to}`", message.input);
            let help = match port {
                Some(port) => format!("write `input: {port}`"),
                None => "name the two ends of an edge of the workflow".to_string(),
            };
            self.report(&[Key("messages"), Index(index)], "E0805", text, help);
        }
    }
}

fn named(service: &Service) -> String {
    let variant = service.variant.as_ref().map(|variant| format!(" with `{variant}`")).unwrap_or_default();
    let backend = service.backend.as_ref().map(|backend| format!(" by `{backend}`")).unwrap_or_default();
    format!("`{}`{variant}{backend}", service.operator)
}
