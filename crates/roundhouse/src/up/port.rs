//! Finds the process that holds a port, for the error message about a port in use.

use std::fs;
use std::path::{Path, PathBuf};

/// Returns a readable name of the process that listens on TCP `port`, or `None` if the system does not reveal it
/// (another user's process, another network namespace).
pub(crate) fn holder(port: u16) -> Option<String> {
    let sockets: Vec<String> = ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .filter_map(|table| fs::read_to_string(table).ok())
        .flat_map(|table| listening_inodes(&table, port))
        .map(|inode| format!("socket:[{inode}]"))
        .collect();
    // `/proc/self` and similar links are duplicates of a numbered entry.
    let is_process = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.as_encoded_bytes().iter().all(u8::is_ascii_digit))
    };
    let mut processes = fs::read_dir("/proc").ok()?.flatten().map(|entry| entry.path()).filter(is_process);
    processes.find(|process| holds_any(process, &sockets)).map(|process| describe_process(&process))
}

/// Returns the inodes of the sockets that listen on `port`, from a table in the format of `/proc/net/tcp`
/// (`proc_net_tcp` in the kernel's documentation).
fn listening_inodes(table: &str, port: u16) -> Vec<String> {
    const LISTEN: &str = "0A";
    let inode = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let local = fields.get(1)?.rsplit_once(':')?.1;
        let ours = u16::from_str_radix(local, 16) == Ok(port) && fields.get(3) == Some(&LISTEN);
        if ours { fields.get(9).map(|inode| (*inode).to_owned()) } else { None }
    };
    table.lines().skip(1).filter_map(inode).collect()
}

fn holds_any(process: &Path, sockets: &[String]) -> bool {
    let Ok(files) = fs::read_dir(process.join("fd")) else { return false };
    files
        .flatten()
        .filter_map(|file| fs::read_link(file.path()).ok())
        .any(|target| sockets.iter().any(|socket| target.as_os_str() == socket.as_str()))
}

fn describe_process(process: &Path) -> String {
    let pid = process.file_name().unwrap_or_default().to_string_lossy();
    let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
    format!("{} (process {pid})", name.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_found_by_its_port() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let holder = holder(listener.local_addr().unwrap().port()).unwrap();
        assert!(holder.contains(&format!("process {}", std::process::id())), "{holder}");
    }

    #[test]
    fn a_free_port_has_no_holder() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        assert_eq!(holder(port), None);
    }
}
