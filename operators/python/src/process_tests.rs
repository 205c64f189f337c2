//! Processes against real interpreters: python3 (or TIDEMILL_TEST_PYTHON), with NumPy and pyarrow where they are installed,
//! and a step in C.
use super::*;
use crate::protocol::Role;
use arrow_array::builder::{BinaryBuilder, FixedSizeListBuilder, Float32Builder};
use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type};
use arrow_array::{Array, ArrayRef, BooleanArray, Float64Array, Int64Array, StringArray};
use arrow_schema::Field;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use tidemill_operators::record::{first_records, payload_schema};
use tidemill_spec::types::{Column, ElementType};

fn interpreter() -> Option<PathBuf> {
    let named = std::env::var_os("TIDEMILL_TEST_PYTHON").unwrap_or_else(|| "python3".into());
    let check = ["-c", "import sys; sys.exit(sys.version_info < (3, 9))"];
    if Command::new(&named).args(check).status().is_ok_and(|status| status.success()) {
        return Some(named.into());
    }
    eprintln!("skipped: {named:?} is no Python 3.9 or newer; TIDEMILL_TEST_PYTHON names one");
    None
}

fn has(interpreter: &Path, module: &str) -> bool {
    let import = format!("import {module}");
    let found =
        Command::new(interpreter).args(["-c", &import]).stderr(Stdio::null()).status().unwrap().success();
    if !found {
        eprintln!("skipped in part: {} has no {module}", interpreter.display());
    }
    found
}

fn launch(
    interpreter: PathBuf,
    folder: &TempDir,
    module: &str,
    input: &StreamType,
    output: &StreamType,
) -> Launch {
    std::fs::write(folder.path().join("ops.py"), module).unwrap();
    Launch {
        operator: "step".into(),
        interpreter,
        arguments: None,
        folder: folder.path().to_owned(),
        module: "ops.py".into(),
        name: "step".into(),
        is_class: false,
        batch: false,
        role: Role::Step,
        parameters: serde_json::Value::Null,
        input: input.clone(),
        output: Some(output.clone()),
        timeout: Duration::from_secs(30),
    }
}

fn started(launch: &Launch) -> Process {
    let mut process = Process::start(launch).unwrap();
    process.expect(launch.output.as_ref().unwrap());
    process
}

/// A column of each type, with empty values in the second row.
fn everything() -> (StreamType, RecordBatch) {
    let tensor = ColumnType::Tensor { element: ElementType::Float32, shape: vec![2, 2] };
    let stream = StreamType::new([
        Column::new("t", ColumnType::Text),
        Column::new("i", ColumnType::Int64),
        Column::new("f", ColumnType::Float64),
        Column::new("b", ColumnType::Bool),
        Column::new("p", ColumnType::Image),
        Column::new("a", ColumnType::Audio),
        Column::new("x", tensor),
    ]);
    let mut pictures = BinaryBuilder::new();
    let mut tensors = FixedSizeListBuilder::new(Float32Builder::new(), 4).with_field(Arc::new(Field::new(
        "item",
        arrow_schema::DataType::Float32,
        false,
    )));
    for row in 0..20u8 {
        let empty = row == 1;
        for value in 0..4u8 {
            tensors.values().append_value(if empty { 0.0 } else { f32::from(row) + f32::from(value) / 4.0 });
        }
        tensors.append(!empty);
        let mut picture = format!("P6\n2 {}\n255\n", row % 3 + 1).into_bytes();
        picture.extend((0..6 * (row % 3 + 1)).map(|byte| byte + row));
        if empty { pictures.append_null() } else { pictures.append_value(picture) }
    }
    let pictures = pictures.finish();
    let columns: Vec<ArrayRef> = vec![
        Arc::new((0..20).map(|row| (row != 1).then(|| format!("ä{row}"))).collect::<StringArray>()),
        Arc::new((0..20).map(|row| (row != 1).then_some(row - 5)).collect::<Int64Array>()),
        Arc::new((0..20).map(|row| (row != 1).then_some(f64::from(row) / 3.0)).collect::<Float64Array>()),
        Arc::new((0..20).map(|row| (row != 1).then_some(row % 3 == 0)).collect::<BooleanArray>()),
        Arc::new(pictures.clone()),
        Arc::new(pictures),
        Arc::new(tensors.finish()),
    ];
    let payload = RecordBatch::try_new(payload_schema(&stream), columns).unwrap();
    (stream, first_records(&payload).unwrap())
}

/// All columns come back as they were, for whole, sliced, odd and empty batches.
fn comes_back(interpreter: &Path, module: &str, from: usize) {
    let folder = tempfile::tempdir().unwrap();
    let (stream, batch) = everything();
    let mut process = started(&launch(interpreter.to_owned(), &folder, module, &stream, &stream));
    let batch = batch.slice(from, batch.num_rows() - from);
    for (start, length) in [(0, batch.num_rows()), (0, 0), (3, 9), (1, 1), (5, 11), (8, 8)] {
        let part = batch.slice(start, length);
        let given = process.batch(&part).unwrap();
        assert_eq!(given.rejected, [], "{module}");
        assert!(given.origins.is_none_or(|origins| origins.into_iter().eq(0..length as u32)));
        for (found, sent) in given.columns.iter().zip(&part.columns()[METADATA_COLUMNS..]) {
            assert_eq!(found, sent, "{module}");
        }
    }
}

#[test]
fn every_type_comes_back_as_plain_values() {
    let Some(python) = interpreter() else { return };
    comes_back(&python, "def step(record): return record\n", 0);
    comes_back(&python, "import tidemill\ndef step(batch: tidemill.Batch): return batch\n", 0);
    let lists =
        "import tidemill\ndef step(batch: tidemill.Batch): return {n: c.list() for n, c in batch.items()}\n";
    comes_back(&python, lists, 0);
    let sliced = "import tidemill
def step(batch: tidemill.Batch):
    half = batch.rows // 2
    a, b = batch.slice(0, half), batch.slice(half, batch.rows)
    return {n: a[n].list() + b[n].list() for n in batch}
";
    comes_back(&python, sliced, 0);
}

#[test]
fn every_type_comes_back_through_numpy_and_pyarrow() {
    let Some(python) = interpreter() else { return };
    if has(&python, "numpy") {
        let record = "import numpy
def step(record):
    assert isinstance(record['x'], numpy.ndarray) and record['x'].shape == (2, 2)
    assert record['p'].array.shape == (record['p'].height, 2, 3)
    return {**record, 'p': record['p'].array}
";
        comes_back(&python, record, 2);
        let arrays = "import numpy
def step(batch: dict[str, numpy.ndarray]):
    assert not batch['i'].flags.writeable and batch['x'].shape[1:] == (2, 2)
    return batch
";
        comes_back(&python, arrays, 2);
    }
    if has(&python, "pyarrow") {
        let identity = "import pyarrow\ndef step(batch: pyarrow.RecordBatch): return batch\n";
        comes_back(&python, identity, 0);
        comes_back(&python, "import pyarrow\ndef step(batch: pyarrow.Table): return batch\n", 0);
        let sliced = "import pyarrow
def step(batch: pyarrow.RecordBatch):
    batch.validate(full=True)
    if not batch.num_rows:
        return batch
    twice = pyarrow.concat_batches([batch.slice(0, 1), batch]) if hasattr(pyarrow, 'concat_batches') else batch
    return twice.slice(twice.num_rows - batch.num_rows)
";
        comes_back(&python, sliced, 0);
    }
}

fn numbers(values: &[Option<i64>]) -> (StreamType, RecordBatch) {
    let stream = StreamType::new([Column::new("n", ColumnType::Int64)]);
    let column: ArrayRef = Arc::new(values.iter().copied().collect::<Int64Array>());
    let payload = RecordBatch::try_new(payload_schema(&stream), vec![column]).unwrap();
    (stream, first_records(&payload).unwrap())
}

#[test]
fn arrays_that_a_step_keeps_stay_as_they_were() {
    let Some(python) = interpreter().filter(|python| has(python, "numpy")) else { return };
    let module = "import numpy, tidemill
kept = []
def step(batch: tidemill.Batch):
    kept.append(batch['n'].numpy())
    return {'n': [int(sum(array.sum() for array in kept))] * batch.rows}
";
    let folder = tempfile::tempdir().unwrap();
    let (stream, _) = numbers(&[]);
    let mut process = started(&launch(python, &folder, module, &stream, &stream));
    let mut sum = 0;
    for call in 0..50 {
        sum += call * 100;
        let given = process.batch(&numbers(&[Some(call); 100]).1).unwrap();
        assert_eq!(given.columns[0].as_primitive::<Int64Type>().value(0), sum, "call {call}");
    }
}

#[test]
fn a_process_ends_with_its_owner() {
    let Some(python) = interpreter() else { return };
    let folder = tempfile::tempdir().unwrap();
    let (stream, batch) = numbers(&[Some(1)]);
    let mut process =
        started(&launch(python, &folder, "def step(record): return record\n", &stream, &stream));
    process.batch(&batch).unwrap();
    let pid = process.pid().unwrap();
    assert!(rustix::process::test_kill_process(pid).is_ok());
    drop(process);
    assert!(rustix::process::test_kill_process(pid).is_err(), "it was waited for");
}

#[test]
fn a_second_implementation_in_c_speaks_the_protocol() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("double");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/protocol/double.c");
    match Command::new("cc").arg("-o").arg(&program).arg(source).status() {
        Ok(status) => assert!(status.success(), "it compiles"),
        Err(error) => {
            eprintln!("skipped: no C compiler `cc`: {error}");
            return;
        }
    }
    let (stream, batch) = numbers(&[Some(1), None, Some(-3), Some(40)]);
    let mut launch = launch(program, &folder, "", &stream, &stream);
    launch.arguments = Some(Vec::new());
    let mut process = started(&launch);
    assert!(process.greeting.has_state && process.greeting.has_advance);
    let given = process.batch(&batch).unwrap();
    assert_eq!(given.origins.unwrap(), [0, 2, 3]);
    assert_eq!(given.columns[0].as_primitive::<Int64Type>().values()[..], [2, -6, 80]);
    assert_eq!(process.batch(&batch.slice(1, 1)).unwrap().columns[0].len(), 0);
    let fault = process.batch(&numbers(&[Some(13)]).1).err().unwrap();
    assert!(matches!(fault, Fault::Failed { ref detail, .. } if detail == "thirteen"), "{fault:?}");
    let state = process.snapshot().unwrap();
    drop(process);
    let mut other = started(&launch);
    other.restore(&state).unwrap();
    let given = other.advance(7).unwrap();
    assert_eq!(given.columns[0].as_primitive::<Int64Type>().values()[..], [38]);
}

#[test]
fn a_program_that_breaks_the_protocol_is_ended() {
    let Some(python) = interpreter() else { return };
    let folder = tempfile::tempdir().unwrap();
    let (stream, batch) = numbers(&[Some(1)]);
    let program = "import socket,struct,sys
c=socket.socket(fileno=int(sys.argv[1]))
def read(n):
    d=b''
    while len(d)<n: d+=c.recv(n-len(d))
    return d
def head():
    n,k,i=struct.unpack('<IIQ',read(16)); read(n); return i
head(); r=b'{\"version\": 1}'; c.sendall(struct.pack('<IIQ',len(r),16,0)+r)
i=head()
b=struct.pack('<QQIIII',1,0,1,1,0,0)+bytes(16)+struct.pack('<IIQQQQQQQQ',2,0,1,0,0,0,1<<60,8,0,0)
c.sendall(struct.pack('<IIQ',len(b),17,i)+b)
head()";
    let sparse = program
        .replace("socket,struct", "os,socket,struct")
        .replace("i=head()\n", "i=head(); os.ftruncate(int(sys.argv[3]),32<<40)\n")
        .replace("1<<60,8", "4096,16<<40");
    for program in [program.to_owned(), sparse] {
        let mut launch = launch(python.clone(), &folder, "", &stream, &stream);
        launch.arguments = Some(vec!["-c".into(), program]);
        let fault = started(&launch).batch(&batch).err().unwrap();
        let text = format!("{fault:?}");
        assert!(text.contains("a buffer lies outside of the results"), "{text}");
    }
}

/// Names of files that are no UTF-8 come as halves of surrogate pairs, and so into the texts of exceptions.
#[test]
fn an_error_whose_text_is_no_unicode_is_reported() {
    let Some(python) = interpreter() else { return };
    let folder = tempfile::tempdir().unwrap();
    let (stream, batch) = numbers(&[Some(1), Some(2)]);
    let record = "def step(record):
    if record['n'] == 1: raise ValueError('bad \\udcff name')
    return record
";
    let mut process = started(&launch(python.clone(), &folder, record, &stream, &stream));
    let given = process.batch(&batch).unwrap();
    assert_eq!(given.origins.unwrap(), [1]);
    let detail = &given.rejected[0].detail;
    assert!(detail.starts_with("ValueError: bad \\udcff name\n"), "{detail}");
    let whole = "import tidemill\ndef step(batch: tidemill.Batch): raise ValueError('bad \\udcff name')\n";
    let fault =
        started(&launch(python.clone(), &folder, whole, &stream, &stream)).batch(&batch).err().unwrap();
    let is_told = |detail: &str| detail.starts_with("ValueError: bad \\udcff name\n");
    assert!(matches!(&fault, Fault::Failed { detail, .. } if is_told(detail)), "{fault:?}");
    let start = "raise ValueError('bad \\udcff name')\n";
    let error = Process::start(&launch(python, &folder, start, &stream, &stream)).err().unwrap();
    assert_eq!(error.message, "ValueError: bad \\udcff name");
}

/// Prints figures; run it alone: `cargo test -p tidemill-python figures -- --ignored --nocapture`.
#[test]
#[ignore = "long: make test-long"]
#[allow(clippy::disallowed_methods, reason = "measures real time")]
fn long_figures() {
    use std::time::Instant;
    let Some(python) = interpreter() else { return };
    let load = std::fs::read_to_string("/proc/loadavg").unwrap();
    println!("load {load}");
    let folder = tempfile::tempdir().unwrap();
    let (stream, batch) = numbers(&[Some(1); 16]);
    let cases = [
        ("batch", "import tidemill\ndef step(batch: tidemill.Batch): return batch\n"),
        ("record", "def step(record): return record\n"),
        ("empty", "import tidemill\ndef step(batch: tidemill.Batch): return None\n"),
    ];
    for (name, module) in cases {
        let mut process = started(&launch(python.clone(), &folder, module, &stream, &stream));
        let mut times: Vec<u128> = (0..5000)
            .map(|_| {
                let begun = Instant::now();
                process.batch(&batch).unwrap();
                begun.elapsed().as_nanos() / 1000
            })
            .collect();
        times.sort_unstable();
        println!("{name}: 16 records, p50 {} us, p99 {} us", times[2500], times[4950]);
    }
    let frames = StreamType::new([Column::new("p", ColumnType::Image)]);
    let scores = StreamType::new([Column::new("s", ColumnType::Float64)]);
    let mut frame = b"P6\n640 546\n255\n".to_vec();
    frame.resize(frame.len() + 640 * 546 * 3, 7);
    let mut column = BinaryBuilder::new();
    column.append_value(&frame);
    let payload = RecordBatch::try_new(payload_schema(&frames), vec![Arc::new(column.finish()) as ArrayRef]);
    let batch = first_records(&payload.unwrap()).unwrap();
    let one_way = "def step(record): return {'s': float(record['p'].pixels[5])}\n";
    let back = "def step(record): return record\n";
    for (name, module, output) in [("one way", one_way, &scores), ("and back", back, &frames)] {
        let mut process = started(&launch(python.clone(), &folder, module, &frames, output));
        let begun = Instant::now();
        for _ in 0..500 {
            let given = process.batch(&batch).unwrap();
            if output == &scores {
                assert_eq!(given.columns[0].as_primitive::<Float64Type>().value(0), 7.0);
            }
        }
        let rate = 500.0 * frame.len() as f64 / begun.elapsed().as_secs_f64() / 1e9;
        println!("{name}: frames of {} bytes, {rate:.2} GB/s", frame.len());
    }
}
