//! How the program is linked: at a fixed address, and with an object that sets an option of the allocator.
//!
//! Engines of one host share the pages that are the same in all of them. Those with addresses are only if the program
//! is loaded at the same address everywhere: `docs/decisions/0010-fixed-address.md`.
//!
//! With the option an idle engine returns freed memory. It can be set from C alone: its binding for Rust is not safe to
//! call, and an engine's environment contains only what is documented.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src/allocator.c");
    let target = |name: &str| std::env::var(format!("CARGO_CFG_TARGET_{name}")).unwrap_or_default();
    if target("OS") == "linux" && target("ENV") == "gnu" {
        println!("cargo::rustc-link-arg-bins=-no-pie");
    }
    // As an object, not as a library: nothing refers to its symbols, so a linker would leave out a library.
    for object in cc::Build::new().file("src/allocator.c").compile_intermediates() {
        println!("cargo::rustc-link-arg-bins={}", object.display());
    }
}
