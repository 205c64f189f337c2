//! Stands in for the access to buckets in a build without the feature `storage-s3`.
use tidemill_spec::bucket_address::Address;
use tidemill_state::{Store, StoreError};

/// Refuses it.
pub(super) fn open(address: &Address) -> Result<Box<dyn Store>, StoreError> {
    let fix = "build the command with `cargo build -p tidemill --features storage-s3`, or name a folder";
    Err(StoreError::NotInBuild { place: address.to_string(), fix: fix.to_owned() })
}

/// Refuses it.
pub(super) fn look(address: &Address) -> Result<Box<dyn Store>, StoreError> {
    open(address)
}
