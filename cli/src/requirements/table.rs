//! The answer for people.
use crate::arguments::RequirementsArguments;
use crate::table::{Side, Table, hanging};
use std::collections::BTreeSet;
use std::io::{self, Write};
use tidemill_app::figures::{bytes, milliseconds};
use tidemill_app::requirements::{OfModel, OfOperator, Requirements, Verdict};
use tidemill_replay::change::{Alternative, Change};
use tidemill_replay::frontier::Bound;
use tidemill_replay::link::{GOODPUT, nominal_bits};
use tidemill_spec::plan::Sends;
use tidemill_spec::profile::How;

/// Writes everything.
pub(super) fn write(
    found: &Requirements,
    arguments: &RequirementsArguments,
    out: &mut dyn Write,
) -> io::Result<()> {
    let budget = part(found.bound.budget);
    writeln!(
        out,
        "{}: links over which a model's device may be remote for {budget} more time\n",
        found.workflow
    )?;
    let records = match found.batch {
        Some(1) => "1 record".to_owned(),
        Some(batch) => format!("{batch} records"),
        None => "a batch of the plan".to_owned(),
    };
    let meaning = match found.bound.window {
        1 => format!(
            "A run of {records} takes the time `local` on a device of its own machine. With the same device over a link,\n\
             a run may take {budget} longer: by a round trip, its bytes over the bandwidth, and the work on its messages."
        ),
        window => format!(
            "A run of {records} takes the time `local` on a device of its own machine. With the same device over a link\n\
             and {window} runs outstanding, the time between the ends of two runs may be {budget} longer than `local`.\n\
             A single run takes longer: by a round trip, its bytes over the bandwidth, and the work on its messages."
        ),
    };
    meaning.lines().try_for_each(|line| hanging(out, "", line))?;
    if found.is_software_assumed {
        let assumed = "Assumed: the work takes 0.06 ms a run and 0.3 ms a MiB (`--software` sets it);";
        hanging(out, "", &format!("{assumed} {:.1} % of a bandwidth carry data.", GOODPUT * 100.0))?;
    }
    for operator in &found.operators {
        writeln!(out)?;
        frontier(found, operator, arguments, out)?;
    }
    if !found.links.is_empty() {
        writeln!(out)?;
        verdicts(found, out)?;
    }
    if !found.left_out.is_empty() {
        writeln!(out, "\nnot judged")?;
    }
    let mut groups: Vec<(&str, &str, Vec<&str>)> = Vec::new();
    for left in &found.left_out {
        match groups.iter_mut().find(|(operator, why, _)| *operator == left.operator && *why == left.why) {
            Some((_, _, variants)) => variants.push(&left.variant),
            None => groups.push((&left.operator, &left.why, vec![&left.variant])),
        }
    }
    for (operator, why, variants) in groups {
        hanging(out, &format!("  {operator}: "), &format!("{}: {why}", variants.join(", ")))?;
    }
    Ok(())
}

/// Writes the least bandwidths of an operator's models.
fn frontier(
    found: &Requirements,
    operator: &OfOperator,
    arguments: &RequirementsArguments,
    out: &mut dyn Write,
) -> io::Result<()> {
    writeln!(out, "{}: least bandwidth each way, by round trip", operator.operator)?;
    let longest = match arguments.bandwidth {
        Some(bandwidth) => format!("round trip at {bandwidth}"),
        None => "longest round trip".to_owned(),
    };
    let is_planned = operator.models.iter().any(|of| of.planned.is_some());
    let mut columns: Vec<(String, Side)> =
        vec![("variant".into(), Side::Left), ("device".into(), Side::Left)];
    if is_planned {
        columns.extend([("sends".into(), Side::Left), ("batch".into(), Side::Right)]);
    }
    columns.extend([
        ("local".into(), Side::Right),
        ("may add".into(), Side::Right),
        ("to it".into(), Side::Right),
        ("back".into(), Side::Right),
    ]);
    let heads = operator.round_trips.iter().map(|round_trip| (span(*round_trip), Side::Right));
    columns.extend(heads.chain([(longest, Side::Right)]));
    let mut table = Table::of(columns);
    for of in &operator.models {
        let mark = if of.how == How::Predicted { " (predicted)" } else { "" };
        let mut row = vec![of.variant.clone(), of.device.clone()];
        if is_planned {
            row.extend([sent(of.sends).to_owned(), of.batch.to_string()]);
        }
        row.extend([
            format!("{}{mark}", span(of.run.local)),
            span(found.bound.allowed(&of.run)),
            size(of.run.up),
            size(of.run.down),
        ]);
        let cell = |least: &Option<f64>| least.map_or_else(|| "-".to_owned(), bandwidth);
        row.extend(of.least_bandwidths.iter().map(cell));
        row.push(longest_round_trip(of));
        table.row(row);
    }
    table.write(out)?;
    if operator.models.iter().any(|of| of.least_bandwidths.contains(&None)) {
        writeln!(out, "-  no bandwidth is enough")?;
    }
    let told: BTreeSet<String> = operator.models.iter().filter_map(as_planned).collect();
    told.iter().try_for_each(|line| hanging(out, "", line))
}

/// Describes a model of the plan, and which of its facts are judged.
fn as_planned(of: &OfModel) -> Option<String> {
    let planned = of.planned.as_ref()?;
    let Some(device) = &planned.device else {
        return Some(format!(
            "plan: {} is on no device of the plan; judged as if it sent {}",
            of.variant,
            sent(of.sends)
        ));
    };
    let batch = match planned.batch {
        1 => "single records".to_owned(),
        batch => format!("batches of {batch}"),
    };
    let what = format!("plan: {} sends {} in {batch} to {}", of.variant, sent(planned.sends), device.id);
    Some(match &device.expected {
        Some(run) => {
            let [compute, round_trip] = [run.compute, run.round_trip].map(|time| span(time.0 as f64 / 1e9));
            format!("{what}: {compute} there, which is `local`, over a round trip of {round_trip}")
        }
        None => format!(
            "{what}, and expects nothing of it: `local` is the profile's time over the share of the device"
        ),
    })
}

fn sent(sends: Sends) -> &'static str {
    match sends {
        Sends::Tensors => "tensors",
        Sends::Rows => "rows",
    }
}

fn longest_round_trip(of: &OfModel) -> String {
    match (of.longest_round_trip, of.exceeded_by) {
        (Some(longest), _) => span(longest),
        (None, Some(term)) => format!("none: {}", term.name()),
        (None, None) => "none".to_owned(),
    }
}

/// Writes the verdict on each link.
fn verdicts(found: &Requirements, out: &mut dyn Write) -> io::Result<()> {
    for (place, link) in found.links.iter().enumerate() {
        let (up, down) = (bandwidth(link.up), bandwidth(link.down));
        let ways =
            if up == down { format!("{up} each way") } else { format!("{up} to the device, {down} back") };
        writeln!(out, "{}: {} round trip, {ways}", link.name, span(link.round_trip))?;
        let mut table = Table::new(&[
            ("operator", Side::Left),
            ("variant", Side::Left),
            ("device", Side::Left),
            ("adds", Side::Right),
            ("fits", Side::Left),
            ("cheapest change that fits", Side::Left),
        ]);
        for (operator, of, verdict) in of_link(found, place) {
            // A link without a limit stands for all with its round trip.
            let least = operator.round_trips.iter().position(|known| *known == link.round_trip);
            let least = least.filter(|_| link.up.is_infinite()).and_then(|at| of.least_bandwidths[at]);
            let fits = match (verdict.fits, least) {
                (true, Some(least)) => format!("yes, from {}", bandwidth(least)),
                (true, None) => "yes".to_owned(),
                (false, _) => format!("no: {}", verdict.binding.name()),
            };
            let change = match &verdict.change {
                _ if verdict.fits => String::new(),
                Some((way, slow_down)) => changed(way, *slow_down),
                None => nothing_fits(found, of),
            };
            table.row([
                operator.operator.clone(),
                of.variant.clone(),
                of.device.clone(),
                part(verdict.slow_down),
                fits,
                change,
            ]);
        }
        table.write(out)?;
        if place + 1 < found.links.len() {
            writeln!(out)?;
        }
    }
    let is_of_rate = |verdict: &Verdict| {
        let changes = verdict.change.iter().flat_map(|(way, _)| &way.changes);
        found.bound.window == 1 && changes.into_iter().any(|change| matches!(change, Change::Window(_)))
    };
    let models = found.operators.iter().flat_map(|operator| &operator.models);
    if models.flat_map(|of| &of.verdicts).any(is_of_rate) {
        let text = "A window keeps the rate of results, not the time of each run.";
        hanging(out, "", text)?;
    }
    Ok(())
}

fn of_link(found: &Requirements, place: usize) -> impl Iterator<Item = (&OfOperator, &OfModel, &Verdict)> {
    found.operators.iter().flat_map(move |operator| {
        operator.models.iter().flat_map(move |of| {
            let verdicts = of.verdicts.iter().filter(move |verdict| verdict.link == place);
            verdicts.map(move |verdict| (operator, of, verdict))
        })
    })
}

/// The bandwidth that a run needs with any window, where no change is enough.
fn nothing_fits(found: &Requirements, of: &OfModel) -> String {
    let wide = Bound { window: 100_000, ..found.bound };
    match wide.least_bandwidth(&of.run, 0.0) {
        Some(least) => format!("none: even a window needs {}", bandwidth(nominal_bits(least))),
        None => "none: its messages alone take too long".to_owned(),
    }
}

/// `batches of 8, prepared at the device: 3.2 %`.
fn changed(way: &Alternative, slow_down: f64) -> String {
    let named = |change: &Change| match change {
        Change::PrepareAtDevice => "prepare inputs at the device".to_owned(),
        Change::Batch(size) => format!("batches of {size}"),
        Change::ByteInput => "a model with uint8 pictures".to_owned(),
        Change::Window(runs) => format!("a window of {runs}"),
    };
    let changes: Vec<String> = way.changes.iter().map(named).collect();
    format!("{}: {}", changes.join(", "), part(slow_down))
}

/// A part of 1 as a percentage: `4.2 %`, `812 %`.
fn part(value: f64) -> String {
    let percent = value * 100.0;
    match percent {
        percent if percent.abs() >= 99.95 => format!("{percent:.0} %"),
        percent => format!("{:.1} %", if percent.abs() < 0.05 { 0.0 } else { percent }),
    }
    .replace(".0 %", " %")
}

/// Seconds: `20 us`, `5.50 ms`.
fn span(seconds: f64) -> String {
    match seconds {
        0.0 => "0 ms".to_owned(),
        seconds if seconds < 0.9995e-4 => three_digits(seconds * 1e6, "us"),
        seconds if seconds < 1.0 => three_digits(seconds * 1e3, "ms"),
        seconds => milliseconds(seconds * 1e3),
    }
}

/// Bits per second: `1.25 Gbps`, `48 Mbps`.
fn bandwidth(bits: f64) -> String {
    if bits.is_infinite() {
        return "no limit".to_owned();
    }
    let units = [(1e12, "Tbps"), (1e9, "Gbps"), (1e6, "Mbps"), (1e3, "kbps")];
    let unit = units.iter().find(|(unit, _)| bits >= unit * 0.9995);
    match unit {
        Some((unit, name)) => three_digits(bits / unit, name),
        None => format!("{:.0} bps", bits.ceil()),
    }
}

/// Up to three digits, without zeros at the end.
fn three_digits(value: f64, unit: &str) -> String {
    let places = match value {
        value if value < 9.995 => 2,
        value if value < 99.95 => 1,
        _ => 0,
    };
    let text = format!("{value:.places$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text} {unit}")
}

fn size(value: f64) -> String {
    // Bytes of tensors are whole numbers.
    bytes(value.round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_a_unit() {
        let spans = [0.0, 2e-5, 99.99e-6, 5e-4, 0.0055, 0.02, 0.84, 2.0].map(span);
        assert_eq!(spans, ["0 ms", "20 us", "0.1 ms", "0.5 ms", "5.5 ms", "20 ms", "840 ms", "2000 ms"]);
        let bandwidths = [1.254e9, 48e6, 999.9e6, 1.5e3, 40.2, f64::INFINITY].map(bandwidth);
        assert_eq!(bandwidths, ["1.25 Gbps", "48 Mbps", "1 Gbps", "1.5 kbps", "41 bps", "no limit"]);
        assert_eq!([0.05, 8.123, 0.0421, 0.00001].map(part), ["5 %", "812 %", "4.2 %", "0 %"]);
    }
}
