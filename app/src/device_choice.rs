//! Devices of models that the options of a run choose: `--device OPERATOR=DEVICE`, and those that `--emulate` emulates.
//!
//! ```
//! use tidemill_app::device_choice::DeviceSetting;
//! let setting: DeviceSetting = "detect=tcp://hub:7440".parse()?;
//! assert_eq!((setting.operator.as_str(), setting.device.as_str()), ("detect", "device:tcp://hub:7440"));
//! # Ok::<(), String>(())
//! ```
mod form;

use crate::choice::Candidates;
use crate::failure::{Failure, Kind};
use crate::figures::bytes;
use form::Known;
use std::str::FromStr;
use tidemill_engine::{CPU, EMULATED};
use tidemill_spec::diagnostic::suggestion;
use tidemill_spec::plan::{DEVICE_SCHEME, Plan, Sends, Stage, device_of};
use tidemill_spec::workflow::{DeviceChoice, Workflow};

pub use form::Why;
pub(crate) use form::unprepared;

/// All forms of a device, for errors.
const FORMS: &str = "`tcp://HOST:PORT`, `tls://HOST:PORT`, `unix:///PATH` or `session://PLACES` where `tidemill device serve` listens, \
                     `oip:http://HOST:PORT`, `oip:grpc://HOST:PORT`, `proxy`, `proxy:BACKEND`, `cpu`, or `device:ID` of the plan";

/// Begin of the part of a setting that has the form.
const SENDS: &str = ",sends=";

/// The device that is to compute the models of an operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceSetting {
    /// The operator.
    pub operator: String,
    /// The device as stages of plans name it.
    pub device: String,
    /// The form of its records; none: by what is known of their bytes.
    pub sends: Option<Sends>,
}

impl FromStr for DeviceSetting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (text, sends) = match text.rsplit_once(SENDS) {
            None => (text, None),
            Some((text, "rows")) => (text, Some(Sends::Rows)),
            Some((text, "tensors")) => (text, Some(Sends::Tensors)),
            Some((text, other)) => {
                let at = format!("`{text},sends=rows` or `{text},sends=tensors`");
                return Err(format!("a stage sends rows or tensors, not `{other}`: write {at}"));
            }
        };
        let (operator, device) = text
            .split_once('=')
            .filter(|(operator, device)| !operator.is_empty() && !device.is_empty())
            .ok_or_else(|| "write `OPERATOR=DEVICE`, such as `detect=tcp://hub:7440`".to_owned())?;
        let scheme = device.split_once(':').map_or(device, |(scheme, _)| scheme);
        let device = match scheme {
            "tcp" | "tls" | "unix" | "session" if device.contains("://") => {
                format!("{DEVICE_SCHEME}:{device}")
            }
            // Without a scheme it would be a device of that name.
            _ if is_host_with_port(device) => {
                let place = match device.split_once(':') {
                    Some((DEVICE_SCHEME, place)) if place.contains(':') => {
                        format!("{DEVICE_SCHEME}:tcp://{place}")
                    }
                    Some(("oip", place)) if place.contains(':') => format!("oip:http://{place}"),
                    _ => format!("tcp://{device}"),
                };
                return Err(format!("write the address with its scheme: `{operator}={place}`"));
            }
            CPU | "proxy" | DEVICE_SCHEME | "oip" => device.to_owned(),
            _ => return Err(format!("`{device}` is no device: write {FORMS}")),
        };
        Ok(Self { operator: operator.to_owned(), device, sends })
    }
}

/// Whether a text is an address without a scheme. The names of schemes are no hosts.
fn is_host_with_port(text: &str) -> bool {
    text.rsplit_once(':').is_some_and(|(host, port)| {
        !["proxy", DEVICE_SCHEME, "oip"].contains(&host) && !host.contains('/') && port.parse::<u16>().is_ok()
    })
}

/// Choice of the devices of a run.
#[derive(Debug, Clone, Copy, Default)]
pub struct Devices<'a> {
    /// By operator, over the plan.
    pub settings: &'a [DeviceSetting],
    /// Whether the run emulates the devices of the plan.
    pub are_emulated: bool,
}

/// A model that computes on the device of an option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChosenDevice {
    /// The operator.
    pub operator: String,
    /// The device.
    pub device: String,
    /// Other devices that the plan has for it.
    pub instead_of: Vec<String>,
    /// The form of a record that goes there, and the reason.
    pub sends: (Sends, Why),
}

impl std::fmt::Display for ChosenDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { operator, device, instead_of, sends: (sends, why) } = self;
        write!(f, "{operator} computes on {device}, by `--device`")?;
        match instead_of.as_slice() {
            [] => {}
            of => write!(f, ", not on {} as in the plan", of.join(" and "))?,
        }
        match (sends, why) {
            (Sends::Tensors, Why::Named | Why::Planned | Why::Default) => Ok(()),
            (Sends::Rows, Why::Planned) => write!(f, "; it gets rows, as in the plan"),
            (Sends::Rows, Why::Named | Why::Default) => write!(f, "; it gets rows"),
            (Sends::Rows, Why::Bytes(own, other)) => {
                write!(
                    f,
                    "; it gets rows: {} a record there and back, {} as tensors",
                    bytes(*own),
                    bytes(*other)
                )
            }
            (Sends::Tensors, Why::Bytes(own, other)) => {
                write!(
                    f,
                    "; it gets tensors: {} a record there and back, {} as rows",
                    bytes(*own),
                    bytes(*other)
                )
            }
        }
    }
}

fn wrong(message: String, help: impl Into<String>) -> Failure {
    Failure::new(Kind::Configuration, message).with_help(help)
}

impl Devices<'_> {
    /// Whether the options choose the device of an operator.
    fn choose(&self, operator: &str) -> bool {
        self.settings.iter().any(|setting| setting.operator == operator)
    }

    /// Refuses devices that only a plan has: computing here instead would not be what the workflow says.
    ///
    /// # Errors
    /// An operator needs a kind of device, and no option chooses one.
    pub(crate) fn need_no_plan(&self, workflow: &Workflow) -> Result<(), Failure> {
        let named =
            workflow.operators.iter().filter_map(|operator| Some((operator, operator.device.as_ref()?)));
        let mut needing = named.filter_map(|(operator, device)| Some((operator, device, device.kind()?)));
        let Some((operator, device, kind)) = needing.find(|(operator, ..)| !self.choose(&operator.id.value))
        else {
            return Ok(());
        };
        let text = format!(
            "`{}` needs a device of the kind `{kind}`, and a run without a plan has none",
            operator.id
        );
        let help = format!(
            "plan it (`tidemill plan WORKFLOW --infra FILE --out plan.yaml`) and add `--plan plan.yaml`, name the device \
             (`--device {}=tcp://HOST:PORT`), or write `device: cpu`",
            operator.id
        );
        Err(wrong(text, help).at(device.span.clone()))
    }

    /// Gives the stages of a plan these devices; returns what the options chose.
    ///
    /// # Errors
    /// An operator, or a device of the plan, that is not there; a device that cannot be emulated.
    pub(crate) fn place(
        &self,
        plan: &mut Plan,
        (workflow, candidates): (&Workflow, &Candidates),
        is_planned: bool,
    ) -> Result<Vec<ChosenDevice>, Failure> {
        let mut chosen: Vec<ChosenDevice> = Vec::new();
        let is_open = self.settings.iter().any(|setting| setting.sends.is_none());
        let profile = is_open.then(|| form::profile_beside(workflow)).flatten();
        let known = Known { workflow, candidates, profile: profile.as_ref() };
        for setting in self.settings {
            check(setting, plan, workflow)?;
            let DeviceSetting { operator, device, sends } = setting;
            if chosen.iter().any(|other| other.operator == *operator) {
                let message = format!("--device names `{operator}` twice");
                return Err(wrong(message, "an operator has one device: leave the other out"));
            }
            let (mut instead_of, mut form) = (Vec::new(), (Sends::Tensors, Why::Default));
            for index in 0..plan.stages.len() {
                if plan.stages[index].operator != *operator {
                    continue;
                }
                let mut stage = plan.stages[index].clone();
                let before = of(&stage).to_owned();
                if is_planned && before != *device && !instead_of.contains(&before) {
                    instead_of.push(before);
                }
                stage.device = Some(device.clone());
                // It was expected of another device.
                stage.remote_run = None;
                let found = known.form(plan, &stage, (*sends, stage.sends));
                let found = found.map_err(|(message, help)| wrong(message, help))?;
                (stage.sends, form) = (found.sends, (found.sends, found.why));
                plan.stages[index] = stage;
            }
            let (operator, device) = (operator.clone(), device.clone());
            chosen.push(ChosenDevice { operator, device, instead_of, sends: form });
        }
        if plan.stages.iter().any(|stage| of(stage).starts_with("device:session://")) {
            tidemill_session::install()
                .map_err(|error| Failure::new(Kind::Unavailable, error.to_string()))?;
        }
        if self.are_emulated {
            plan.stages.iter_mut().try_for_each(emulate)?;
        }
        Ok(chosen)
    }
}

/// The device of a stage.
fn of(stage: &Stage) -> &str {
    stage.device.as_deref().unwrap_or(CPU)
}

fn check(setting: &DeviceSetting, plan: &Plan, workflow: &Workflow) -> Result<(), Failure> {
    let DeviceSetting { operator, device, .. } = setting;
    let with_models = workflow.operators.iter().filter(|known| !known.variants.is_empty());
    let names: Vec<&str> = with_models.map(|known| known.id.value.as_str()).collect();
    if !names.contains(&operator.as_str()) {
        let is_known = workflow.operators.iter().any(|known| known.id.value == *operator);
        let message = match is_known {
            true => format!("--device names `{operator}`, which has no models"),
            false => format!("--device names `{operator}`, which is no operator of `{}`", workflow.name),
        };
        return Err(wrong(message, suggestion(operator, names, "operators with models")));
    }
    let ids = || plan.devices.iter().map(|device| device.id.as_str());
    match device_of(device).filter(|id| ids().all(|known| known != *id)) {
        Some(id) => {
            let message =
                format!("--device puts `{operator}` on the device `{id}`, which is none of the plan");
            let help = match plan.devices.is_empty() {
                true => format!("write its address: `--device {operator}=tcp://HOST:PORT`"),
                false => suggestion(id, ids().collect::<Vec<_>>(), "devices of the plan"),
            };
            Err(wrong(message, help))
        }
        None => Ok(()),
    }
}

/// Names the device of a stage as an emulated one.
fn emulate(stage: &mut Stage) -> Result<(), Failure> {
    let device = of(stage);
    let scheme = device.split_once(':').map_or(device, |(scheme, _)| scheme);
    if let Some(id) = device_of(device) {
        stage.device = Some(format!("{EMULATED}:{id}"));
        return Ok(());
    }
    match scheme {
        // On the processors of the worker, as without it.
        DeviceChoice::PROXY => stage.device = None,
        DEVICE_SCHEME | "oip" => {
            let message = format!(
                "stage `{}` computes on `{device}`, and no profile says how long that takes: an emulated run knows the devices of the plan",
                stage.id
            );
            return Err(wrong(
                message,
                "plan with an infrastructure that has the device (`devices:` of a worker type): its stages then name `device:ID`",
            ));
        }
        _ => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests;
