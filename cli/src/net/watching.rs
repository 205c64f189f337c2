//! `tidemill net top`: the edges of running programs each second.
use super::asking::{Host, Place};
use super::edges::{carried, notes, service, some};
use super::rates::{Rate, Rated, Rates};
use crate::answer;
use crate::arguments::{OutputForm, WatchEdgesArguments};
use crate::exit::Exit;
use crate::interrupt::Interrupt;
use crate::screen::{Key, Line, Screen, Style};
use crate::table::{Side, Table};
use crate::terminal::Terminal;
use serde_json::{Value, json};
use std::io::Write;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::time::Duration;
use tidemill_app::failure::{Failure, Kind};
use tidemill_app::figures::{bytes, grouped, rate};

/// Time between two looks.
const EVERY: Duration = Duration::from_secs(1);
/// Time limit of the wait for a key or for news, so that an interrupt is seen soon.
const SOON: Duration = Duration::from_millis(100);

/// What was found by one look.
struct Seen {
    hosts: Vec<Host>,
    edges: Vec<Rated>,
}

type Look = Result<Seen, Failure>;

/// Shows the edges, once or until a key or an interrupt ends it.
pub(crate) fn top(arguments: &WatchEdgesArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    let mut place = Place::of(&arguments.services)?;
    let mut rates = Rates::default();
    let first = look(&mut place, &mut rates)?;
    if arguments.once {
        std::thread::sleep(EVERY);
        return once(arguments.output, &look(&mut place, &mut rates)?, terminal);
    }
    let interrupt = Interrupt::listen()?;
    interrupt.is_watched();
    if arguments.output == OutputForm::Json {
        return follow(&keep_looking(place, rates, first)?, &interrupt);
    }
    let Some(screen) = Screen::open(terminal.paints())? else {
        return Err(Failure::new(Kind::Usage, "standard input and output are not a terminal")
            .with_help("add `--once` to print once, or `--output json`")
            .into());
    };
    show(screen, &keep_looking(place, rates, first)?, &interrupt)
}

fn look(place: &mut Place, rates: &mut Rates) -> Look {
    let hosts = place.look()?;
    let edges = rates.follow(&hosts);
    Ok(Seen { hosts, edges })
}

/// Looks on a thread of its own: a service that does not answer holds up no key.
fn keep_looking(mut place: Place, mut rates: Rates, first: Seen) -> anyhow::Result<Receiver<Look>> {
    let (sender, seen) = channel();
    std::thread::Builder::new().name("look".into()).spawn(move || {
        let mut news = Ok(first);
        while sender.send(news).is_ok() {
            std::thread::sleep(EVERY);
            news = look(&mut place, &mut rates);
        }
    })?;
    Ok(seen)
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

/// Prints a line for each look.
fn follow(seen: &Receiver<Look>, interrupt: &Interrupt) -> anyhow::Result<Exit> {
    loop {
        match seen.recv_timeout(SOON) {
            Ok(news) => {
                let line = news.as_ref().map_or_else(
                    |failure| json!({"version": 1, "ok": false, "error": failure.to_string()}),
                    document,
                );
                let mut out = answer::out();
                writeln!(out, "{line}")?;
                out.flush()?;
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(Exit::Success),
        }
        if interrupt.is_wanted() {
            return Ok(Exit::Interrupted);
        }
        if !answer::is_read() {
            return Ok(Exit::Success);
        }
    }
}

fn show(mut screen: Screen, seen: &Receiver<Look>, interrupt: &Interrupt) -> anyhow::Result<Exit> {
    let mut last = None;
    let mut at: usize = 0;
    loop {
        match seen.try_recv() {
            Ok(news) => last = Some(news),
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return Ok(Exit::Success),
        }
        let (_, height) = screen.size();
        let shown = screen.show(&lines(last.as_ref(), &mut at, height));
        // A terminal that is gone is as good as Ctrl-C.
        let key = shown.and_then(|()| screen.key(SOON)).unwrap_or(Some(Key::Interrupt));
        if interrupt.is_wanted() {
            return Ok(Exit::Interrupted);
        }
        match key {
            Some(Key::Letter('q')) => return Ok(Exit::Success),
            Some(Key::Interrupt) => return Ok(Exit::Interrupted),
            Some(Key::Up) => at = at.saturating_sub(1),
            Some(Key::Down) => at += 1,
            Some(Key::PageUp) => at = at.saturating_sub(10),
            Some(Key::PageDown) => at += 10,
            _ => {}
        }
    }
}

/// The lines of the screen; `at`: the first edge that is shown.
fn lines(seen: Option<&Look>, at: &mut usize, height: usize) -> Vec<Line> {
    let mut lines = match seen {
        None => vec![Line::new("looking …", Style::Weak)],
        Some(Err(failure)) => {
            vec![Line::new(failure.to_string(), Style::Alarm), Line::new("trying again", Style::Weak)]
        }
        Some(Ok(seen)) => of_hosts(seen, at),
    };
    let room = height.saturating_sub(1);
    lines.truncate(room);
    lines.resize(room, Line::default());
    lines.push(Line::new("up down  q ends", Style::Turned));
    lines
}

fn of_hosts(seen: &Seen, at: &mut usize) -> Vec<Line> {
    let mut lines = Vec::new();
    for host in &seen.hosts {
        let name = host.worker.as_deref().unwrap_or("this machine");
        lines.push(match (&host.listing, &host.problem) {
            (Some(listing), _) => Line::new(format!("{name}: {}", service(listing)), Style::Strong),
            (None, problem) => {
                Line::new(format!("{name}: {}", problem.as_deref().unwrap_or("no service")), Style::Alarm)
            }
        });
    }
    lines.push(Line::default());
    if seen.edges.is_empty() {
        lines.push(Line::new(
            "no running program has edges there now; calls are in `tidemill net ls`",
            Style::Weak,
        ));
        return lines;
    }
    let mut text = Vec::new();
    // A vector takes everything.
    let _ = table(seen).write(&mut text);
    let text = String::from_utf8_lossy(&text).into_owned();
    let mut rows = text.lines();
    lines.extend(rows.next().map(|head| Line::new(head, Style::Strong)));
    let rows: Vec<&str> = rows.collect();
    *at = (*at).min(rows.len().saturating_sub(1));
    lines.extend(rows[*at..].iter().map(|row| Line::new(*row, Style::Plain)));
    lines
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
        let mut at = 0;
        let shown = lines(Some(&Ok(seen())), &mut at, 20);
        assert_eq!(shown.len(), 20);
        let text: Vec<&str> = shown.iter().map(|line| line.text.as_str()).collect();
        assert!(text[0].starts_with("this machine: tidemill "), "{text:?}");
        assert!(text.iter().any(|line| line.contains("cameras -> detect")), "{text:?}");
        assert!(text.join("\n").contains("10.0 /s"), "{text:?}");
        at = 99;
        lines(Some(&Ok(seen())), &mut at, 20);
        assert!(at < 20, "{at}");
        let failure = Failure::new(Kind::Unavailable, "it is gone");
        assert!(lines(Some(&Err(failure)), &mut at, 5)[0].text.contains("it is gone"));
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
