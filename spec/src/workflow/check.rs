//! Checks of a workflow beyond its syntax.
use super::{Input, Journal, Operator, Slo, Workflow, late, when_cut};
use crate::bucket_address::Address;
use crate::diagnostic::{Diagnostic, Diagnostics, ENOUGH, suggestion};
use crate::identifier;
use crate::span::Located;
use std::collections::{HashMap, HashSet};

impl Workflow {
    /// Returns all findings, including warnings; no errors after [`Workflow::load`].
    pub fn check(&self) -> Diagnostics {
        let mut found = Diagnostics::new();
        found.extend(identifier::check(&self.name, ""));
        self.check_not_empty(&mut found);
        let unique = self.check_ids(&mut found);
        self.check_references(&mut found);
        // With two operators of one id an input is ambiguous, so cycles are not checked.
        if unique {
            self.check_cycle(&mut found);
        }
        // After any of these, an unread output only follows from the mistake.
        if !found.has_errors() {
            self.check_unused(&mut found);
        }
        self.check_numbers(&mut found);
        when_cut::check(self, &mut found);
        self.check_state(&mut found);
        self.check_accuracy(&mut found);
        self.check_variants(&mut found);
        self.check_devices(&mut found);
        self.check_resources(&mut found);
        self.check_policies(&mut found);
        found
    }

    /// All items that have an output: sources and operators.
    pub(super) fn producers(&self) -> impl Iterator<Item = &Located<String>> + Clone {
        self.sources.iter().map(|source| &source.id).chain(self.operators.iter().map(|operator| &operator.id))
    }

    /// Every input with the id of its reader.
    pub(super) fn edges(&self) -> impl Iterator<Item = (&Located<String>, &Input)> {
        let of_operators =
            self.operators.iter().flat_map(|op| op.inputs.iter().map(move |input| (&op.id, input)));
        of_operators.chain(self.sinks.iter().map(|sink| (&sink.id, &sink.input)))
    }

    fn check_not_empty(&self, found: &mut Diagnostics) {
        if self.sources.is_empty() {
            found.push(
                Diagnostic::error("E0201", "the workflow has no sources")
                    .at(self.name.span.clone())
                    .with_help(
                        "add one: `sources: [{id: images, kind: image_directory, options: {path: ...}}]`",
                    ),
            );
        }
        if self.sinks.is_empty() {
            found.push(
                Diagnostic::error("E0202", "the workflow has no sinks")
                    .at(self.name.span.clone())
                    .with_help("add one: `sinks: [{id: results, kind: stdout, input: ...}]`"),
            );
        }
    }

    /// Whether all ids are unique.
    fn check_ids(&self, found: &mut Diagnostics) -> bool {
        let mut firsts = HashMap::new();
        let mut unique = true;
        for id in self.producers().chain(self.sinks.iter().map(|sink| &sink.id)) {
            if found.len() >= ENOUGH {
                return false;
            }
            let is_late = || self.operators.iter().any(|op| op.id.value == id.value && op.kind == "late");
            match late::of_window(id).filter(|_| is_late()) {
                Some(window) => found.extend(identifier::check(&window.into(), "")),
                None => found.extend(identifier::check(id, "")),
            }
            if let Some(first) = firsts.insert(id.as_str(), id) {
                unique = false;
                found.push(
                    Diagnostic::error("E0203", format!("the id `{id}` is given twice"))
                        .at(id.span.clone())
                        .with_related(first.span.clone(), "the first one")
                        .with_help("sources, operators and sinks share their ids; give this one another"),
                );
            }
        }
        unique
    }

    fn check_references(&self, found: &mut Diagnostics) {
        let producers: HashSet<&str> = self.producers().map(|id| id.as_str()).collect();
        let sinks: HashSet<&str> = self.sinks.iter().map(|sink| sink.id.as_str()).collect();
        for (reader, input) in self.edges() {
            if found.len() >= ENOUGH {
                return;
            }
            let from = &input.from;
            if producers.contains(from.as_str()) {
                continue;
            }
            let diagnostic = if sinks.contains(from.as_str()) {
                Diagnostic::error("E0209", format!("`{from}` is a sink and has no output"))
                    .with_help(format!("let `{reader}` read what the sink reads"))
            } else {
                let candidates = self.producers().map(|id| id.as_str()).filter(|id| *id != reader.as_str());
                let nearest = suggestion(from, candidates, "sources and operators");
                Diagnostic::error("E0205", format!("there is no source or operator `{from}`")).with_help(
                    match (foreign_letters(from), late::of_window(from)) {
                        (Some(letters), _) => format!("{letters}; {nearest}"),
                        (None, Some(_)) => {
                            format!("only operators of kind `window` have late rows; {nearest}")
                        }
                        (None, None) => nearest,
                    },
                )
            };
            found.push(diagnostic.at(from.span.clone()));
        }
        for operator in &self.operators {
            if operator.inputs.is_empty() && found.len() < ENOUGH {
                found.push(
                    Diagnostic::error("E0208", format!("operator `{}` has no inputs", operator.id))
                        .at(operator.id.span.clone())
                        .with_help("add `input: id` of a source or operator"),
                );
            }
        }
    }

    /// Finds one cycle and prints it. Works without recursion: a chain may be as long as the file allows.
    fn check_cycle(&self, found: &mut Diagnostics) {
        let by_id: HashMap<&str, &Operator> = self.operators.iter().map(|op| (op.id.as_str(), op)).collect();
        let mut open: HashMap<&str, usize> = HashMap::new();
        let mut readers: HashMap<&str, Vec<&str>> = HashMap::new();
        for operator in by_id.values() {
            let inputs = operator.inputs.iter().filter(|input| by_id.contains_key(input.from.as_str()));
            let count =
                inputs.map(|input| readers.entry(&input.from).or_default().push(&operator.id)).count();
            open.insert(&operator.id, count);
        }
        let mut ready: Vec<&str> = open.iter().filter(|(_, count)| **count == 0).map(|(id, _)| *id).collect();
        while let Some(id) = ready.pop() {
            open.remove(id);
            for reader in readers.get(id).into_iter().flatten() {
                if let Some(count) = open.get_mut(reader) {
                    *count -= 1;
                    if *count == 0 {
                        ready.push(reader);
                    }
                }
            }
        }
        // The remaining operators are on a cycle or after one; going against the edges ends on one.
        let Some(start) = self.operators.iter().find(|op| open.contains_key(op.id.as_str())) else { return };
        let mut way: Vec<&str> = vec![&start.id];
        let mut place: HashMap<&str, usize> = HashMap::from([(start.id.as_str(), 0)]);
        let cycle = loop {
            let last = way[way.len() - 1];
            let next = by_id[last].inputs.iter().find(|input| open.contains_key(input.from.as_str()));
            let Some(next) = next else { return };
            if let Some(first) = place.get(next.from.as_str()) {
                break &way[*first..];
            }
            place.insert(&next.from, way.len());
            way.push(&next.from);
        };
        // `way` leads from readers to producers; the message follows the direction of the data.
        let mut shown: Vec<String> = cycle.iter().rev().take(20).map(|id| format!("`{id}`")).collect();
        if cycle.len() > 20 {
            shown.push("...".to_string());
        }
        shown.push(shown[0].clone());
        let last = by_id[cycle[cycle.len() - 1]];
        let closing = last.inputs.iter().find(|input| input.from.value == cycle[0]);
        found.push(
            Diagnostic::error("E0206", format!("the workflow has a cycle: {}", shown.join(" -> ")))
                .at(closing.map_or_else(|| last.id.span.clone(), |input| input.span().clone()))
                .with_label("closes the cycle")
                .with_help("workflows have no cycles; remove one of these inputs"),
        );
    }

    fn check_unused(&self, found: &mut Diagnostics) {
        let used: HashSet<&str> = self.edges().map(|(_, input)| input.from.as_str()).collect();
        let sources = self.sources.iter().map(|source| ("source", &source.id));
        let operators = self.operators.iter().map(|operator| ("operator", &operator.id));
        for (what, id) in sources.chain(operators) {
            if !used.contains(id.as_str()) && found.len() < ENOUGH {
                found.push(
                    Diagnostic::warning("E0207", format!("nothing reads the output of {what} `{id}`"))
                        .at(id.span.clone())
                        .with_help("connect it to an operator or a sink, or remove it"),
                );
            }
        }
    }

    fn check_numbers(&self, found: &mut Diagnostics) {
        let mut refuse = |span: &crate::span::Span, message: String, help: &str| {
            found.push(Diagnostic::error("E0211", message).at(span.clone()).with_help(help));
        };
        let rates = self.sources.iter().filter_map(|source| source.rate.as_ref()).chain(&self.slo.rate);
        for rate in rates.filter(|rate| rate.0 == 0.0).take(ENOUGH) {
            refuse(
                &rate.span,
                format!("a rate of `{rate}` never emits a record"),
                "write a rate above 0, or leave it out",
            );
        }
        for journal in self.sources.iter().filter_map(|source| source.journal.as_ref()).take(ENOUGH) {
            if let Some(size) = journal.size.as_ref().filter(|size| size.value < Journal::LEAST_SIZE) {
                let least = Journal::LEAST_SIZE;
                refuse(&size.span, format!("a journal of {}", size.value), &format!("write {least} or more"));
            }
            if let Some(keep) = journal.keep.as_ref().filter(|keep| keep.0 == 0) {
                let message = "a journal with a time of 0".to_string();
                refuse(&keep.span, message, "write a time such as `10min`, or leave it out");
            }
        }
        let batching = self.operators.iter().filter_map(|operator| operator.batching.as_ref());
        for batching in batching.filter(|batching| batching.max_batch.value == 0).take(ENOUGH) {
            refuse(&batching.max_batch.span, "a batch of 0 records".to_string(), "write 1 or more");
        }
        if let Some(latency) = self.slo.latency.as_ref().filter(|latency| latency.below.0 == 0) {
            refuse(&latency.below.span, "no latency is below 0".to_string(), "write a bound such as `800ms`");
        }
        let losses = self.operators.iter().filter_map(|operator| operator.survive.as_ref());
        for losses in
            losses.chain(&self.slo.survive).filter(|losses| losses.value > Slo::MOST_LOSSES).take(ENOUGH)
        {
            let most = Slo::MOST_LOSSES;
            refuse(
                &losses.span,
                format!("no plan is made for {} lost workers at a time", losses.value),
                &format!(
                    "write 0 to {most}: a plan has a fallback for every set of workers that may be lost"
                ),
            );
        }
        if self.run.tick.0 == 0 {
            refuse(&self.run.tick.span, "a tick of length 0".to_string(), "write 10ms to 100ms");
        }
        let checkpoint = &self.checkpoint;
        if let Some(interval) = checkpoint.interval.as_ref().filter(|interval| interval.0 == 0) {
            refuse(
                &interval.span,
                "checkpoints without time between them".to_string(),
                "write 100ms or more",
            );
        }
        if let Some(keep) = checkpoint.keep.as_ref().filter(|keep| !(1..=1000).contains(&keep.value)) {
            refuse(&keep.span, format!("{} checkpoints cannot be kept", keep.value), "write 1 to 1000");
        }
        if self.run.checkpoint_every.value == 0 {
            refuse(
                &self.run.checkpoint_every.span,
                "a checkpoint every 0 ticks".to_string(),
                "write 1 or more",
            );
        }
    }

    fn check_state(&self, found: &mut Diagnostics) {
        let Some(state) = &self.checkpoint.state else { return };
        let wrong = match state.parse::<Address>() {
            _ if state.trim().is_empty() => "it is empty".to_owned(),
            Err(error) if Address::is_meant(state) => error.to_string(),
            _ => return,
        };
        found.push(
            Diagnostic::error("E0214", format!("`{}` is not a place for a state: {wrong}", state.value))
                .at(state.span.clone())
                .with_help("write a folder such as `state`, or `s3://BUCKET/PREFIX`"),
        );
    }

    /// Without ground truth a warning only: the planner may know the accuracy from elsewhere.
    fn check_accuracy(&self, found: &mut Diagnostics) {
        if let Some(accuracy) = &self.slo.accuracy
            && self.sinks.iter().all(|sink| sink.ground_truth.is_none())
        {
            found.push(
                Diagnostic::warning(
                    "E0213",
                    format!("an accuracy of {} is required, but no sink has `ground_truth`", accuracy.value),
                )
                .at(accuracy.span.clone())
                .with_help(
                    "a run cannot measure it; add to a sink `ground_truth: {path: truth.csv, key: COLUMN, \
                     prediction: COLUMN, truth: COLUMN}`",
                ),
            );
        }
        let mut judged = self.sinks.iter().filter_map(|sink| Some((sink, sink.ground_truth.as_ref()?)));
        if let Some(accuracy) = &self.slo.accuracy
            && let Some((sink, _)) = judged.clone().next()
            && judged.all(|(_, truth)| !truth.compare.has_accuracy())
        {
            let message = format!(
                "an accuracy of {} is required, but sink `{}` measures an absolute error, which is no share",
                accuracy.value, sink.id
            );
            let help =
                "remove the level, or judge by a measure with an accuracy: all but `absolute_error` have one";
            found.push(Diagnostic::error("E0213", message).at(accuracy.span.clone()).with_help(help));
        }
    }

    fn check_variants(&self, found: &mut Diagnostics) {
        for operator in &self.operators {
            if found.len() >= ENOUGH {
                return;
            }
            let mut firsts = HashMap::new();
            for variant in &operator.variants {
                if let Some(first) = firsts.insert(variant.as_str(), variant) {
                    found.push(
                        Diagnostic::error("E0212", format!("variant `{variant}` is given twice"))
                            .at(variant.span.clone())
                            .with_related(first.span.clone(), "the first one")
                            .with_help("keep one of the two"),
                    );
                }
            }
        }
    }
}

/// The letters of an id that ids cannot contain, if any: some look like Latin ones.
fn foreign_letters(id: &str) -> Option<String> {
    let mut letters: Vec<char> = id.chars().filter(|c| !c.is_ascii()).collect();
    letters.sort_unstable();
    letters.dedup();
    let shown: Vec<String> = letters.iter().map(|c| format!("`{c}` (U+{:04X})", u32::from(*c))).collect();
    (!shown.is_empty()).then(|| {
        format!("`{id}` has letters of another alphabet, which can look like a to z: {}", shown.join(", "))
    })
}
