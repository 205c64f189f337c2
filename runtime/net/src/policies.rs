//! The policies that the service has, and those from libraries.
pub mod acl;
pub mod balance;
pub mod compress;
pub mod fault;
pub mod foreign;
pub mod log;
pub mod null;
pub mod qos;
pub mod rate_limit;
