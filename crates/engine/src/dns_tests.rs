use std::sync::{Condvar, Mutex};

use tokio::time::Instant;

use super::*;

/// Name servers that do not answer for names that begin with `dead`, until they are released.
#[derive(Clone, Default)]
struct SilentNameServers(Arc<(Mutex<bool>, Condvar)>);

impl SilentNameServers {
    /// Returns a resolver with this many threads, whose name servers are silent.
    fn resolver(&self, threads: usize, deadline: Duration) -> DnsResolver {
        let silence = self.clone();
        DnsResolver::with_lookup(threads, deadline, move |name, port| {
            if name.starts_with("dead") {
                silence.wait();
            }
            Ok(vec![SocketAddr::from(([127, 0, 0, 1], port))])
        })
    }

    fn wait(&self) {
        let (over, told) = &*self.0;
        drop(told.wait_while(over.lock().unwrap(), |over| !*over).unwrap());
    }

    fn release(&self) {
        let (over, told) = &*self.0;
        *over.lock().unwrap() = true;
        told.notify_all();
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
    let silence = SilentNameServers::default();
    let names = silence.resolver(1, Duration::from_millis(50));
    let began = Instant::now();
    let late = names.addresses("dead.example", 80).await;
    assert_eq!(late.unwrap_err().to_string(), "no name server answered within 0.05 seconds");
    // It still occupies the only thread: a lookup of the machine cannot be cancelled.
    assert!(matches!(names.addresses("name.example", 80).await, Err(DnsError::TimedOut(_))));
    assert!(began.elapsed() >= Duration::from_millis(100));
    silence.release();
    let found = DnsResolver { timeout: Duration::from_secs(10), ..names }.addresses("name.example", 80).await;
    assert_eq!(found.unwrap(), [SocketAddr::from(([127, 0, 0, 1], 80))]);
}

#[tokio::test]
async fn more_names_than_can_wait_are_refused_at_once() {
    let silence = SilentNameServers::default();
    let names = silence.resolver(2, Duration::from_mins(1));
    let asked: Vec<_> = (0..MAX_PENDING_LOOKUPS)
        .map(|number| {
            let names = names.clone();
            tokio::spawn(async move { names.addresses(&format!("dead{number}.example"), 80).await })
        })
        .collect();
    while names.pending_lookups.available_permits() > 0 {
        tokio::task::yield_now().await;
    }
    let refused = names.addresses("name.example", 80).await.unwrap_err().to_string();
    assert_eq!(refused, "64 names are being looked up already: try again in a few seconds");
    silence.release();
    for asked in asked {
        asked.await.unwrap().unwrap();
    }
    names.addresses("name.example", 80).await.unwrap();
}

#[tokio::test]
async fn a_silent_name_holds_up_no_other_one() {
    let silence = SilentNameServers::default();
    let names = silence.resolver(2, Duration::from_millis(50));
    for _ in 0..3 {
        let late = names.addresses("dead.example", 443).await;
        assert!(matches!(late, Err(DnsError::TimedOut(_))), "{late:?}");
    }
    // Another provider's name has the other thread, and an abandoned lookup is not kept.
    let found = DnsResolver { timeout: Duration::from_secs(10), ..names.clone() }
        .addresses("name.example", 443)
        .await;
    assert_eq!(found.unwrap(), [SocketAddr::from(([127, 0, 0, 1], 443))]);
    assert!(names.active_by_name.lock().unwrap().len() <= 2);
}

#[tokio::test]
async fn this_machine_has_a_name() {
    let found = SERVER_RESOLVER.addresses("localhost", 80).await.unwrap();
    assert!(found.iter().all(|address| address.ip().is_loopback() && address.port() == 80), "{found:?}");
    assert!(matches!(SERVER_RESOLVER.addresses("no name", 80).await, Err(DnsError::Failed(_))));
}
