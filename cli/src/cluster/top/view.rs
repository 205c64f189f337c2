//! The lines of the screen.
use super::looking::Seen;
use crate::arguments::SortColumn;
use crate::screen::{Key, Line, Style};
use clap::ValueEnum;
use tidemill_app::delivery::ON_PURPOSE;
use tidemill_app::figures::{bytes, grouped, milliseconds, rate, seconds, traffic};
use tidemill_app::run_figures::{LevelFigures, RunFigures, SourceState, StageFigures, Times};
use tidemill_cluster::api::RunView;
use tidemill_engine::FeedState;

/// Stages that are shown where there is little room.
const MOST_STAGES: usize = 8;
/// Characters of a line at least.
pub(super) const NARROW: usize = 80;

/// Settings of the view, which keys change.
pub(super) struct Look {
    sort: SortColumn,
    is_turned: bool,
    shows_median: bool,
    /// There is a list of runs to go back to.
    pub(super) has_runs: bool,
    /// Index of the first shown or of the selected stage or run.
    at: usize,
}

impl Look {
    pub(super) fn new(sort: SortColumn) -> Self {
        Self { sort, is_turned: false, shows_median: true, has_runs: false, at: 0 }
    }

    pub(super) fn press(&mut self, key: Key) {
        match key {
            Key::Letter('s') => self.step(1),
            Key::Letter('S') => self.step(SortColumn::value_variants().len() - 1),
            Key::Letter('r') => self.is_turned = !self.is_turned,
            Key::Letter('p') => self.shows_median = !self.shows_median,
            Key::Up => self.at = self.at.saturating_sub(1),
            Key::Down => self.at += 1,
            Key::PageUp => self.at = self.at.saturating_sub(10),
            Key::PageDown => self.at += 10,
            _ => {}
        }
    }

    fn step(&mut self, by: usize) {
        let all = SortColumn::value_variants();
        let now = all.iter().position(|column| *column == self.sort).unwrap_or(0);
        self.sort = all[(now + by) % all.len()];
    }

    /// The run that is chosen in the list of runs.
    pub(super) fn selected(&mut self, seen: Option<&Seen>) -> Option<String> {
        let Some(Seen::Runs(runs)) = seen else { return None };
        let run = runs.get(self.at).map(|run| run.name.clone());
        self.at = 0;
        run
    }

    fn times<'a>(&self, times: &'a Times) -> &'a f64 {
        if self.shows_median { &times.p50_ms } else { &times.p99_ms }
    }
}

/// Returns all lines; a screen has room for `height`.
pub(super) fn lines(seen: Option<&Seen>, look: &mut Look, width: usize, height: usize) -> Vec<Line> {
    let is_screen = height < usize::MAX;
    let mut lines = match seen {
        None => vec![Line::new("looking …", Style::Weak)],
        Some(Seen::Trouble(failure)) => {
            vec![Line::new(failure.to_string(), Style::Alarm), Line::new("trying again", Style::Weak)]
        }
        Some(Seen::Runs(runs)) => of_runs(runs, look, width, is_screen),
        Some(Seen::Run(figures)) => of_run(figures, look, width, height),
    };
    if is_screen {
        let room = height.saturating_sub(1);
        lines.truncate(room);
        lines.resize(room, Line::default());
        let order = if look.is_turned { ", turned" } else { "" };
        let sort = look.sort.to_possible_value().map(|name| name.get_name().to_owned()).unwrap_or_default();
        let times = if look.shows_median { "p99" } else { "median" };
        let keys = match seen {
            Some(Seen::Runs(_)) => "up down choose  Enter opens  q ends".to_owned(),
            _ => {
                let runs = if look.has_runs { "  Esc runs" } else { "" };
                format!("s S sort ({sort}{order})  r reverse  p {times}  up down{runs}  q ends")
            }
        };
        lines.push(Line::new(keys, Style::Turned));
    }
    lines
}

/// The text in a column.
fn left(text: &str, width: usize) -> String {
    match text.chars().count() > width {
        true => text.chars().take(width.saturating_sub(1)).chain(['…']).collect(),
        false => format!("{text:<width$}"),
    }
}

fn right(text: &str, width: usize) -> String {
    format!("{text:>width$}")
}

fn of_runs(runs: &[RunView], look: &mut Look, width: usize, is_screen: bool) -> Vec<Line> {
    if runs.is_empty() {
        return vec![Line::new("no runs yet: `tidemill submit WORKFLOW` starts one", Style::Plain)];
    }
    look.at = look.at.min(runs.len() - 1);
    let name = 19 + width.saturating_sub(NARROW);
    let row = |[run, state, emitted, arrived, speed, letters]: [&str; 6]| {
        [
            left(run, name),
            left(state, 9),
            right(emitted, 12),
            right(arrived, 11),
            right(speed, 10),
            right(letters, 12),
        ]
        .join(" ")
    };
    let head = ["run", "state", "from sources", "at sinks", "rate", "dead letters"];
    let mut lines = vec![Line::new(row(head), Style::Strong)];
    for (at, run) in runs.iter().enumerate() {
        let speed = if run.seconds > 0.0 { rate(run.arrived as f64 / run.seconds) } else { String::new() };
        let (emitted, arrived) = (grouped(run.emitted), grouped(run.arrived));
        let letters = grouped(run.dead_letters);
        let text = row([&run.name, &run.state.to_string(), &emitted, &arrived, &speed, &letters]);
        let style = if is_screen && at == look.at { Style::Turned } else { Style::Plain };
        lines.push(Line::new(text, style));
    }
    lines
}

fn of_run(figures: &RunFigures, look: &mut Look, width: usize, height: usize) -> Vec<Line> {
    let mut lines = head(figures);
    lines.extend(figures.losses.iter().map(|loss| Line::new(loss.clone(), Style::Alarm)));
    lines.extend(figures.levels.iter().map(level));
    lines.push(Line::default());
    let mut after = Vec::new();
    sources(figures, &mut after);
    feeds(figures, &mut after);
    devices(figures, look, width, &mut after);
    sinks(figures, look, &mut after);
    links(figures, look, width, &mut after);
    // Lower parts leave the screen first.
    let room = height.saturating_sub(lines.len() + after.len() + 2).max(MOST_STAGES);
    stages(figures, look, width, room, &mut lines);
    lines.extend(after);
    lines
}

/// Cameras and other feeds: how many are live, and each that is not.
fn feeds(figures: &RunFigures, lines: &mut Vec<Line>) {
    for (source, feeds) in &figures.feeds {
        let live = feeds.iter().filter(|feed| feed.state == FeedState::Live).count();
        let drops: u64 = feeds.iter().flat_map(|feed| feed.drops.values()).sum();
        let dropped =
            if drops > 0 { format!(", {} dropped before the run", grouped(drops)) } else { String::new() };
        lines.push(Line::new(
            format!("{source}: {live} of {} feeds live{dropped}", feeds.len()),
            Style::Plain,
        ));
        for feed in feeds.iter().filter(|feed| feed.state != FeedState::Live) {
            let detail = if feed.detail.is_empty() { String::new() } else { format!(": {}", feed.detail) };
            let text = format!("  {} {} for {}{detail}", feed.feed, feed.state.name(), seconds(feed.seconds));
            let style = if feed.state == FeedState::Paused { Style::Weak } else { Style::Alarm };
            lines.push(Line::new(text, style));
        }
    }
}

fn head(figures: &RunFigures) -> Vec<Line> {
    let name = if figures.run.is_empty() { &figures.workflow } else { &figures.run };
    let mut title = format!("{name} ({}) is {}", figures.workflow, figures.state);
    if figures.seconds > 0.0 {
        title.push_str(&format!(", {}", seconds(figures.seconds)));
    }
    let mut lines = vec![Line::new(title, Style::Strong)];
    let given: f64 = figures.sources.iter().map(|source| source.per_second).sum();
    let arrives: f64 = figures.sinks.iter().map(|sink| sink.per_second).sum();
    let now = |per_second: f64| match figures.state.is_over() {
        true => String::new(),
        false => format!(" ({})", rate(per_second)),
    };
    lines.push(Line::new(
        format!(
            "sources {}{}  sinks {}{}  dead letters {}  restarts {}",
            grouped(figures.emitted),
            now(given),
            grouped(figures.arrived),
            now(arrives),
            grouped(figures.dead_letters),
            grouped(figures.restarts)
        ),
        Style::Plain,
    ));
    if figures.cost.now.is_some() || figures.cost.predicted.is_some() {
        let money = |cost: Option<f64>| cost.map_or_else(|| "-".to_owned(), |cost| format!("{cost:.4} $/h"));
        let text =
            format!("cost {} now, {} predicted", money(figures.cost.now), money(figures.cost.predicted));
        lines.push(Line::new(text, Style::Plain));
    }
    if let Some(stage) = figures.stages.iter().find(|stage| Some(&stage.stage) == figures.limit.as_ref()) {
        let place = stage.cluster_worker.as_ref().unwrap_or(&stage.worker);
        let text = format!("{} on {place} limits: busy {}", stage.stage, share(stage.busy));
        lines.push(Line::new(text, Style::Plain));
    }
    lines
}

fn share(busy: Option<f64>) -> String {
    busy.map_or_else(String::new, |busy| format!("{:.0} %", busy * 100.0))
}

fn level(level: &LevelFigures) -> Line {
    let value = |value: f64| match level.level.as_str() {
        "rate" => rate(value),
        "accuracy" => format!("{value:.1} %"),
        _ => milliseconds(value),
    };
    let name = level.percentile.map_or_else(|| level.level.clone(), |p| format!("{} p{p}", level.level));
    let bound = if level.level == "latency" { "below" } else { "at least" };
    let (word, style) = match level.is_missed {
        Some(true) => ("MISSED", Style::Alarm),
        Some(false) => ("met", Style::Plain),
        None => ("no evidence yet", Style::Weak),
    };
    let measured = level.measured.map_or_else(|| "-".to_owned(), value);
    let missed = match level.windows_missed {
        0 => String::new(),
        missed => format!(", missed in {} of {} windows", grouped(missed), grouped(level.windows)),
    };
    Line::new(format!("{name} {word}: {measured}, {bound} {}{missed}", value(level.wanted)), style)
}

/// Milliseconds in seven characters.
fn time(value: f64) -> String {
    match value {
        v if v <= 0.0 => String::new(),
        v if v >= 10_000.0 => format!("{:.0}s", v / 1e3),
        v if v >= 100.0 => format!("{v:.0}ms"),
        v if v >= 10.0 => format!("{v:.1}ms"),
        v => format!("{v:.2}ms"),
    }
}

/// Records per second in six characters.
fn speed(value: f64) -> String {
    match value {
        v if v >= 100_000.0 => format!("{:.0}k", v / 1e3),
        v if v >= 10_000.0 => format!("{:.1}k", v / 1e3),
        v if v >= 100.0 => format!("{v:.0}"),
        v => format!("{v:.1}"),
    }
}

/// A count in six characters.
fn few(value: u64) -> String {
    match value {
        0 => String::new(),
        v if v >= 10_000_000 => format!("{}M", v / 1_000_000),
        v if v >= 100_000 => format!("{}k", v / 1000),
        v => v.to_string(),
    }
}

/// Records that were lost; what an operator takes out on purpose is not.
fn lost(stage: &StageFigures) -> u64 {
    let drops = stage.drops.iter().filter(|(reason, _)| !ON_PURPOSE.contains(&reason.as_str()));
    drops.map(|(_, count)| count).chain(stage.dead_letters.values()).sum()
}

fn sorted<'a>(figures: &'a RunFigures, look: &Look) -> Vec<&'a StageFigures> {
    let mut stages: Vec<&StageFigures> = figures.stages.iter().collect();
    let number = |stage: &StageFigures| match look.sort {
        SortColumn::Plan | SortColumn::Stage => 0.0,
        SortColumn::In => stage.in_per_second,
        SortColumn::Out => stage.out_per_second,
        SortColumn::Queue => *look.times(&stage.queue),
        SortColumn::Compute => *look.times(&stage.compute),
        SortColumn::Transfer => *look.times(&stage.transfer),
        SortColumn::Busy => stage.busy.unwrap_or(-1.0),
        SortColumn::Waiting => stage.waiting as f64,
        SortColumn::Lost => lost(stage) as f64,
    };
    match look.sort {
        SortColumn::Stage => stages.sort_by(|a, b| a.stage.cmp(&b.stage)),
        _ => stages.sort_by(|a, b| number(b).total_cmp(&number(a))),
    }
    if look.is_turned {
        stages.reverse();
    }
    stages
}

fn stages(figures: &RunFigures, look: &mut Look, width: usize, room: usize, lines: &mut Vec<Line>) {
    let more = width.saturating_sub(NARROW);
    let (name, place) = (13 + more / 2, 8 + more - more / 2);
    let row = |first: &str, on: &str, cells: [&str; 8]| {
        let widths = [6, 6, 7, 7, 7, 5, 6, 5];
        let cells: Vec<String> = cells.iter().zip(widths).map(|(cell, width)| right(cell, width)).collect();
        format!("{} {} {}", left(first, name), left(on, place), cells.join(" "))
    };
    let head = ["in/s", "out/s", "queue", "compute", "transf.", "busy", "waits", "lost"];
    lines.push(Line::new(row("stage", "on", head), Style::Strong));
    let stages = sorted(figures, look);
    look.at = look.at.min(stages.len().saturating_sub(room));
    for stage in stages.iter().skip(look.at).take(room) {
        let limits = figures.limit.as_deref() == Some(&stage.stage);
        let on = stage.cluster_worker.as_ref().unwrap_or(&stage.worker);
        let cells = [
            speed(stage.in_per_second),
            speed(stage.out_per_second),
            time(*look.times(&stage.queue)),
            time(*look.times(&stage.compute)),
            time(*look.times(&stage.transfer)),
            stage.busy.map_or_else(String::new, |busy| format!("{:.0}%", busy * 100.0)),
            few(stage.waiting),
            few(lost(stage)),
        ];
        let text = row(&stage.stage, on, cells.each_ref().map(String::as_str));
        lines.push(Line::new(text, if limits { Style::Strong } else { Style::Plain }));
    }
    let hidden = stages.len().saturating_sub(room);
    if hidden > 0 {
        lines.push(Line::new(format!("{hidden} more stages: up and down move"), Style::Weak));
    }
}

fn sources(figures: &RunFigures, lines: &mut Vec<Line>) {
    if figures.sources.is_empty() {
        return;
    }
    lines.push(Line::default());
    let row = |[name, state, wanted, measured, behind]: [&str; 5]| {
        [left(name, 22), left(state, 9), right(wanted, 11), right(measured, 11), right(behind, 11)].join(" ")
    };
    lines.push(Line::new(row(["source", "state", "wanted", "measured", "behind"]), Style::Strong));
    for source in &figures.sources {
        let wanted = source.wanted_per_second.map_or_else(|| "all".to_owned(), rate);
        let behind =
            if source.behind_seconds >= 0.1 { seconds(source.behind_seconds) } else { String::new() };
        let state = source.state.to_string();
        let text = row([&source.stage, &state, &wanted, &rate(source.per_second), &behind]);
        let style = match source.state {
            SourceState::Silent | SourceState::Behind => Style::Alarm,
            _ => Style::Plain,
        };
        lines.push(Line::new(text, style));
    }
}

/// Where the time of batches goes that devices compute.
fn devices(figures: &RunFigures, look: &Look, width: usize, lines: &mut Vec<Line>) {
    let on_devices =
        figures.stages.iter().filter_map(|stage| Some((&stage.stage, stage.on_device.as_ref()?)));
    let on_devices: Vec<_> = on_devices.collect();
    if on_devices.is_empty() {
        return;
    }
    lines.push(Line::default());
    let name = 18 + width.saturating_sub(NARROW);
    let row = |first: &str, cells: [&str; 8]| {
        let widths = [7, 7, 7, 7, 5, 8, 8, 4];
        let cells: Vec<String> = cells.iter().zip(widths).map(|(cell, width)| right(cell, width)).collect();
        format!("{} {}", left(first, name), cells.join(" "))
    };
    let head = ["client", "network", "queue", "compute", "trips", "sent/s", "back/s", "lost"];
    lines.push(Line::new(row("on a device", head), Style::Strong));
    for (stage, on) in on_devices {
        let cells = [
            time(*look.times(&on.client)),
            time(*look.times(&on.network)),
            time(*look.times(&on.queue)),
            time(*look.times(&on.compute)),
            on.round_trips_per_batch.map_or_else(String::new, |trips| format!("{trips:.1}")),
            bytes(on.sent_bytes_per_second as u64),
            bytes(on.received_bytes_per_second as u64),
            few(on.sessions_lost),
        ];
        let text = row(&format!("{stage} {}", on.device), cells.each_ref().map(String::as_str));
        lines.push(Line::new(text, Style::Plain));
    }
}

fn sinks(figures: &RunFigures, look: &Look, lines: &mut Vec<Line>) {
    if figures.sinks.is_empty() {
        return;
    }
    lines.push(Line::default());
    let row = |[name, records, speed, latency, right_share, promise]: [&str; 6]| {
        let cells =
            [left(name, 18), right(records, 10), right(speed, 10), right(latency, 9), right(right_share, 7)];
        format!("{}  {}", cells.join(" "), left(promise, 18))
    };
    let name = if look.shows_median { "p50" } else { "p99" };
    lines.push(Line::new(row(["sink", "records", "rate", name, "right", "each row"]), Style::Strong));
    for sink in &figures.sinks {
        let accuracy = sink.accuracy_percent.map_or_else(String::new, |percent| format!("{percent:.1} %"));
        let latency = time(*look.times(&sink.latency));
        let records = grouped(sink.records);
        let text = row([&sink.sink, &records, &rate(sink.per_second), &latency, &accuracy, &sink.promise]);
        lines.push(Line::new(text, Style::Plain));
    }
}

fn links(figures: &RunFigures, look: &Look, width: usize, lines: &mut Vec<Line>) {
    let between: Vec<_> = figures.links.iter().filter(|link| link.from_worker != link.to_worker).collect();
    if between.is_empty() {
        return;
    }
    lines.push(Line::default());
    let name = 36 + width.saturating_sub(NARROW);
    let row = |[link, speed, traffic, transfer, waits]: [&str; 5]| {
        [left(link, name), right(speed, 10), right(traffic, 12), right(transfer, 9), right(waits, 6)]
            .join(" ")
    };
    lines.push(Line::new(row(["link", "rate", "traffic", "transfer", "waits"]), Style::Strong));
    for link in between {
        let text = format!("{} -> {}", link.from, link.to);
        let transfer = time(*look.times(&link.transfer));
        let text = row([
            &text,
            &rate(link.per_second),
            &traffic(link.bytes_per_second),
            &transfer,
            &few(link.waiting),
        ]);
        lines.push(Line::new(text, Style::Plain));
    }
}

#[cfg(test)]
pub(super) mod tests;
