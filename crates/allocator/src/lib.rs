//! The allocator of the program: mimalloc without transparent huge pages (a feature of the dependency), with which an
//! idle engine uses least memory. Whoever links this crate allocates with it.
//!
//! While a program works, mimalloc keeps freed pages for a second, because most of them are needed again at once. It
//! returns them when something else is freed later, so what a program frees last would stay with it for as long as it
//! is idle: [`release_free_memory`] returns that too.

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[expect(unsafe_code, reason = "a function of C can be declared in no other way")]
mod c {
    // SAFETY: mimalloc.h declares `void mi_collect(bool force)`, which any thread may call at any time.
    unsafe extern "C" {
        pub(crate) safe fn mi_collect(force: bool);
    }
}

/// Returns to the system what the allocator holds and nobody uses, but for what other threads keep for themselves. The
/// more was freed, the longer it takes, so it is for moments in which nothing is under way.
pub fn release_free_memory() {
    c::mi_collect(true);
}
