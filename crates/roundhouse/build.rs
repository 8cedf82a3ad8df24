//! Links the program at a fixed address.
//!
//! Engines of one host share the pages that are the same in all of them. Those with addresses are only if the program
//! is loaded at the same address everywhere: `docs/decisions/0010-fixed-address.md`.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let target = |name: &str| std::env::var(format!("CARGO_CFG_TARGET_{name}")).unwrap_or_default();
    if target("OS") == "linux" && target("ENV") == "gnu" {
        println!("cargo::rustc-link-arg-bins=-no-pie");
    }
}
