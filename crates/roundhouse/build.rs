//! Links an object that sets an option of the allocator, so that an idle engine returns freed memory.
//!
//! The option can be set from C alone: its binding for Rust is not safe to call, and an engine's environment
//! contains only what is documented.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src/allocator.c");
    // As an object, not as a library: nothing refers to its symbols, so a linker would leave out a library.
    for object in cc::Build::new().file("src/allocator.c").compile_intermediates() {
        println!("cargo::rustc-link-arg-bins={}", object.display());
    }
}
