//! A name server for one story with a table of names: the part of RFC 1035 that a resolver of addresses needs.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};

use tokio::net::UdpSocket;
use tokio::task::AbortHandle;

/// The record types of IPv4 and IPv6 addresses.
const TYPE_A: u16 = 1;
const TYPE_AAAA: u16 = 28;

/// Names, each with the addresses of its first response, its second one, and so on. The last ones are repeated.
type NameTable = HashMap<String, Vec<Vec<IpAddr>>>;

/// A name server, which runs until this is dropped.
#[derive(Debug)]
pub(crate) struct NameServer {
    query_counts: Arc<Mutex<HashMap<(String, u16), usize>>>,
    task: AbortHandle,
}

impl NameServer {
    /// Starts a name server on an address.
    pub(crate) async fn bind(address: SocketAddr, names: &[(&str, &[&[&str]])]) -> io::Result<Self> {
        let socket = UdpSocket::bind(address).await?;
        let names: NameTable =
            names.iter().map(|(name, answers)| ((*name).to_owned(), parse_addresses(answers))).collect();
        let query_counts = Arc::new(Mutex::new(HashMap::new()));
        let counts = Arc::clone(&query_counts);
        let task = tokio::spawn(async move {
            let mut buffer = [0; 512];
            while let Ok((length, from)) = socket.recv_from(&mut buffer).await {
                let Some(question) = Question::parse(&buffer[..length]) else { continue };
                let index = {
                    let mut counts = counts.lock().unwrap();
                    let times: &mut usize = counts.entry((question.name.clone(), question.kind)).or_default();
                    *times += 1;
                    *times - 1
                };
                let addresses = names
                    .get(&question.name)
                    .map(|answers| answers.get(index).or(answers.last()).cloned().unwrap_or_default());
                // The client may be gone.
                let _ = socket.send_to(&question.encode_answer(addresses), from).await;
            }
        });
        Ok(Self { query_counts, task: task.abort_handle() })
    }

    /// The number of queries for a name's IPv4 addresses.
    pub(crate) fn query_count(&self, name: &str) -> usize {
        self.query_counts.lock().unwrap().get(&(name.to_owned(), TYPE_A)).copied().unwrap_or_default()
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn parse_addresses(answers: &[&[&str]]) -> Vec<Vec<IpAddr>> {
    answers.iter().map(|answer| answer.iter().map(|address| address.parse().unwrap()).collect()).collect()
}

/// A question of a query.
struct Question {
    id: [u8; 2],
    name: String,
    kind: u16,
    /// The encoded name, type and class.
    bytes: Vec<u8>,
}

impl Question {
    /// Parses the first question of a message.
    fn parse(message: &[u8]) -> Option<Self> {
        let (id, mut at, mut labels) = (message.get(..2)?.try_into().ok()?, 12, Vec::new());
        loop {
            let length = usize::from(*message.get(at)?);
            at += 1;
            if length == 0 {
                break;
            }
            labels.push(String::from_utf8_lossy(message.get(at..at + length)?).to_ascii_lowercase());
            at += length;
        }
        let kind = u16::from_be_bytes(message.get(at..at + 2)?.try_into().ok()?);
        Some(Self { id, name: labels.join("."), kind, bytes: message.get(12..at + 4)?.to_vec() })
    }

    /// Encodes the response: the addresses of the requested type, or NXDOMAIN if there are none.
    fn encode_answer(&self, addresses: Option<Vec<IpAddr>>) -> Vec<u8> {
        let code = if addresses.is_some() { 0 } else { 3 };
        let records: Vec<Vec<u8>> = addresses
            .unwrap_or_default()
            .into_iter()
            .filter_map(|address| match (address, self.kind) {
                (IpAddr::V4(address), TYPE_A) => Some(address.octets().to_vec()),
                (IpAddr::V6(address), TYPE_AAAA) => Some(address.octets().to_vec()),
                _ => None,
            })
            .collect();
        let number = u8::try_from(records.len()).unwrap();
        let mut message = [self.id.as_slice(), &[0x81, 0x80 | code, 0, 1, 0, number, 0, 0, 0, 0]].concat();
        message.extend(&self.bytes);
        for record in records {
            // A pointer to the question's name, its type, the class IN, and a TTL of 0.
            message.extend([0xc0, 12]);
            message.extend(self.kind.to_be_bytes());
            message.extend([0, 1, 0, 0, 0, 0, 0, u8::try_from(record.len()).unwrap()]);
            message.extend(record);
        }
        message
    }
}
