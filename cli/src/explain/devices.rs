//! Why a model runs on a device, or on the worker of its stage.
use super::Story;
use super::proofs::unproven;
use crate::plan::dollars;
use serde_json::{Value, json};
use std::io::{self, Write};
use tidemill_app::figures::bytes;
use tidemill_optimizer::cost::Cost;
use tidemill_optimizer::explain::DeviceReason;
use tidemill_optimizer::physical::worker_names;
use tidemill_optimizer::problem::{Remote, Sends};
use tidemill_optimizer::solution::Solution;

impl Story<'_> {
    /// A line for each operator whose model could run on a device.
    pub(super) fn write_devices(&self, out: &mut dyn Write) -> io::Result<()> {
        let devices = &self.explanation().devices;
        if devices.is_empty() {
            return Ok(());
        }
        let plan = if self.given.is_some() { " in the best plan" } else { "" };
        writeln!(out, "\nmodels on devices{plan}")?;
        devices.iter().try_for_each(|reason| writeln!(out, "  {}", self.device_reason(reason)))
    }

    fn device_reason(&self, reason: &DeviceReason) -> String {
        let Some(best) = &self.best.solution else { return String::new() };
        let id = &self.problem().operators[reason.operator].id;
        let form =
            self.forms(best, reason.operator).map_or_else(String::new, |(chosen, other)| form(chosen, other));
        let own = format!("{id} runs {}{form}: {}", self.places(best, &reason.places), price(reason.cost));
        let kind = match is_remote(reason) {
            true => "without a device",
            false => "with a device",
        };
        match &reason.other {
            Some(other) => format!(
                "{own}; cheapest {kind}: {}, {}{}",
                self.places(&other.solution, &other.places),
                price(other.cost),
                unproven(other.cost.total(), reason.least)
            ),
            None if reason.least == f64::INFINITY => format!("{own}; no plan {kind} keeps the levels"),
            None => format!("{own}; no plan {kind} was found, which is no proof that there is none"),
        }
    }

    pub(super) fn device_value(&self, reason: &DeviceReason) -> Value {
        let value = |solution: &Solution, places: &[(usize, Option<usize>)], cost: Cost| {
            let names = worker_names(self.assembly, solution);
            let places = places.iter().map(|(at, device)| {
                let device = device.map(|device| names[device].clone());
                json!({"location": self.problem().locations[*at].name, "device": device})
            });
            json!({"places": places.collect::<Vec<_>>(), "cost": cost.total(), "network": cost.network})
        };
        let chosen = self.best.solution.as_ref().map(|best| value(best, &reason.places, reason.cost));
        let other = reason.other.as_ref().map(|other| value(&other.solution, &other.places, other.cost));
        let best = self.best.solution.as_ref();
        let sends = best.and_then(|best| self.forms(best, reason.operator)).map(|(chosen, other)| {
            json!({
                "sends": chosen.sends,
                "bytes_per_record": total(chosen),
                "bytes_per_record_otherwise": other.map(total),
            })
        });
        json!({
            "operator": self.problem().operators[reason.operator].id,
            "on_a_device": is_remote(reason),
            "chosen": chosen,
            "sent": sends,
            "cheapest_of_the_other_kind": other,
            "least": reason.least.is_finite().then_some(reason.least),
            "is_cut": reason.is_cut,
            "text": self.device_reason(reason),
        })
    }

    /// Form of the records of an operator to its device, and the other one.
    fn forms(&self, solution: &Solution, operator: usize) -> Option<(&Remote, Option<&Remote>)> {
        let mut own = solution.hostings.iter().filter(|hosting| hosting.operator == operator);
        own.find_map(|hosting| {
            let chosen = self.problem().remote_of(solution, hosting)?;
            Some((chosen, self.problem().other_form(solution, hosting)))
        })
    }

    fn places(&self, solution: &Solution, places: &[(usize, Option<usize>)]) -> String {
        let names = worker_names(self.assembly, solution);
        let all = places.iter().map(|(at, device)| {
            let location = &self.problem().locations[*at].name;
            match device {
                Some(device) => format!("on {} from {location}", names[*device]),
                None => format!("at {location}"),
            }
        });
        all.collect::<Vec<_>>().join(" and ")
    }
}

/// Bytes of a record there and back.
fn total(remote: &Remote) -> f64 {
    (remote.sent_bytes + remote.received_bytes).round()
}

fn form(chosen: &Remote, other: Option<&Remote>) -> String {
    let form = match chosen.sends {
        Sends::Tensors => "tensors",
        Sends::Rows => "rows",
    };
    let of = |remote: &Remote| bytes(total(remote) as u64);
    match other {
        Some(other) => format!(" as {form}, {} instead of {} a record there and back", of(chosen), of(other)),
        None => format!(" as {form}, {} a record there and back", of(chosen)),
    }
}

fn is_remote(reason: &DeviceReason) -> bool {
    reason.places.iter().any(|(_, device)| device.is_some())
}

/// The cost of a plan, with its traffic where that costs something.
fn price(cost: Cost) -> String {
    match cost.network >= 5e-5 {
        true => format!("{} (traffic {:.4})", dollars(cost.total()), cost.network),
        false => dollars(cost.total()),
    }
}
