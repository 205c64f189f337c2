//! State of a run: rows of this process, and of all processes together.
use crate::table::{Side, Table, paragraph};
use std::io::{self, Write};
use tidemill_app::figures::{grouped, seconds};
use tidemill_app::tally::{Left, Tally};

/// Writes the account of a run with a state; `takes_back`: whether a sink undoes rows beyond the checkpoint.
///
/// # Errors
/// Errors of `out`.
pub(super) fn write(left: &Left, takes_back: impl Fn(&str) -> bool, out: &mut dyn Write) -> io::Result<()> {
    let (part, all) = (&left.this_process, &left.all_processes);
    writeln!(out)?;
    let mut table =
        Table::new(&[("kept", Side::Left), ("this process", Side::Right), ("all processes", Side::Right)]);
    for (name, figure) in figures(part, all) {
        table.row([name, figure(part), figure(all)]);
    }
    table.write(out)?;
    for (source, records) in &left.read_again {
        let text = format!(
            "{source}: {} more were read after the checkpoint; the next process reads them again",
            grouped(*records)
        );
        paragraph(out, &text)?;
    }
    for (sink, rows) in &left.written_again {
        let text = format!(
            "{sink}: {} more were written after the checkpoint; the next process writes them again{}",
            grouped(*rows),
            if takes_back(sink) { ", and removes these first" } else { "" }
        );
        paragraph(out, &text)?;
    }
    match &left.stopped_at {
        Some(limits) if left.complete => {
            let text =
                format!("stopped at {limits}: the same command with a larger limit, or with none, continues");
            paragraph(out, &text)
        }
        _ if left.complete => Ok(()),
        _ => paragraph(out, &format!("continues from {}", left.described)),
    }
}

type Figure<'a> = Box<dyn Fn(&Tally) -> String + 'a>;

fn figures<'a>(part: &'a Tally, all: &'a Tally) -> Vec<(String, Figure<'a>)> {
    let of = |ids: &'a std::collections::BTreeMap<String, u64>| ids.keys();
    let mut figures: Vec<(String, Figure<'a>)> =
        vec![("processes".to_owned(), Box::new(|of| grouped(of.processes)))];
    figures.push(("time".to_owned(), Box::new(|of| seconds(of.seconds))));
    for id in of(&all.records_in) {
        let figure = move |of: &Tally| grouped(of.records_in.get(id).copied().unwrap_or(0));
        figures.push((format!("read by {id}"), Box::new(figure)));
    }
    for id in of(&all.records_out) {
        let figure = move |of: &Tally| grouped(of.records_out.get(id).copied().unwrap_or(0));
        figures.push((format!("rows in {id}"), Box::new(figure)));
    }
    if all.dead_letters > 0 {
        figures.push(("dead letters".to_owned(), Box::new(|of| grouped(of.dead_letters))));
    }
    if all.restarts > 0 || part.restarts > 0 {
        figures.push(("restarts".to_owned(), Box::new(|of| grouped(of.restarts))));
    }
    figures
}
