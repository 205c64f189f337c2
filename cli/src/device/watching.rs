//! `tidemill device top`: devices and their sessions each second.
use super::sessions::{document, headline, sessions, show, tenants};
use crate::answer;
use crate::arguments::{DeviceChoice, OutputForm, WatchDevicesArguments};
use crate::exit::Exit;
use crate::interrupt::Interrupt;
use crate::screen::{Key, Line, Screen, Style};
use crate::table::Table;
use crate::terminal::Terminal;
use serde_json::json;
use std::collections::HashMap;
use std::io::Write;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::time::Duration;
use tidemill_app::failure::{Failure, Kind};
use tidemill_device::daemon::views::Listing;

/// Time between two looks.
const EVERY: Duration = Duration::from_secs(1);
/// Time limit of the wait for a key or for news, so that an interrupt is seen soon.
const SOON: Duration = Duration::from_millis(100);

type Look = Result<Vec<Listing>, Failure>;

/// Shows devices, once or until a key or an interrupt ends it.
pub(super) fn top(arguments: &WatchDevicesArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    let first = super::look(&arguments.choice)?;
    if arguments.once {
        return show(&first, arguments.output, terminal);
    }
    let interrupt = Interrupt::listen()?;
    interrupt.is_watched();
    if arguments.output == OutputForm::Json {
        return follow(&keep_looking(arguments.choice.clone(), first)?, &interrupt);
    }
    let Some(screen) = Screen::open(terminal.paints())? else {
        return Err(Failure::new(Kind::Usage, "standard input and output are not a terminal")
            .with_help("add `--once` to print once, or `--output json`")
            .into());
    };
    watch(screen, &keep_looking(arguments.choice.clone(), first)?, &interrupt)
}

/// Looks on a thread of its own: a daemon that does not answer holds up no key.
fn keep_looking(choice: DeviceChoice, first: Vec<Listing>) -> anyhow::Result<Receiver<Look>> {
    let (sender, seen) = channel();
    std::thread::Builder::new().name("look".into()).spawn(move || {
        let mut news = Ok(first);
        while sender.send(news).is_ok() {
            std::thread::sleep(EVERY);
            news = super::look(&choice);
        }
    })?;
    Ok(seen)
}

/// Prints a line for each look.
fn follow(seen: &Receiver<Look>, interrupt: &Interrupt) -> anyhow::Result<Exit> {
    loop {
        match seen.recv_timeout(SOON) {
            Ok(news) => {
                let line = news.as_ref().map_or_else(
                    |failure| json!({"version": 1, "ok": false, "error": failure.to_string()}),
                    |devices| document(devices),
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

fn watch(mut screen: Screen, seen: &Receiver<Look>, interrupt: &Interrupt) -> anyhow::Result<Exit> {
    let (mut busy, mut shown) = (Busy::default(), Vec::new());
    let mut at: usize = 0;
    loop {
        match seen.try_recv() {
            Ok(news) => shown = lines(&news, &mut busy),
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return Ok(Exit::Success),
        }
        let (_, height) = screen.size();
        at = at.min(shown.len().saturating_sub(1));
        let mut page: Vec<Line> = shown[at.min(shown.len())..].to_vec();
        page.resize(height.saturating_sub(1), Line::default());
        page.push(Line::new("up down  q ends", Style::Turned));
        // A terminal that is gone is as good as Ctrl-C.
        let key = screen.show(&page).and_then(|()| screen.key(SOON)).unwrap_or(Some(Key::Interrupt));
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

/// The part of the time that devices computed between two looks.
#[derive(Default)]
struct Busy(HashMap<u32, (f64, f64)>);

impl Busy {
    fn follow(&mut self, device: &Listing) -> Option<f64> {
        let now = (device.seconds, device.computed_seconds);
        let before = self.0.insert(device.process, now)?;
        let time = (now.0 - before.0) * device.slots as f64;
        (time > 0.0).then(|| ((now.1 - before.1) / time).clamp(0.0, 1.0))
    }
}

fn lines(seen: &Look, busy: &mut Busy) -> Vec<Line> {
    let devices = match seen {
        Ok(devices) => devices,
        Err(failure) => {
            return vec![
                Line::new(failure.to_string(), Style::Alarm),
                Line::new("trying again", Style::Weak),
            ];
        }
    };
    let mut lines = Vec::new();
    for device in devices {
        let part = busy.follow(device).map(|part| format!(", {:.0} % busy", 100.0 * part));
        lines.push(Line::new(headline(device) + &part.unwrap_or_default(), Style::Strong));
    }
    if devices.is_empty() {
        lines.push(Line::new("this machine serves no device now", Style::Weak));
    }
    for table in [tenants(devices), sessions(devices)] {
        lines.push(Line::default());
        rows(&table, &mut lines);
    }
    lines
}

fn rows(table: &Table, lines: &mut Vec<Line>) {
    let mut text = Vec::new();
    // A vector takes everything.
    let _ = table.write(&mut text);
    for (at, row) in String::from_utf8_lossy(&text).lines().enumerate() {
        lines.push(Line::new(row, if at == 0 { Style::Strong } else { Style::Plain }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busy_part_follows_from_two_looks() {
        let at = |seconds, computed_seconds| Listing {
            device: "gpu".into(),
            seconds,
            computed_seconds,
            slots: 2,
            ..Listing::default()
        };
        let mut busy = Busy::default();
        assert_eq!(busy.follow(&at(1.0, 1.0)), None);
        assert_eq!(busy.follow(&at(2.0, 2.0)), Some(0.5));
        let text = lines(&Ok(vec![at(3.0, 3.0)]), &mut busy);
        assert!(
            text[0].text.starts_with("gpu at ") && text[0].text.ends_with("50 % busy"),
            "{}",
            text[0].text
        );
        assert!(lines(&Ok(vec![]), &mut busy)[0].text.contains("no device"));
    }
}
