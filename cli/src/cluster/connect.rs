//! Choice of the controller, and of the access token.
use crate::arguments::{ControllerChoice, LoginArguments};
use crate::exit::Exit;
use crate::terminal::Terminal;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use tidemill_app::failure::{Failure, Kind};
use tidemill_app::listener::Listener;
use tidemill_cluster::api::RunView;
use tidemill_cluster::client::{Client, ClientError};
use tidemill_identity::{AccessToken, JoinAddress};

const TOKEN: &str = "TIDEMILL_TOKEN";

/// Data stored by `tidemill login`.
#[derive(Serialize, Deserialize)]
struct Login {
    controller: String,
    token: String,
}

fn path() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let folder = set("XDG_CONFIG_HOME").or_else(|| set("HOME").map(|home| home.join(".config")))?;
    Some(folder.join("tidemill/login.json"))
}

/// Converts an error of the controller to a failure of a command.
pub(crate) fn failure(error: &ClientError) -> Failure {
    let kind = match error {
        ClientError::Refused { status: 404, .. } => Kind::Missing,
        error if error.is_refusal() => Kind::Configuration,
        _ => Kind::Unavailable,
    };
    Failure::new(kind, error.to_string())
}

/// Returns the access token of the environment; an empty one counts as none, because scripts leave it so without a secret.
fn token_of_environment() -> Option<String> {
    std::env::var(TOKEN).ok().filter(|token| !token.trim().is_empty())
}

fn token_of(text: &str) -> Result<AccessToken, Failure> {
    text.trim()
        .parse()
        .map_err(|error| Failure::new(Kind::Configuration, format!("the access token: {error}")))
}

pub(super) fn read(file: &Path) -> Result<String, Failure> {
    fs::read_to_string(file)
        .map(|text| text.trim().to_owned())
        .map_err(|error| Failure::new(Kind::Configuration, format!("{}: {error}", file.display())))
}

/// Creates a client for the chosen controller.
pub(crate) fn client(choice: &ControllerChoice) -> anyhow::Result<Client> {
    if let Some(folder) = &choice.controller_state {
        let address = read(&folder.join("address"))?.parse::<JoinAddress>().map_err(|error| {
            Failure::new(Kind::Configuration, format!("{}: {error}", folder.join("address").display()))
        })?;
        let token = token_of(&read(&folder.join("admin.token"))?)?;
        return Client::new(&nearby(address), Some(token)).map_err(|error| failure(&error).into());
    }
    let kept: Option<Login> =
        path().and_then(|path| fs::read(path).ok()).and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let address = match (&choice.controller, &kept) {
        (Some(address), _) => address.clone(),
        (None, Some(kept)) => kept.controller.parse::<JoinAddress>().map_err(|error| {
            Failure::new(Kind::Configuration, format!("the address of the last login: {error}"))
        })?,
        (None, None) => {
            return Err(Failure::new(Kind::Configuration, "no controller is given")
                .with_help("log in with `tidemill login ADDRESS --token-file FILE`, or set TIDEMILL_CONTROLLER and TIDEMILL_TOKEN")
                .into());
        }
    };
    let is_kept = kept.as_ref().is_some_and(|kept| kept.controller == address.to_string());
    let token = match (&choice.token_file, token_of_environment(), kept) {
        (Some(file), ..) => read(file)?,
        (None, Some(token), _) => token,
        (None, None, Some(kept)) if is_kept => kept.token,
        (None, None, _) => {
            return Err(Failure::new(Kind::Configuration, "no access token for this controller")
                .with_help("give `--token-file FILE`, set TIDEMILL_TOKEN, or log in with `tidemill login`")
                .into());
        }
    };
    Client::new(&address, Some(token_of(&token)?)).map_err(|error| failure(&error).into())
}

/// Returns the address on this machine if the controller listens there: not every machine reaches itself by its external
/// address. The fingerprint identifies the controller.
fn nearby(address: JoinAddress) -> JoinAddress {
    let own = std::net::Ipv4Addr::LOCALHOST;
    let here = JoinAddress::new(&own.to_string(), address.port(), address.fingerprint());
    let listens = std::net::TcpStream::connect((own, address.port())).is_ok();
    here.ok().filter(|_| listens).unwrap_or(address)
}

/// Stores the controller and the token.
pub(crate) fn login(arguments: &LoginArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    let token = match &arguments.token_file {
        Some(file) => read(file)?,
        None => token_of_environment().ok_or_else(|| {
            Failure::new(Kind::Configuration, "no access token")
                .with_help("give `--token-file FILE`, or set TIDEMILL_TOKEN")
        })?,
    };
    let client = Client::new(&arguments.address, Some(token_of(&token)?)).map_err(|error| failure(&error))?;
    let runs: Vec<RunView> = client.get("/v1/runs").map_err(|error| failure(&error))?;
    let path = path().ok_or_else(|| {
        Failure::new(Kind::Unavailable, "no folder for the configuration: set HOME or XDG_CONFIG_HOME")
    })?;
    let login = Login { controller: arguments.address.to_string(), token: token.trim().to_owned() };
    let kept = (|| {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let next = path.with_extension("next");
        let _ = fs::remove_file(&next); // of a login that was interrupted
        let mut file: File = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&next)?;
        file.write_all(serde_json::to_string_pretty(&login)?.as_bytes())?;
        file.sync_all()?;
        fs::rename(&next, &path)
    })();
    kept.map_err(|error: std::io::Error| {
        Failure::new(Kind::Unavailable, format!("{}: {error}", path.display()))
    })?;
    let runs = if runs.len() == 1 { "1 run".to_owned() } else { format!("{} runs", runs.len()) };
    terminal.note(&format!("logged in: {runs}; saved in {}", path.display()));
    Ok(Exit::Success)
}
