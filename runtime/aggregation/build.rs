//! Makes Rust code of `aggregation.proto`.
fn main() -> Result<(), Box<dyn std::error::Error>> {
    tidemill_stub::build::Stubs::new().include(".").file("aggregation.proto").write()?;
    Ok(())
}
