//! Arguments of device proxies.
use clap::Args;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(crate) struct DeviceProxyArguments {
    /// The only back end; default: all that are here.
    #[arg(long)]
    pub(crate) backend: Option<String>,
    /// From where libraries of back ends are looked for.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) libraries: PathBuf,
}
