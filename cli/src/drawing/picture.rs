//! Content of a drawing: cards, wires and lanes, with their texts. A workflow and a plan give the bare picture; callers add
//! facts (rates, prices, latencies) before it is drawn.
use crate::outline::{Outline, Role};
use tidemill_spec::plan::Plan;
use tidemill_spec::types::StreamType;
use tidemill_spec::workflow::Workflow;

/// A line on a card.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Line {
    /// Some words.
    Note(String),
    /// A model; known to be the chosen one or another one, or undecided.
    Model(String, Option<bool>),
    /// A name with a value.
    Fact(&'static str, String),
}

/// A box.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Card {
    /// Stage or operator id.
    pub(crate) id: String,
    /// Its role.
    pub(crate) role: Role,
    /// Operator, source or sink kind, with the most important option.
    pub(crate) kind: String,
    /// Index of the lane it is in.
    pub(crate) lane: usize,
    /// More, from above.
    pub(crate) lines: Vec<Line>,
}

/// An arrow.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Wire {
    /// Index of the card it leaves.
    pub(crate) from: usize,
    /// Index of the card it enters.
    pub(crate) to: usize,
    /// Its label.
    pub(crate) label: String,
    /// Whether records may be lost on it.
    pub(crate) may_lose: bool,
}

/// A band of cards: a worker, later a tier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lane {
    /// Its name; empty where there is only one, without a frame.
    pub(crate) title: String,
}

/// The whole picture.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Picture {
    /// Name of the workflow.
    pub(crate) title: String,
    /// Boxes.
    pub(crate) cards: Vec<Card>,
    /// Arrows.
    pub(crate) wires: Vec<Wire>,
    /// Bands.
    pub(crate) lanes: Vec<Lane>,
}

/// Returns the output type of a stage, operator or source by its id, if known.
pub(crate) type Types<'a> = &'a dyn Fn(&str) -> Option<StreamType>;

/// Most variants listed; further ones are only counted.
const MODELS_SHOWN: usize = 6;
/// Characters of a line of columns, and lines of them.
const COLUMN_WIDTH: usize = 27;
const COLUMN_LINES: usize = 3;

/// Returns the picture of a workflow, of `outline` made from it. `types` adds the types of the streams, if known.
pub(crate) fn of_workflow(workflow: &Workflow, outline: &Outline, types: Types<'_>) -> Picture {
    let cards = outline.nodes.iter().map(|node| {
        let mut card =
            Card { id: node.id.clone(), role: node.role, kind: String::new(), lane: 0, lines: Vec::new() };
        if let Some(source) = workflow.sources.iter().find(|source| source.id == *node.id) {
            card.kind.clone_from(&source.kind.value);
            card.lines.extend(source.rate.as_ref().map(|rate| Line::Fact("rate", rate.value.to_string())));
        }
        if let Some(operator) = workflow.operators.iter().find(|operator| operator.id == *node.id) {
            card.kind.clone_from(&operator.kind.value);
            card.kind.extend(operator.named_backend().map(|backend| format!(" on {backend}")));
            let models = operator.variants.iter().map(|path| crate::outline::stem(&path.value));
            card.lines.extend(models.clone().take(MODELS_SHOWN).map(|name| Line::Model(name.into(), None)));
            if models.len() > MODELS_SHOWN {
                card.lines.push(Line::Note(format!("and {} more", models.len() - MODELS_SHOWN)));
            }
            if let Some(batching) = &operator.batching {
                card.lines.push(batch_fact(batching.max_batch.value, &batching.budget.to_string()));
            }
        }
        if let Some(sink) = workflow.sinks.iter().find(|sink| sink.id == *node.id) {
            card.kind.clone_from(&sink.kind.value);
        }
        card.lines.extend(types(&node.id).as_ref().map(columns).unwrap_or_default());
        card
    });
    let cards: Vec<Card> = cards.collect();
    let wires = wires(outline, &cards);
    Picture { title: outline.name.clone(), cards, wires, lanes: vec![Lane { title: String::new() }] }
}

/// Returns the picture of a plan, of `outline` made from it: a lane per worker, if there are several.
pub(crate) fn of_plan(workflow: &Workflow, plan: &Plan, outline: &Outline, types: Types<'_>) -> Picture {
    let mut lanes: Vec<Lane> = Vec::new();
    let cards = plan.stages.iter().zip(&outline.nodes).map(|(stage, node)| {
        let worker = plan.workers.iter().find(|worker| worker.id == stage.worker);
        let title = match worker {
            Some(worker) if worker.tier != worker.id => {
                let site = worker.location.as_ref().map(|site| format!("/{site}")).unwrap_or_default();
                let price = worker.price.map(|price| format!(" · {price}")).unwrap_or_default();
                format!("{} · {} · {}{site}{price}", worker.id, worker.worker_type, worker.tier)
            }
            _ => stage.worker.clone(),
        };
        let lane = lanes.iter().position(|lane| lane.title == title).unwrap_or(lanes.len());
        if lane == lanes.len() {
            lanes.push(Lane { title });
        }
        let source = workflow.sources.iter().find(|source| source.id == *stage.operator);
        let operator = workflow.operators.iter().find(|operator| operator.id == *stage.operator);
        let sink = workflow.sinks.iter().find(|sink| sink.id == *stage.operator);
        let kind = source.map(|s| &s.kind).or(operator.map(|o| &o.kind)).or(sink.map(|s| &s.kind));
        let mut kind = kind.map(|kind| kind.value.clone()).unwrap_or_default();
        if stage.id != stage.operator {
            kind = format!("{kind} of {}", stage.operator);
        }
        let mut lines = Vec::new();
        lines.extend(
            source.and_then(|s| s.rate.as_ref()).map(|rate| Line::Fact("rate", rate.value.to_string())),
        );
        lines.extend(stage.variant.clone().map(|variant| Line::Model(variant, Some(true))));
        lines.extend(stage.backend.clone().map(|backend| Line::Fact("backend", backend)));
        if stage.share < 1.0 {
            lines.push(Line::Fact("share", format!("{:.0} %", stage.share * 100.0)));
        }
        if stage.partitions > 1 {
            lines.push(Line::Fact("partitions", stage.partitions.to_string()));
        }
        if stage.max_batch > 1 {
            lines.push(batch_fact(stage.max_batch, &stage.batching_budget.to_string()));
        }
        if stage.slot_group != "main" {
            lines.push(Line::Fact("slot", stage.slot_group.clone()));
        }
        lines.extend(
            types(&stage.id).or_else(|| types(&stage.operator)).as_ref().map(columns).unwrap_or_default(),
        );
        Card { id: stage.id.clone(), role: node.role, kind, lane, lines }
    });
    let cards: Vec<Card> = cards.collect();
    if let [only] = &mut lanes[..] {
        only.title.clear();
    }
    let wires = wires(outline, &cards);
    Picture { title: outline.name.clone(), cards, wires, lanes }
}

fn wires(outline: &Outline, cards: &[Card]) -> Vec<Wire> {
    let place = |id: &str| cards.iter().position(|card| card.id == id);
    let wires = outline.arrows.iter().filter_map(|arrow| {
        let may_lose = arrow.text.contains("latest") || arrow.text.contains("drop oldest");
        Some(Wire { from: place(&arrow.from)?, to: place(&arrow.to)?, label: arrow.text.clone(), may_lose })
    });
    wires.collect()
}

fn batch_fact(most: u32, budget: &str) -> Line {
    Line::Fact("batch", format!("≤ {most} in {budget}"))
}

/// The output columns of a card, on a few lines.
fn columns(stream: &StreamType) -> Vec<Line> {
    let mut lines: Vec<String> = Vec::new();
    for (index, column) in stream.columns.iter().enumerate() {
        let last = index + 1 == stream.columns.len();
        let name = format!("{}{}", column.name, if last { "" } else { ", " });
        let count = lines.len();
        match lines.last_mut() {
            Some(line) if line.chars().count() + name.chars().count() <= COLUMN_WIDTH => line.push_str(&name),
            Some(_) if count == COLUMN_LINES => {
                lines.push(format!("and {} more", stream.columns.len() - index));
                break;
            }
            Some(_) => lines.push(name),
            None => lines.push(format!("→ {name}")),
        }
    }
    lines.into_iter().map(|line| Line::Note(line.trim_end().to_owned())).collect()
}
