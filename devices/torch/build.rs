//! Lets the program find libtorch where it was built against it, and builds what calls its C++.
use std::path::Path;

fn main() {
    println!("cargo:rerun-if-env-changed=LIBTORCH");
    let Ok(libtorch) = std::env::var("LIBTORCH") else { return };
    println!("cargo:rustc-link-arg=-Wl,-rpath,{libtorch}/lib");
    // Packages need this library by its name, and find it where the process has it. Nothing else here needs it.
    println!(
        "cargo:rustc-link-arg=-Wl,--push-state,--no-as-needed,-L{libtorch}/lib,-l:libtorch.so,--pop-state"
    );
    println!("cargo:rerun-if-changed=src/package.cpp");
    let headers = Path::new(&libtorch).join("include");
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .warnings(false)
        .include(headers)
        .file("src/package.cpp")
        .compile("package");
}
