//! How the library is linked.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=start.ld");
    // What the library itself calls is its own where it has it, as it comes first in every program; looking for it there would
    // cost each process 21,000 instructions.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
    let here = std::env::var("CARGO_MANIFEST_DIR").expect("cargo says where the package is");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-T,{here}/start.ld");
}
