//! Watches something each second: lines for programs, or a screen, until a key or an interrupt ends it.
use crate::answer;
use crate::arguments::OutputForm;
use crate::exit::Exit;
use crate::interrupt::Interrupt;
use crate::screen::{Key, Line, Screen, Style};
use crate::table::Table;
use crate::terminal::Terminal;
use serde_json::{Value, json};
use std::io::Write;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::time::Duration;
use tidemill_app::failure::{Failure, Kind};

/// Time between two looks.
pub(crate) const EVERY: Duration = Duration::from_secs(1);
/// Time limit of the wait for a key or for news, so that an interrupt is seen soon.
const SOON: Duration = Duration::from_millis(100);

pub(crate) type Look<T> = Result<T, Failure>;

/// The lines of a screen.
#[derive(Debug, Default)]
pub(crate) struct Page {
    /// Stay where they are.
    pub(crate) head: Vec<Line>,
    /// The keys scroll them.
    pub(crate) rows: Vec<Line>,
}

/// Returns a table as lines, the first of which are its names.
pub(crate) fn lines_of(table: &Table) -> Vec<Line> {
    let mut text = Vec::new();
    // A vector takes everything.
    let _ = table.write(&mut text);
    let text = String::from_utf8_lossy(&text);
    let style = |at| if at == 0 { Style::Strong } else { Style::Plain };
    text.lines().enumerate().map(|(at, row)| Line::new(row, style(at))).collect()
}

/// Shows what was found `first`, and what each further look finds: as documents, or as pages of a screen.
pub(crate) fn watch<T: Send + 'static>(
    (form, terminal): (OutputForm, &Terminal),
    first: T,
    look: impl FnMut() -> Look<T> + Send + 'static,
    document: impl Fn(&T) -> Value,
    page: impl FnMut(&T) -> Page,
) -> anyhow::Result<Exit> {
    let interrupt = Interrupt::listen()?;
    interrupt.is_watched();
    if form == OutputForm::Json {
        return follow(&keep_looking(first, look)?, document, &interrupt);
    }
    let Some(screen) = Screen::open(terminal.paints())? else {
        return Err(Failure::new(Kind::Usage, "standard input and output are not a terminal")
            .with_help("add `--once` to print once, or `--output json`")
            .into());
    };
    show(screen, &keep_looking(first, look)?, page, &interrupt)
}

/// Looks on a thread of its own: a process that does not answer holds up no key.
fn keep_looking<T: Send + 'static>(
    first: T,
    mut look: impl FnMut() -> Look<T> + Send + 'static,
) -> anyhow::Result<Receiver<Look<T>>> {
    let (sender, seen) = channel();
    std::thread::Builder::new().name("look".into()).spawn(move || {
        let mut news = Ok(first);
        while sender.send(news).is_ok() {
            std::thread::sleep(EVERY);
            news = look();
        }
    })?;
    Ok(seen)
}

/// Prints a line for each look.
fn follow<T>(
    seen: &Receiver<Look<T>>,
    document: impl Fn(&T) -> Value,
    interrupt: &Interrupt,
) -> anyhow::Result<Exit> {
    loop {
        match seen.recv_timeout(SOON) {
            Ok(news) => {
                let line = news.as_ref().map_or_else(
                    |failure| json!({"version": 1, "ok": false, "error": failure.to_string()}),
                    &document,
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

fn show<T>(
    mut screen: Screen,
    seen: &Receiver<Look<T>>,
    mut page: impl FnMut(&T) -> Page,
    interrupt: &Interrupt,
) -> anyhow::Result<Exit> {
    let mut shown = Page { head: vec![Line::new("looking …", Style::Weak)], rows: Vec::new() };
    let mut at: usize = 0;
    loop {
        match seen.try_recv() {
            Ok(news) => shown = news.map_or_else(|failure| failed(&failure), |news| page(&news)),
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return Ok(Exit::Success),
        }
        let lines = lines(&shown, &mut at, screen.size().1);
        // A terminal that is gone is as good as Ctrl-C.
        let key = screen.show(&lines).and_then(|()| screen.key(SOON)).unwrap_or(Some(Key::Interrupt));
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

fn failed(failure: &Failure) -> Page {
    let head = vec![Line::new(failure.to_string(), Style::Alarm), Line::new("trying again", Style::Weak)];
    Page { head, rows: Vec::new() }
}

/// The lines of a screen of this height; `at`: the first row that is shown.
fn lines(page: &Page, at: &mut usize, height: usize) -> Vec<Line> {
    *at = (*at).min(page.rows.len().saturating_sub(1));
    let mut lines = [&page.head, &page.rows[*at..]].concat();
    lines.resize(height.saturating_sub(1), Line::default());
    lines.push(Line::new("up down  q ends", Style::Turned));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Side;

    fn page(rows: usize) -> Page {
        let line = |text: String| Line::new(text, Style::Plain);
        Page { head: vec![line("head".into())], rows: (0..rows).map(|at| line(format!("{at}"))).collect() }
    }

    #[test]
    fn rows_scroll_below_the_head_to_the_last_one() {
        let text = |rows, at: &mut usize, height| {
            lines(&page(rows), at, height).into_iter().map(|line| line.text).collect::<Vec<_>>()
        };
        let mut at = 3;
        assert_eq!(text(9, &mut at, 4), ["head", "3", "4", "up down  q ends"]);
        at = 99;
        assert_eq!(text(9, &mut at, 4), ["head", "8", "", "up down  q ends"]);
        assert_eq!((at, text(0, &mut at, 2), at), (8, vec!["head".to_owned(), "up down  q ends".into()], 0));
    }

    #[test]
    fn a_failure_is_a_page() {
        let page = failed(&Failure::new(Kind::Unavailable, "it is gone"));
        assert!(page.head[0].text.contains("it is gone"), "{page:?}");
    }

    #[test]
    fn the_names_of_a_table_stand_out() {
        let mut table = Table::new(&[("name", Side::Left)]);
        table.row(["a".to_owned()]);
        let styles: Vec<Style> = lines_of(&table).iter().map(|line| line.style).collect();
        assert_eq!(styles, [Style::Strong, Style::Plain]);
    }
}
