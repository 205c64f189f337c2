//! Helpers for tests of all sources.
use crate::api::{BoundSource, DeadLetter, Source, SourcePosition, SourceRead};
use crate::kind::{EndContext, SourceKind};
use crate::testing::{id, options};
use arrow_array::RecordBatch;
use arrow_select::concat::concat_batches;
use std::path::Path;
use tidemill_spec::diagnostic::Diagnostics;

/// Binds a source in a folder.
pub(crate) fn bind(kind: &dyn SourceKind, base: &Path, yaml: &str) -> Result<BoundSource, Diagnostics> {
    kind.bind(&EndContext::new(&id("source"), base), &options(yaml))
}

/// Reads to the end: batches that are not empty, dead letters with their record number.
pub(crate) fn drain(
    source: &BoundSource,
    rows: usize,
    bytes: usize,
) -> (Vec<RecordBatch>, Vec<(u64, DeadLetter)>) {
    let mut reader = (source.make)().unwrap();
    let (mut batches, mut dead, mut start) = (Vec::new(), Vec::new(), 0);
    while let Some((records, payload, letters)) = read(reader.as_mut(), rows, bytes) {
        dead.extend(letters.into_iter().map(|(at, letter)| (start + at, letter)));
        start += records;
        if payload.num_rows() > 0 {
            batches.push(payload);
        }
    }
    (batches, dead)
}

type Read = (u64, RecordBatch, Vec<(u64, DeadLetter)>);

/// One read: number of records, rows, dead letters with their index; `None` at the end.
fn read(reader: &mut dyn Source, rows: usize, bytes: usize) -> Option<Read> {
    match reader.read(rows, bytes).unwrap() {
        SourceRead::End => None,
        SourceRead::Idle { .. } => panic!("a file has something or ends"),
        SourceRead::Rows { payload, times, dead_letters, offsets } => {
            let records = payload.num_rows() + dead_letters.len();
            assert!(records >= 1 && records <= rows, "{records} records, asked for {rows}");
            assert!(times.is_none_or(|t| t.len() == payload.num_rows()));
            assert_eq!(offsets.is_some(), !dead_letters.is_empty());
            let offsets = offsets.unwrap_or_else(|| (0..records as u64).collect());
            assert_eq!(offsets.len(), payload.num_rows());
            let free = (0..records as u64).filter(|at| !offsets.contains(at));
            Some((records as u64, payload, free.zip(dead_letters).collect()))
        }
    }
}

/// Reads in various step sizes, with seeks back and forth and new readers, and compares with one sequential read.
pub(crate) fn check_seeks(source: &BoundSource) {
    check_some_seeks(source, 1, &[1, 2, 3, 1000]);
}

/// As [`check_seeks`], but only to every `step`th position, and with these numbers of rows.
pub(crate) fn check_some_seeks(source: &BoundSource, step: usize, rows: &[usize]) {
    // One record at a time: the reference.
    let mut reader = (source.make)().unwrap();
    let mut positions: Vec<SourcePosition> = vec![reader.position()];
    let mut records: Vec<Read> = Vec::new();
    while let Some(record) = read(reader.as_mut(), 1, usize::MAX) {
        assert_eq!(record.0, 1);
        records.push(record);
        positions.push(reader.position());
    }
    assert!(matches!(reader.read(1, 1).unwrap(), SourceRead::End), "the end stays the end");
    for start in (0..positions.len()).step_by(step) {
        let mut fresh = (source.make)().unwrap();
        for &rows in rows {
            for reader in [&mut reader, &mut fresh] {
                reader.seek(&positions[start]).unwrap();
                assert_eq!(reader.position(), positions[start]);
                let Some((count, payload, dead)) = read(reader.as_mut(), rows, usize::MAX) else {
                    assert_eq!(start, records.len());
                    continue;
                };
                let count = count as usize;
                assert_eq!(count, rows.min(records.len() - start));
                let expected = &records[start..start + count];
                let rows: Vec<&RecordBatch> = expected.iter().map(|(_, payload, _)| payload).collect();
                assert_eq!(payload, concat_batches(&payload.schema(), rows).unwrap());
                let letters = expected.iter().enumerate();
                let letters: Vec<_> = letters
                    .flat_map(|(at, (.., dead))| {
                        dead.iter().map(move |(_, letter)| (at as u64, letter.clone()))
                    })
                    .collect();
                assert_eq!(dead, letters);
                // At the end of the file blank lines may be left; they are no records.
                if start + count < records.len() {
                    assert_eq!(reader.position(), positions[start + count]);
                }
            }
        }
    }
}
