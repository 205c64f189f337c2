//! Opens states in buckets.
use tidemill_bucket::{Bucket, Settings};
use tidemill_spec::bucket_address::Address;
use tidemill_state::{Store, StoreError};

/// Opens the storage exclusively, with the access settings of the environment.
pub(super) fn open(address: &Address) -> Result<Box<dyn Store>, StoreError> {
    Ok(Box::new(Bucket::open(address, &Settings::of_environment())?))
}

/// Opens the storage for reading, with the access settings of the environment.
pub(super) fn look(address: &Address) -> Result<Box<dyn Store>, StoreError> {
    Ok(Box::new(Bucket::look(address, &Settings::of_environment())?))
}
