//! End to end through the built binary.
