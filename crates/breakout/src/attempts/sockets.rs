//! Sockets: of this machine, and of the network.

use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixStream};
use std::time::Duration;

use super::attempt;
use crate::{Attempt, By, Control, Stopped, Target, raw};

/// How long a connection may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// See the module.
pub(super) const ALL: &[Attempt] = &[
    attempt("daemon-socket", "speak to a daemon by its socket, as Docker's", By::Calls, daemon),
    attempt("daemon-socket-online", "the same, with the network on", By::Calls, daemon).online(),
    attempt("abstract-socket", "speak to a daemon by an abstract socket", By::Calls, abstract_daemon),
    attempt("abstract-socket-online", "the same, with the network on", By::Calls, abstract_daemon).online(),
    attempt(
        "socket-pair-datagram",
        "send a datagram to a daemon out of a pair of sockets",
        By::Calls,
        |target| datagram(target, libc::SOCK_DGRAM),
    ),
    attempt("socket-pair-raw", "the same, by a type that means datagrams too", By::Calls, |target| {
        datagram(target, libc::SOCK_RAW)
    }),
    attempt("socket-pair-online", "the same, with the network on", By::Calls, |target| {
        datagram(target, libc::SOCK_DGRAM)
    })
    .online(),
    attempt("loopback", "connect to a server on this machine", By::Calls, |target| {
        let port = port(target)?;
        connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
    }),
    attempt("loopback-six", "the same over IPv6", By::Calls, |target| {
        let port = target.number("port6")?;
        connect(SocketAddr::from((Ipv6Addr::LOCALHOST, u16::try_from(port).unwrap_or_default())))
    }),
    attempt("metadata", "connect to the cloud's metadata server", By::Calls, |_| {
        connect(SocketAddr::from((IpAddr::from([169, 254, 169, 254]), 80)))
    })
    .control(Control::NotTried("there may be none")),
    attempt("listen", "listen on a port", By::Calls, |_| {
        Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string())
    }),
    attempt("datagram", "send a datagram", By::Calls, |target| {
        let port = port(target)?;
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        socket.send_to(b"hello", (Ipv4Addr::LOCALHOST, port))?;
        Ok("sent".into())
    }),
    attempt("raw-socket", "open a raw socket", By::Calls, |_| socket(libc::AF_INET, libc::SOCK_RAW, 1))
        .control(Control::SucceedsAsRoot),
    attempt("raw-socket-online", "the same, with the network on", By::Privileges, |_| {
        socket(libc::AF_INET, libc::SOCK_RAW, 1)
    })
    .control(Control::SucceedsAsRoot)
    .online(),
    attempt("packet-socket", "listen to the wire, with the network on", By::Calls, |_| {
        socket(libc::AF_PACKET, libc::SOCK_RAW, 0)
    })
    .control(Control::SucceedsAsRoot)
    .online(),
    attempt(
        "host-socket",
        "speak to the host of this virtual machine, with the network on",
        By::Calls,
        |_| socket(libc::AF_VSOCK, libc::SOCK_STREAM, 0),
    )
    .control(Control::NotTried("not every kernel has it"))
    .online(),
    attempt(
        "kernel-crypto",
        "use the kernel's cryptography by a socket, with the network on",
        By::Calls,
        |_| socket(libc::AF_ALG, libc::SOCK_SEQPACKET, 0),
    )
    .control(Control::NotTried("not every kernel has it"))
    .online(),
    attempt("kernel-audit", "open another of the kernel's sockets, with the network on", By::Calls, |_| {
        socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_KOBJECT_UEVENT)
    })
    .online(),
];

fn daemon(target: &Target) -> Result<String, Stopped> {
    let mut socket = UnixStream::connect(target.path("daemon")?)?;
    let mut said = String::new();
    socket.read_to_string(&mut said)?;
    Ok(said)
}

fn abstract_daemon(target: &Target) -> Result<String, Stopped> {
    let address = UnixAddress::from_abstract_name(target.text("abstract")?)?;
    let mut said = String::new();
    UnixStream::connect_addr(&address)?.read_to_string(&mut said)?;
    Ok(said)
}

/// Any address may be given to one end of a pair.
fn datagram(target: &Target, kind: i32) -> Result<String, Stopped> {
    raw::perl(
        "use Socket; socketpair(my $one, my $two, AF_UNIX, $ARGV[0] + 0, 0) or refused();
         send($one, 'hello', 0, pack_sockaddr_un($ARGV[1])) or refused(); print 'sent';",
        &[kind.to_string().as_str(), target.text("log")?],
    )
}

fn port(target: &Target) -> Result<u16, Stopped> {
    Ok(u16::try_from(target.number("port")?).unwrap_or_default())
}

fn connect(address: SocketAddr) -> Result<String, Stopped> {
    TcpStream::connect_timeout(&address, PATIENCE)?;
    Ok("connected".into())
}

fn socket(domain: i32, kind: i32, protocol: i32) -> Result<String, Stopped> {
    raw::call(libc::SYS_socket, &[domain.into(), kind.into(), protocol.into()])
}
