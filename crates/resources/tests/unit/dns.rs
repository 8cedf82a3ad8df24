use std::sync::{Condvar, Mutex};

use tokio::time::Instant;

use super::*;

/// Name servers that do not answer for names that begin with `dead`, until they are released.
#[derive(Clone, Default)]
struct SilentNameServers(Arc<(Mutex<bool>, Condvar)>);

impl SilentNameServers {
    /// Returns a resolver with this many threads, whose name servers are silent.
    fn resolver(&self, threads: usize, timeout: Duration) -> DnsResolver {
        let servers = self.clone();
        DnsResolver::with_lookup(threads, timeout, move |name, port| {
            if name.starts_with("dead") {
                servers.wait();
            }
            Ok(vec![SocketAddr::from(([127, 0, 0, 1], port))])
        })
    }

    fn wait(&self) {
        let (is_over, released) = &*self.0;
        drop(released.wait_while(is_over.lock().unwrap(), |is_over| !*is_over).unwrap());
    }

    fn release(&self) {
        let (is_over, released) = &*self.0;
        *is_over.lock().unwrap() = true;
        released.notify_all();
    }
}

impl Drop for SilentNameServers {
    fn drop(&mut self) {
        // A failing test is not blocked by threads that never end.
        self.release();
    }
}

#[tokio::test]
async fn a_name_whose_servers_are_silent_is_given_up_and_keeps_its_thread() {
    let servers = SilentNameServers::default();
    let resolver = servers.resolver(1, Duration::from_millis(50));
    let started = Instant::now();
    let late = resolver.addresses("dead.example", 80).await;
    assert_eq!(late.unwrap_err().to_string(), "no name server answered within 0.05 seconds");
    // It still occupies the only thread: a lookup of the machine cannot be cancelled.
    assert!(matches!(resolver.addresses("name.example", 80).await, Err(DnsError::TimedOut(_))));
    assert!(started.elapsed() >= Duration::from_millis(100));
    servers.release();
    let found =
        DnsResolver { timeout: Duration::from_secs(10), ..resolver }.addresses("name.example", 80).await;
    assert_eq!(found.unwrap(), [SocketAddr::from(([127, 0, 0, 1], 80))]);
}

#[tokio::test]
async fn more_names_than_can_wait_are_refused_at_once() {
    let servers = SilentNameServers::default();
    let resolver = servers.resolver(2, Duration::from_mins(1));
    let lookups: Vec<_> = (0..MAX_PENDING_LOOKUPS)
        .map(|number| {
            let resolver = resolver.clone();
            tokio::spawn(async move { resolver.addresses(&format!("dead{number}.example"), 80).await })
        })
        .collect();
    while resolver.pending_lookups.available_permits() > 0 {
        tokio::task::yield_now().await;
    }
    let refused = resolver.addresses("name.example", 80).await.unwrap_err().to_string();
    assert_eq!(refused, "64 names are being looked up already: try again in a few seconds");
    servers.release();
    for lookup in lookups {
        lookup.await.unwrap().unwrap();
    }
    resolver.addresses("name.example", 80).await.unwrap();
}

#[tokio::test]
async fn a_silent_name_holds_up_no_other_one() {
    let servers = SilentNameServers::default();
    let resolver = servers.resolver(2, Duration::from_millis(50));
    for _ in 0..3 {
        let late = resolver.addresses("dead.example", 443).await;
        assert!(matches!(late, Err(DnsError::TimedOut(_))), "{late:?}");
    }
    // Another provider's name has the other thread, and an abandoned lookup is not kept.
    let found = DnsResolver { timeout: Duration::from_secs(10), ..resolver.clone() }
        .addresses("name.example", 443)
        .await;
    assert_eq!(found.unwrap(), [SocketAddr::from(([127, 0, 0, 1], 443))]);
    assert!(resolver.active_by_name.lock().len() <= 2);
}

#[tokio::test]
async fn this_machine_has_a_name() {
    let found = SERVER_RESOLVER.addresses("localhost", 80).await.unwrap();
    assert!(found.iter().all(|address| address.ip().is_loopback() && address.port() == 80), "{found:?}");
    assert!(matches!(SERVER_RESOLVER.addresses("no name", 80).await, Err(DnsError::Failed(_))));
}
