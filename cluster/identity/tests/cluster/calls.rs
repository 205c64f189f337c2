//! Calls over the network: joining, renewing, and people, through an HTTPS server of a few lines.
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, ServerConfig, ServerConnection, StreamOwned};
use tidemill_http::{Answer, Call, CallError, Caller, Place, Repeat};
use tidemill_identity::*;
use tidemill_link::remote::{ClientCertificates, Credentials};

use crate::parts::*;

/// Long enough that only what hangs for ever takes it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A request to a server.
pub(crate) struct Asked {
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
    pub(crate) chain: Vec<CertificateDer<'static>>,
}

type Answers = dyn Fn(&Asked) -> (u16, Vec<u8>) + Send + Sync;

/// A server that answers one connection after the other, until it is dropped.
pub(crate) struct Server {
    pub(crate) port: u16,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Vec<String>>>,
}

impl Server {
    pub(crate) fn start(config: ServerConfig, answers: Arc<Answers>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let stop = Arc::new(AtomicBool::new(false));
        let (config, stopped) = (Arc::new(config), Arc::clone(&stop));
        let serve = move || {
            let mut log = Vec::new();
            for socket in listener.incoming().map_while(Result::ok) {
                if stopped.load(Ordering::SeqCst) {
                    break;
                }
                if let Err(error) = answer(socket, &config, &*answers) {
                    log.push(error.to_string());
                }
            }
            log
        };
        Self { port, stop, thread: Some(std::thread::spawn(serve)) }
    }

    pub(crate) fn place(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Ends it, and gives what failed on its side.
    pub(crate) fn end(mut self) -> Vec<String> {
        self.join().expect("it was running")
    }

    fn join(&mut self) -> Option<Vec<String>> {
        let thread = self.thread.take()?;
        self.stop.store(true, Ordering::SeqCst);
        // It waits for a connection.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        Some(thread.join().expect("does not panic"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.join();
    }
}

fn answer(socket: TcpStream, config: &Arc<ServerConfig>, answers: &Answers) -> std::io::Result<()> {
    socket.set_read_timeout(Some(PATIENCE))?;
    let tls = ServerConnection::new(Arc::clone(config)).map_err(std::io::Error::other)?;
    let mut stream = StreamOwned::new(tls, socket);
    let mut bytes = Vec::new();
    let (head, body) = loop {
        let mut buffer = [0; 4096];
        let count = stream.read(&mut buffer)?;
        if count == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        bytes.extend_from_slice(&buffer[..count]);
        let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else { continue };
        let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
        let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")?.parse().ok());
        if bytes.len() == end + 4 + length.unwrap_or(0usize) {
            break (head, bytes[end + 4..].to_vec());
        }
    };
    let chain = stream.conn.peer_certificates().unwrap_or_default().iter();
    let chain = chain.map(|certificate| certificate.clone().into_owned()).collect();
    let (status, body) = answers(&Asked { head, body, chain });
    write!(stream, "HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n", body.len())?;
    stream.write_all(&body)?;
    stream.conn.send_close_notify();
    stream.flush()
}

/// The controller of a cluster, as far as identities go.
pub(crate) fn controller(cluster: &Arc<Cluster>, clock: &Clock) -> (Credentials, Server) {
    let authority = cluster.authority();
    let certificates = authority.issue_controller(&["127.0.0.1"], clock.now()).expect("its own certificate");
    let revoked = authority.revoked().clone();
    let credentials = Credentials::with(&certificates, revoked, clock.provider()).expect("its credentials");
    let config = credentials.server_config(ClientCertificates::Optional).expect("TLS");
    let (cluster, clock) = (Arc::clone(cluster), clock.clone());
    let answers = move |asked: &Asked| {
        let (authority, now) = (cluster.authority(), clock.now());
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let result: Result<Vec<u8>, IdentityError> = match asked.head.split(' ').nth(1) {
            Some("/join") => {
                let request: JoinRequest = serde_json::from_slice(&asked.body).expect("a request");
                authority.redeem(&request, now).map(|issued| serde_json::to_vec(&issued).expect("JSON"))
            }
            Some("/renew") => {
                let issued = authority.renew(&asked.chain, &text(&asked.body), now);
                issued.map(|issued| serde_json::to_vec(&issued).expect("JSON"))
            }
            Some("/runs") => {
                let shown = asked.head.lines().find_map(|line| line.strip_prefix("Authorization: Bearer "));
                let person = authority.authenticate(shown.unwrap_or_default(), now);
                let allowed = person.and_then(|person| person.require(Action::Submit).map(|()| person));
                allowed.map(|person| person.name.into_bytes()).map_err(IdentityError::from)
            }
            other => panic!("{other:?}"),
        };
        match result {
            Ok(body) => (200, body),
            Err(error) => {
                let refusal = error.refusal().expect("nothing else fails here");
                let status = match refusal.kind() {
                    RefusalKind::Malformed => 400,
                    RefusalKind::Unauthenticated => 401,
                    RefusalKind::Forbidden => 403,
                    RefusalKind::Conflict => 409,
                };
                (status, refusal.for_peer().into_bytes())
            }
        }
    };
    let server = Server::start(config, Arc::new(answers));
    (credentials, server)
}

fn post<'a>(path: &'a str, body: &'a [u8]) -> Call<'a> {
    Call { method: "POST", body, ..Call::get(path) }
}

/// Sends a call over a new connection.
pub(crate) fn send(
    call: &Call<'_>,
    address: &str,
    config: &Arc<ClientConfig>,
    patience: Duration,
) -> Result<Answer, CallError> {
    let place = Place::Tls { address: address.to_owned(), config: Arc::clone(config), name: TLS_NAME.into() };
    Arc::new(Caller::new(place)).send(call, patience, Repeat::Refused)
}

/// All that a worker does: it joins by an address and a token, renews its certificate, and is refused when it is revoked.
#[test]
fn a_worker_joins_and_renews_over_the_network() {
    let cluster = Arc::new(Cluster::new());
    let clock = Clock::at(NOON);
    let (controller_credentials, server) = controller(&cluster, &clock);
    let address = cluster.authority().join_address("127.0.0.1", server.port).unwrap().to_string();
    let token = cluster.token(&JoinTokenOptions::default(), NOON);

    let folder = tempfile::tempdir().unwrap();
    let mut worker = WorkerFolder::open(&folder.path().join("worker")).unwrap();
    let address: JoinAddress = address.parse().unwrap();
    let joining = Arc::new(fingerprint_config(address.fingerprint(), clock.provider()).unwrap());
    let request = JoinRequest {
        token: token.reveal().to_string(),
        request_pem: worker.request().unwrap(),
        name: Some(name("edge-1")),
        location: None,
        tier: None,
    };
    let body = serde_json::to_vec(&request).unwrap();
    let answer = send(&post("/join", &body), &address.host_and_port(), &joining, PATIENCE).unwrap();
    assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
    let issued: Issued = serde_json::from_slice(&answer.body).unwrap();
    let identity = worker.install(&issued, address.fingerprint()).unwrap().clone();
    assert_eq!(identity.identity, PeerIdentity::Worker(name("edge-1")));

    // Its certificate is due after two thirds of its life.
    let credentials =
        Credentials::with(&identity.certificates, Default::default(), clock.provider()).unwrap();
    let config = Arc::new(worker_config(&credentials).unwrap());
    clock.set(identity.facts.renewal_due());
    let request = worker.request().unwrap();
    let answer = send(&post("/renew", request.as_bytes()), &server.place(), &config, PATIENCE).unwrap();
    assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
    let issued: Issued = serde_json::from_slice(&answer.body).unwrap();
    let renewed = worker.install(&issued, identity.authority).unwrap().clone();
    assert!(renewed.facts.not_after > identity.facts.not_after);
    credentials.replace(&renewed.certificates).unwrap();
    clock.set(identity.facts.not_after.after(Duration::from_secs(1)));
    // The first certificate has expired, and the connections continue with the second one.
    let request = worker.request().unwrap();
    let answer = send(&post("/renew", request.as_bytes()), &server.place(), &config, PATIENCE).unwrap();
    assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
    worker.give_up_request().unwrap();

    // Without a certificate nothing is renewed, and people need tokens.
    let answer = send(&post("/renew", request.as_bytes()), &server.place(), &joining, PATIENCE).unwrap();
    assert_eq!((answer.status, &answer.body[..]), (401, Refusal::NoCertificate.for_peer().as_bytes()));

    // Revoked: the connection is refused, with the reason.
    cluster.authority().revoke_worker(&name("edge-1"), "sold", "Ada", clock.now()).unwrap();
    let error = send(&post("/renew", request.as_bytes()), &server.place(), &config, PATIENCE).unwrap_err();
    assert!(error.to_string().contains("CertificateRevoked"), "{error}");
    assert!(format!("{controller_credentials:?}").contains("Revoked(3 certificates)"));
    let log = server.end().join("\n");
    assert!(log.contains("Revoked"), "{log}");
}

#[test]
fn people_show_tokens_over_the_network() {
    let cluster = Arc::new(Cluster::new());
    let clock = Clock::at(NOON);
    let (_credentials, server) = controller(&cluster, &clock);
    let config = fingerprint_config(cluster.authority().fingerprint(), clock.provider()).unwrap();
    let config = Arc::new(config);
    let submit = |token: Option<&AccessToken>| {
        let token = token.map(AccessToken::reveal);
        let call = Call { token: token.as_ref().map(|token| token.as_str()), ..post("/runs", b"{}") };
        let answer = send(&call, &server.place(), &config, PATIENCE).unwrap();
        (answer.status, String::from_utf8(answer.body).unwrap())
    };
    let operator = cluster.authority().add_person("Ada", Role::Operator, None, NOON).unwrap();
    let viewer = cluster.authority().add_person("Grace", Role::Viewer, None, NOON).unwrap();
    assert_eq!(submit(Some(&operator)), (200, "Ada".to_owned()));
    let (status, text) = submit(Some(&viewer));
    assert_eq!((status, &text[..28]), (403, "Grace may not start a run: t"));
    assert_eq!(submit(None).0, 401);
    cluster.authority().revoke_person("Ada", "left", "Grace", minutes(1)).unwrap();
    assert_eq!(
        submit(Some(&operator)),
        (401, format!("the token was revoked on {}: ask for a new one", minutes(1)))
    );
}

#[test]
fn what_is_no_controller_is_told() {
    let clock = Clock::at(NOON);
    let wanted = Fingerprint::of(b"x");
    let config = Arc::new(fingerprint_config(wanted, clock.provider()).unwrap());
    let call = Call::get("/");
    // No listener is there: the port was free a moment ago.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = listener.local_addr().unwrap().to_string();
    // A peer that sends other bytes than TLS.
    let thread = std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().expect("somebody dials");
        let written = socket.write_all(b"SSH-2.0-OpenSSH_9.9\r\n");
        let _ = socket.read(&mut [0; 1000]);
        written
    });
    let error = send(&call, &place, &config, PATIENCE).unwrap_err();
    assert!(matches!(error, CallError::Tls { .. }), "{error}");
    thread.join().unwrap().unwrap();
    let error = send(&call, &place, &config, PATIENCE).unwrap_err().to_string();
    assert!(error.starts_with(&format!("{place} cannot be reached: ")), "{error}");
    // A peer that sends nothing: the timeout is reported.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = silent.local_addr().unwrap().to_string();
    let error = send(&call, &place, &config, Duration::from_millis(50)).unwrap_err().to_string();
    assert_eq!(error, format!("{place} did not answer: it took too long"));
    let odd = Call::get("/a b");
    assert!(matches!(send(&odd, &place, &config, PATIENCE), Err(CallError::Request(_))));
}
