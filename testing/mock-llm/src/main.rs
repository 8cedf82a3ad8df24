//! The provider as a process of its own: prints its base URL on one line and serves until it is
//! stopped. Scripted through `POST /control/replies`, read through `GET /control/requests`.

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
    // Refusals are for the client to see and for the control endpoint to show; nobody tests this process.
    let provider = MockProvider::builder().port(port).panic_on_refusals(false).start().await?;
    let mut stdout = io::stdout();
    writeln!(stdout, "{}", provider.base_url())?;
    stdout.flush()?;
    tokio::signal::ctrl_c().await
}

/// The port to listen on, 0 for a free one; none when the arguments are wrong.
fn port(mut arguments: impl Iterator<Item = String>) -> Option<u16> {
    match (arguments.next().as_deref(), arguments.next(), arguments.next()) {
        (None, ..) => Some(0),
        (Some("--port"), Some(port), None) => port.parse().ok(),
        _ => None,
    }
}
