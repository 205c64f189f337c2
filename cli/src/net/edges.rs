//! `tidemill net ls`: the edges of running programs.
use super::asking::{Host, Place};
use crate::answer;
use crate::arguments::{ListEdgesArguments, OutputForm};
use crate::exit::Exit;
use crate::table::{Side, Table};
use crate::terminal::Terminal;
use serde::Serialize;
use serde_json::{Value, json};
use std::io::Write;
use tidemill_app::figures::{bytes, grouped, seconds};
use tidemill_app::listener::Listener;
use tidemill_net::protocol::{EdgeView, Listing, Route};

/// Lists the edges.
pub(crate) fn edges(arguments: &ListEdgesArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    let mut place = Place::of(&arguments.services)?;
    if arguments.output == OutputForm::Json {
        match &mut place {
            Place::Here(here) => json("listing", &here.list()?)?,
            Place::Workers(workers) => json("workers", &workers.views()?)?,
        }
        return Ok(Exit::Success);
    }
    let hosts = place.look()?;
    notes(&hosts, terminal);
    let mut table = Table::new(&[
        ("host", Side::Left),
        ("workflow", Side::Left),
        ("edge", Side::Left),
        ("worker", Side::Left),
        ("carried", Side::Left),
        ("records", Side::Right),
        ("bytes", Side::Right),
        ("waiting", Side::Right),
        ("policies", Side::Left),
        ("held", Side::Right),
        ("rows rejected", Side::Right),
    ]);
    let mut is_empty = true;
    for host in &hosts {
        for edge in host.listing.iter().flat_map(|listing| &listing.edges) {
            is_empty = false;
            table.row(row(host, edge));
        }
    }
    let services = services(&hosts);
    if is_empty && services.is_none() {
        terminal.note("no running program has edges or calls there now");
        return Ok(Exit::Success);
    }
    let mut out = answer::out();
    if !is_empty {
        table.write(&mut out)?;
    }
    if let Some(services) = services {
        if !is_empty {
            writeln!(out)?;
        }
        services.write(&mut out)?;
    }
    Ok(Exit::Success)
}

/// The programs that serve or call services; none: there are none.
fn services(hosts: &[Host]) -> Option<Table> {
    let mut table = Table::new(&[
        ("host", Side::Left),
        ("service", Side::Left),
        ("program", Side::Left),
        ("does", Side::Left),
        ("calls", Side::Right),
        ("failed", Side::Right),
        ("under way", Side::Right),
        ("policies", Side::Left),
    ]);
    let mut is_empty = true;
    for host in hosts {
        for view in host.listing.iter().flat_map(|listing| &listing.services) {
            is_empty = false;
            let row = |service: &str,
                       does: String,
                       calls: Option<u64>,
                       failed: Option<u64>,
                       policies: &[String]| {
                let figure = |figure: Option<u64>| figure.map_or_else(String::new, grouped);
                [
                    host.worker.clone().unwrap_or_default(),
                    service.to_owned(),
                    view.program.clone(),
                    does,
                    figure(calls),
                    figure(failed),
                    grouped(view.waiting),
                    policies.join(", "),
                ]
            };
            if view.serves {
                table.row(row(&view.service, "serves".to_owned(), Some(view.calls), None, &[]));
                continue;
            }
            let does = match view.at.is_empty() {
                true => "calls".to_owned(),
                false => format!("calls {}", view.at.join(", ")),
            };
            let called: Vec<_> = view.methods.iter().filter(|method| method.calls > 0).collect();
            if called.is_empty() {
                table.row(row(&view.service, does.clone(), Some(0), Some(0), &[]));
            }
            for method in called {
                table.row(row(
                    &method.method,
                    does.clone(),
                    Some(method.calls),
                    Some(method.failed),
                    &method.policies,
                ));
            }
        }
    }
    (!is_empty).then_some(table)
}

fn row(host: &Host, edge: &EdgeView) -> [String; 11] {
    [
        host.worker.clone().unwrap_or_default(),
        edge.edge.workflow.clone(),
        edge.edge.to_string(),
        edge.worker.clone(),
        carried(edge.route).to_owned(),
        grouped(edge.records),
        bytes(edge.bytes),
        grouped(edge.waiting),
        edge.policies.join(", "),
        some(edge.held),
        grouped(edge.rejected),
    ]
}

/// A count; nothing if it is 0.
pub(super) fn some(count: u64) -> String {
    if count == 0 { String::new() } else { grouped(count) }
}

/// The way of an edge, in words.
pub(super) fn carried(route: Route) -> &'static str {
    match route {
        Route::Inner => "within a thread",
        Route::Direct => "direct",
        Route::Service => "through the service",
        Route::Waits => "waits for an end",
    }
}

/// `tidemill 0.1.0, process 123, for 3 min 5 s`.
pub(super) fn service(listing: &Listing) -> String {
    format!("tidemill {}, process {}, for {}", listing.version, listing.process, seconds(listing.seconds))
}

/// Says what a table has no place for.
pub(super) fn notes(hosts: &[Host], terminal: &Terminal) {
    for host in hosts {
        let name =
            host.worker.as_ref().map_or_else(|| "this machine".to_owned(), |name| format!("worker {name}"));
        if let Some(problem) = &host.problem {
            terminal.warning(&format!("{name}: {problem}"));
        }
        if host.left_out > 0 {
            terminal
                .note(&format!("{name} has {} more edges, which its agent does not report", host.left_out));
        }
    }
}

/// Prints an answer for programs.
pub(super) fn json(key: &str, value: &impl Serialize) -> anyhow::Result<()> {
    write_json(&json!({"version": 1, "ok": true, key: value}))
}

fn write_json(document: &Value) -> anyhow::Result<()> {
    let mut out = answer::out();
    serde_json::to_writer_pretty(&mut out, document)?;
    Ok(writeln!(out)?)
}
