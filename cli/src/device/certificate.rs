//! Certificates of devices and of those who compute on them.
use crate::arguments::DeviceCertificateArguments;
use std::path::{Path, PathBuf};
use tidemill_app::failure::{Failure, Kind};
use tidemill_engine::remote::{Certificates, Security};
use tidemill_spec::plan::Plan;

/// Reads a certificate with its chain, its key, and the authority of the other side.
///
/// # Errors
/// A file cannot be read, or they do not belong together.
pub(super) fn read(chain: &Path, key: &Path, authority: &Path) -> Result<Security, Failure> {
    let read = |path: &Path| {
        std::fs::read(path)
            .map_err(|error| Failure::new(Kind::Missing, format!("{}: {error}", path.display())))
    };
    let certificates =
        Certificates { chain_pem: read(chain)?, key_pem: read(key)?, authority_pem: read(authority)? };
    Security::mutual(&certificates).map_err(|error| Failure::new(Kind::Configuration, error.to_string()))
}

/// Uses the certificate of the arguments for devices with TLS, if there is one.
///
/// # Errors
/// As [`read`].
pub(crate) fn hold(arguments: &DeviceCertificateArguments) -> Result<(), Failure> {
    if let Some((chain, key, authority)) = files(arguments) {
        tidemill_remote::certificate::set(read(chain, key, authority)?);
    }
    Ok(())
}

/// Returns the arguments for a process that this one starts, perhaps in another folder.
pub(crate) fn options(arguments: &DeviceCertificateArguments) -> Vec<String> {
    let Some((chain, key, authority)) = files(arguments) else { return Vec::new() };
    let named = [("--device-certificate", chain), ("--device-key", key), ("--device-authority", authority)];
    let whole = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
    let pair = |(option, path): (&str, &PathBuf)| [option.to_owned(), whole(path).display().to_string()];
    named.into_iter().flat_map(pair).collect()
}

/// Refuses a certificate that no device of the plan would see.
///
/// # Errors
/// There is a certificate, and no address with TLS.
pub(crate) fn is_of_use(arguments: &DeviceCertificateArguments, plan: &Plan) -> Result<(), Failure> {
    let stages = plan.stages.iter().filter_map(|stage| stage.device.as_deref());
    let mut all = plan.devices.iter().filter_map(|device| device.address.as_deref()).chain(stages);
    if arguments.device_certificate.is_none() || all.any(|address| address.contains("tls://")) {
        return Ok(());
    }
    Err(Failure::new(Kind::Usage, "no device of the plan has TLS, so `--device-certificate` has no effect")
        .with_help("write the `address` of the device as `tls://HOST:PORT`, or leave the certificate out"))
}

fn files(arguments: &DeviceCertificateArguments) -> Option<(&PathBuf, &PathBuf, &PathBuf)> {
    let DeviceCertificateArguments { device_certificate, device_key, device_authority } = arguments;
    Some((device_certificate.as_ref()?, device_key.as_ref()?, device_authority.as_ref()?))
}
