//! Records that must meet in one stage: by the rule that the engine checks before a run begins, which refuses any other plan (`E0417`).
use super::streams::topological;
use std::collections::{BTreeMap, BTreeSet};
use tidemill_spec::kinds::{KindTable, Spread};
use tidemill_spec::workflow::Workflow;

/// The operators of which all records must meet in one stage: one compares all of them, adds up without groups, or the column that it
/// groups or joins by says nothing about the stage that records come to.
///
/// Groups that come in another division than their own would have to change stages, and what that sends between workers is the product
/// of two shares, which no linear program prices. So they meet on one worker; with the group's column as `key` of the sources they
/// spread.
pub(super) fn all_must_meet<'a>(workflow: &'a Workflow, kinds: &KindTable) -> BTreeSet<&'a str> {
    // The column of which the value decides the route class of each record, by the source or operator that sends it.
    let sources = workflow.sources.iter();
    let mut routed: BTreeMap<&str, Option<String>> = sources
        .map(|source| (source.id.as_str(), source.key.as_ref().map(|key| key.value.clone())))
        .collect();
    let mut meeting = BTreeSet::new();
    for operator in topological(workflow) {
        let spread = kinds.spread(operator);
        let senders = operator.inputs.iter().map(|input| routed.get(input.from.as_str())?.as_deref());
        let senders: Vec<Option<&str>> = senders.collect();
        let comes_by = |input: usize, column: &String| senders.get(input) == Some(&Some(column.as_str()));
        let is_meeting = match &spread {
            Spread::Any | Spread::Computes(_) => false,
            Spread::One => true,
            Spread::Group(group) => !comes_by(0, &group.input),
            Spread::RouteKey(keys) => {
                !keys.iter().any(|key| key.iter().enumerate().all(|(input, column)| comes_by(input, column)))
            }
        };
        if is_meeting {
            meeting.insert(operator.id.as_str());
        }
        let column = spread.routed_by(senders.iter().copied()).map(str::to_owned);
        routed.insert(operator.id.as_str(), column);
    }
    meeting
}

#[cfg(test)]
mod tests {
    use crate::assemble::tests::Case;
    use crate::check::check;
    use crate::physical::physical;
    use crate::planner::{Planner, SearchLimits};
    use crate::planners::beam::Beam;
    use crate::planners::exact::Exact;

    /// One machine that can run everything, and three cheaper ones, two of which suffice.
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

    /// A join of `left`, after a map and a filter, with `right`.
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
        case_of(workflow, FIGURES)
    }

    fn case_of(workflow: &str, figures: &str) -> Case {
        Case::new(workflow, MACHINES, figures)
    }

    /// Workers of the join's stages in a plan that passes the check.
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
            // Sources do not route by another column, even if that equals theirs.
            ("row: lane + 1", "key: lane", true),
            ("place: site", "left_key: place, right_key: site", true),
            ("row: lane + 1", "left_key: site, right_key: site", false),
            // One of the columns is enough: records that agree in all columns agree in that one.
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

    /// A window or a tracker of `readings`, after a map.
    fn groups(key: &str, changed: &str, kind: &str, options: &str) -> bool {
        let needed = match kind {
            "window" => "size: 10s, aggregates: [{function: count, as: n}], ",
            "distinct" => "of: lane, size: 10s, ",
            _ => "",
        };
        let workflow = format!(
            "
version: 1
name: pairs
sources:
  - {{id: left, kind: csv, {key}rate: 100/s, options: {{path: left.csv, columns: {{site: text, lane: int64}}}}}}
operators:
  - {{id: changed, kind: map, input: left, options: {{{changed}}}}}
  - {{id: pair, kind: {kind}, input: changed, options: {{{needed}{options}}}}}
  - {{id: last, kind: window, input: pair, options: {{size: 10s, group_by: [site], aggregates: [{{function: count, as: n}}]}}}}
sinks:
  - {{id: out, kind: jsonl, input: last, options: {{path: out.jsonl}}}}
"
        );
        let figures = FIGURES
            .replace("  - {from: some, to: pair, bytes_per_record: 20B}\n", "")
            .replace("  - {from: right, to: pair, input: 1,", "  - {from: pair, to: last,")
            .replace("from: changed, to: some,", "from: changed, to: pair,");
        let problem = case_of(&workflow, &figures).assembled().problem;
        problem.operators.iter().find(|operator| operator.id == "pair").expect("is there").on_one_worker
    }

    #[test]
    fn groups_may_be_spread_where_records_come_by_what_they_group_by() {
        let cases = [
            ("key: site, ", "columns: {row: lane + 1}", "window", "group_by: [site]", false),
            ("", "columns: {row: lane + 1}", "window", "group_by: [site]", true),
            ("key: lane, ", "columns: {row: lane + 1}", "window", "group_by: [site]", true),
            ("key: site, ", "columns: {site: site + '!'}", "window", "group_by: [site]", true),
            ("key: site, ", "columns: {row: lane + 1}, keep: [lane]", "window", "group_by: [lane]", true),
            // A stage holds the groups of the first column.
            ("key: lane, ", "columns: {row: lane + 1}", "window", "group_by: [site, lane]", true),
            ("key: site, ", "columns: {row: lane + 1}", "window", "group_by: [site, lane]", false),
            ("key: site, ", "columns: {row: lane + 1}", "window", "group_by: []", true),
            ("key: site, ", "columns: {row: lane + 1}", "distinct", "group_by: [site]", false),
            ("", "columns: {row: lane + 1}", "distinct", "group_by: [site]", true),
            ("key: site, ", "columns: {row: lane + 1}", "track", "camera: site", false),
            ("key: site, ", "columns: {row: lane + 1}", "track", "gives: tracks", true),
            ("key: site, ", "columns: {row: lane + 1}", "associate", "group_by: [site]", true),
        ];
        for (key, changed, kind, options, expected) in cases {
            assert_eq!(groups(key, changed, kind, options), expected, "{key}; {changed}; {kind} {options}");
        }
    }

    /// After an operator that groups by another column, the key of the sources no longer decides the route.
    #[test]
    fn results_come_by_their_group() {
        let workflow = |group: &str| {
            pairs("row: lane + 1", "key: site").replace(
                "id: some, kind: filter, input: changed, options: {where: lane > 1}",
                &format!(
                    "id: some, kind: window, input: changed, options: {{size: 1s, group_by: [{group}], aggregates: [{{function: count, as: n}}]}}"
                ),
            )
        };
        let must_meet = |group: &str| {
            let problem = case(&workflow(group)).assembled().problem;
            problem.operators.iter().find(|operator| operator.id == "pair").expect("is there").on_one_worker
        };
        assert!(!must_meet("site"));
        assert!(must_meet("lane"), "the site of a group of lanes is that of any of its records");
        assert!(must_meet(""));
    }
}
