//! Hints: the bandwidth that a transfer between two machines would get now, from counters of hosts and racks.
#![forbid(unsafe_code)]
