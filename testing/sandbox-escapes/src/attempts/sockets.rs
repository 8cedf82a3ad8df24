//! Attempts on local and network sockets.

use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixStream};
use std::time::Duration;

use super::attempt;
use crate::{Attempt, AttemptError, Control, Mechanism, Target, raw_syscall};

/// How long to wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// The attempts of this group.
pub(super) const ALL: &[Attempt] = &[
    attempt(
        "daemon-socket",
        "speak to a daemon by its socket, as Docker's",
        Mechanism::Seccomp,
        connect_to_daemon,
    ),
    attempt("daemon-socket-online", "the same, with the network on", Mechanism::Seccomp, connect_to_daemon)
        .with_network(),
    attempt(
        "abstract-socket",
        "speak to a daemon by an abstract socket",
        Mechanism::Seccomp,
        connect_to_abstract_daemon,
    ),
    attempt(
        "abstract-socket-online",
        "the same, with the network on",
        Mechanism::Seccomp,
        connect_to_abstract_daemon,
    )
    .with_network(),
    attempt(
        "socket-pair-datagram",
        "send a datagram to a daemon out of a pair of sockets",
        Mechanism::Seccomp,
        |target| send_datagram(target, libc::SOCK_DGRAM),
    ),
    attempt(
        "socket-pair-raw",
        "the same, by a type that means datagrams too",
        Mechanism::Seccomp,
        |target| send_datagram(target, libc::SOCK_RAW),
    ),
    attempt("socket-pair-online", "the same, with the network on", Mechanism::Seccomp, |target| {
        send_datagram(target, libc::SOCK_DGRAM)
    })
    .with_network(),
    attempt("loopback", "connect to a server on this machine", Mechanism::Seccomp, |target| {
        let port = port(target)?;
        connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
    }),
    attempt("loopback-six", "the same over IPv6", Mechanism::Seccomp, |target| {
        let port = target.number("port6")?;
        connect(SocketAddr::from((Ipv6Addr::LOCALHOST, u16::try_from(port).unwrap_or_default())))
    }),
    attempt("metadata", "connect to the cloud's metadata server", Mechanism::Seccomp, |_| {
        connect(SocketAddr::from((IpAddr::from([169, 254, 169, 254]), 80)))
    })
    .with_control(Control::NotTried("there may be none")),
    attempt("listen", "listen on a port", Mechanism::Seccomp, |_| {
        Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string())
    }),
    attempt("datagram", "send a datagram", Mechanism::Seccomp, |target| {
        let port = port(target)?;
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        socket.send_to(b"hello", (Ipv4Addr::LOCALHOST, port))?;
        Ok("sent".into())
    }),
    attempt("raw-socket", "open a raw socket", Mechanism::Seccomp, |_| {
        open_socket(libc::AF_INET, libc::SOCK_RAW, 1)
    })
    .with_control(Control::SucceedsAsRoot),
    attempt("raw-socket-online", "the same, with the network on", Mechanism::Privileges, |_| {
        open_socket(libc::AF_INET, libc::SOCK_RAW, 1)
    })
    .with_control(Control::SucceedsAsRoot)
    .with_network(),
    attempt("packet-socket", "listen to the wire, with the network on", Mechanism::Seccomp, |_| {
        open_socket(libc::AF_PACKET, libc::SOCK_RAW, 0)
    })
    .with_control(Control::SucceedsAsRoot)
    .with_network(),
    attempt(
        "host-socket",
        "speak to the host of this virtual machine, with the network on",
        Mechanism::Seccomp,
        |_| open_socket(libc::AF_VSOCK, libc::SOCK_STREAM, 0),
    )
    .with_control(Control::NotTried("not every kernel has it"))
    .with_network(),
    attempt(
        "kernel-crypto",
        "use the kernel's cryptography by a socket, with the network on",
        Mechanism::Seccomp,
        |_| open_socket(libc::AF_ALG, libc::SOCK_SEQPACKET, 0),
    )
    .with_control(Control::NotTried("not every kernel has it"))
    .with_network(),
    attempt(
        "kernel-audit",
        "open another of the kernel's sockets, with the network on",
        Mechanism::Seccomp,
        |_| open_socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_KOBJECT_UEVENT),
    )
    .with_network(),
];

fn connect_to_daemon(target: &Target) -> Result<String, AttemptError> {
    let mut socket = UnixStream::connect(target.path("daemon")?)?;
    let mut received = String::new();
    socket.read_to_string(&mut received)?;
    Ok(received)
}

fn connect_to_abstract_daemon(target: &Target) -> Result<String, AttemptError> {
    let address = UnixAddress::from_abstract_name(target.text("abstract")?)?;
    let mut received = String::new();
    UnixStream::connect_addr(&address)?.read_to_string(&mut received)?;
    Ok(received)
}

/// Sends from one end of a socket pair, which may send a datagram to any address.
fn send_datagram(target: &Target, kind: i32) -> Result<String, AttemptError> {
    raw_syscall::run_perl(
        "use Socket; socketpair(my $one, my $two, AF_UNIX, $ARGV[0] + 0, 0) or refused();
         send($one, 'hello', 0, pack_sockaddr_un($ARGV[1])) or refused(); print 'sent';",
        &[kind.to_string().as_str(), target.text("log")?],
    )
}

fn port(target: &Target) -> Result<u16, AttemptError> {
    Ok(u16::try_from(target.number("port")?).unwrap_or_default())
}

fn connect(address: SocketAddr) -> Result<String, AttemptError> {
    TcpStream::connect_timeout(&address, CONNECT_TIMEOUT)?;
    Ok("connected".into())
}

fn open_socket(domain: i32, kind: i32, protocol: i32) -> Result<String, AttemptError> {
    raw_syscall::syscall(libc::SYS_socket, &[domain.into(), kind.into(), protocol.into()])
}
