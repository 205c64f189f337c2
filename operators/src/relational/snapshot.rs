//! Snapshot format of operator state: a tag with the operator's format version, a small JSON header, and record
//! batches as Arrow IPC streams.
use crate::api::OperatorError;
use crate::record::batch_bytes;
use arrow_array::RecordBatch;
use arrow_ipc::reader::StreamReader;
use arrow_ipc::writer::StreamWriter;
use arrow_schema::SchemaRef;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Approximate size of Arrow's framing around the columns of a batch.
const FRAME_BYTES: usize = 4096;

/// Writes a snapshot. `tag` names operator kind and format version and has one length in all versions.
pub(crate) fn write<H: Serialize>(
    tag: [u8; 8],
    header: &H,
    sections: &[(SchemaRef, Vec<RecordBatch>)],
) -> Result<Vec<u8>, OperatorError> {
    let broken = |e: &dyn std::fmt::Display| OperatorError::new(format!("cannot write the snapshot: {e}"));
    let header = serde_json::to_vec(header).map_err(|e| broken(&e))?;
    let batches = || sections.iter().flat_map(|(_, batches)| batches);
    let mut bytes = Vec::with_capacity(
        header.len() + batches().map(|batch| batch_bytes(batch) + FRAME_BYTES).sum::<usize>() + FRAME_BYTES,
    );
    bytes.extend(tag);
    bytes.extend((header.len() as u64).to_le_bytes());
    bytes.extend(header);
    for (schema, batches) in sections {
        let start = bytes.len();
        bytes.extend(0u64.to_le_bytes());
        let mut writer = StreamWriter::try_new(&mut bytes, schema).map_err(|e| broken(&e))?;
        for batch in batches {
            writer.write(batch).map_err(|e| broken(&e))?;
        }
        writer.finish().map_err(|e| broken(&e))?;
        drop(writer);
        let length = (bytes.len() - start - 8) as u64;
        bytes[start..start + 8].copy_from_slice(&length.to_le_bytes());
    }
    Ok(bytes)
}

/// Reads a snapshot that [`write`] wrote with this tag and these schemas.
pub(crate) fn read<H: DeserializeOwned>(
    tag: [u8; 8],
    schemas: &[SchemaRef],
    bytes: &[u8],
) -> Result<(H, Vec<Vec<RecordBatch>>), OperatorError> {
    let broken = |e: &dyn std::fmt::Display| {
        OperatorError::new(format!("cannot read the snapshot ({e}): start the run from the beginning"))
    };
    let Some((found, mut rest)) = bytes.split_at_checked(8) else {
        return Err(broken(&"it is too short"));
    };
    if found != tag {
        return Err(OperatorError::new(format!(
            "the snapshot has format `{}`, but this version reads `{}`: start the run from the beginning, \
             or continue it with the version that wrote it",
            String::from_utf8_lossy(found),
            String::from_utf8_lossy(&tag)
        )));
    }
    let mut section = || -> Option<&[u8]> {
        let (length, after) = rest.split_at_checked(8)?;
        let length = usize::try_from(u64::from_le_bytes(length.try_into().ok()?)).ok()?;
        let (content, after) = after.split_at_checked(length)?;
        rest = after;
        Some(content)
    };
    let header = section().ok_or_else(|| broken(&"it is too short"))?;
    let header = serde_json::from_slice(header).map_err(|e| broken(&e))?;
    let mut sections = Vec::new();
    for schema in schemas {
        let content = section().ok_or_else(|| broken(&"it is too short"))?;
        let reader = StreamReader::try_new(content, None).map_err(|e| broken(&e))?;
        if reader.schema() != *schema {
            return Err(broken(&"its columns belong to another operator or another workflow"));
        }
        sections.push(reader.collect::<Result<Vec<_>, _>>().map_err(|e| broken(&e))?);
    }
    Ok((header, sections))
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_schema::Schema;
    use std::sync::Arc;

    #[test]
    fn other_versions_and_damage_are_refused() {
        let schema = Arc::new(Schema::empty());
        let bytes = write(*b"TEST0001", &7u32, &[(Arc::clone(&schema), Vec::new())]).unwrap();
        let (header, sections) = read::<u32>(*b"TEST0001", &[Arc::clone(&schema)], &bytes).unwrap();
        assert_eq!((header, sections.len()), (7, 1));
        let error = read::<u32>(*b"TEST0002", &[Arc::clone(&schema)], &bytes).unwrap_err();
        assert!(error.message.contains("`TEST0001`, but this version reads `TEST0002`"), "{error}");
        for length in 0..bytes.len() - 8 {
            // The last eight bytes end the Arrow stream; without them it is still complete.
            assert!(read::<u32>(*b"TEST0001", &[Arc::clone(&schema)], &bytes[..length]).is_err(), "{length}");
        }
    }
}
