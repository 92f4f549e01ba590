//! How the shared library is linked.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // The name that programs look for at run time. The number is raised when a program that was built before would not work any more.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libforebay.so.0");
    // A keeper's threads run its code, and threads that end run it as well: once loaded it stays.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
}
