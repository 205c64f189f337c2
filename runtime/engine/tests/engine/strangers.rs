//! Hosts with certificates: a valid one of another host is rejected. Each process here has one of a common authority, as
//! the workers of a cluster have.
use crate::authority::Authority;
use crate::hosts::{RUN, joined};
use crate::parts::*;
use rcgen::SanType;
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tidemill_engine::remote::{
    Address, Greeting, Incoming, Listener, Purpose, RemoteError, Role, Security, Serving, dial,
};
use tidemill_engine::{
    Exchange, HostLauncher, HostOptions, Hosts, Listen, Program, Run, RunOptions, serve_host,
};

const PATIENCE: Duration = Duration::from_secs(50);
const CONTROLLER: &str = "tidemill:controller";

fn worker(name: &str) -> String {
    format!("tidemill:worker/{name}")
}

impl Authority {
    fn new() -> Self {
        Self::named("tests")
    }

    /// The certificate of a host.
    fn security(&self, who: &str) -> Security {
        let name = SanType::URI(who.try_into().expect("ASCII"));
        let certificates = self.certify("tidemill", |parameters| parameters.subject_alt_names.push(name));
        Security::mutual(&certificates).expect("they belong together")
    }
}

/// Changes the address of a host.
type Change = Box<dyn Fn(&mut HostOptions) + Send>;

/// Hosts as threads, each with its own certificate.
struct Threads {
    program: Program,
    authority: Authority,
    change: Change,
    started: HostThreads,
}

impl HostLauncher for Threads {
    fn launch(&mut self, name: &str, coordinator: &Address) -> Result<(), String> {
        let mut options = HostOptions::local(name, RUN, coordinator.clone());
        options.security = self.authority.security(&worker(name));
        options.coordinator_identity = Some(CONTROLLER.to_owned());
        (self.change)(&mut options);
        self.started.start(&self.program, options);
        Ok(())
    }

    fn ended(&mut self) -> Vec<String> {
        self.started.ended()
    }

    fn fate(&mut self, name: &str) -> Option<String> {
        self.started.fate(name)
    }

    fn end(&mut self) {
        for (name, ended) in self.started.end() {
            assert_eq!(ended, Ok(()), "{name}");
        }
    }
}

const ROWS: usize = 5000;

/// Starts a run whose hosts have certificates, and whose coordinator checks them.
fn start(authority: &Authority, rate: Option<f64>, change: Change) -> (Run, Collected, Arc<Exchange>) {
    let (mut program, collected) = joined(ROWS);
    program.sources.values_mut().for_each(|source| source.rate_per_second = rate);
    let local = Address::tcp("127.0.0.1:0");
    let exchange = Exchange::listen(&local, None, &authority.security(CONTROLLER)).expect("listens");
    exchange.admit_only(|greeting, identity| {
        let Purpose::Control { host } = &greeting.purpose else { return Err("no host".to_owned()) };
        match identity == Some(worker(host).as_str()) {
            true => Ok(()),
            false => Err(format!("{identity:?} is not {host}")),
        }
    });
    let exchange = Arc::new(exchange);
    let launcher = Threads {
        program: program.clone(),
        authority: authority.clone(),
        change,
        started: HostThreads::default(),
    };
    let listen = Listen::With(Arc::clone(&exchange));
    let hosts = Hosts { launcher: Box::new(launcher), run: RUN, plan_version: 0, listen };
    let options = RunOptions { hosts: Some(hosts), ..RunOptions::default() };
    (Run::start(program, options).expect("starts"), collected, exchange)
}

fn check(run: &Run, collected: &Collected) {
    wait(run);
    let expected: Vec<String> = (0..ROWS).map(|i| format!("k{i:06}={}", i * 1_000_001)).collect();
    assert_eq!(sorted(collected), expected);
}

/// A member of the cluster that listens and receives greetings.
fn impostor(authority: &Authority, who: &str) -> (Serving, Receiver<Incoming>) {
    let (sender, heard) = channel();
    let sender = Mutex::new(sender);
    let local = Address::tcp("127.0.0.1:0");
    let listener = Listener::bind(&local, &authority.security(who)).expect("binds");
    let hear = move |incoming| drop(sender.lock().expect("not poisoned").send(incoming));
    (listener.serve(hear).expect("serves"), heard)
}

fn port(address: &Address) -> String {
    address.place().to_owned()
}

/// Routes the first connections to one address, all others to another one. Returns their number.
fn detour(first: usize, to: String, then: String) -> (Address, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = Address::tcp(listener.local_addr().expect("bound").to_string());
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    std::thread::spawn(move || {
        for incoming in listener.incoming() {
            let Ok(incoming) = incoming else { return };
            let number = counted.fetch_add(1, Ordering::AcqRel);
            let Ok(onward) = TcpStream::connect(if number < first { &to } else { &then }) else { continue };
            for (mut from, mut into) in
                [(incoming.try_clone().expect("open"), onward.try_clone().expect("open")), (onward, incoming)]
            {
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut into);
                    let _ = into.shutdown(std::net::Shutdown::Both);
                });
            }
        }
    });
    (address, count)
}

/// A worker that answers in place of another one is not greeted by those who dial it: it learns neither the number of the
/// run nor a record. When the right one is there, the run continues.
#[test]
fn a_worker_that_answers_in_the_place_of_another_one_is_not_greeted() {
    let authority = Authority::new();
    let (serving, heard) = impostor(&authority, &worker("evil"));
    let evil = port(serving.address());
    let count = Arc::new(Mutex::new(None));
    let told = Arc::clone(&count);
    let change = move |options: &mut HostOptions| {
        let free =
            TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port");
        if options.name == "a" {
            let (in_front, count) = detour(3, evil.clone(), free.to_string());
            (options.listen, options.announce) = (Some(Address::tcp(free.to_string())), Some(in_front));
            *told.lock().expect("not poisoned") = Some(count);
        }
    };
    let (run, collected, _exchange) = start(&authority, None, Box::new(change));
    check(&run, &collected);
    let count = count.lock().expect("not poisoned").take().expect("was launched").load(Ordering::Acquire);
    assert!(count > 3, "{count} connections: the impostor had three, and the right one has others");
    drop(serving);
    assert!(heard.try_recv().is_err(), "somebody greeted the impostor");
}

/// Host `a` listens at the returned address.
fn with_a_port_of_its_own() -> (Change, Receiver<Address>) {
    let (told, addresses) = channel();
    let told = Mutex::new(told);
    let change = move |options: &mut HostOptions| {
        if options.name == "a" {
            let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
            let address = Address::tcp(free.expect("a port").to_string());
            options.listen = Some(address.clone());
            let _ = told.lock().expect("not poisoned").send(address);
        }
    };
    (Box::new(change), addresses)
}

/// A worker that knows the number of the run dials as another one: both the coordinator and a host reject it.
#[test]
fn a_worker_that_dials_as_another_one_is_refused() {
    let authority = Authority::new();
    let (change, addresses) = with_a_port_of_its_own();
    let (run, collected, exchange) = start(&authority, Some(1000.0), change);
    let evil = authority.security(&worker("evil"));
    let greeting = |purpose| Greeting { run: RUN, plan_version: 0, purpose };
    let as_host = greeting(Purpose::Control { host: "a".to_owned() });
    let error = dial(exchange.address(), &evil, &as_host, PATIENCE).expect_err("it is another one");
    assert!(matches!(&error, RemoteError::Refused(reason) if reason.contains("is not a")), "{error}");
    let address = addresses.recv_timeout(PATIENCE).expect("it is launched");
    // It is rejected for every channel that may end there, in both directions, during the run.
    let mut refused = 0;
    for _ in 0..300 {
        if refused > 0 {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
        for number in 0..20 {
            for role in [Role::Sender, Role::Receiver] {
                let purpose = Purpose::Channel { channel: number, role, incarnation: 1, schema: 0 };
                match dial(&address, &evil, &greeting(purpose), Duration::from_millis(100)) {
                    Ok(_) => panic!("it has channel {number}"),
                    Err(RemoteError::Refused(reason)) => {
                        refused += usize::from(reason.contains("the certificate is of tidemill:worker/evil"));
                    }
                    // Before the host listens or has started, or for a channel that waits for its slot.
                    Err(_) => {}
                }
            }
        }
    }
    assert!(refused > 0, "it was not refused");
    check(&run, &collected);
}

/// A worker of the run that still has the previous plan: both the coordinator and a host reject it.
#[test]
fn another_plan_of_the_same_run_is_refused_on_both_sides() {
    let authority = Authority::new();
    let (change, addresses) = with_a_port_of_its_own();
    let (run, collected, exchange) = start(&authority, Some(1000.0), change);
    let own = authority.security(&worker("a"));
    let greeting = |purpose| Greeting { run: RUN, plan_version: 1, purpose };
    let as_host = greeting(Purpose::Control { host: "a".to_owned() });
    let error = dial(exchange.address(), &own, &as_host, PATIENCE).expect_err("it has another plan");
    assert!(matches!(&error, RemoteError::Refused(_)), "{error}");
    let address = addresses.recv_timeout(PATIENCE).expect("it is launched");
    let purpose = Purpose::Channel { channel: 0, role: Role::Receiver, incarnation: 1, schema: 0 };
    let as_peer = greeting(purpose);
    let reason = (0..300).find_map(|_| {
        match dial(&address, &authority.security(&worker("b")), &as_peer, Duration::from_millis(100)) {
            Ok(_) => panic!("plans mix"),
            Err(RemoteError::Refused(reason)) => Some(reason),
            // Before the host listens.
            Err(_) => {
                std::thread::sleep(Duration::from_millis(10));
                None
            }
        }
    });
    assert_eq!(reason.as_deref(), Some("this host works for another run or plan"));
    check(&run, &collected);
}

/// A host that gets the address of a worker in place of its coordinator.
#[test]
fn a_host_greets_no_coordinator_with_the_certificate_of_a_worker() {
    let authority = Authority::new();
    let (serving, heard) = impostor(&authority, &worker("evil"));
    let (program, _) = joined(10);
    let mut options = HostOptions::local("a", RUN, serving.address().clone());
    options.security = authority.security(&worker("a"));
    options.coordinator_identity = Some(CONTROLLER.to_owned());
    let error = serve_host(&program, options).expect_err("it is no controller").to_string();
    assert!(error.contains("tidemill:worker/evil answers") && error.contains(CONTROLLER), "{error}");
    drop(serving);
    assert!(heard.try_recv().is_err(), "it was greeted");
}

/// A worker that is removed from the cluster: its connection is closed, and its host is lost for the coordinator.
#[test]
fn a_worker_that_is_expelled_is_lost() {
    let authority = Authority::new();
    let (run, collected, exchange) = start(&authority, Some(1000.0), Box::new(|_| {}));
    // A host that has not joined yet when the run is over would be refused.
    let expelled = (0..3000).any(|_| {
        assert_eq!(exchange.expel(&worker("evil")), 0, "it has no host");
        std::thread::sleep(Duration::from_millis(10));
        !sorted(&collected).is_empty() && exchange.expel(&worker("a")) == 1
    });
    assert!(expelled, "its host was never there");
    let error = result_within(&run, 50).expect_err("nothing is kept of what it had").to_string();
    assert!(error.contains("the process of worker 'a'"), "{error}");
    assert_eq!(exchange.expel(&worker("a")), 0);
}
