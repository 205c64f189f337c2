//! A builder of plans.
use std::collections::BTreeMap;
use std::time::Duration;
use tidemill_engine::{OnPanic, Program};
use tidemill_operators::api::*;
use tidemill_spec::plan::*;
use tidemill_spec::units::{Bytes, TimeSpan};

/// Builds programs stage by stage.
pub(crate) struct Builder {
    pub(crate) program: Program,
    /// Each slot that is added from now on has a worker of its own, of the same name.
    pub(crate) is_apart: bool,
    pub(crate) byte_budget: u64,
}

impl Builder {
    pub(crate) fn new(class_shares: &[f64]) -> Self {
        let classes = class_shares.iter().enumerate().map(|(id, share)| RouteClass {
            id: id as u16,
            share: *share,
            route: BTreeMap::new(),
        });
        let plan = Plan {
            tick: TimeSpan(Duration::from_millis(10).as_nanos() as u64),
            checkpoint_every: 5,
            classes: classes.collect(),
            ..Plan::new(PlanWorkflow { name: "test".into(), digest: None })
        };
        let program = Program {
            plan,
            sources: BTreeMap::new(),
            operators: BTreeMap::new(),
            sinks: BTreeMap::new(),
            on_panic: BTreeMap::new(),
            when_cut: BTreeMap::new(),
        };
        Self { program, is_apart: false, byte_budget: 64 << 20 }
    }

    /// Adds stage `id` of `operator` in a slot; it serves these classes (all if empty).
    fn stage(&mut self, id: &str, operator: &str, slot: &str, classes: &[usize]) {
        let all: Vec<usize> = (0..self.program.plan.classes.len()).collect();
        let classes = if classes.is_empty() { &all } else { classes };
        let mut share = 0.0;
        for class in classes {
            let class = &mut self.program.plan.classes[*class];
            class.route.insert(operator.into(), id.into());
            share += class.share;
        }
        self.program.plan.stages.push(Stage {
            slot_group: slot.into(),
            share,
            max_batch: 16,
            byte_budget: Bytes(self.byte_budget),
            ..Stage::new(id, operator, if self.is_apart { slot } else { "w" })
        });
    }

    pub(crate) fn source(&mut self, bound: BoundSource, slot: &str) -> &mut Self {
        self.stage(&bound.id.clone(), &bound.id.clone(), slot, &[]);
        self.program.sources.insert(bound.id.clone(), bound);
        self
    }

    /// Makes another stage of an added source take the records of one class.
    pub(crate) fn second_stage(&mut self, operator: &str, stage: &str, slot: &str, class: usize) {
        self.stage(stage, operator, slot, &[class]);
    }

    pub(crate) fn operator(
        &mut self,
        stage: &str,
        bound: BoundOperator,
        slot: &str,
        classes: &[usize],
    ) -> &mut Self {
        self.stage(stage, &bound.id.clone(), slot, classes);
        self.program.operators.insert(stage.into(), bound);
        self
    }

    pub(crate) fn sink(&mut self, bound: BoundSink, slot: &str) -> &mut Self {
        self.stage(&bound.id.clone(), &bound.id.clone(), slot, &[]);
        self.program.sinks.insert(bound.id.clone(), bound);
        self
    }

    pub(crate) fn edge(&mut self, from: &str, to: &str, input: u32) -> &mut Self {
        self.edge_with(from, to, input, None)
    }

    pub(crate) fn edge_with(
        &mut self,
        from: &str,
        to: &str,
        input: u32,
        freshness: Option<Freshness>,
    ) -> &mut Self {
        let edge = PlanEdge { freshness, ..PlanEdge::new(from, to, input) };
        self.program.plan.edges.push(edge);
        self
    }

    pub(crate) fn restart_on_panic(&mut self, operator: &str) -> &mut Self {
        self.program.on_panic.insert(operator.into(), OnPanic::Restart);
        self
    }
}
