//! Makes Rust code of `prices.proto`; nothing else has to be installed.
fn main() -> Result<(), Box<dyn std::error::Error>> {
    tidemill_stub::build::Stubs::new().include(".").file("prices.proto").write()?;
    Ok(())
}
