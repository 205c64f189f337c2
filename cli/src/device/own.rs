//! `tidemill device-proxy`: the process of a device, for executors.
use crate::arguments::DeviceProxyArguments;
use crate::exit::Exit;

/// Serves the session on the standard input.
pub(crate) fn proxy(arguments: &DeviceProxyArguments) -> anyhow::Result<Exit> {
    tidemill_remote::own_proxy::serve_standard_input(arguments.backend.as_deref(), &arguments.libraries)?;
    Ok(Exit::Success)
}
