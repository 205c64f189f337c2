//! Two worker processes that connect over the transport.
use crate::program::{PROGRAM, SIZES, demo};
use std::sync::Arc;
use std::time::Duration;
use tidemill_app::emulation::WarmUps;
use tidemill_app::listener::Silent;
use tidemill_app::preparation::{PlanFrom, prepare_here};
use tidemill_app::processes::{Sockets, hosts};
use tidemill_app::run_options::run_options;
use tidemill_engine::remote::{Address, Security};
use tidemill_engine::{Listen, Run, RunOptions, register_executors};
use tidemill_extension::{counter, network, pack, tally, turns, weights};
use tidemill_operators::registry::{register_operator, register_sink, register_source};

/// The command has no option for the transport, so this process coordinates instead of the built program, with the same parts. The
/// workers listen beside it: all connections of the run go over the transport.
#[test]
fn workers_connect_over_the_transport() {
    register_source(counter::Counter);
    register_operator(pack::Pack);
    register_sink(tally::Tally);
    assert!(register_executors(Arc::new(turns::Turns::default())));
    assert!(tidemill_inference::backend::register(weights::REGISTRATION));
    assert!(tidemill_link::transport::register(network::Network));

    let folder = demo();
    let [workflow, plan] = ["workflow.yaml", "plan.yaml"].map(|file| folder.path().join(file));
    let prepared = prepare_here(&workflow, PlanFrom::File(&plan), &Silent).unwrap();
    let command = vec![PROGRAM.to_owned(), "worker-process".to_owned()];
    let tell = Arc::new(|worker: &str, line: &str| eprintln!("{worker}: {line}"));
    let hosts = hosts(&workflow, &prepared, (Sockets::Local, WarmUps::new()), (None, None), command, tell);
    let mut hosts = hosts.unwrap();
    hosts.listen = Listen::At(Address::new("network", "tests@127.0.0.1:0"), Security::none());
    let options = RunOptions { hosts: Some(hosts), ..run_options(&prepared, None, None).unwrap() };

    let run = Run::start(prepared.program.clone(), options).unwrap();
    let report = run.wait_for(Duration::from_secs(50)).expect("it does not hang").unwrap();
    assert!(report.complete);
    assert_eq!(std::fs::read_to_string(folder.path().join("out/sizes.json")).unwrap(), SIZES);
}
