//! Executors of devices as the engine starts them: before a run, and again in it.
use crate::measured_device::{batch, device, operator};
use crate::stage_on_a_server::folder;
use arrow_array::RecordBatch;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tidemill_engine::clock::ManualClock;
use tidemill_engine::{
    ExecutorRequest, ExecutorSpec, Job, JobResult, ModelExecutor, PreparedModel, factory_of,
};
use tidemill_inference::MlKind;
use tidemill_link::remote::{Address, Listener, Security};
use tidemill_operators::api::{BoundOperator, DeviceTimes, Output};

fn request(operator: &BoundOperator, device: &str, again: bool) -> ExecutorRequest {
    let spec = ExecutorSpec {
        device: device.to_owned(),
        stage: "norm".to_owned(),
        workflow: "norms".to_owned(),
        max_batch: 4,
        model: operator.model.clone(),
        ..ExecutorSpec::default()
    };
    ExecutorRequest {
        spec,
        operator: "norm".to_owned(),
        make: Arc::clone(&operator.make),
        clock: Arc::new(ManualClock::new()),
        processor: Arc::default(),
        gate: None,
        again,
    }
}

fn computed(executor: &dyn ModelExecutor, batch: &RecordBatch) -> Output {
    executor.submit(Job { id: 1, incarnation: 0, parts: vec![batch.clone()], bytes: 1 });
    loop {
        match executor.completion().map(|completion| completion.result) {
            Some(JobResult::Done(output)) => return output,
            Some(other) => panic!("{other:?}"),
            None => std::thread::yield_now(),
        }
    }
}

fn expected(folder: &Path, batch: &RecordBatch) -> Vec<RecordBatch> {
    let mut here = MlKind::default().instance(&operator(folder).model.unwrap()).unwrap();
    let mut output = Output::default();
    here.infer(batch, &mut output).unwrap();
    output.batches
}

#[test]
fn only_a_run_that_begins_needs_its_device() {
    tidemill_remote::executor::install();
    let folder = folder();
    let nobody = Listener::bind(&Address::tcp("127.0.0.1:0"), &Security::none()).unwrap();
    let device = format!("device:{}", nobody.address());
    drop(nobody);
    let (operator, factory) = (operator(folder.path()), factory_of(&device).unwrap());
    let refused = factory.start(&request(&operator, &device, false)).err().unwrap();
    assert!(refused.lost && refused.message.contains("nothing answers"), "{refused}");
    let executor = factory.start(&request(&operator, &device, true)).unwrap();
    let batch = batch(operator.model.as_ref().unwrap(), 3);
    let output = computed(&*executor, &batch);
    assert_eq!(output.batches, expected(folder.path(), &batch));
    let here = DeviceTimes { here: 1, ..DeviceTimes::default() };
    assert_eq!(output.device, Some(here), "this process has computed it");
}

#[test]
fn the_first_executor_takes_the_model_that_was_loaded_before_the_run() {
    tidemill_remote::executor::install();
    let (folder, cache, sessions) = (folder(), tempfile::tempdir().unwrap(), Arc::<AtomicUsize>::default());
    let serving = device(cache.path(), &sessions);
    let device = format!("device:{}", serving.address());
    let (mut operator, factory) = (operator(folder.path()), factory_of(&device).unwrap());
    let prepare = || factory.prepare(&request(&operator, &device, false).spec, &operator.make).unwrap();
    // One that no run takes is dropped with its program.
    drop(prepare());
    let PreparedModel { backend, instance } = prepare();
    assert_eq!(backend.map(|chosen| chosen.name).as_deref(), Some("rten"));
    assert_eq!(sessions.load(Ordering::Acquire), 2);
    operator.give_first(instance.unwrap());
    let batch = batch(operator.model.as_ref().unwrap(), 3);
    let first = factory.start(&request(&operator, &device, false)).unwrap();
    let output = computed(&*first, &batch);
    assert_eq!((output.batches, sessions.load(Ordering::Acquire)), (expected(folder.path(), &batch), 2));
    assert_eq!(output.device.unwrap().round_trips, 1, "the device has computed it");
    let second = factory.start(&request(&operator, &device, false)).unwrap();
    assert_eq!(computed(&*second, &batch).device.unwrap().round_trips, 1);
    assert_eq!(sessions.load(Ordering::Acquire), 3, "another partition has a session of its own");
}
