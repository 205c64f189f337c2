//! `tidemill net hints`: the state of links, and what groups are planned from.
use super::collective::{PATIENCE, ask, json, unexpected};
use crate::answer;
use crate::arguments::{GroupServiceChoice, HintsArguments, OutputForm};
use crate::exit::Exit;
use crate::screen::{Line, Style};
use crate::table::{Side, Table};
use crate::terminal::Terminal;
use crate::watching::{Page, lines_of, watch};
use std::io::Write;
use tidemill_app::failure::Failure;
use tidemill_app::figures::{bandwidth, milliseconds};
use tidemill_app::listener::Listener;
use tidemill_collective::hints::{GroupView, HostView, LinkView, View, Way};
use tidemill_collective::protocol::{Answer, Question};

/// Shows hints, once or until a key or an interrupt ends it.
pub(crate) fn hints(arguments: &HintsArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    let HintsArguments { group, flows, watch: watches, service } = arguments;
    let first = look(service, group.clone(), *flows)?;
    if *watches {
        let (service, group, flows) = (service.clone(), group.clone(), *flows);
        let document = |view: &View| serde_json::json!({"version": 1, "ok": true, "hints": view});
        let again = {
            let service = service.clone();
            move || look(&service, group.clone(), flows)
        };
        return watch((service.output, terminal), first, again, document, move |view| page(view, flows));
    }
    if service.output == OutputForm::Json {
        json("hints", &first)?;
        return Ok(Exit::Success);
    }
    if first.links.is_empty() {
        terminal.note(
            "no link is known yet: services count where they have `--listen` or `--groups-at`, and report within a second",
        );
    }
    let mut out = answer::out();
    let mut is_first = true;
    for table in [links(&first, *flows), hosts(&first)] {
        if !std::mem::take(&mut is_first) {
            writeln!(out)?;
        }
        table.write(&mut out)?;
    }
    for line in words(&first) {
        writeln!(out, "{line}")?;
    }
    Ok(Exit::Success)
}

fn look(service: &GroupServiceChoice, group: Option<String>, flows: u32) -> Result<View, Failure> {
    match ask(service, Question::Hints { group, flows }, PATIENCE)? {
        Answer::Hints(view) => Ok(*view),
        _ => Err(unexpected()),
    }
}

fn page(view: &View, flows: u32) -> Page {
    let mut head = vec![Line::new("the state of links", Style::Strong)];
    head.extend(
        words(view).into_iter().filter(|line| !line.is_empty()).map(|line| Line::new(line, Style::Plain)),
    );
    head.push(Line::default());
    let mut rows = lines_of(&links(view, flows));
    rows.push(Line::default());
    rows.extend(lines_of(&hosts(view)));
    Page { head, rows }
}

/// Formats a rate in bytes per second as bits per second.
fn rate(bytes: f64) -> String {
    bandwidth(bytes * 8.0)
}

fn rack_name(name: &str) -> String {
    if name.is_empty() { "without a name".to_owned() } else { name.to_owned() }
}

fn links(view: &View, flows: u32) -> Table {
    let estimate = if flows == 1 { "one more flow".to_owned() } else { format!("{flows} more flows") };
    let mut columns: Vec<(String, Side)> = [
        ("rack", Side::Left),
        ("host", Side::Left),
        ("way", Side::Left),
        ("total", Side::Right),
        ("from", Side::Left),
        ("free", Side::Right),
        ("flows", Side::Right),
    ]
    .map(|(name, side)| (name.to_owned(), side))
    .into();
    columns.push((estimate, Side::Right));
    columns.push(("age".to_owned(), Side::Right));
    let mut table = Table::of(columns);
    for LinkView { rack, host, way, load, total_from, estimate } in &view.links {
        let age = view.racks.iter().find(|of| of.name == *rack).and_then(|of| of.age_ms);
        table.row([
            rack_name(rack),
            host.clone().unwrap_or_else(|| "(to other racks)".to_owned()),
            match way {
                Way::Up => "up",
                Way::Down => "down",
            }
            .to_owned(),
            rate(load.total),
            total_from.to_string(),
            rate(load.residual),
            format!("{:.1}", load.sharers),
            rate(*estimate),
            age.map_or_else(String::new, |age| format!("{age} ms")),
        ]);
    }
    table
}

fn hosts(view: &View) -> Table {
    let mut table = Table::new(&[
        ("rack", Side::Left),
        ("host", Side::Left),
        ("leads", Side::Left),
        ("reports", Side::Left),
        ("counts", Side::Left),
    ]);
    for HostView { name, rack, counted, reports } in &view.hosts {
        let leads = view.racks.iter().any(|of| of.name == *rack && of.leader.as_ref() == Some(name));
        table.row([
            rack_name(rack),
            name.clone(),
            if leads { "yes" } else { "" }.to_owned(),
            if *reports { "yes" } else { "no" }.to_owned(),
            counted.as_ref().map_or_else(
                || {
                    "nothing: its service has neither `--listen` nor `--groups-at`, or another version"
                        .to_owned()
                },
                ToString::to_string,
            ),
        ]);
    }
    table
}

fn between(ms: Option<u64>) -> String {
    match ms {
        Some(ms) => format!("each {}", milliseconds(ms as f64)),
        None => "at a rate that is not known yet".to_owned(),
    }
}

/// How often links change, and what groups are planned from.
fn words(view: &View) -> Vec<String> {
    let mut lines = Vec::new();
    if !view.links.is_empty() {
        lines.push(String::new());
        lines.push(format!("these links change {}", between(view.between_changes_ms)));
    }
    for GroupView { name, policy, decision, note, replans, between_changes_ms, .. } in &view.groups {
        lines.push(String::new());
        lines.push(format!(
            "group {name}, strategy {policy}: its links change {}",
            between(*between_changes_ms)
        ));
        lines.push(format!("  {decision}"));
        if policy == tidemill_collective::hints::POLICY {
            let times = if *replans == 1 { "once".to_owned() } else { format!("{replans} times") };
            let note = if note.is_empty() { "it has not been looked at yet" } else { note };
            lines.push(format!("  the strategy was changed {times} by hints; {note}"));
        } else {
            lines.push(format!(
                "  its strategy does not use hints; `tidemill net collective strategy {name} hints` changes that"
            ));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_collective::hints::{Counted, Load, Origin, RackView};

    fn view() -> View {
        let load = Load { total: 125e6, residual: 25e6, sharers: 3.0 };
        let link = |host: Option<&str>, way| LinkView {
            rack: "east".into(),
            host: host.map(str::to_owned),
            way,
            load,
            total_from: Origin::Learned,
            estimate: 31.25e6,
        };
        let host =
            |name: &str, counted| HostView { name: name.into(), rack: "east".into(), counted, reports: true };
        View {
            racks: vec![RackView { name: "east".into(), leader: Some("a".into()), age_ms: Some(120) }],
            hosts: vec![
                host("a", Some(Counted::Sockets { interface: Some("eth0".into()) })),
                host("b", None),
            ],
            links: vec![link(None, Way::Up), link(Some("a"), Way::Down)],
            between_changes_ms: Some(2_500),
            groups: vec![GroupView {
                name: "training".into(),
                user: 0,
                policy: "hints".into(),
                decision: "defaults: nothing is heard of the leader of rack \"west\"".into(),
                note: "made anew without hints".into(),
                replans: 1,
                between_changes_ms: None,
                hosts: vec!["a".into()],
            }],
        }
    }

    #[test]
    fn tables_have_links_hosts_and_reasons() {
        let Page { head, rows } = page(&view(), 4);
        let text = |lines: &[Line]| lines.iter().map(|line| line.text.clone()).collect::<Vec<_>>().join("\n");
        let (head, rows) = (text(&head), text(&rows));
        assert!(
            rows.contains("4 more flows") && rows.contains("1.00 Gbps") && rows.contains("250 Mbps"),
            "{rows}"
        );
        assert!(
            rows.contains("learned") && rows.contains("(to other racks)") && rows.contains("120 ms"),
            "{rows}"
        );
        assert!(rows.contains("TCP sockets, interface eth0") && rows.contains("another version"), "{rows}");
        assert!(head.contains("each 2.50 s") || head.contains("each 2500 ms"), "{head}");
        assert!(head.contains("changed once by hints; made anew without hints"), "{head}");
        assert!(head.contains("nothing is heard of the leader"), "{head}");
    }

    #[test]
    fn rates_have_three_digits() {
        let rates = [156.25e6, 6e6, 125e6, 12.5e6, 187.5, 5.0, 0.0].map(rate);
        assert_eq!(
            rates,
            ["1.25 Gbps", "48.0 Mbps", "1.00 Gbps", "100 Mbps", "1.50 kbps", "40 bps", "0 bps"]
        );
    }
}
