//! Ports for programs that are told theirs.
//!
//! A port that the system gave, and that is free again, may be given to the next who asks: another test, or
//! a connection of this one. So these are below those that the system gives of itself, and each process of
//! tests has its own.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

/// The first, and how many there are: the system's own begin at 32,768.
const PORTS: (u32, u32) = (12_000, 20_000);

/// How many a process takes before it comes upon those of the next.
const OWN: u32 = 32;

/// A port of this machine that nobody listens on.
pub fn free() -> SocketAddr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let first = std::process::id().wrapping_mul(OWN);
    for _ in 0..PORTS.1 {
        let next = first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % PORTS.1;
        let port = u16::try_from(PORTS.0 + next).unwrap();
        if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            return listener.local_addr().unwrap();
        }
    }
    panic!("no port is free");
}
