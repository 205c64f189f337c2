//! `tidemill net serve` and `tidemill net upgrade`.
use crate::arguments::{GroupArguments, ServeNetArguments, UpgradeNetArguments};
use crate::exit::Exit;
use crate::interrupt::Interrupt;
use crate::terminal::Terminal;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tidemill_app::failure::{Failure, Kind};
use tidemill_app::listener::Listener;
use tidemill_app::metrics::MetricsPort;
use tidemill_app::net_process::{GroupsPart, NetTask};
use tidemill_app::processes::CertificateTexts;
use tidemill_collective::topology::Host;
use tidemill_net::gateway::GrpcServer;
use tidemill_net::protocol::Request;
use tidemill_net::supervise::{Supervision, Supervisor};
use tidemill_net::{Client, ClientError, usual_socket};

/// Interval of looks whether it is to end.
const LOOK: Duration = Duration::from_millis(100);

/// The command of the process that serves.
pub(super) fn child(program: &Path) -> Vec<String> {
    let mut command = vec![program.display().to_string(), "net-process".to_owned()];
    command.extend(crate::run::processes::own_log_options());
    command
}

fn own_program() -> Result<PathBuf, Failure> {
    std::env::current_exe().map_err(|error| {
        Failure::new(Kind::Unavailable, format!("cannot find the path of this program: {error}"))
    })
}

/// The gRPC servers of `--grpc-server`, with their schemas from `--proto`.
fn grpc_servers(arguments: &ServeNetArguments) -> Result<Vec<GrpcServer>, Failure> {
    if arguments.grpc_server.is_empty() {
        return Ok(Vec::new());
    }
    let descriptors = super::net_stub::compile(&arguments.proto, &arguments.include)?;
    let server = |text: &String| match text.split_once('=') {
        Some((service, uri)) if !service.is_empty() && uri.starts_with("http://") => Ok(GrpcServer {
            service: service.to_owned(),
            uri: uri.to_owned(),
            descriptors: descriptors.clone(),
        }),
        _ => Err(Failure::new(Kind::Usage, format!("`{text}` is no gRPC server"))
            .with_help("write SERVICE=http://HOST:PORT, as in shop.Prices=http://10.0.0.7:50051")),
    };
    arguments.grpc_server.iter().map(server).collect()
}

/// How the service takes part in groups.
fn groups(arguments: &GroupArguments) -> Result<GroupsPart, Failure> {
    let place = |option: &str, place: &String| match place.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
            Ok(tidemill_engine::remote::Address::tcp(place.as_str()))
        }
        _ => Err(Failure::new(Kind::Usage, format!("`{option} {place}` is no HOST:PORT")).with_help(
            format!("write the address as other machines reach it, as in `{option} 10.0.0.1:7470`"),
        )),
    };
    let listen = arguments.listen.as_ref().map(|listen| place("--listen", listen)).transpose()?;
    let is_any = |host: &str| host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_unspecified());
    if let Some(listen) = &listen
        && is_any(listen.place().rsplit_once(':').map_or("", |(host, _)| host.trim_matches(['[', ']'])))
    {
        let text = format!("other machines cannot dial {}", listen.place());
        return Err(Failure::new(Kind::Usage, text)
            .with_help("write the address of this machine that they reach, as in `--listen 10.0.0.1:7470`"));
    }
    let conductor = arguments.groups_at.as_ref().map(|at| place("--groups-at", at)).transpose()?;
    let read = |file: &PathBuf| {
        std::fs::read_to_string(file)
            .map_err(|error| Failure::new(Kind::Missing, format!("{}: {error}", file.display())))
    };
    let certificates = match (&arguments.certificate, &arguments.key, &arguments.authority) {
        (Some(chain), Some(key), Some(authority)) => {
            Some(CertificateTexts { chain: read(chain)?, key: read(key)?, authority: read(authority)? })
        }
        _ => None,
    };
    let host = Host {
        name: arguments.host.clone().unwrap_or_else(tidemill_machine::host_name),
        rack: arguments.rack.clone().unwrap_or_default(),
        pod: arguments.pod.clone().unwrap_or_default(),
        paths: arguments.group_path.clone(),
    };
    let (congestion, hints) = (arguments.group_congestion.clone(), arguments.hints.settings());
    Ok(GroupsPart { host, listen, conductor, certificates, congestion, hints })
}

/// Serves this machine until it is interrupted.
pub(super) fn serve(arguments: &ServeNetArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    let interrupt = Interrupt::listen()?;
    let socket = std::path::absolute(arguments.socket.clone().unwrap_or_else(usual_socket))?;
    let beside = socket.parent().map(Path::to_owned).unwrap_or_default();
    let folder = std::path::absolute(arguments.state.clone().unwrap_or_else(|| beside.clone()))?;
    for folder in [&beside, &folder] {
        std::fs::create_dir_all(folder).map_err(|error| {
            Failure::new(Kind::Unavailable, format!("{}: {error}", folder.display()))
                .with_help("name another place with `--socket` and `--state`")
        })?;
    }
    if Client::connect(&socket, 0).is_ok() {
        let text = format!("a transport service already serves at {}", socket.display());
        return Err(Failure::new(Kind::Unavailable, text)
            .with_help("`tidemill net upgrade` replaces its program by another version")
            .into());
    }
    let metrics = arguments.metrics.as_deref().map(MetricsPort::open).transpose()?;
    let grpc_servers = grpc_servers(arguments)?;
    let grpc = arguments.grpc;
    let groups = groups(&arguments.groups)?;
    let listens = groups.listen.clone().map(|listen| (listen, groups.certificates.is_some()));
    let task = move |socket: &Path| {
        let task = NetTask {
            socket: socket.into(),
            folder: folder.clone(),
            public: None,
            grpc,
            grpc_servers: grpc_servers.clone(),
            groups: groups.clone(),
        };
        serde_json::to_string(&task).unwrap_or_default()
    };
    let supervision =
        Supervision { command: child(&own_program()?), task: Box::new(task), socket: socket.clone() };
    let supervisor = Supervisor::start(supervision)
        .map_err(|error| Failure::new(Kind::Unavailable, format!("the transport service: {error}")))?;
    terminal.note(&format!(
        "serves this machine at {}; runs that start from now on register here",
        socket.display()
    ));
    if let Some((listen, is_secured)) = listens {
        let place = listen.place();
        terminal.note(&match is_secured {
            true => format!("groups reach this machine at {place}, with certificates"),
            false => format!(
                "groups reach this machine at {place} without certificates: whoever reaches the address can join them and read \
                 their bytes"
            ),
        });
    }
    if let Some(port) = &metrics {
        super::net_metrics::serve(port, socket)?;
        if let Some(address) = port.address() {
            terminal.note(&format!("metrics at http://{address}/metrics"));
        }
    }
    if let Some(grpc) = grpc {
        terminal.note(&format!("gRPC clients reach the services of this machine at {grpc}"));
    }
    interrupt.is_watched();
    while !interrupt.is_wanted() {
        if !supervisor.is_alive() {
            return Err(Failure::new(Kind::Unavailable, "the transport service has ended").into());
        }
        std::thread::sleep(LOOK);
    }
    drop(supervisor);
    Ok(Exit::Interrupted)
}

/// Replaces the program of the running service.
pub(super) fn upgrade(arguments: &UpgradeNetArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    let socket = arguments.socket.clone().unwrap_or_else(usual_socket);
    let program = match &arguments.program {
        Some(program) => std::path::absolute(program)?,
        None => own_program()?,
    };
    if !program.is_file() {
        let text = format!("{} is no program", program.display());
        return Err(Failure::new(Kind::Missing, text).into());
    }
    let unavailable = |error: ClientError| Failure::new(Kind::Unavailable, error.to_string());
    let mut client = Client::connect(&socket, 0).map_err(unavailable)?;
    terminal.note(&format!("{} starts beside the version that serves", program.display()));
    client.ask(&Request::Upgrade { program: program.clone() }).map_err(unavailable)?;
    terminal.note(&format!("{} serves now", program.display()));
    Ok(Exit::Success)
}
