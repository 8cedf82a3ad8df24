//! Runs the provider as a process of its own. It prints its base URL on one line and serves until it is stopped.
//! `POST /control/replies` adds replies to its script, `GET /control/requests` returns what it has received.

use std::io::{self, Write};
use std::process::ExitCode;

use mock_llm::MockProvider;

const USAGE: &str = "usage: mock-llm [--port PORT]";

#[tokio::main]
async fn main() -> ExitCode {
    match run(std::env::args().skip(1)).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: impl Iterator<Item = String>) -> io::Result<()> {
    let port = port(arguments).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, USAGE))?;
    // The control endpoint shows refusals; there is no test here that a panic could fail.
    let provider = MockProvider::builder().port(port).panic_on_refusals(false).start().await?;
    let mut stdout = io::stdout();
    writeln!(stdout, "{}", provider.base_url())?;
    stdout.flush()?;
    tokio::signal::ctrl_c().await
}

/// The port to listen on, 0 for any free one. `None` if the arguments are invalid.
fn port(mut arguments: impl Iterator<Item = String>) -> Option<u16> {
    match (arguments.next().as_deref(), arguments.next(), arguments.next()) {
        (None, ..) => Some(0),
        (Some("--port"), Some(port), None) => port.parse().ok(),
        _ => None,
    }
}
