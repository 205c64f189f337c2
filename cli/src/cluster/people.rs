//! Manages people and workers of a cluster.
use super::asking::{ask, json};
use super::connect::client;
use crate::answer;
use crate::arguments::{
    AddPersonArguments, ListPeopleArguments, OutputForm, PeopleArguments, PeopleVerb, RemovePersonArguments,
    RevokeArguments,
};
use crate::exit::Exit;
use crate::table::{Side, Table};
use crate::terminal::Terminal;
use serde_json::json;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use tidemill_app::failure::{Failure, Kind};
use tidemill_app::listener::Listener;
use tidemill_cluster::api::{PersonAnswer, PersonRequest, PersonView};
use tidemill_cluster::client::segment;

/// Executes the verb.
pub(crate) fn people(arguments: &PeopleArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    // `--controller` and similar options apply to every verb in any position; these two would be ignored.
    let of_list = arguments.list.all || arguments.list.output != OutputForm::Table;
    if arguments.verb.is_some() && of_list {
        return Err(Failure::new(Kind::Usage, "`--output` and `--all` before a verb apply to the list")
            .with_help("write them after it, such as `tidemill people add Ada --role viewer --output json`")
            .into());
    }
    match &arguments.verb {
        None => list(&arguments.list),
        Some(PeopleVerb::List(arguments)) => list(arguments),
        Some(PeopleVerb::Add(arguments)) => add(arguments, terminal),
        Some(PeopleVerb::Remove(arguments)) => remove(arguments, terminal),
    }
}

fn list(arguments: &ListPeopleArguments) -> anyhow::Result<Exit> {
    let mut people: Vec<PersonView> = ask(client(&arguments.of)?.get("/v1/people"))?;
    people.retain(|person| arguments.all || person.is_valid);
    if arguments.output == OutputForm::Json {
        json("people", &people)?;
        return Ok(Exit::Success);
    }
    let columns = [
        ("person", Side::Left),
        ("role", Side::Left),
        ("token", Side::Left),
        ("made", Side::Left),
        ("ends", Side::Left),
    ];
    let mut table = Table::new(&columns);
    for person in &people {
        let ends = match (&person.removed, &person.expires) {
            (Some(removed), _) => format!("removed {removed}"),
            (None, Some(expires)) if person.is_valid => expires.clone(),
            (None, Some(expires)) => format!("has ended: {expires}"),
            (None, None) => "never".to_owned(),
        };
        table.row([
            person.name.clone(),
            person.role.to_string(),
            person.token_id.clone(),
            person.made.clone(),
            ends,
        ]);
    }
    table.write(&mut answer::out())?;
    Ok(Exit::Success)
}

/// Creates a new file for the token, before the token is made.
fn reserve(path: &Path) -> anyhow::Result<fs::File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(|error| {
        let failure = Failure::new(Kind::Configuration, format!("{}: {error}", path.display()));
        match error.kind() {
            std::io::ErrorKind::AlreadyExists => {
                failure.with_help("name a file that does not exist yet").into()
            }
            _ => failure.into(),
        }
    })
}

fn add(arguments: &AddPersonArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    let client = client(&arguments.of)?;
    let request = PersonRequest { name: arguments.name.clone(), role: arguments.role, days: arguments.days };
    let file = arguments.write_token.as_deref().map(reserve).transpose()?;
    let made: anyhow::Result<PersonAnswer> = ask(client.post("/v1/people", &request));
    let written = made.and_then(|made| {
        if let Some(mut file) = file {
            writeln!(file, "{}", made.token)?;
            file.sync_all()?;
        }
        Ok(made)
    });
    let made = match (written, &arguments.write_token) {
        (Ok(made), _) => made,
        (Err(error), path) => {
            // Nothing is left.
            path.iter().for_each(|path| drop(fs::remove_file(path)));
            return Err(error);
        }
    };
    let shown = arguments.write_token.is_none().then_some(&made.token);
    if arguments.output == OutputForm::Json {
        let person = json!({
            "name": made.name, "role": made.role, "expires": made.expires, "token": shown,
            "token_file": arguments.write_token.as_ref().map(|path| path.display().to_string()),
            "address": made.address,
        });
        json("person", &person)?;
        return Ok(Exit::Success);
    }
    if let Some(token) = shown {
        writeln!(answer::out(), "{token}")?;
    }
    let file =
        arguments.write_token.as_ref().map_or_else(|| "FILE".to_owned(), |path| path.display().to_string());
    terminal.note(&format!("{} logs in with", made.name));
    terminal.note(&format!("    tidemill login {} --token-file {file}", made.address));
    Ok(Exit::Success)
}

fn remove(arguments: &RemovePersonArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    let path = format!("/v1/people/{}", segment(&arguments.name));
    let tokens: u64 = ask(client(&arguments.of)?.delete(&path))?;
    match arguments.output {
        OutputForm::Json => json("removed", &json!({"name": arguments.name, "tokens": tokens}))?,
        OutputForm::Table => {
            let plural = if tokens == 1 { "" } else { "s" };
            terminal.note(&format!("revoked {} access token{plural} of {}", tokens, arguments.name));
        }
    }
    Ok(Exit::Success)
}

/// Revokes the certificates of a worker.
pub(crate) fn revoke(arguments: &RevokeArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    let path = format!("/v1/workers/{}", segment(&arguments.worker));
    ask(client(&arguments.of)?.delete::<u64>(&path))?;
    match arguments.output {
        OutputForm::Json => json("revoked", &json!({"worker": arguments.worker}))?,
        OutputForm::Table => terminal.note(&format!(
            "worker {} has left the cluster: it can return only with a new join token",
            arguments.worker
        )),
    }
    Ok(Exit::Success)
}
