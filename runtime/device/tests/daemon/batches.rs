//! Sessions of a tenant that share a process.
use super::*;
use tidemill_device::batching::Batching;
use tidemill_device::emulated::{Faults, ModelTimes};
use tidemill_device::value::Value;

/// Bytes of a loaded model.
const MODEL: u64 = 5_000;

fn start(device: &str, run_ms: f64) -> Served {
    start_with(device, run_ms, Duration::from_secs(60))
}

fn start_with(device: &str, run_ms: f64, longest_run: Duration) -> Served {
    start_faulty(device, run_ms, longest_run, 1 << 20, Faults::default())
}

/// `memory`: that of each tenant.
fn start_faulty(device: &str, run_ms: f64, longest_run: Duration, memory: u64, faults: Faults) -> Served {
    let tenant = |share| Tenant { share, memory: Some(memory) };
    let listed = [("a".to_owned(), tenant(0.5)), ("b".to_owned(), tenant(0.3))];
    let others = ModelTimes { run_ms, memory: MODEL, has_rows: true, ..ModelTimes::default() };
    let change = |options: &mut Options| {
        options.tenants = Tenants::new(listed, false).unwrap();
        options.longest_run = longest_run;
        options.batching = Some(Batching { rows: 8, wait: Duration::ZERO });
    };
    Served::start(device, change, &Profile { others, faults, ..Profile::default() })
}

/// Uploads a row and runs the model. Returns the output.
fn infer(session: &Session, model: ModelId, fill: u8) -> Result<Value, CallError> {
    let mut lane = session.lane();
    let input = lane.upload(Element::Uint8, &[1, 100], &[fill; 100])?;
    let outputs = lane.run(model, &[input], &[0])?;
    let pending = lane.read(outputs[0])?;
    lane.free(&[input, outputs[0]])?;
    drop(lane);
    pending.wait()?.value()
}

fn processes(listing: &Listing) -> Vec<u32> {
    listing.sessions.iter().map(|session| session.process).collect()
}

/// The memory of a tenant.
fn memory(listing: &Listing, tenant: &str) -> u64 {
    listing.tenants.iter().find(|found| found.tenant == tenant).unwrap().memory
}

#[test]
fn sessions_of_a_tenant_share_a_process_and_its_models() {
    let served = start("share", 0.1);
    let sessions: Vec<Session> = ["a", "a", "b"].map(|tenant| served.open(tenant).unwrap()).into();
    let models: Vec<ModelId> = sessions.iter().map(|session| load(session, "m")).collect();
    let values: Vec<Value> =
        sessions.iter().zip(&models).map(|(session, model)| infer(session, *model, 7).unwrap()).collect();
    assert!(values[0] == values[1] && values[0] == values[2]);
    let is_free = |listing: &Listing| memory(listing, "a") == MODEL && memory(listing, "b") == MODEL;
    let listing = served.until("figures", |listing| listing.runs == 3 && is_free(listing));
    let [first, second, other] = processes(&listing)[..] else { panic!("{listing:?}") };
    assert!(first == second && first != other);
    assert!(listing.sessions.iter().all(|session| session.models == 1 && session.memory == 0));
    // What one holds is its own.
    let held = sessions[0].lane().upload(Element::Uint8, &[1000], &[1; 1000]).unwrap();
    match { sessions[1].lane().read(held).unwrap() }.wait() {
        Err(CallError::Failed(failure)) => assert!(matches!(failure.error, DeviceError::NoTensor(_))),
        other => panic!("{other:?}"),
    }
    let listing = served.until("the tensor", |listing| memory(listing, "a") == MODEL + 1000);
    assert_eq!((listing.sessions[0].memory, listing.sessions[1].memory), (1000, 0));
    drop(sessions);
    served.until("the end of all", |listing| listing.sessions.is_empty());
    until("the end of both processes", || (!lives(first) && !lives(other)).then_some(()));
    served.end();
}

#[test]
fn runs_that_wait_for_each_other_are_computed_together() {
    let served = start("batches", 20.0);
    std::thread::scope(|scope| {
        for client in 0..4 {
            let served = &served;
            scope.spawn(move || {
                let session = served.open("a").unwrap();
                let model = load(&session, "m");
                let expected: Vec<Value> = (0..2).map(|fill| infer(&session, model, fill).unwrap()).collect();
                for number in 0..8 {
                    let fill = (number + client) % 2;
                    assert_eq!(infer(&session, model, fill).unwrap(), expected[usize::from(fill)]);
                }
                // Its figures stay with the session.
                served.until("all", |listing| listing.runs >= 40);
            });
        }
    });
    let listing = served.until("the end of all", |listing| listing.sessions.is_empty());
    assert_eq!((listing.runs, listing.failed), (40, 0));
    assert!(listing.computed_seconds < 40.0 * 0.02, "some were computed together: {listing:?}");
    assert!((10..40).contains(&listing.batches), "{listing:?}");
    assert!(listing.computed_seconds >= 10.0 * 0.02, "the time of each batch counts once: {listing:?}");
    served.end();
}

#[test]
fn a_model_that_fails_only_in_batches_is_put_together_no_more_and_the_listing_says_so() {
    let faults = Faults { most_rows: 1, ..Faults::default() };
    let served = start_faulty("apart", 20.0, Duration::from_secs(60), 1 << 20, faults);
    let is_apart =
        |listing: &Listing| listing.tenants.iter().find(|tenant| tenant.tenant == "a").unwrap().apart;
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let session = served.open("a").unwrap();
                let model = load(&session, "m");
                let expected = infer(&session, model, 7).unwrap();
                // Until some of them have waited together.
                while is_apart(&served.daemon().listing()) == 0 {
                    assert_eq!(infer(&session, model, 7).unwrap(), expected);
                }
                (0..5).for_each(|_| assert_eq!(infer(&session, model, 7).unwrap(), expected));
                // It stays with its process.
                served.until("all", |listing| is_apart(listing) == 1);
            });
        }
    });
    let listing = served.until("the end of all", |listing| listing.sessions.is_empty());
    assert_eq!(listing.failed, 0, "{listing:?}");
    served.end();
}

#[test]
fn clients_that_come_and_go_at_once_are_all_served_though_the_process_ends_with_the_last() {
    // The models of two processes do not fit, nor one model twice.
    let served = start_faulty("come-and-go", 0.0, Duration::from_secs(60), 8_000, Faults::default());
    let processes = std::sync::Mutex::new(std::collections::BTreeSet::new());
    while processes.lock().unwrap().len() < 4 {
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for fill in 0..4 {
                        let session = served.open("a").unwrap();
                        let model = load(&session, "m");
                        infer(&session, model, fill).unwrap();
                        let listing = served.daemon().listing();
                        processes.lock().unwrap().extend(self::processes(&listing));
                    }
                });
            }
        });
        // The process ends, and the next client comes at once.
        served.until("the end of all", |listing| listing.sessions.is_empty());
    }
    served.end();
}

#[test]
fn the_batches_of_a_process_that_has_ended_are_counted() {
    let served = start("counted", 0.0);
    let session = served.open("a").unwrap();
    let model = load(&session, "m");
    (0..5).for_each(|fill| drop(infer(&session, model, fill).unwrap()));
    drop(session);
    served.until("the last figures", |listing| (listing.runs, listing.batches) == (5, 5));
    served.end();
}

#[test]
fn a_shared_process_that_is_killed_loses_its_sessions_and_no_others() {
    let served = start("killed-group", 0.0);
    let (first, second, other) =
        (served.open("a").unwrap(), served.open("a").unwrap(), served.open("b").unwrap());
    let of_other = load(&other, "m");
    let expected = infer(&other, of_other, 7).unwrap();
    let models = [load(&first, "m"), load(&second, "m")];
    assert_eq!(infer(&first, models[0], 7).unwrap(), expected);
    let listing = served.until("all", |listing| listing.sessions.len() == 3);
    kill(processes(&listing)[0]);
    for (session, model) in [(&first, models[0]), (&second, models[1])] {
        let lost = until("the loss", || infer(session, model, 7).err());
        assert!(matches!(lost, CallError::Lost { .. }) && !session.is_dismissed(), "{lost:?}");
    }
    assert_eq!(infer(&other, of_other, 7).unwrap(), expected);
    let again = served.open("a").unwrap();
    let model = load(&again, "m");
    assert_eq!(infer(&again, model, 7).unwrap(), expected);
    served.until("the end of both", |listing| listing.sessions.len() == 2);
    drop((first, second, other, again));
    served.end();
}

#[test]
fn a_client_that_is_killed_gives_its_tensors_back_and_the_process_stays() {
    let served = start("killed-member", 0.0);
    let other = served.open("a").unwrap();
    let model = load(&other, "m");
    let address = served.daemon().addresses()[0].clone();
    let (mut client, _) = super::start("client", "client_process", &(address, "a"), "computed");
    let listing = served.until("both sessions", |listing| listing.sessions.len() == 2);
    assert_eq!(processes(&listing)[0], processes(&listing)[1]);
    client.kill().unwrap();
    client.wait().unwrap();
    served.until("its end", |listing| listing.sessions.len() == 1 && memory(listing, "a") == MODEL);
    infer(&other, model, 7).unwrap();
    assert_eq!(processes(&served.daemon().listing()), processes(&listing)[..1]);
    drop(other);
    served.end();
}

#[test]
fn a_client_that_is_gone_during_a_long_run_takes_no_other_with_it() {
    // Longer than a process may leave questions of the daemon without an answer.
    let served = start("gone-member", 9_000.0);
    let (gone, other) = (served.open("a").unwrap(), served.open("a").unwrap());
    let (of_gone, _) = (load(&gone, "m"), load(&other, "m"));
    let process = processes(&served.daemon().listing())[0];
    let mut lane = gone.lane();
    let input = lane.upload(Element::Uint8, &[1, 2], &[7; 2]).unwrap();
    let outputs = lane.run(of_gone, &[input], &[0]).unwrap();
    let pending = lane.read(outputs[0]).unwrap();
    drop(lane);
    served.until("the run", |listing| listing.sessions[0].state == SessionState::Running);
    drop((pending, gone));
    served.until("its end", |listing| listing.sessions.len() == 1);
    other.flush().unwrap();
    assert_eq!(processes(&served.daemon().listing()), [process]);
    drop(other);
    served.end();
}

#[test]
fn a_batch_that_does_not_end_loses_its_sessions_once_others_wait() {
    let served = start_with("hangs", 3_600_000.0, Duration::from_millis(200));
    let (first, second, other) =
        (served.open("a").unwrap(), served.open("a").unwrap(), served.open("b").unwrap());
    let (model, of_other) = (load(&first, "m"), load(&other, "m"));
    std::thread::scope(|scope| {
        let hung = scope.spawn(|| infer(&first, model, 7));
        let is_running = |listing: &Listing| listing.sessions[0].state == SessionState::Running;
        served.until("the run", is_running);
        let waits = scope.spawn(|| infer(&other, of_other, 7));
        assert!(matches!(hung.join().unwrap(), Err(CallError::Lost { may_have_run: true, .. })));
        until("the other loss", || second.lost());
        // The other tenant has its turn now.
        served.until("its turn", |listing| listing.sessions.len() == 1 && listing.queue == 0);
        kill(processes(&served.daemon().listing())[0]);
        assert!(waits.join().unwrap().is_err());
    });
    drop((first, second, other));
    served.end();
}

#[test]
fn a_client_is_in_the_process_of_the_tenant_that_it_names() {
    let served = start("tenants", 0.0);
    let address = &served.daemon().addresses()[0];
    let carrier = dial::connect(address, &Security::none(), "a", "liar").unwrap();
    match Session::open(carrier, "b", "liar") {
        Err(CallError::Refused(reason)) => assert!(reason.contains("another tenant"), "{reason}"),
        other => panic!("{other:?}"),
    }
    served.end();
}

#[test]
fn drained_sessions_of_a_process_end_at_a_run() {
    let served = start("drain-group", 0.0);
    let sessions = [served.open("a").unwrap(), served.open("a").unwrap()];
    let models = sessions.each_ref().map(|session| load(session, "m"));
    infer(&sessions[0], models[0], 7).unwrap();
    served.ask(&Question::Drain { session: Some(1) }).unwrap();
    until("the goodbye", || sessions[0].is_dismissed().then_some(()));
    infer(&sessions[1], models[1], 7).unwrap();
    served.ask(&Question::Drain { session: None }).unwrap();
    until("the goodbye", || sessions[1].is_dismissed().then_some(()));
    assert!(served.daemon().wait_until_over(Duration::from_secs(50)));
    served.end();
}
