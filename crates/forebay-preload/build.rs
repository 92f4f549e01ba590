//! How the library is linked.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // What the library itself calls is its own where it has it, as it comes first in every program; looking for it there would
    // cost each process 21,000 instructions.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
}
