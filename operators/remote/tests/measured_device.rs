//! A model on a device at an address, as measurements use it: its rows are those of this process, its times the device's.
use crate::stage_on_a_server::folder;
use arrow_array::{
    ArrayRef, FixedSizeBinaryArray, FixedSizeListArray, Float32Array, Int8Array, Int64Array, RecordBatch,
    UInt32Array, UInt64Array,
};
use arrow_schema::{DataType, Field};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tidemill_device::carrier::Carrier;
use tidemill_device::emulated::{Clock, Emulated, ModelTimes, Profile};
use tidemill_device::proxy::{Everybody, serve};
use tidemill_device::store::Store;
use tidemill_inference::MlKind;
use tidemill_link::remote::{Address, Greeting, Listener, Purpose, Security, Serving};
use tidemill_operators::api::{BoundOperator, Inference, Output};
use tidemill_operators::bind::{Choice, bind_workflow};
use tidemill_operators::model::ModelSpec;
use tidemill_operators::record::{record_schema, source_id};
use tidemill_operators::registry::Registry;
use tidemill_remote::backends::Backends;
use tidemill_remote::executor::direct::{Direct, bytes_of_files, look};
use tidemill_spec::workflow::Workflow;

/// A clock that stands still: what waits, has waited.
struct Still;

impl Clock for Still {
    fn now(&self) -> Duration {
        Duration::ZERO
    }

    fn wait_until(&self, _time: Duration) {}
}

/// Serves sessions with an emulated device of the kind `card`, whose runs take 5 ms and 1 ms for each row, and counts them.
pub(crate) fn device(cache: &Path, sessions: &Arc<AtomicUsize>) -> Serving {
    let greeting = || Greeting {
        run: 0,
        plan_version: 0,
        purpose: Purpose::Device { client: "device".to_owned(), tenant: None },
    };
    let (cache, sessions) = (cache.to_owned(), Arc::clone(sessions));
    let listener = Listener::bind(&Address::tcp("127.0.0.1:0"), &Security::none()).unwrap();
    let serving = listener.serve(move |incoming| {
        let carrier = Carrier::of_stream(incoming.accept(&greeting()).unwrap().into_bytes());
        let cache = cache.clone();
        sessions.fetch_add(1, Ordering::AcqRel);
        std::thread::spawn(move || {
            let others = ModelTimes { run_ms: 5.0, row_ms: 1.0, ..ModelTimes::default() };
            let profile = Profile { kind: "card".to_owned(), others, ..Profile::default() };
            let inner = Arc::new(Backends::open(&["rten".to_owned()], Path::new(".")).unwrap());
            let emulated = Emulated::new(profile).with_outputs_of(inner).with_clock(Arc::new(Still));
            let mut store = Store::open(&cache, 1 << 30).unwrap();
            let folder = tempfile::tempdir_in(&cache).unwrap();
            // It ends with its client.
            let _ = serve(carrier, &emulated, &mut Everybody::default(), &mut store, folder.path());
        });
    });
    serving.unwrap()
}

/// The operator of the workflow in a folder.
pub(crate) fn operator(folder: &Path) -> BoundOperator {
    let workflow = Workflow::load(folder.join("workflow.yaml")).unwrap();
    let mut registry = Registry::builtin();
    registry.register_operator(MlKind::default());
    let mut bound = bind_workflow(&workflow, &registry, |_| Choice::default()).unwrap();
    bound.operators.remove("norm").unwrap()
}

fn spec(folder: &Path) -> ModelSpec {
    operator(folder).model.unwrap()
}

pub(crate) fn batch(spec: &ModelSpec, rows: usize) -> RecordBatch {
    let ids: Vec<u8> = (0..rows).flat_map(|row| source_id(0, row as u64)).collect();
    let item = Arc::new(Field::new("item", DataType::Float32, false));
    let values = Float32Array::from_iter_values((0..rows * 4).map(|value| value as f32));
    let columns: Vec<ArrayRef> = vec![
        Arc::new(FixedSizeBinaryArray::new(16, ids.into(), None)),
        Arc::new(UInt32Array::from(vec![0; rows])),
        Arc::new(UInt64Array::from_iter_values(0..rows as u64)),
        Arc::new(Int64Array::from(vec![0; rows])),
        Arc::new(Int64Array::from(vec![0; rows])),
        Arc::new(UInt32Array::from(vec![0; rows])),
        Arc::new(Int8Array::from(vec![1; rows])),
        Arc::new(FixedSizeListArray::new(item, 4, Arc::new(values), None)),
    ];
    RecordBatch::try_new(record_schema(&spec.input), columns).unwrap()
}

#[test]
fn the_times_of_a_model_on_a_device_are_those_that_it_reports() {
    let (folder, cache) = (folder(), tempfile::tempdir().unwrap());
    let serving = device(cache.path(), &Arc::default());
    let address = serving.address().to_string();
    let facts = look(&address).unwrap();
    assert_eq!((facts.kind.as_str(), facts.backends[0].0.as_str()), ("card", "rten"));
    let spec = spec(folder.path());
    let mut here = MlKind::default().instance(&spec).unwrap();
    let mut there = Direct::open(&spec, &format!("device:{address}")).unwrap();
    assert_eq!(there.process(), None, "it is no process of ours");
    let mut computed = Duration::ZERO;
    for (rows, ms) in [(4, 9), (1, 6), (4, 9)] {
        let batch = batch(&spec, rows);
        let (mut expected, mut found) = (Output::default(), Output::default());
        here.infer(&batch, &mut expected).unwrap();
        there.infer(&batch, &mut found).unwrap();
        assert_eq!(found.batches, expected.batches);
        let times = found.device.unwrap();
        assert_eq!((times.compute, times.round_trips), (Duration::from_millis(ms), 1), "{rows} rows");
        computed += times.compute;
        assert_eq!(there.model_time(), Some(computed));
    }
    let file = std::fs::metadata(folder.path().join("identity.onnx")).unwrap().len();
    assert_eq!(bytes_of_files(&spec).unwrap(), file);
}

#[test]
fn a_call_fails_with_its_device_and_is_computed_nowhere_else() {
    let (folder, cache) = (folder(), tempfile::tempdir().unwrap());
    let spec = spec(folder.path());
    let nobody = Listener::bind(&Address::tcp("127.0.0.1:0"), &Security::none()).unwrap();
    let address = nobody.address().to_string();
    drop(nobody);
    assert!(look(&address).is_err() && Direct::open(&spec, &format!("device:{address}")).is_err());
    let server = look("oip:http://127.0.0.1:1").unwrap_err().to_string();
    assert!(server.contains("'oip:http://127.0.0.1:1' names no device"), "{server}");
    let serving = device(cache.path(), &Arc::default());
    let wrong = ModelSpec { backend: "ort".to_owned(), ..spec };
    let named = format!("device:{}", serving.address());
    let error = Direct::open(&wrong, &named).err().unwrap().to_string();
    assert!(error.contains("needs the back end ort, the device has rten"), "{error}");
}
