//! The verbs that operate a deployment: its containers, here and on other machines.
mod changing;
mod looking;
mod starting;

pub(crate) use changing::{down, upgrade};
pub(crate) use looking::{logs, ps};
pub(crate) use starting::up;

use crate::arguments::DeploymentVerb;
use crate::exit::Exit;
use crate::interrupt::Interrupt;
use crate::terminal::Terminal;
use std::fs::TryLockError;
use std::path::Path;
use tidemill_app::failure::{Failure, Kind};
use tidemill_app::listener::Listener;
use tidemill_deploy_operate::{Cause, Control, OperateError, Site};

/// Executes the verbs of `tidemill deployment`.
pub(crate) fn deployment(verb: &DeploymentVerb, terminal: &Terminal) -> anyhow::Result<Exit> {
    match verb {
        DeploymentVerb::Up(arguments) => up(arguments, terminal),
        DeploymentVerb::Down(arguments) => down(arguments, terminal),
        DeploymentVerb::Ps(arguments) => ps(arguments, terminal),
        DeploymentVerb::Logs(arguments) => logs(arguments, terminal),
        DeploymentVerb::Upgrade(arguments) => upgrade(arguments, terminal),
    }
}

/// Changes a deployment as [`operate`] does, exclusively for this folder.
fn change<T>(
    directory: &Path,
    terminal: &Terminal,
    left: &str,
    act: impl FnOnce(&Site, Control<'_>) -> anyhow::Result<T>,
) -> anyhow::Result<Result<T, Exit>> {
    // If the folder cannot be opened, loading it gives the better error. The lock ends with the process in any case.
    let lock = std::fs::File::open(directory).ok();
    if lock.as_ref().is_some_and(|lock| matches!(lock.try_lock(), Err(TryLockError::WouldBlock))) {
        let text =
            format!("another `tidemill up`, `down` or `deployment upgrade` works on {}", directory.display());
        return Err(Failure::new(Kind::Unavailable, text)
            .with_help("wait until it ends, or interrupt it; `tidemill ps DIR` shows its progress")
            .into());
    }
    operate(directory, terminal, left, act)
}

/// Operates on a deployment with interrupts; `left` describes the state after one.
fn operate<T>(
    directory: &Path,
    terminal: &Terminal,
    left: &str,
    act: impl FnOnce(&Site, Control<'_>) -> anyhow::Result<T>,
) -> anyhow::Result<Result<T, Exit>> {
    let interrupt = Interrupt::listen()?;
    let site = Site::load(directory).map_err(|error| failure(&error))?;
    interrupt.is_watched();
    let tell = |text: &str| terminal.note(text);
    let is_interrupted = || interrupt.is_wanted();
    match act(&site, Control { tell: &tell, is_interrupted: &is_interrupted }) {
        Ok(value) => Ok(Ok(value)),
        Err(error) if matches!(error.downcast_ref(), Some(OperateError::Interrupted)) => {
            let far = match site.is_far() {
                true => "; commands on other machines can continue there for a while",
                false => "",
            };
            terminal.note(&format!("interrupted; {left}{far}"));
            Ok(Err(Exit::Interrupted))
        }
        Err(error) => Err(match error.downcast_ref::<OperateError>() {
            Some(known) => failure(known).into(),
            None => error,
        }),
    }
}

/// Converts problems to a failure of a command.
fn failure(error: &OperateError) -> Failure {
    match error {
        OperateError::Causes(causes) => failure_of(causes),
        OperateError::Deployment { .. } => Failure::new(Kind::Configuration, error.to_string()),
        OperateError::Unknown { .. } => Failure::new(Kind::Usage, error.to_string()),
        OperateError::NotUp => Failure::new(Kind::Unavailable, error.to_string())
            .with_help("`tidemill up DIR` starts it; `tidemill ps DIR` shows its state"),
        OperateError::TokenRefused(_) => Failure::new(Kind::Configuration, error.to_string()).with_help(
            "ask another admin for a new one, `tidemill people add NAME --role admin --write-token FILE`, \
             and replace `admin.token` in the folder of the controller with it. `tidemill down DIR` needs \
             none",
        ),
        OperateError::Client(client) => crate::cluster::failure(client),
        OperateError::File { .. } | OperateError::Interrupted => {
            Failure::new(Kind::Unavailable, error.to_string())
        }
    }
}

fn failure_of(causes: &[Cause]) -> Failure {
    if let [cause] = causes {
        return Failure::new(Kind::Unavailable, cause.to_string()).with_help(cause.fix());
    }
    let lines = causes.iter().map(|cause| format!("\n- {cause}\n  help: {}", cause.fix()));
    Failure::new(Kind::Unavailable, format!("{} obstacles:{}", causes.len(), lines.collect::<String>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_cause_has_its_help_and_several_are_listed_with_theirs() {
        let cause = |machine: &str| Cause::NoCompose { machine: machine.to_owned() };
        let one = failure_of(&[cause("a")]);
        assert!(one.help().unwrap().contains("docker-compose"), "{one:?}");
        let both = failure_of(&[cause("a"), cause("b")]).to_string();
        assert!(
            both.starts_with("2 obstacles")
                && both.contains("\n- b has neither")
                && both.matches("help:").count() == 2,
            "{both}"
        );
    }
}
