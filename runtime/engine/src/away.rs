//! Batches that are on their way to the device of a stage at one time.
//!
//! A plan expects that a stage gives its device the next batch while others are away. The run of a plan therefore begins with as many
//! copies of the model as batches are away by the plan; each copy waits for one.
use tidemill_spec::plan::{PlanDevice, Stage};

/// Batches of a stage that are away at one time, at most: each occupies a thread, and the memory of a batch.
const MOST_AWAY: f64 = 16.0;

/// Number of batches that one partition of a stage has on their way at a time, so that it carries what the plan expects: as many
/// as leave while one is away without waiting, and twice the standard deviation of that number for those that come early. Without
/// `remote_run`, 1. `devices`: those of the plan.
pub fn batches_away(stage: &Stage, devices: &[PlanDevice]) -> u32 {
    let Some(run) = &stage.remote_run else { return 1 };
    // `device:ID`, or `emulated:ID` in an emulated run.
    let id = stage.device.as_deref().and_then(|device| Some(device.split_once(':')?.1));
    let device = devices.iter().find(|device| Some(device.id.as_str()) == id);
    let share = device.and_then(|device| device.share).map_or(100.0, |share| share.0);
    let [round_trip, transfer, compute] =
        [run.round_trip, run.transfer, run.compute].map(|time| time.0 as f64);
    let busy = run.share.0 / share / f64::from(stage.partitions.max(1));
    let mean = busy * (round_trip + transfer + compute) / compute.max(1.0);
    (mean + 2.0 * mean.sqrt()).ceil().clamp(1.0, MOST_AWAY) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tidemill_spec::plan::RemoteRun;
    use tidemill_spec::units::{Bytes, Percent, TimeSpan};

    fn stage(share: f64, away: [u64; 3], compute: u64) -> Stage {
        let [round_trip, transfer, queue] = away.map(|ms| TimeSpan(ms * 1_000_000));
        let (sent, received, compute) = (Bytes(1), Bytes(1), TimeSpan(compute * 1_000_000));
        let share = Percent(share);
        let run = RemoteRun { sent, received, round_trip, transfer, queue, compute, share };
        Stage {
            device: Some("device:hub/card".into()),
            remote_run: Some(run),
            ..Stage::new("s", "s", "edge")
        }
    }

    #[test]
    fn as_many_batches_are_away_as_leave_meanwhile() {
        let half = PlanDevice {
            id: "hub/card".into(),
            kind: "card".into(),
            worker: "hub".into(),
            address: None,
            spares: Vec::new(),
            memory: None,
            share: Some(Percent(50.0)),
            price: None,
        };
        let away = |stage: &Stage| batches_away(stage, std::slice::from_ref(&half));
        // Of its half, a quarter: one batch of 10 ms in 40 ms. Each is away for 150 ms, so nearly 4 are, and 4 more may be.
        // The longest wait does not count: most batches wait for less.
        let four = stage(12.5, [130, 10, 10], 10);
        assert_eq!(away(&four), 8);
        assert_eq!(away(&Stage { partitions: 4, ..four.clone() }), 3);
        assert_eq!(batches_away(&four, &[]), 5, "2 of a whole device");
        let emulated = Stage { device: Some("emulated:hub/card".into()), ..four.clone() };
        assert_eq!(away(&emulated), 8);
        assert_eq!(away(&Stage { remote_run: None, ..four }), 1);
        assert_eq!(away(&stage(0.5, [1, 0, 0], 10)), 1, "one in a second");
        assert_eq!(away(&stage(50.0, [60_000, 0, 0], 1)), 16);
        assert_eq!(away(&stage(0.0, [5, 0, 0], 0)), 1);
    }

    proptest! {
        /// More batches are never away than a longer way, or a busier device, would need.
        #[test]
        fn a_longer_way_has_no_fewer_batches(share in 0.0_f64..100.0, trip in 0_u64..500, compute in 1_u64..100, more in 0_u64..500) {
            let of = |share, trip| batches_away(&stage(share, [trip, 0, 0], compute), &[]);
            prop_assert!((1..=16).contains(&of(share, trip)));
            prop_assert!(of(share, trip) <= of(share, trip + more));
            prop_assert!(of(share / 2.0, trip) <= of(share, trip));
        }
    }
}
