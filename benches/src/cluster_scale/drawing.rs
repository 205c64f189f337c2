//! Draws the consumption of a controller over the number of workers.
use super::control::Spent;
use super::{FIGURES, Size};
use crate::fit::line;
use crate::panels::{Line, Panel, Panels};
use std::path::Path;

pub(super) fn write(folder: &Path, sizes: &[Size]) -> anyhow::Result<()> {
    let of = |name: &str, state: fn(&Size) -> &Spent, figure: fn(&Spent) -> f64| {
        let points: Vec<_> = sizes.iter().map(|size| (size.workers as f64, figure(state(size)))).collect();
        let (begin, slope, _) = line(&points);
        Line { name: name.to_owned(), points, fitted: Some((begin, slope)) }
    };
    let panels = FIGURES.iter().map(|(figure, unit, value)| Panel {
        title: format!("{figure}, {unit}"),
        lines: vec![
            of("nothing runs", |size| &size.idle, *value),
            of("a run on each worker", |size| &size.busy, *value),
        ],
    });
    let sources = sizes.last().map_or(0, |size| size.sources / size.workers.max(1));
    let drawing = Panels {
        title: "What a controller costs as its cluster grows".to_owned(),
        across: format!("workers, {sources} sources each"),
        panels: panels.collect(),
    };
    drawing.write(&folder.join("cluster-scale.svg"))
}
