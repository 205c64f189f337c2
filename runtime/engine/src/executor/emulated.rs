//! Devices `emulated:ID`: the model computes on this machine, and the gate of an emulated run gives its calls the times of the
//! device.
use super::{
    ExecutorFactory, ExecutorRequest, ExecutorSpec, LocalModel, ModelExecutor, PreparedModel, start_local,
};
use std::sync::Arc;
use tidemill_operators::api::{MakeInstance, OperatorError};

/// The scheme of emulated devices.
pub const EMULATED: &str = "emulated";

/// See the module.
pub(super) struct EmulatedExecutors;

impl ExecutorFactory for EmulatedExecutors {
    fn scheme(&self) -> &str {
        EMULATED
    }

    fn loads_here(&self) -> bool {
        true
    }

    fn prepare(&self, _spec: &ExecutorSpec, make: &MakeInstance) -> Result<PreparedModel, OperatorError> {
        LocalModel::load(make).map(LocalModel::prepared)
    }

    fn start(&self, request: &ExecutorRequest) -> Result<Arc<dyn ModelExecutor>, OperatorError> {
        if request.gate.is_none() {
            let device = &request.spec.device;
            return Err(OperatorError::new(format!(
                "'{device}' is a device of emulated runs only; name the device of the plan, `device:ID`, and add `--emulate`"
            )));
        }
        start_local(request, &request.make, &request.spec.device)
    }

    fn may_be_lost(&self) -> bool {
        false
    }
}
