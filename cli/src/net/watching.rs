//! `tidemill net top`: the edges of running programs each second.
use super::asking::{Host, Place};
use super::edges::{carried, notes, service, some};
use super::rates::{Rate, Rated, Rates};
use crate::answer;
use crate::arguments::{OutputForm, WatchEdgesArguments};
use crate::exit::Exit;
use crate::screen::{Line, Style};
use crate::table::{Side, Table};
use crate::terminal::Terminal;
use crate::watching::{EVERY, Look, Page, lines_of, watch};
use serde_json::{Value, json};
use std::io::Write;
use tidemill_app::figures::{bytes, grouped, rate};

/// What was found by one look.
struct Seen {
    hosts: Vec<Host>,
    edges: Vec<Rated>,
}

/// Shows the edges, once or until a key or an interrupt ends it.
pub(crate) fn top(arguments: &WatchEdgesArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    let mut place = Place::of(&arguments.services)?;
    let mut rates = Rates::default();
    let first = look(&mut place, &mut rates)?;
    if arguments.once {
        std::thread::sleep(EVERY);
        return once(arguments.output, &look(&mut place, &mut rates)?, terminal);
    }
    watch((arguments.output, terminal), first, move || look(&mut place, &mut rates), document, page)
}

fn look(place: &mut Place, rates: &mut Rates) -> Look<Seen> {
    let hosts = place.look()?;
    let edges = rates.follow(&hosts);
    Ok(Seen { hosts, edges })
}

fn once(form: OutputForm, seen: &Seen, terminal: &Terminal) -> anyhow::Result<Exit> {
    let mut out = answer::out();
    if form == OutputForm::Json {
        writeln!(out, "{}", document(seen))?;
        return Ok(Exit::Success);
    }
    notes(&seen.hosts, terminal);
    table(seen).write(&mut out)?;
    Ok(Exit::Success)
}

fn page(seen: &Seen) -> Page {
    let mut head = Vec::new();
    for host in &seen.hosts {
        let name = host.worker.as_deref().unwrap_or("this machine");
        head.push(match (&host.listing, &host.problem) {
            (Some(listing), _) => Line::new(format!("{name}: {}", service(listing)), Style::Strong),
            (None, problem) => {
                Line::new(format!("{name}: {}", problem.as_deref().unwrap_or("no service")), Style::Alarm)
            }
        });
    }
    head.push(Line::default());
    if seen.edges.is_empty() {
        head.push(Line::new(
            "no running program has edges there now; calls are in `tidemill net ls`",
            Style::Weak,
        ));
        return Page { head, rows: Vec::new() };
    }
    let mut rows = lines_of(&table(seen));
    head.extend(rows.drain(..1));
    Page { head, rows }
}

fn table(seen: &Seen) -> Table {
    let mut table = Table::new(&[
        ("host", Side::Left),
        ("workflow", Side::Left),
        ("edge", Side::Left),
        ("worker", Side::Left),
        ("carried", Side::Left),
        ("records", Side::Right),
        ("MB/s", Side::Right),
        ("in all", Side::Right),
        ("bytes", Side::Right),
        ("waiting", Side::Right),
        ("policies", Side::Left),
        ("held", Side::Right),
        ("rows rejected", Side::Right),
    ]);
    for Rated { worker, edge, rate: speed } in &seen.edges {
        table.row([
            worker.clone().unwrap_or_default(),
            edge.edge.workflow.clone(),
            edge.edge.to_string(),
            edge.worker.clone(),
            carried(edge.route).to_owned(),
            speed.map_or_else(String::new, |speed| rate(speed.records)),
            speed.map_or_else(String::new, |speed| format!("{:.2}", speed.bytes / 1e6)),
            grouped(edge.records),
            bytes(edge.bytes),
            grouped(edge.waiting),
            edge.policies.join(", "),
            some(edge.held),
            grouped(edge.rejected),
        ]);
    }
    table
}

/// For programs, in one line.
fn document(seen: &Seen) -> Value {
    let services = seen.hosts.iter().map(|host| {
        let listing = host.listing.as_ref();
        json!({
            "host": host.worker,
            "process": listing.map(|listing| listing.process),
            "seconds": listing.map(|listing| listing.seconds),
            "policies": listing.map(|listing| &listing.policies),
            "problem": host.problem,
        })
    });
    let edges = seen.edges.iter().map(|rated| {
        let mut edge = json!(rated.edge);
        edge["host"] = json!(rated.worker);
        let rate = |of: fn(Rate) -> f64| rated.rate.map(of);
        edge["records_per_second"] = json!(rate(|rate| rate.records));
        edge["bytes_per_second"] = json!(rate(|rate| rate.bytes));
        edge
    });
    let (services, edges) = (services.collect::<Vec<_>>(), edges.collect::<Vec<_>>());
    json!({"version": 1, "ok": true, "services": services, "edges": edges})
}

#[cfg(test)]
mod tests {
    use super::super::rates::tests::{edge, host};
    use super::*;

    fn seen() -> Seen {
        let mut rates = Rates::default();
        rates.follow(&[host(1.0, vec![edge("detect", 0), edge("count", 4)])]);
        let hosts = vec![host(3.0, vec![edge("detect", 20), edge("count", 4)])];
        let edges = rates.follow(&hosts);
        Seen { hosts, edges }
    }

    #[test]
    fn the_screen_shows_services_edges_and_rates() {
        let Page { head, rows } = page(&seen());
        assert!(head[0].text.starts_with("this machine: tidemill "), "{head:?}");
        assert!(head[2].text.starts_with("workflow"), "the names of the columns stay: {head:?}");
        assert!(rows.iter().any(|line| line.text.contains("cameras -> detect")), "{rows:?}");
        assert!(rows.iter().any(|line| line.text.contains("10.0 /s")), "{rows:?}");
        let none = page(&Seen { edges: Vec::new(), ..seen() });
        assert!(none.head[2].text.contains("no running program") && none.rows.is_empty(), "{none:?}");
    }

    #[test]
    fn programs_get_the_edges_of_the_protocol_with_rates() {
        let document = document(&seen());
        assert_eq!(document["edges"][0]["edge"]["to"], "detect");
        assert_eq!(document["edges"][0]["records_per_second"], 10.0);
        assert_eq!(document["edges"][0]["bytes_per_second"], 10e6);
        assert_eq!(document["services"][0]["seconds"], 3.0);
    }
}
