//! Sees to it that an engine that does nothing keeps little memory: sets an option of the allocator, and links the
//! released program for it.
//!
//! The option can be set from C alone: its binding for Rust is not safe to call, and the environment is no place for it,
//! since an engine's is made of what is documented and nothing else.
//!
//! The kernel maps a program's code in pieces of 64 KiB around whatever is touched. What a start touches is 2 of 35 MB,
//! but as the compiler leaves it, it lies in half of all those pieces, and an idle engine keeps them. A linker script
//! says which functions come first; `link/record` writes it. See `docs/decisions/0007-order-of-code.md`.

use std::env;
use std::path::Path;
use std::process::Command;

/// The target whose linker, as the toolchain brings it, takes such a script.
const TARGET: &str = "x86_64-unknown-linux-gnu";
/// The first glibc that knows packed relocations: without them a start reads, and keeps, 1.7 MB of them.
const MIN_GLIBC_WITH_PACKED_RELOCATIONS: (u32, u32) = (2, 36);

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=link/start.ld");
    println!("cargo::rerun-if-changed=src/allocator.c");
    // As it is, not in a library: nothing refers to what is in it, it runs by itself.
    for object in cc::Build::new().file("src/allocator.c").compile_intermediates() {
        println!("cargo::rustc-link-arg-bins={}", object.display());
    }
    let is = |name: &str, value: &str| env::var(name).is_ok_and(|set| set == value);
    // Another linker may not take them, and the program works without.
    let another_linker = env::var_os("RUSTC_LINKER").is_some()
        || env::var("CARGO_ENCODED_RUSTFLAGS").is_ok_and(|flags| flags.contains("link"));
    if !is("PROFILE", "release") || !is("TARGET", TARGET) || another_linker {
        return;
    }
    let script = Path::new(&env::var("CARGO_MANIFEST_DIR").unwrap_or_default()).join("link/start.ld");
    println!("cargo::rustc-link-arg-bins=-Wl,-T,{}", script.display());
    if is("HOST", TARGET)
        && glibc_version().is_some_and(|version| version >= MIN_GLIBC_WITH_PACKED_RELOCATIONS)
    {
        println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}

/// The version of this machine's C library. A program wants at least the one that it was built with.
fn glibc_version() -> Option<(u32, u32)> {
    let told = Command::new("getconf").arg("GNU_LIBC_VERSION").output().ok()?;
    let told = String::from_utf8(told.stdout).ok()?;
    let (major, minor) = told.trim().strip_prefix("glibc ")?.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}
