//! Opens a page in the person's browser. The program is the person's own, run as they would run it: unlike the programs
//! of an agent it is not confined.

use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

use crate::terminal::print_line;

/// The program that opens a page with the desktop's browser.
const DESKTOP_OPENER: &str = "xdg-open";
/// How long the program may take. Most end at once; one that is the browser itself goes on by itself.
const MAX_WAIT: Duration = Duration::from_secs(5);

/// Opens `url` with the program that `BROWSER` names, or the desktop's. Says so if that fails.
pub(super) async fn open(url: &str) {
    let browser = std::env::var("BROWSER").unwrap_or_default();
    // The variable may list several, by preference.
    let program = browser.split(':').find(|name| !name.is_empty()).unwrap_or(DESKTOP_OPENER);
    let mut command = Command::new(program);
    command.arg(url).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let opened = match command.spawn() {
        Ok(mut child) => {
            tokio::time::timeout(MAX_WAIT, child.wait()).await.unwrap_or_else(|_| Ok(<_>::default()))
        }
        Err(error) => Err(error),
    };
    let why = match opened {
        Ok(status) if status.success() => return,
        Ok(status) => status.to_string(),
        Err(error) => error.to_string(),
    };
    // A closed terminal sees nothing anyway.
    let _ = print_line(&format!("No browser could be opened with {program} ({why}). The address is {url}"));
}
