//! Where the rows of an operator with several stages or partitions go, and whether the result equals that of one
//! stage.
//!
//! One rule, which planners and simulator share ([`tidemill_spec::routing`]): a row goes to the stage of its route
//! class. A source assigns the class by its key; an operator that groups assigns the class of the group. So rows of a
//! group meet wherever they come from, if each sender has an edge to each stage that may have the group; where the
//! rows come by that column already, the edges within the classes are enough.
use crate::failure::RunError;
use crate::graph::{Program, plan_error};
use crate::routing::ByGroup;
use std::collections::BTreeSet;
use tidemill_operators::api::{BoundSource, GroupColumn, Spread};
use tidemill_operators::record::METADATA_COLUMNS;
use tidemill_spec::plan::{PlanEdge, Stage};
use tidemill_spec::routing::ClassTable;

impl Program {
    /// Returns the classes of the plan by their shares.
    pub(crate) fn class_table(&self) -> ClassTable {
        let shares: Vec<f64> = self.plan.classes.iter().map(|class| class.share).collect();
        ClassTable::new(&shares)
    }

    /// Returns the column by which a stage groups, if it does.
    pub(crate) fn group_of(&self, stage: &Stage) -> Option<&GroupColumn> {
        match &self.operators.get(&stage.id)?.spread {
            Spread::Group(group) => Some(group),
            _ => None,
        }
    }

    /// Returns how the rows of a stage get their class, if it groups and classes decide anything.
    pub(crate) fn by_group(&self, stage: &Stage) -> Option<ByGroup> {
        let index = self.output_of(stage)?.index_of(&self.group_of(stage)?.output)?;
        let is_asked = self.plan.classes.len() > 1 || self.copies().values().any(|copies| *copies > 1);
        is_asked.then(|| ByGroup { index: METADATA_COLUMNS + index, table: self.class_table() })
    }

    /// Checks that every operator with several stages or partitions has the result of one.
    ///
    /// # Errors
    /// [`RunError::Plan`] with the operator, the reason, and a fix.
    pub fn check_spread(&self) -> Result<(), RunError> {
        let copies = self.copies();
        for stage in &self.plan.stages {
            let Some(bound) = self.operators.get(&stage.id) else { continue };
            if copies[stage.operator.as_str()] < 2 {
                continue;
            }
            match &bound.spread {
                Spread::Any | Spread::Computes(_) | Spread::Group(_) => {}
                Spread::One => {
                    return Err(plan_error(format!(
                        "operator '{}' has several stages or partitions, but all its records must meet in one; \
                         give it one stage, or group it (`group_by`)",
                        stage.operator
                    )));
                }
                Spread::RouteKey(keys) => self.check_route_key(&stage.operator, keys)?,
            }
        }
        Ok(())
    }

    /// Checks that each row of a stage has an edge to the stage that it belongs to.
    ///
    /// # Errors
    /// [`RunError::Plan`] with the missing edge, and a fix.
    pub fn check_edges(&self) -> Result<(), RunError> {
        // A stand-in has the output of its stage; edges to it repeat those to the stage.
        let stage = |id: &str| {
            let stages = &mut self.plan.stages.iter();
            stages.find(|stage| stage.id == id && stage.stands_in_for.is_none())
        };
        let between = |edge: &PlanEdge| {
            let from = self.plan.stages.iter().find(|stage| stage.id == edge.from)?;
            stage(&edge.to).map(|to| (&from.operator, &to.operator)).filter(|(from, to)| from != to)
        };
        let connections: BTreeSet<_> =
            self.plan.edges.iter().filter_map(|edge| Some((between(edge)?, edge.input))).collect();
        let edges: BTreeSet<(&str, &str, u32)> =
            self.plan.edges.iter().map(|edge| (edge.from.as_str(), edge.to.as_str(), edge.input)).collect();
        for ((from, to), input) in connections {
            let receivers = || self.plan.stages.iter().filter(move |stage| stage.operator == *to);
            let group = receivers().find_map(|stage| self.group_of(stage)).map(|group| &group.input);
            let is_regrouped = group.is_some_and(|group| self.routed_by(from) != Some(group.as_str()));
            let senders = self.plan.stages.iter().filter(|stage| stage.operator == *from);
            for sender in senders.filter(|stage| stage.stands_in_for.is_none()) {
                let own = self.classes_of(sender);
                let reached = self.plan.classes.iter().zip(&own).filter(|(_, own)| is_regrouped || **own);
                let routes = reached.filter_map(|(class, _)| class.route.get(to));
                let sends = self.stand_in_for(&sender.id).unwrap_or(sender).id.as_str();
                let missing = routes.into_iter().find(|to| !edges.contains(&(sends, to, input)));
                let Some(missing) = missing else { continue };
                let group = group.filter(|_| is_regrouped);
                return Err(plan_error(match group {
                    Some(group) => format!(
                        "rows of '{sends}' can belong to '{missing}', and no edge leads there: operator '{to}' groups by \
                         '{group}', so its rows change stages; add the edge, give '{to}' one stage, or give the sources \
                         `key: {group}`"
                    ),
                    None => format!(
                        "rows of '{sends}' belong to '{missing}', and no edge leads there; add the edge"
                    ),
                }));
            }
        }
        Ok(())
    }

    /// Returns the column of a source or operator whose value decides the class of each row; none: it is not known.
    fn routed_by(&self, operator: &str) -> Option<&str> {
        self.routed_within(operator, self.plan.stages.len())
    }

    /// As `routed_by`, of an operator with fewer than `most` operators upstream: edges that form a cycle are refused
    /// later.
    fn routed_within(&self, operator: &str, most: usize) -> Option<&str> {
        let before = most.checked_sub(1)?;
        if let Some(source) = self.sources.get(operator) {
            return source.key.as_deref();
        }
        let stage = self.plan.stages.iter().find(|stage| stage.operator == operator)?;
        let bound = self.operators.get(&stage.id)?;
        let inputs = || (0..).map(|input| self.senders(operator, input)).take_while(|all| !all.is_empty());
        let senders = inputs().flatten().map(|from| self.routed_within(from, before));
        let column = bound.spread.routed_by(senders)?;
        bound.output.column(column).is_some().then_some(column)
    }

    /// Sources and operators that send to an input of an operator.
    fn senders(&self, operator: &str, input: usize) -> BTreeSet<&str> {
        let operator_of = |id: &str| {
            let stage = self.plan.stages.iter().find(|stage| stage.id == id);
            stage.filter(|stage| stage.stands_in_for.is_none()).map_or("", |stage| stage.operator.as_str())
        };
        let edges = self.plan.edges.iter();
        let into = edges.filter(|edge| edge.input as usize == input && operator_of(&edge.to) == operator);
        into.map(|edge| operator_of(&edge.from))
            .filter(|from| *from != operator && !from.is_empty())
            .collect()
    }

    /// Checks the keys of a join: rows reach a stage by their class, so partners meet only if the join's columns
    /// decide the class.
    fn check_route_key(&self, operator: &str, keys: &[Vec<String>]) -> Result<(), RunError> {
        let inputs = keys.first().map_or(0, Vec::len);
        let senders: Vec<BTreeSet<&str>> = (0..inputs).map(|input| self.senders(operator, input)).collect();
        let is_routed = |entry: &Vec<String>| {
            let mut sides = entry.iter().zip(&senders);
            sides.all(|(column, from)| from.iter().all(|from| self.routed_by(from) == Some(column)))
        };
        if keys.iter().any(is_routed) {
            return Ok(());
        }
        let before: Vec<BTreeSet<&str>> = senders.iter().map(|from| self.before(from)).collect();
        let sources = |before: &BTreeSet<&str>| -> Vec<&BoundSource> {
            before.iter().filter_map(|id| self.sources.get(*id)).collect()
        };
        // Where the sources have the key, an operator on the path loses it.
        let losing = |entry: &Vec<String>| {
            let mut sides = entry.iter().zip(&before);
            let has_key = |(column, before): (&String, &BTreeSet<&str>)| {
                sources(before).iter().all(|source| source.key.as_ref() == Some(column))
            };
            if !sides.clone().all(has_key) {
                return None;
            }
            sides.find_map(|(column, before)| {
                let is_routed = |id: &str| self.routed_by(id) == Some(column);
                let loses = |id: &&&str| {
                    let mut all =
                        (0..).map(|input| self.senders(id, input)).take_while(|all| !all.is_empty());
                    !is_routed(id) && all.all(|from| from.into_iter().all(is_routed))
                };
                Some((*before.iter().find(loses)?, column.clone()))
            })
        };
        if let Some((losing, column)) = keys.iter().find_map(losing) {
            return Err(plan_error(format!(
                "operator '{operator}' has several stages or partitions, but '{losing}' computes the column \
                 '{column}' that it joins on, while records are routed by what their sources say there, so partners \
                 would miss each other; give '{operator}' one stage, or let the sources send that column as it is \
                 joined on"
            )));
        }
        let wanted = keys.first().into_iter().flatten().zip(&before).flat_map(|(column, before)| {
            sources(before).into_iter().map(move |source| format!("source '{}' `key: {column}`", source.id))
        });
        let wanted: BTreeSet<String> = wanted.collect();
        Err(plan_error(format!(
            "operator '{operator}' has several stages or partitions, but its inputs are not routed by the columns \
             that it joins on, so partners would miss each other; give {} in the workflow, or give '{operator}' one \
             stage",
            wanted.into_iter().collect::<Vec<_>>().join(" and ")
        )))
    }

    /// Returns these sources and operators, and all upstream of them.
    fn before<'a>(&'a self, from: &BTreeSet<&'a str>) -> BTreeSet<&'a str> {
        let (mut found, mut open) = (BTreeSet::new(), from.iter().copied().collect::<Vec<&str>>());
        while let Some(operator) = open.pop() {
            if found.insert(operator) {
                let all = (0..).map(|input| self.senders(operator, input)).take_while(|all| !all.is_empty());
                open.extend(all.flatten());
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use tidemill_operators::api::{BoundOperator, Computation, OperatorError};
    use tidemill_spec::kinds::Columns;
    use tidemill_spec::plan::{Plan, PlanWorkflow, RouteClass};
    use tidemill_spec::types::{Column, ColumnType, StreamType};

    fn source(id: &str) -> BoundSource {
        BoundSource {
            id: id.into(),
            kind: "test".into(),
            output: StreamType::new([Column::new("site", ColumnType::Text)]),
            key: Some("site".into()),
            rate_per_second: None,
            out_of_order_microseconds: 0,
            live: false,
            waits_for_all: false,
            rereads: false,
            has_event_times: false,
            at_one_time: 1,
            stream: None,
            journalled: None,
            input: None,
            journal: None,
            feeds: None,
            requests: None,
            make: Arc::new(|| Err(OperatorError::new("nothing is read here"))),
        }
    }

    fn operator(id: &str, spread: Spread) -> BoundOperator {
        BoundOperator {
            id: id.into(),
            kind: "test".into(),
            output: StreamType::new([Column::new("site", ColumnType::Text)]),
            computation: Computation::Stateless,
            spread,
            model: None,
            make: Arc::new(|| Err(OperatorError::new("nothing is computed here"))),
        }
    }

    /// A join of `a`, after a map and a filter, with `b`, in `partitions` partitions.
    fn program(computed: &[&str], partitions: u32) -> Program {
        let mut plan = Plan::new(PlanWorkflow { name: "test".into(), digest: None });
        plan.stages = ["a", "b", "m", "f", "j"].map(|id| Stage::new(id, id, "here")).into();
        plan.stages[4].partitions = partitions;
        plan.edges = [("a", "m", 0), ("m", "f", 0), ("f", "j", 0), ("b", "j", 1)]
            .map(|(from, to, input)| PlanEdge::new(from, to, input))
            .into();
        let computed = computed.iter().map(|name| (*name).to_owned()).collect();
        let computes = Spread::Computes(Columns { computed, sent: None });
        let joins = Spread::RouteKey(vec![vec!["site".into(), "site".into()]]);
        let operators = [operator("m", computes), operator("f", Spread::Any), operator("j", joins)];
        Program {
            plan,
            sources: ["a", "b"].map(|id| (id.to_owned(), source(id))).into(),
            operators: operators.map(|operator| (operator.id.clone(), operator)).into(),
            sinks: BTreeMap::new(),
            on_panic: BTreeMap::new(),
            when_cut: BTreeMap::new(),
        }
    }

    /// A source upstream of `f` in two stages and of `w`, which groups, in two stages too; edges within the classes,
    /// and these.
    fn grouped(key: Option<&str>, across: &[(&str, &str)]) -> Program {
        let mut plan = Plan::new(PlanWorkflow { name: "test".into(), digest: None });
        let stages = [("a", "a"), ("f0", "f"), ("f1", "f"), ("w0", "w"), ("w1", "w"), ("z", "z")];
        plan.stages = stages.map(|(id, operator)| Stage::new(id, operator, "here")).into();
        let edges = [("a", "f0"), ("a", "f1"), ("f0", "w0"), ("f1", "w1"), ("w0", "z"), ("w1", "z")];
        let edges = edges.iter().chain(across);
        plan.edges = edges.map(|(from, to)| PlanEdge::new(*from, *to, 0)).collect();
        plan.classes = (0..2u16)
            .map(|id| {
                let route = [
                    ("a", "a".to_owned()),
                    ("f", format!("f{id}")),
                    ("w", format!("w{id}")),
                    ("z", "z".into()),
                ];
                RouteClass { id, share: 0.5, route: route.map(|(of, to)| (of.to_owned(), to)).into() }
            })
            .collect();
        let stages = [
            ("f0", Spread::Any),
            ("f1", Spread::Any),
            ("w0", Spread::by_group(["site"])),
            ("w1", Spread::by_group(["site"])),
        ];
        Program {
            plan,
            sources: [("a".to_owned(), BoundSource { key: key.map(Into::into), ..source("a") })].into(),
            operators: stages.map(|(id, spread)| (id.to_owned(), operator(id, spread))).into(),
            sinks: BTreeMap::new(),
            on_panic: BTreeMap::new(),
            when_cut: BTreeMap::new(),
        }
    }

    #[test]
    fn a_row_whose_group_has_no_edge_to_its_stage_is_refused() {
        grouped(Some("site"), &[]).check_edges().expect("groups stay within their classes");
        let across = [("f0", "w1"), ("f1", "w0")];
        grouped(None, &across).check_edges().expect("every row has its edge");
        for (key, across) in [(None, &[][..]), (Some("lane"), &across[..1]), (None, &across[1..])] {
            let error = grouped(key, across).check_edges().expect_err("rows would be lost").to_string();
            assert!(error.contains("'w' groups by 'site'") && error.contains("`key: site`"), "{error}");
        }
        let mut within = grouped(Some("site"), &[]);
        within.plan.edges.retain(|edge| edge.to != "w1");
        let error = within.check_edges().expect_err("class 1 has no edge").to_string();
        assert!(error.contains("'f1' belong to 'w1'"), "{error}");
    }

    #[test]
    fn rows_come_by_the_key_of_their_source_until_something_changes_it() {
        let grouped = grouped(Some("lane"), &[]);
        assert_eq!(grouped.routed_by("a"), Some("lane"));
        // The test's operators emit only `site`, so `lane` is gone.
        assert_eq!(grouped.routed_by("f"), None);
        assert_eq!(
            grouped.routed_by("w"),
            Some("site"),
            "an operator that groups gives rows the class of their group"
        );
        let program = program(&["site"], 1);
        let found = ["a", "m", "f", "j", "b"].map(|id| program.routed_by(id));
        assert_eq!(found, [Some("site"), None, None, None, Some("site")]);
    }

    #[test]
    fn a_join_on_a_column_that_was_computed_on_the_way_has_one_stage() {
        program(&["celsius"], 2).check_spread().expect("records are routed by what is joined on");
        program(&["site"], 1).check_spread().expect("all records meet");
        let error = program(&["celsius", "site"], 2).check_spread().expect_err("computed").to_string();
        assert!(
            error.contains("'m' computes the column 'site'") && error.contains("'j' one stage"),
            "{error}"
        );
    }
}
