//! Links between a session and its device.

/// Part of a nominal bandwidth that TCP's payload gets: 1448 of the 1514 bytes of an Ethernet frame. Through `tc tbf`,
/// which counts such frames, 95.6 of 100 Mbit/s were measured.
pub const GOODPUT: f64 = 1448.0 / 1514.0;

/// A link. Its delays do not vary.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Link {
    /// Seconds from sending an empty message until its empty answer arrives.
    pub round_trip: f64,
    /// Payload bytes per second to the device; infinite where nothing limits.
    pub up: f64,
    /// Payload bytes per second from the device.
    pub down: f64,
}

impl Link {
    /// No link: the device is beside the caller.
    pub const NONE: Link = Link { round_trip: 0.0, up: f64::INFINITY, down: f64::INFINITY };

    /// Creates the link of TCP over these nominal bandwidths, in bits per second.
    pub fn nominal(round_trip: f64, up_bits: f64, down_bits: f64) -> Self {
        Self { round_trip, up: payload_rate(up_bits), down: payload_rate(down_bits) }
    }

    /// Seconds that these bytes occupy the link to the device.
    pub(crate) fn upward(&self, bytes: f64) -> f64 {
        if bytes > 0.0 { bytes / self.up } else { 0.0 }
    }

    /// Seconds that these bytes occupy the link from the device.
    pub(crate) fn downward(&self, bytes: f64) -> f64 {
        if bytes > 0.0 { bytes / self.down } else { 0.0 }
    }
}

/// Returns the payload bytes per second of a nominal bandwidth in bits per second.
pub fn payload_rate(bits: f64) -> f64 {
    bits / 8.0 * GOODPUT
}

/// Returns the nominal bandwidth, in bits per second, that carries these payload bytes per second.
pub fn nominal_bits(payload_rate: f64) -> f64 {
    payload_rate / GOODPUT * 8.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payload_gets_what_was_measured() {
        assert!((payload_rate(100e6) * 8.0 / 1e6 - 95.6).abs() < 0.05);
        assert!((nominal_bits(payload_rate(42e6)) - 42e6).abs() < 1e-3);
        let link = Link { round_trip: 0.0, up: 10.0, down: f64::INFINITY };
        assert_eq!((link.upward(20.0), link.downward(20.0), Link::NONE.upward(1e9)), (2.0, 0.0, 0.0));
    }
}
