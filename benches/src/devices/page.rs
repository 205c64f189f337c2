//! Findings of a part, and the page of all parts.
use crate::result::Measurement;
use anyhow::Context;
use std::fmt::Display;
use std::path::Path;

/// Measurements of a part, and its section of the page.
#[derive(Default)]
pub(super) struct Found {
    pub(super) measurements: Vec<Measurement>,
    pub(super) section: String,
}

/// A table of the page.
pub(super) struct Table(String);

impl Table {
    pub(super) fn new<T: Display>(columns: impl IntoIterator<Item = T>) -> Self {
        let mut table = Self(String::new());
        let columns: Vec<String> = columns.into_iter().map(|column| column.to_string()).collect();
        table.row(&columns);
        // The first column has words, the others figures.
        table.row(std::iter::once("---").chain(std::iter::repeat_n("--:", columns.len() - 1)));
        table
    }

    pub(super) fn row<T: Display>(&mut self, cells: impl IntoIterator<Item = T>) {
        self.0.push('|');
        for cell in cells {
            self.0 += &format!(" {cell} |");
        }
        self.0.push('\n');
    }

    pub(super) fn text(&self) -> &str {
        &self.0
    }
}

/// Seconds in the unit that reads best.
pub(super) fn time(seconds: f64) -> String {
    match seconds {
        seconds if seconds.abs() < 1e-3 => format!("{:.1} us", seconds * 1e6),
        seconds if seconds.abs() < 1.0 => format!("{:.2} ms", seconds * 1e3),
        seconds => format!("{seconds:.2} s"),
    }
}

pub(super) fn percent(part: f64) -> String {
    format!("{:+.1} %", part * 100.0)
}

/// Median of some values.
pub(super) fn median(values: &[f64]) -> f64 {
    Measurement::new("", "", values.to_vec()).median()
}

/// Writes `devices.md`.
pub(super) fn write(folder: &Path, sections: &[String]) -> anyhow::Result<()> {
    let build = if cfg!(debug_assertions) { "a development build" } else { "a release build" };
    let mut text = INTRODUCTION.replace("BUILD", build);
    for section in sections {
        text += "\n";
        text += section;
    }
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let path = folder.join("devices.md");
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}

const INTRODUCTION: &str = "# Models on other machines' devices

Written by `make bench BENCH=devices`, here with BUILD; the machine, 99th percentiles and goals are in `devices.json`. How devices work:
[decision 0082](../decisions/0082-devices.md).

The device is emulated: a queue of launches whose runs take a given time. Its proxy is a thread of the bench, with the sockets and the protocol of a
process. Links are a relay on the loopback that delays bytes and lets them pass at a rate, which counts what TCP carries. *Published* is
[arXiv 2401.13354](https://arxiv.org/abs/2401.13354) (CC BY 4.0), which measured kernel calls of four applications over RDMA.
";
