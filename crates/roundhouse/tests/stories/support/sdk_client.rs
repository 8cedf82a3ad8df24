//! Programs of `tests/peers` that use an engine with the SDKs of others, and print what they see.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;
use tokio::io::AsyncWriteExt as _;
use tokio::process::ChildStdin;

use super::{Program, TestEnv, with_deadline};

/// A running program that uses an SDK.
#[derive(Debug)]
pub(crate) struct SdkClient {
    program: Program,
    input: ChildStdin,
    _home: TestEnv,
}

/// The path of a program.
pub(crate) fn script(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers").join(name).to_str().unwrap().to_owned()
}

impl SdkClient {
    /// Starts a program.
    pub(crate) fn start(home: TestEnv, line: &[&str], mut variables: BTreeMap<String, String>) -> Self {
        variables.insert("PYTHONIOENCODING".to_owned(), "utf-8".to_owned());
        let (program, input) = home.run_program_interactive(line, &variables);
        Self { program, input, _home: home }
    }

    /// Waits until it has printed `words`.
    pub(crate) async fn wait_for(&mut self, words: &str) {
        self.program.wait_for_output(words).await.unwrap_or_else(|exit| panic!("the client ended: {exit:?}"));
    }

    /// Sends it an empty line.
    pub(crate) async fn press_enter(&mut self) {
        self.input.write_all(b"\n").await.unwrap();
    }

    /// Waits for its end; returns the objects that it printed.
    pub(crate) async fn finish(self) -> Vec<Value> {
        let output = with_deadline("the client ends", self.program.wait()).await.assert_success();
        output.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }
}
