//! The test that this program runs as the sandbox's helper.

#[test]
fn sandbox_helper() {
    testkit::serve_as_sandbox_helper();
}
