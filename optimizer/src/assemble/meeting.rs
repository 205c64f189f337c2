//! What must meet in one stage: the same that the engine checks before a run begins, which refuses any other plan (`E0417`).
use std::collections::BTreeSet;
use tidemill_spec::value::{Node, Value};
use tidemill_spec::workflow::{Operator, Workflow};

/// Whether all records of an operator must meet in one stage: it tells what belongs together of all of them, adds up without
/// groups, or joins on what says nothing about the stage that records come to.
pub(super) fn all_must_meet(workflow: &Workflow, operator: &Operator) -> bool {
    let groups = operator.options.get("group_by").map(|groups| &groups.node);
    let has_groups = matches!(groups, Some(Node::List(names)) if !names.is_empty());
    match operator.kind.value.as_str() {
        "associate" => true,
        "window" | "distinct" => !has_groups,
        "join" => !is_routed_by_its_key(workflow, operator),
        _ => false,
    }
}

/// Whether partners come to the same stage wherever a join is spread: records are routed by what their sources say in their key
/// columns, so one pair of the columns that are joined on has to be these, and to come through as it is.
fn is_routed_by_its_key(workflow: &Workflow, join: &Operator) -> bool {
    let columns = |side: &str| match names(&join.options, "key") {
        both if both.is_empty() => names(&join.options, side),
        both => both,
    };
    let sides = [columns("left_key"), columns("right_key")];
    let behind: Vec<BTreeSet<&str>> =
        join.inputs.iter().map(|input| behind(workflow, &input.from.value)).collect();
    let comes_through = |pair: usize| {
        let mut inputs = sides.iter().zip(&behind);
        inputs.all(|(side, behind)| side.get(pair).is_some_and(|column| routes_by(workflow, behind, column)))
    };
    (0..sides[0].len()).any(comes_through)
}

/// Columns that an option names: one, or a list.
fn names<'a>(options: &'a Value, option: &str) -> Vec<&'a str> {
    let Some(value) = options.get(option) else { return Vec::new() };
    match value.as_list() {
        Some(names) => names.iter().filter_map(Value::as_str).collect(),
        None => value.as_str().into_iter().collect(),
    }
}

/// A source or an operator, and all whose records it has.
fn behind<'a>(workflow: &'a Workflow, id: &'a str) -> BTreeSet<&'a str> {
    let (mut found, mut open) = (BTreeSet::new(), vec![id]);
    while let Some(id) = open.pop() {
        if found.insert(id) {
            let operator = workflow.operators.iter().find(|operator| operator.id.value == id);
            let inputs = operator.into_iter().flat_map(|operator| &operator.inputs);
            open.extend(inputs.map(|input| input.from.value.as_str()));
        }
    }
    found
}

/// Whether all of these sources route by a column, and none of these operators computes another one of its name.
fn routes_by(workflow: &Workflow, behind: &BTreeSet<&str>, column: &str) -> bool {
    let mut sources = workflow.sources.iter().filter(|source| behind.contains(source.id.value.as_str()));
    let mut operators =
        workflow.operators.iter().filter(|operator| behind.contains(operator.id.value.as_str()));
    sources.all(|source| source.key.as_ref().is_some_and(|key| key.value == column))
        && !operators.any(|operator| computes(operator, column))
}

/// Whether an operator gives a column of that name other values. Expressions are not read here: one that only may give others,
/// such as `(site)` for `site`, is taken for one that does, and the plan is right all the same.
fn computes(operator: &Operator, column: &str) -> bool {
    let columns = operator.options.get("columns").filter(|_| operator.kind.value == "map");
    let Some(value) = columns.and_then(|columns| columns.get(column)) else { return false };
    let expression = value.as_str().or_else(|| value.get("expression")?.as_str());
    // A whole number that is declared a float is no longer the same value.
    let is_float = value.get("type").and_then(Value::as_str) == Some("float64");
    is_float || expression.is_none_or(|expression| expression.trim() != column)
}

#[cfg(test)]
mod tests {
    use crate::assemble::tests::Case;
    use crate::check::check;
    use crate::physical::physical;
    use crate::planner::{Planner, SearchLimits};
    use crate::planners::beam::Beam;
    use crate::planners::exact::Exact;

    /// One machine that could do all of it, and three that are cheaper and of which it takes two.
    const MACHINES: &str = "
version: 1
name: hall
tiers:
  - id: hall
    workers: [{type: little, count: 3, price: 0.02 $/h}, {type: big, count: 1, price: 0.5 $/h}]
";

    const FIGURES: &str = "
version: 1
workflow: {name: pairs}
machines: [{worker_type: little, how: measured}, {worker_type: big, how: measured}]
services:
  - {operator: pair, worker_type: little, how: measured, batches: [{batch: 1, p75: 12ms}]}
  - {operator: pair, worker_type: big, how: measured, batches: [{batch: 1, p75: 2ms}]}
messages:
  - {from: left, to: changed, bytes_per_record: 20B}
  - {from: changed, to: some, bytes_per_record: 20B}
  - {from: some, to: pair, bytes_per_record: 20B}
  - {from: right, to: pair, input: 1, bytes_per_record: 20B}
";

    /// A join of `left`, behind a map and a filter, with `right`.
    fn pairs(changed: &str, joined_on: &str) -> String {
        let columns = "columns: {site: text, lane: int64}";
        format!(
            "
version: 1
name: pairs
sources:
  - {{id: left, kind: csv, key: site, rate: 100/s, options: {{path: left.csv, {columns}}}}}
  - {{id: right, kind: csv, key: site, rate: 100/s, options: {{path: right.csv, {columns}}}}}
operators:
  - {{id: changed, kind: map, input: left, options: {{columns: {{{changed}}}}}}}
  - {{id: some, kind: filter, input: changed, options: {{where: lane > 1}}}}
  - {{id: pair, kind: join, inputs: [some, right], options: {{{joined_on}, within: 2s, same_names: keep_first}}}}
sinks:
  - {{id: out, kind: jsonl, input: pair, options: {{path: out.jsonl}}}}
"
        )
    }

    fn case(workflow: &str) -> Case {
        Case::new(workflow, MACHINES, FIGURES)
    }

    /// Workers of the stages that the join has in a plan, which the check accepts.
    fn stages(workflow: &str, planner: &dyn Planner) -> Vec<String> {
        let case = case(workflow);
        let assembly = case.assembled();
        let outcome = planner.plan(&assembly.problem, &SearchLimits::default()).expect("plans");
        let solution = outcome.solution.expect("there is a plan");
        let found = check(&assembly.problem, &solution);
        assert!(found.is_empty(), "{found:?}");
        let plan = physical(&case.inputs(), &assembly, &solution, Vec::new()).expect("is a plan");
        let stages = plan.stages.into_iter().filter(|stage| stage.operator == "pair");
        stages.map(|stage| stage.worker).collect()
    }

    #[test]
    fn a_join_on_a_column_that_is_computed_before_it_has_one_stage() {
        let spread = stages(&pairs("row: lane + 1", "key: site"), &Exact);
        assert_eq!(spread.len(), 2, "two little ones are the cheapest: {spread:?}");
        assert!(spread.iter().all(|worker| worker.contains("little")), "{spread:?}");
        let computed = pairs("site: site + '!'", "key: site");
        let planners: [&dyn Planner; 2] = [&Exact, &Beam::default()];
        for planner in planners {
            let met = stages(&computed, planner);
            assert!(met.len() == 1 && met[0].contains("big"), "{}: {met:?}", planner.name());
        }
    }

    #[test]
    fn joins_may_be_spread_by_the_key_of_their_sources_only() {
        let must_meet = |workflow: &str| {
            let problem = case(workflow).assembled().problem;
            problem.operators.iter().any(|operator| operator.on_one_worker)
        };
        let cases = [
            ("row: lane + 1", "key: site", false),
            ("site: site", "key: site", false),
            ("site: {expression: site, type: text}", "key: site", false),
            ("site: site + '!'", "key: site", true),
            ("site: {expression: \"'one'\", type: text}", "key: site", true),
            // Another column is not what the sources route by, however little is done to it.
            ("row: lane + 1", "key: lane", true),
            ("place: site", "left_key: place, right_key: site", true),
            ("row: lane + 1", "left_key: site, right_key: site", false),
            // One of the columns is enough: what is equal in all of them is equal in that one.
            ("lane: lane + 1", "key: [lane, site]", false),
            ("site: site + '!'", "key: [lane, site]", true),
        ];
        for (changed, joined_on, expected) in cases {
            assert_eq!(must_meet(&pairs(changed, joined_on)), expected, "{changed}; {joined_on}");
        }
        let of_right = pairs("row: lane + 1", "key: site").replace("[some, right]", "[right, some]");
        let figures = FIGURES.replace("some, to: pair,", "some, to: pair, input: 1,");
        let figures = figures.replace("right, to: pair, input: 1,", "right, to: pair,");
        let problem = Case::new(&of_right, MACHINES, &figures).assembled().problem;
        assert!(problem.operators.iter().all(|operator| !operator.on_one_worker));
        let without_key = pairs("row: lane + 1", "key: site").replacen("key: site, ", "", 1);
        assert!(must_meet(&without_key));
    }
}
