//! Links TVM's runtime, which registers what modules need, and lets the program find both libraries where it was built against them.
fn main() {
    println!("cargo:rerun-if-env-changed=TVM_LIBRARIES");
    println!("cargo:rustc-link-arg=-Wl,--no-as-needed");
    println!("cargo:rustc-link-arg=-l:libtvm_runtime.so");
    // The runtime needs it, too, and does not find it by itself.
    println!("cargo:rustc-link-arg=-l:libtvm_ffi.so");
    for folder in std::env::var("TVM_LIBRARIES").iter().flat_map(|folders| std::env::split_paths(folders)) {
        println!("cargo:rustc-link-search=native={}", folder.display());
        println!("cargo:rustc-link-arg=-L{}", folder.display());
        println!("cargo:rustc-link-arg=-Wl,-rpath,{}", folder.display());
    }
}
