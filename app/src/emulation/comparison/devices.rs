//! How busy devices are, predicted and measured.
use super::{Comparing, Row, TOLERANCE, row};
use crate::emulation::EmulatedDevice;
use crate::emulation::speeds::StageSpeed;

impl Comparing<'_> {
    /// How busy a device is, whatever the share of it that the run may use.
    pub(super) fn device_utilization(&self, device: &EmulatedDevice) -> Option<Row> {
        let meter = self.meters.devices.iter().find(|meter| meter.device == device.id)?;
        let own = self.emulated.speeds.iter().filter(|speed| speed.device_id() == Some(device.id.as_str()));
        let stages = &self.program.plan.stages;
        let planned = |speed: &StageSpeed| {
            let stage = stages.iter().find(|stage| stage.id == speed.stage)?;
            Some(stage.remote_run.as_ref()?.share.0)
        };
        let predicted = own.map(planned).sum::<Option<f64>>();
        let measured = meter.busy_seconds * device.share / self.seconds * 100.0;
        let by = vec![format!("speed of {}", device.kind)];
        let mut row = row("utilization", &device.id, "%", predicted, Some(measured), by, TOLERANCE);
        row.tolerate_points();
        Some(row)
    }
}
