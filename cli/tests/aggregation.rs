//! Aggregators of training jobs, as users start them: moves, deaths at each step of a move, and jobs that share.
use crate::command::{Outcome, command, tidemill};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tidemill_aggregation_service::bench::{self, BenchOptions, BenchReport};
use tidemill_aggregation_service::client::{Beginning, Client, ClientError, Joining};
use tidemill_aggregation_service::fault::{PLACES, VARIABLE};
use tidemill_aggregation_service::master::report::Report;
use tidemill_aggregation_service::master::{Question, ask};
use tidemill_aggregation_service::number::Numbers;
use tidemill_aggregation_service::rule::Rule;
use tidemill_aggregation_service::tensor::Spec;
use tidemill_aggregation_service::trained::Trained;
use tidemill_engine::remote::{Address, Security};
use tidemill_net::{Options as NetOptions, Service};
use tidemill_training::data::spirals;
use tidemill_training::{Alone, Model, Options, Trainer};

const PATIENCE: Duration = Duration::from_secs(60);

/// A transport service and a master with its aggregators, which end with this.
pub(crate) struct Served {
    folder: tempfile::TempDir,
    net: Option<Child>,
    master: Option<Child>,
    arguments: Vec<String>,
}

impl Served {
    pub(crate) fn start(arguments: &[&str], kill: Option<&str>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("net.sock");
        let net = command(&["net", "serve", "--socket", socket.to_str().unwrap()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let arguments = arguments.iter().map(|&word| word.to_owned()).collect();
        let mut served = Self { folder, net: Some(net), master: None, arguments };
        until("the transport service", || tidemill_net::Client::connect(&served.socket(), 0).is_ok());
        served.master(kill);
        served
    }

    /// Starts the master, and waits until it serves.
    fn master(&mut self, kill: Option<&str>) {
        let socket = self.socket();
        let mut words = vec!["agg", "serve", "--socket", socket.to_str().unwrap()];
        words.extend(self.arguments.iter().map(String::as_str));
        let mut command = command(&words);
        command.stdout(Stdio::null()).stderr(Stdio::null()).envs(kill.map(|kill| (VARIABLE, kill)));
        self.master = Some(command.spawn().unwrap());
        until("the master", || self.ask(Question::Report { job: None }).is_ok());
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("net.sock")
    }

    fn state(&self) -> PathBuf {
        self.folder.path().join("net.agg")
    }

    pub(crate) fn ask(&self, question: Question) -> Result<Report, tidemill_rpc::Status> {
        ask(&self.socket(), question)
    }

    pub(crate) fn report(&self) -> Report {
        self.ask(Question::Report { job: None }).unwrap()
    }

    pub(crate) fn agg(&self, words: &[&str]) -> Outcome {
        tidemill(&[&["agg"], words, &["--socket", self.socket().to_str().unwrap()]].concat())
    }

    fn options(&self, job: &str) -> BenchOptions {
        let rule = Rule::adam(0.01);
        let tensor = |name, count, numbers| Spec::new(name, count, numbers, rule);
        BenchOptions {
            socket: self.socket(),
            at: None,
            job: job.to_owned(),
            specs: vec![
                tensor("a", 700, Numbers::F32),
                tensor("b", 300, Numbers::Fixed),
                tensor("c", 500, Numbers::F16),
                tensor("d", 1, Numbers::F32),
            ],
            workers: 2,
            steps: 60,
            spread: 1,
            compute: Duration::from_millis(2),
            straggler: Duration::ZERO,
            migrate_every: 1,
            pause_every: 0,
            check: true,
            patience: PATIENCE,
        }
    }

    /// Whether a process of aggregators still locks its file.
    fn processes(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.state()).unwrap().map(|entry| entry.unwrap().file_name());
        let names = entries.filter_map(|name| name.into_string().ok());
        names.filter(|name| name.ends_with(".lock") && name != "master.lock").collect()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        for process in self.master.iter_mut().chain(&mut self.net) {
            Command::new("kill").args(["-TERM", &process.id().to_string()]).status().unwrap();
            let ended = process.wait().unwrap();
            if !std::thread::panicking() {
                assert_eq!(ended.code(), Some(130), "it ends in order");
            }
        }
        if !std::thread::panicking() {
            assert_eq!(self.processes(), Vec::<String>::new(), "aggregators are left");
        }
    }
}

pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..6000 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{what} has not come");
}

fn run(options: &BenchOptions) -> Result<BenchReport, ClientError> {
    bench::run(options, |_| {}, || false)
}

fn is_right(report: &BenchReport) {
    assert_eq!(report.expected_digest.as_ref(), Some(&report.digest), "{report:?}");
}

#[test]
fn a_job_whose_tensors_move_in_each_round_has_the_right_parameters() {
    let served = Served::start(&["--aggregators", "2"], None);
    let report = run(&BenchOptions { steps: 400, ..served.options("moving") }).unwrap();
    is_right(&report);
    assert!(report.moved.iter().sum::<usize>() > 8, "{:?}", report.moved);
    assert!(served.report().jobs.is_empty(), "the job has ended");
}

/// One training step by step through aggregators, with moves, against the trainer alone.
#[test]
fn a_training_through_aggregators_has_the_bits_of_one_process() {
    let served = Served::start(&["--aggregators", "2"], None);
    let options = Options::default();
    let new = || {
        let model = Model::Perceptron { sizes: vec![2, 16, 3] };
        Trainer::new(model, options, spirals(3, 300, 1)).unwrap()
    };
    let joining = |worker| Joining {
        socket: served.socket(),
        at: None,
        job: "spirals".to_owned(),
        token: "secret".to_owned(),
        worker,
        workers: 2,
        spread: 1,
        specs: Vec::new(),
        patience: PATIENCE,
    };
    let work = |worker: u32| {
        let mut trainer = new();
        let mut service = Trained::join(&mut trainer, &options, joining(worker), 40).unwrap();
        let mut losses = Vec::new();
        while trainer.steps() < 80 {
            losses.push(trainer.step_through(&mut service).unwrap().to_bits());
            if worker == 0 && trainer.steps().is_multiple_of(10) {
                let to = if trainer.steps().is_multiple_of(20) { "a0" } else { "a1" };
                // Refused while tensors move still.
                let _ =
                    served.ask(Question::Move { job: "spirals".to_owned(), tensor: None, to: to.to_owned() });
            }
        }
        service.settle(&mut trainer).unwrap();
        service.leave().unwrap();
        (trainer, losses)
    };
    let (first, second) = std::thread::scope(|scope| {
        let second = scope.spawn(|| work(1));
        (work(0), second.join().unwrap())
    });
    let mut alone = new();
    let expected: Vec<u64> = (0..80).map(|_| alone.step(&mut Alone).unwrap().to_bits()).collect();
    assert_eq!((&first.1, &second.1), (&expected, &expected));
    assert_eq!(first.0.parameters(), alone.parameters());
    assert_eq!(second.0.velocity(), alone.velocity());
}

/// Runs a job through a move in which a process ends at a place, and returns how the master ended.
fn through(place: &str) {
    // The first tensor is on a1, and moves to a0.
    let who = match place {
        "expecting" | "migrating" | "confirmed" | "written" => "master",
        "expected" | "received" | "advanced" => "a0",
        _ => "a1",
    };
    let mut served = Served::start(&["--aggregators", "2"], Some(&format!("{who}@{place}")));
    let options = BenchOptions { steps: 200, compute: Duration::from_millis(10), ..served.options("killed") };
    let steps = Arc::new(AtomicU64::new(0));
    let (counter, own) = (Arc::clone(&steps), options.clone());
    // It steps until the fault has happened and was overcome.
    let job = std::thread::spawn(move || {
        bench::run(&own, move |step| counter.store(step, Ordering::Release), || false)
    });
    if who == "master" {
        let ended = served.master.as_mut().unwrap().wait().unwrap();
        assert_eq!(ended.signal(), Some(9), "{place}: the master has not died");
        served.master(None);
    }
    let report = job.join().unwrap().unwrap_or_else(|error| panic!("{place}: {error}"));
    assert_eq!(steps.load(Ordering::Acquire), options.steps);
    is_right(&report);
    if who != "master" {
        let names: Vec<String> = served.report().aggregators.into_iter().map(|of| of.name).collect();
        assert!(!names.contains(&who.to_owned()) && names.contains(&"a2".to_owned()), "{place}: {names:?}");
    }
}

#[test]
fn a_death_of_the_master_at_any_step_of_a_move_changes_no_bit() {
    ["expecting", "migrating", "confirmed", "written"].into_iter().for_each(through);
}

#[test]
fn a_death_of_the_old_aggregator_at_any_step_of_a_move_changes_no_bit() {
    ["leaving", "replied", "copied", "forgotten"].into_iter().for_each(through);
}

#[test]
fn a_death_of_the_new_aggregator_at_any_step_of_a_move_changes_no_bit() {
    let places = ["expected", "received", "advanced"];
    places.into_iter().for_each(through);
    assert_eq!(PLACES.len(), places.len() + 8, "a place without a test");
}

#[test]
fn killed_aggregators_are_replaced_and_the_job_notices_nothing() {
    let served = Served::start(&["--aggregators", "2"], None);
    let options = BenchOptions { migrate_every: 0, steps: 150, ..served.options("lossy") };
    let steps = Arc::new(AtomicU64::new(0));
    let (counter, own) = (Arc::clone(&steps), options.clone());
    let job = std::thread::spawn(move || {
        bench::run(&own, move |step| counter.store(step, Ordering::Release), || false)
    });
    let mut killed = Vec::new();
    for (at, name) in [(30, "a0"), (60, "a1"), (90, "a2")] {
        until("a step", || steps.load(Ordering::Acquire) >= at);
        let process = std::fs::read_to_string(served.state().join(format!("{name}.lock"))).unwrap();
        assert!(Command::new("kill").args(["-KILL", process.trim()]).status().unwrap().success());
        killed.push(name.to_owned());
        let seen = steps.load(Ordering::Acquire);
        until("a step after the death", || steps.load(Ordering::Acquire) > seen + 2);
    }
    is_right(&job.join().unwrap().unwrap());
    let names: Vec<String> = served.report().aggregators.into_iter().map(|of| of.name).collect();
    assert!(names.len() == 2 && names.iter().all(|name| !killed.contains(name)), "{names:?}");
}

#[test]
fn a_worker_that_is_lost_comes_again_and_others_have_waited() {
    let served = Served::start(&["--aggregators", "1"], None);
    let specs =
        vec![Spec::new("w", 2, Numbers::F32, Rule::adam(0.1)), Spec::new("v", 1, Numbers::F32, Rule::Sum)];
    let join = |worker, token: &str| {
        let joining = Joining {
            socket: served.socket(),
            at: None,
            job: "lost".to_owned(),
            token: token.to_owned(),
            worker,
            workers: 2,
            spread: 1,
            specs: specs.clone(),
            patience: PATIENCE,
        };
        Client::join(joining, Beginning::with_values(&specs, &[vec![1.0, 2.0], vec![0.0]]))
    };
    let gradient = |worker: u32, step: u64| {
        let floats = |values: &[f32]| {
            Some(values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>().into())
        };
        let (worker, step) = (worker as f32, step as f32);
        vec![floats(&[worker + step, 1.0 - step]), floats(&[worker])]
    };
    std::thread::scope(|scope| {
        let first = scope.spawn(|| {
            let mut client = join(0, "ours").unwrap();
            while client.version() < 20 {
                client.step(gradient(0, client.version())).unwrap();
            }
            client.values(0).unwrap()
        });
        let mut client = join(1, "ours").unwrap();
        while client.version() < 9 {
            client.step(gradient(1, client.version())).unwrap();
        }
        // As if its process had died.
        drop(client);
        let stranger = join(1, "theirs").unwrap_err();
        assert!(stranger.to_string().contains("another job has the name"), "{stranger}");
        let mut again = join(1, "ours").unwrap();
        assert!((9..=10).contains(&again.version()), "{}", again.version());
        while again.version() < 20 {
            again.step(gradient(1, again.version())).unwrap();
        }
        let (found, values) = (first.join().unwrap(), again.values(0).unwrap());
        assert_eq!(found, values);
        let mut expected = tidemill_aggregation_service::tensor::Tensor::new(specs[0].clone(), 2);
        expected.put(0, &specs[0].state_of(&[1.0, 2.0])).unwrap();
        for step in 0..20 {
            for worker in 0..2 {
                expected.add(worker, gradient(worker, step)[0].as_deref()).unwrap();
            }
        }
        assert_eq!(specs[0].values_of(&expected.values()).unwrap(), values);
        // A checkpoint has the moments.
        let states = again.states().unwrap();
        assert_eq!((states.version, states.states[0].to_vec()), (20, expected.state()));
        // A gradient that is no number ends the step for all workers. The other one has left without a word.
        let mut other = join(0, "ours").unwrap();
        let waiting = scope.spawn(move || other.step(gradient(0, 20)).unwrap_err());
        let bad: Vec<u8> = [f32::NAN, 1.0].iter().flat_map(|value| value.to_le_bytes()).collect();
        let error = again.step(vec![Some(bad.into()), gradient(1, 20)[1].clone()]).unwrap_err();
        assert!(matches!(error, ClientError::Diverged(_)), "{error}");
        assert!(matches!(waiting.join().unwrap(), ClientError::Diverged(_)));
    });
    served.agg(&["remove", "lost"]).expect(0);
    served.agg(&["remove", "lost"]).expect(66);
}

#[test]
fn jobs_are_measured_placed_and_aggregators_end_with_them() {
    let served = Served::start(&["--profile-iterations", "5", "--monitor-iterations", "20"], None);
    assert_eq!(served.agg(&["map"]).expect(0).stdout, "no aggregators: they start with the first job\n");
    let steps = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let jobs: Vec<_> = ["one", "two"]
            .into_iter()
            .map(|name| {
                let compute = Duration::from_millis(20);
                let options = BenchOptions { migrate_every: 0, steps: 150, compute, ..served.options(name) };
                let steps = &steps;
                scope.spawn(move || {
                    steps.fetch_add(1, Ordering::AcqRel);
                    run(&options).unwrap()
                })
            })
            .collect();
        until("both jobs are placed", || {
            let report = served.report();
            report.jobs.iter().filter(|job| job.stage == "placed").count() == 2
        });
        let text = served.agg(&["jobs"]).expect(0).stdout;
        assert!(text.contains("placed") && text.contains("one") && text.contains("two"), "{text}");
        let json = served.agg(&["map", "one", "--output", "json"]).expect(0).json();
        assert_eq!(json["jobs"][0]["tensors"].as_array().unwrap().len(), 4);
        assert!(json["jobs"][0]["alone_ms"].as_f64().unwrap() >= 20.0, "{json}");
        jobs.into_iter().for_each(|job| is_right(&job.join().unwrap()));
    });
    until("the aggregators end", || served.report().aggregators.is_empty() && served.processes().is_empty());
}

#[test]
fn moves_and_mistakes_on_the_command_line() {
    let served = Served::start(&["--aggregators", "2"], None);
    let options = BenchOptions { migrate_every: 0, steps: 400, ..served.options("mine") };
    let job = std::thread::spawn(move || run(&options));
    until("the job", || served.report().jobs.iter().any(|job| job.steps > 2));
    let moved = served.agg(&["migrate", "mine", "--all", "a0", "--output", "json"]).expect(0).json();
    assert_eq!(moved["tensors"], 4);
    served.agg(&["migrate", "mine", "1", "a1"]).expect(0);
    let places: Vec<String> =
        served.report().jobs[0].tensors.iter().map(|tensor| tensor.aggregator.clone()).collect();
    assert_eq!(places, ["a0", "a1", "a0", "a0"]);
    // Policies and figures of the transport service apply to the calls.
    let edges = tidemill(&["net", "ls", "--socket", served.socket().to_str().unwrap()]).expect(0).stdout;
    assert!(edges.contains("worker-mine") && edges.contains("aggregation.a0"), "{edges}");
    assert!(served.agg(&["migrate", "mine", "9", "a1"]).expect(66).stderr.contains("tensors 0 to 3"));
    assert!(served.agg(&["migrate", "mine", "1", "b1"]).expect(66).stderr.contains("a0, a1"));
    assert!(served.agg(&["migrate", "mine", "a1"]).expect(2).stderr.contains("--all"));
    assert!(served.agg(&["map", "other"]).expect(66).stderr.contains("no job other"));
    let second = served.agg(&["serve"]).expect(69);
    assert!(second.stderr.contains("a master works already"), "{}", second.stderr);
    is_right(&job.join().unwrap().unwrap());
    let nobody = tidemill(&["agg", "jobs", "--socket", "/nowhere/net.sock"]).expect(69);
    assert!(nobody.stderr.contains("tidemill net serve"), "{}", nobody.stderr);
}

/// Two transport services, which are two machines for programs: that of the aggregators, whose address this has, and another one, whose socket
/// this has.
pub(crate) struct Machines {
    pub(crate) served: Served,
    pub(crate) at: String,
    pub(crate) elsewhere: tempfile::TempDir,
    _services: [Service; 2],
}

pub(crate) fn machines() -> Machines {
    let machine = |public: Option<Address>| {
        let folder = tempfile::tempdir().unwrap();
        let options = NetOptions {
            socket: folder.path().join("net.sock"),
            folder: folder.path().into(),
            public,
            security: Security::none(),
            on_upgrade: None,
            on_panic: None,
        };
        (folder, Service::start(options).unwrap())
    };
    let (folder, hub) = machine(Some(Address::new("tcp", "127.0.0.1:0")));
    let (elsewhere, edge) = machine(None);
    let arguments = vec!["--aggregators".to_owned(), "2".to_owned()];
    let mut served = Served { folder, net: None, master: None, arguments };
    served.master(None);
    let at = hub.public().unwrap().to_string();
    Machines { served, at, elsewhere, _services: [hub, edge] }
}

#[test]
fn workers_of_another_machine_use_the_aggregators_of_one() {
    let machines = machines();
    let socket = machines.elsewhere.path().join("net.sock");
    let at = Some(machines.at.clone());
    let options = BenchOptions { migrate_every: 0, at, ..machines.served.options("remote") };
    is_right(&run(&BenchOptions { socket, ..options }).unwrap());
}

#[test]
fn the_memory_of_a_job_has_a_limit() {
    let served = Served::start(&["--aggregators", "1", "--job-memory", "10KiB"], None);
    let error = run(&served.options("large")).unwrap_err().to_string();
    assert!(error.contains("may use 10240 bytes"), "{error}");
    assert!(served.report().jobs.is_empty());
}

#[test]
fn a_job_may_pause_and_the_bench_says_what_it_measures() {
    let served = Served::start(&["--aggregators", "1"], None);
    let report =
        run(&BenchOptions { migrate_every: 0, pause_every: 20, ..served.options("pausing") }).unwrap();
    is_right(&report);
    assert_eq!(report.pauses_ms.len(), 3);
    let text = served.agg(&["bench", "--steps", "5", "--shape", "vgg19", "--scale", "1000"]).expect(0).stdout;
    assert!(text.contains("as by one process") && text.contains("19 tensors"), "{text}");
}

#[test]
fn the_choice_has_a_reason() {
    let explain = |more: &[&str]| {
        let words = ["agg", "explain", "--bytes", "100MB", "--workers", "8", "--bandwidth", "8Gbps"];
        tidemill(&[&words[..], more].concat()).expect(0)
    };
    let one = explain(&[]).stdout;
    assert!(one.contains("choose an all-reduce of the workers: the links of 1 aggregator"), "{one}");
    let many = explain(&["--aggregators", "8", "--work", "1ms", "--output", "json"]).json();
    assert_eq!(many["quicker"], "aggregators");
    assert!(many["aggregators_ms"].as_f64() < many["all_reduce_ms"].as_f64());
}
