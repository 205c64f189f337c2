//! How a device is named, and how it is found again.
use super::elsewhere::now;
use super::*;
use arrow_array::{
    ArrayRef, FixedSizeBinaryArray, FixedSizeListArray, Float32Array, Int8Array, Int64Array, UInt32Array,
    UInt64Array,
};
use arrow_schema::{DataType, Field};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use tidemill_device::carrier::Carrier;
use tidemill_device::proxy::{Ending, Everybody, serve_until};
use tidemill_device::store::Store;
use tidemill_link::remote::{Address, Greeting, Listener, Purpose, Security, Serving};
use tidemill_operators::bind::{Choice, bind_workflow};
use tidemill_operators::record::{record_schema, source_id};
use tidemill_operators::registry::Registry;
use tidemill_spec::workflow::Workflow;

fn target(device: &str, address: Option<&str>) -> Result<Target, OperatorError> {
    let model = ModelSpec {
        operator: "find".into(),
        kind: "ml".into(),
        manifest: "vehicles.yaml".into(),
        variant: "vehicles".into(),
        backend: "auto".into(),
        libraries: ".".into(),
        input: Default::default(),
        output: Default::default(),
        layout: serde_json::Value::Null,
    };
    let spec = ExecutorSpec {
        device: device.into(),
        workflow: "seen".into(),
        stage: "find".into(),
        max_batch: 1,
        address: address.map(str::to_owned),
        spares: Vec::new(),
        sends_rows: false,
        model: Some(model),
    };
    Device::of(&spec).map(|mut device| device.targets.remove(0))
}

#[test]
fn the_address_of_a_device_decides_how_it_is_reached() {
    assert!(matches!(target("oip:http://hub:8000", None), Ok(Target::Server(_))));
    assert!(matches!(target("device:gpu", Some("oip:grpc://hub:8001")), Ok(Target::Server(_))));
    let plain = target("device:gpu", Some("hub:7440"));
    assert!(matches!(plain, Ok(Target::Device(Place::At { tls: false, .. }))));
    let secured = target("device:gpu", Some("tls://hub:7440"));
    assert!(matches!(secured, Ok(Target::Device(Place::At { tls: true, .. }))));
    assert!(matches!(target("proxy:rten", None), Ok(Target::Device(Place::Own { .. }))));
    let wrong = target("oip:hub:8000", None).err().map(|error| error.to_string()).unwrap_or_default();
    assert!(wrong.contains("names no server of the Open Inference Protocol"), "{wrong}");
    let missing = target("device:hub/card", None).err().map(|error| error.to_string()).unwrap_or_default();
    assert!(missing.starts_with("the plan's device `hub/card` has no `address`"), "{missing}");
    assert!(missing.contains("`--device find=tcp://HOST:PORT`"), "{missing}");
}

const WORKFLOW: &str = r#"
version: 1
name: norms
sources: [{id: rows, kind: jsonl, options: {path: rows.jsonl, columns: {x: "tensor<float32>[4]"}}}]
operators: [{id: norm, kind: ml, input: rows, variants: [identity.yaml]}]
sinks: [{id: norms, kind: jsonl, input: norm, options: {path: norms.jsonl}}]
"#;

/// The model of a workflow in this folder, on a device at a socket in it.
fn spec(folder: &Path) -> ExecutorSpec {
    let testdata = Path::new(env!("CARGO_MANIFEST_DIR")).join("../inference/testdata");
    for name in ["identity.yaml", "identity.onnx"] {
        std::fs::copy(testdata.join(name), folder.join(name)).unwrap();
    }
    std::fs::write(folder.join("rows.jsonl"), "").unwrap();
    std::fs::write(folder.join("workflow.yaml"), WORKFLOW).unwrap();
    let workflow = Workflow::load(folder.join("workflow.yaml")).unwrap();
    let mut registry = Registry::builtin();
    registry.register_operator(MlKind::default());
    let mut bound = bind_workflow(&workflow, &registry, |_| Choice::default()).unwrap();
    ExecutorSpec {
        device: format!("device:unix://{}", folder.join("device.sock").display()),
        stage: "norm".to_owned(),
        model: bound.operators.remove("norm").unwrap().model,
        ..ExecutorSpec::default()
    }
}

/// Serves sessions at the socket, until `ending` ends the last one.
fn device(folder: &Path, ending: &Ending) -> Serving {
    let greeting = || Greeting {
        run: 0,
        plan_version: 0,
        purpose: Purpose::Device { client: "device".to_owned(), tenant: None },
    };
    let (folder, ending) = (folder.to_owned(), ending.clone());
    let address = Address::unix(folder.join("device.sock").display().to_string());
    let listener = Listener::bind(&address, &Security::none()).unwrap();
    let serving = listener.serve(move |incoming| {
        let carrier = Carrier::of_stream(incoming.accept(&greeting()).unwrap().into_bytes());
        let (folder, ending) = (folder.clone(), ending.clone());
        std::thread::spawn(move || {
            let backends = crate::backends::Backends::open(&["rten".to_owned()], Path::new(".")).unwrap();
            let mut store = Store::open(&folder.join("models"), 1 << 30).unwrap();
            let session = folder.join("session");
            // It ends with its client.
            let _ = serve_until(carrier, &backends, &mut Everybody::default(), &mut store, &session, &ending);
        });
    });
    serving.unwrap()
}

#[test]
fn a_device_that_is_away_is_looked_for_beside_the_batches() {
    let folder = tempfile::tempdir().unwrap();
    let mut elsewhere = Elsewhere::of(&spec(folder.path()), true).unwrap();
    let begun = now();
    let passed = Arc::new(Mutex::new(Duration::ZERO));
    let clock = Arc::clone(&passed);
    Arc::get_mut(&mut elsewhere).unwrap().now = Box::new(move || begun + *clock.lock().unwrap());
    let copy = elsewhere.copy().unwrap();
    assert!(matches!(copy.inner, Inner::Here(_)), "the run has begun");
    let _serving = device(folder.path(), &Ending::default());
    // It is there again, and it is not time to look.
    *passed.lock().unwrap() = AGAIN - Duration::from_millis(1);
    elsewhere.look_again();
    assert!(!elsewhere.looks.load(Ordering::Acquire) && !elsewhere.is_there());
    assert!(matches!(elsewhere.copy().unwrap().inner, Inner::Here(_)), "another copy does not wait for it");
    *passed.lock().unwrap() = AGAIN;
    elsewhere.look_again();
    while !elsewhere.is_there() {
        assert!(elsewhere.looks.load(Ordering::Acquire) || elsewhere.is_there(), "it was not found");
        std::thread::yield_now();
    }
    assert!(matches!(elsewhere.copy().unwrap().inner, Inner::There(..)));
}

#[test]
fn a_run_that_begins_needs_its_device() {
    let folder = tempfile::tempdir().unwrap();
    let spec = spec(folder.path());
    let refused = Elsewhere::of(&spec, false).unwrap().copy().err().unwrap();
    assert!(refused.lost && refused.message.contains("nothing answers"), "{refused}");
    // Once it was there, it may go.
    let serving = device(folder.path(), &Ending::default());
    let elsewhere = Elsewhere::of(&spec, false).unwrap();
    let copy = elsewhere.copy().unwrap();
    assert!(matches!(copy.inner, Inner::There(..)));
    drop(serving);
    let (_, inner) = elsewhere.current(Some(copy.number)).unwrap();
    assert!(matches!(inner, Inner::Here(_)));
}

fn batch(spec: &ExecutorSpec) -> RecordBatch {
    let values = Float32Array::from_iter_values([3.0, 0.0, 4.0, 0.0]);
    let item = Arc::new(Field::new("item", DataType::Float32, false));
    let columns: Vec<ArrayRef> = vec![
        Arc::new(FixedSizeBinaryArray::new(16, source_id(0, 0).to_vec().into(), None)),
        Arc::new(UInt32Array::from(vec![0])),
        Arc::new(UInt64Array::from(vec![0])),
        Arc::new(Int64Array::from(vec![0])),
        Arc::new(Int64Array::from(vec![0])),
        Arc::new(UInt32Array::from(vec![0])),
        Arc::new(Int8Array::from(vec![1])),
        Arc::new(FixedSizeListArray::new(item, 4, Arc::new(values), None)),
    ];
    RecordBatch::try_new(record_schema(&spec.model.as_ref().unwrap().input), columns).unwrap()
}

/// Drains the device of a copy, and waits until the copy knows it.
fn drain(copy: &Remote, serving: Serving, ending: &Ending) {
    drop(serving);
    ending.drain("it is enough for today");
    let Inner::There(connected, ..) = &copy.inner else { panic!("this process computes") };
    while connected.lost().is_none() {
        std::thread::yield_now();
    }
    assert_eq!(connected.drained(), Some(connected.address()));
}

#[test]
fn batches_that_the_device_of_the_plan_does_not_compute_are_counted() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut spec = spec(folder.path());
    spec.spares = vec![format!("unix://{}", other.path().join("device.sock").display())];
    let endings = [Ending::default(), Ending::default()];
    let first = device(folder.path(), &endings[0]);
    let spare = device(other.path(), &endings[1]);
    let elsewhere = Elsewhere::of(&spec, false).unwrap();
    let mut copy = elsewhere.copy().unwrap();
    let batch = batch(&spec);
    let mut rows = Vec::new();
    let mut compute = |copy: &mut Remote| {
        let mut output = Output::default();
        copy.infer(&batch, &mut output).unwrap();
        rows.push(output.batches);
        let times = output.device.unwrap();
        (times.round_trips, times.lost, times.on_spare, times.here)
    };
    assert_eq!(compute(&mut copy), (1, 0, 0, 0));
    drain(&copy, first, &endings[0]);
    assert_eq!(compute(&mut copy), (1, 1, 1, 0), "the spare computes");
    assert_eq!(compute(&mut copy), (1, 0, 1, 0));
    drain(&copy, spare, &endings[1]);
    assert_eq!(compute(&mut copy), (0, 1, 0, 1), "this process computes");
    assert_eq!(compute(&mut copy), (0, 0, 0, 1));
    assert!(rows.iter().all(|found| *found == rows[0]), "the rows differ");
}

#[test]
fn a_drained_device_is_not_to_be_started() {
    let folder = tempfile::tempdir().unwrap();
    let device = Device::of(&spec(folder.path())).unwrap();
    let gone = OperatorError::lost("nothing answers at hub:7440; start `tidemill device serve` there");
    let told = device.instead(&gone, Some("tcp://hub:7440"));
    assert_eq!(
        told,
        "tcp://hub:7440: the device is drained: this process computes instead, and looks for it every 10 s"
    );
    assert!(device.instead(&gone, None).contains("start `tidemill device serve`"));
    // The spare is there, and cannot load the model.
    let told = device.instead(&OperatorError::new("no memory"), Some("tcp://hub:7440"));
    assert_eq!(told, "no memory: this process computes instead until it answers");
}

/// An address at which everybody is turned away, and the number of those who came.
fn closed(folder: &Path) -> (Serving, Arc<AtomicUsize>) {
    let came = Arc::new(AtomicUsize::new(0));
    let (counted, address) = (Arc::clone(&came), folder.join("closed.sock").display().to_string());
    let listener = Listener::bind(&Address::unix(address), &Security::none()).unwrap();
    let serving = listener.serve(move |incoming| {
        counted.fetch_add(1, Ordering::Relaxed);
        incoming.refuse("it is closed");
    });
    (serving.unwrap(), came)
}

#[test]
fn a_batch_waits_for_no_target_that_has_just_failed() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut spec = spec(folder.path());
    let (_closed, came) = closed(folder.path());
    let socket = |folder: &Path, name: &str| format!("unix://{}", folder.join(name).display());
    spec.address = Some(socket(folder.path(), "closed.sock"));
    spec.spares = vec![socket(folder.path(), "device.sock"), socket(other.path(), "device.sock")];
    let endings = [Ending::default(), Ending::default()];
    let serving = [device(folder.path(), &endings[0]), device(other.path(), &endings[1])];
    let mut elsewhere = Elsewhere::of(&spec, false).unwrap();
    let (begun, passed) = (now(), Arc::new(Mutex::new(Duration::ZERO)));
    let clock = Arc::clone(&passed);
    Arc::get_mut(&mut elsewhere).unwrap().now = Box::new(move || begun + *clock.lock().unwrap());
    let mut copy = elsewhere.copy().unwrap();
    let place_of = |copy: &Remote| match &copy.inner {
        Inner::There(connected, ..) => Some(connected.at),
        Inner::Here(_) => None,
    };
    assert_eq!((place_of(&copy), came.load(Ordering::Relaxed)), (Some(1), 1));
    let [first, second] = serving;
    drain(&copy, first, &endings[0]);
    (copy.number, copy.inner) = elsewhere.current(Some(copy.number)).unwrap();
    assert_eq!((place_of(&copy), came.load(Ordering::Relaxed)), (Some(2), 1));
    drain(&copy, second, &endings[1]);
    (copy.number, copy.inner) = elsewhere.current(Some(copy.number)).unwrap();
    assert_eq!((place_of(&copy), came.load(Ordering::Relaxed)), (None, 1), "it is known to be closed");
    // After a while it is looked for, beside the batches.
    *passed.lock().unwrap() = AGAIN;
    elsewhere.look();
    assert_eq!((elsewhere.is_there(), came.load(Ordering::Relaxed)), (false, 2));
}

#[test]
fn a_look_that_takes_too_long_is_continued_with_the_next_target() {
    let folder = tempfile::tempdir().unwrap();
    let mut spec = spec(folder.path());
    let (_closed, came) = closed(folder.path());
    spec.address = Some(format!("unix://{}", folder.path().join("closed.sock").display()));
    spec.spares = vec![format!("unix://{}", folder.path().join("device.sock").display())];
    let mut elsewhere = Elsewhere::of(&spec, true).unwrap();
    // Each attempt takes as long as a look may.
    let (begun, looks) = (now(), AtomicUsize::new(0));
    let clock = move || begun + AGAIN * looks.fetch_add(1, Ordering::Relaxed) as u32;
    Arc::get_mut(&mut elsewhere).unwrap().now = Box::new(clock);
    let copy = elsewhere.copy().unwrap();
    assert!(matches!(copy.inner, Inner::Here(_)));
    let before = came.load(Ordering::Relaxed);
    assert!(before > 0);
    let _serving = device(folder.path(), &Ending::default());
    elsewhere.look();
    assert_eq!((elsewhere.is_there(), came.load(Ordering::Relaxed)), (false, before + 1));
    elsewhere.look();
    assert_eq!(
        (elsewhere.is_there(), came.load(Ordering::Relaxed)),
        (true, before + 1),
        "the spare was next"
    );
}
