//! `tidemill device ls`: devices of this machine, their tenants and sessions.
use crate::answer;
use crate::arguments::{ListDevicesArguments, OutputForm};
use crate::exit::Exit;
use crate::table::{Side, Table};
use crate::terminal::Terminal;
use serde_json::{Value, json};
use std::io::Write;
use tidemill_app::figures::{bytes, grouped};
use tidemill_app::listener::Listener;
use tidemill_device::daemon::views::{Listing, SessionView};

/// Lists devices.
pub(super) fn list(arguments: &ListDevicesArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    show(&super::look(&arguments.choice)?, arguments.output, terminal)
}

/// Prints devices.
pub(super) fn show(devices: &[Listing], output: OutputForm, terminal: &Terminal) -> anyhow::Result<Exit> {
    let mut out = answer::out();
    if output == OutputForm::Json {
        serde_json::to_writer_pretty(&mut out, &document(devices))?;
        writeln!(out)?;
        return Ok(Exit::Success);
    }
    if devices.is_empty() {
        terminal.note("this machine serves no device; `tidemill device serve` starts one");
        return Ok(Exit::Success);
    }
    for device in devices {
        writeln!(out, "{}", headline(device))?;
    }
    writeln!(out)?;
    tenants(devices).write(&mut out)?;
    if devices.iter().any(|device| !device.sessions.is_empty()) {
        writeln!(out)?;
        sessions(devices).write(&mut out)?;
    }
    Ok(Exit::Success)
}

/// For programs.
pub(super) fn document(devices: &[Listing]) -> Value {
    json!({"version": 1, "ok": true, "devices": devices})
}

/// A device in one line.
pub(super) fn headline(device: &Listing) -> String {
    let held = bytes(device.tenants.iter().map(|tenant| tenant.memory).sum());
    let memory = match device.memory_limit {
        Some(all) => format!("memory {held} of {}", bytes(all)),
        None => format!("memory {held}, no limit"),
    };
    let facts: Vec<String> = device.kind.iter().cloned().chain([memory]).collect();
    let kind = format!(" ({})", facts.join(", "));
    let drains = if device.drains { ", drains" } else { "" };
    let at = device.addresses.join(", ");
    let (name, runs, queue) = (&device.device, grouped(device.runs), device.queue);
    let computed = device.computed_seconds;
    let batches = match device.batches {
        0 => String::new(),
        batches => format!(", {} batches", grouped(batches)),
    };
    let apart = match device.tenants.iter().map(|tenant| tenant.apart).sum::<u64>() {
        0 => String::new(),
        1 => ", 1 model in no batches: its runs failed together".to_owned(),
        apart => format!(", {} models in no batches: their runs failed together", grouped(apart)),
    };
    format!(
        "{name}{kind} at {at}: {runs} runs{batches}{apart}, computed {computed:.1} s, {queue} waiting{drains}"
    )
}

fn limit(limit: Option<u64>) -> String {
    limit.map_or_else(|| "no limit".to_owned(), bytes)
}

/// The tenants of devices.
pub(super) fn tenants(devices: &[Listing]) -> Table {
    let mut table = Table::new(&[
        ("device", Side::Left),
        ("tenant", Side::Left),
        ("share", Side::Right),
        ("memory", Side::Right),
        ("of", Side::Right),
        ("sessions", Side::Right),
    ]);
    for device in devices {
        for tenant in &device.tenants {
            table.row([
                device.device.clone(),
                tenant.tenant.clone(),
                format!("{:.0} %", 100.0 * tenant.share),
                bytes(tenant.memory),
                limit(tenant.memory_limit),
                grouped(tenant.sessions),
            ]);
        }
    }
    table
}

/// The sessions of devices.
pub(super) fn sessions(devices: &[Listing]) -> Table {
    let mut table = Table::new(&[
        ("device", Side::Left),
        ("session", Side::Right),
        ("tenant", Side::Left),
        ("client", Side::Left),
        ("for", Side::Right),
        ("state", Side::Left),
        ("models", Side::Right),
        ("memory", Side::Right),
        ("runs", Side::Right),
        ("failed", Side::Right),
        ("computed", Side::Right),
        ("waited", Side::Right),
        ("process", Side::Right),
        ("peer", Side::Left),
    ]);
    for device in devices {
        device.sessions.iter().for_each(|session| table.row(row(&device.device, session)));
    }
    table
}

fn row(device: &str, session: &SessionView) -> [String; 14] {
    [
        device.to_owned(),
        session.session.to_string(),
        session.tenant.clone(),
        session.client.clone(),
        format!("{:.0} s", session.seconds),
        session.state.name().to_owned(),
        grouped(session.models),
        bytes(session.memory),
        grouped(session.runs),
        if session.failed == 0 { String::new() } else { grouped(session.failed) },
        format!("{:.1} s", session.computed_seconds),
        format!("{:.1} s", session.waited_seconds),
        session.process.to_string(),
        session.peer.clone(),
    ]
}
