//! Models that compute elsewhere: in a device proxy of this host or another one.
//!
//! - [`backends`]: the back ends of `tidemill-inference` as a device, for proxies.
//! - [`client`]: a device as a back end, for executors.
