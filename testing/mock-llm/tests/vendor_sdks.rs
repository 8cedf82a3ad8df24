//! Runs the vendors' own Python SDKs against the provider, see `vendor_sdks/check.py`.
//!
//! `ROUNDHOUSE_TEST_PYTHON` names an interpreter in which `vendor_sdks/requirements.txt` is installed. Without the
//! SDKs, the test is skipped with a message, or fails if `ROUNDHOUSE_REQUIRE_ALL=1`.

use std::env;
use std::io::{self, Write as _};

use mock_llm::{MockProvider, Wire};
use tokio::process::Command;

/// The exit code of `check.py` if an SDK cannot be imported.
const SDK_MISSING: i32 = 77;

#[test]
fn each_wire_is_checked_with_an_sdk() {
    let check = include_str!("vendor_sdks/check.py");
    let wires = check.lines().find_map(|line| line.strip_prefix("WIRES = [")?.strip_suffix(']')).unwrap();
    assert_eq!(
        wires.split(", ").count(),
        Wire::COUNT,
        "`WIRES` of check.py has a module for each wire: {wires}"
    );
}

#[tokio::test]
async fn the_vendors_sdks_understand_the_provider() {
    // The script causes refusals on purpose, and checks them itself.
    let provider = MockProvider::builder().panic_on_refusals(false).start().await.unwrap();
    let python = env::var("ROUNDHOUSE_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vendor_sdks/check.py");
    let output = Command::new(&python).args([script, &provider.base_url()]).output().await;

    let missing = match &output {
        Err(error) => Some(format!("{python} does not start: {error}")),
        Ok(output) if output.status.code() == Some(SDK_MISSING) => {
            Some(String::from_utf8_lossy(&output.stderr).trim().to_owned())
        }
        Ok(_) => None,
    };
    if let Some(missing) = missing {
        assert_ne!(
            env::var("ROUNDHOUSE_REQUIRE_ALL").as_deref(),
            Ok("1"),
            "the SDKs are required: {missing}"
        );
        // Bypasses the test harness, which would capture the output.
        writeln!(io::stderr().lock(), "skipped: the vendors' SDKs cannot be used: {missing}").unwrap();
        return;
    }
    let output = output.unwrap();
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
