//! Measurements of Forebay against the kernel.

fn main() {}
