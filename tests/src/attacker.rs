//! Strangers who mean harm: they open connections, say nothing, something wrong, or one byte a second, as many as they can.
use std::{
    collections::VecDeque,
    io::{Read, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle, sleep},
    time::{Duration, Instant},
};

use octomesh_protocol::{
    id::MeshId,
    session::{
        self,
        handshake::{Initiator, InitiatorRandom, MESSAGE_1_BYTES, Params, StaticKey},
        secret::{MeshSecret, PreSharedKey},
    },
};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket, sockopt};
use zeroize::Zeroizing;

/// Connections that a flood keeps open behind itself, so that the other side finds their bytes before their end.
const BEHIND: usize = 16;
/// A connection that was hung up on is made again after so long.
const AGAIN: Duration = Duration::from_millis(100);
/// A flood is paced in steps of this length.
const STEP: Duration = Duration::from_millis(2);

/// Opens a connection from `from`; it ends with a reset, so that no port stays in use.
///
/// # Errors
/// What the kernel says.
pub fn connection(from: Ipv4Addr, target: SocketAddr) -> std::io::Result<TcpStream> {
    let fd = socket(AddressFamily::INET, SocketType::STREAM, None)?;
    sockopt::set_socket_linger(&fd, Some(Duration::ZERO))?;
    bind(&fd, &SocketAddr::from((from, 0)))?;
    connect(&fd, &target)?;
    Ok(fd.into())
}

/// What a dialler says before its first message, without waiting for an answer.
pub fn negotiation() -> Vec<u8> {
    let mut bytes = Vec::new();
    for line in ["/multistream/1.0.0", session::PROTOCOL] {
        // Lines here are shorter than 127 bytes, so their length is one byte.
        bytes.push(u8::try_from(line.len() + 1).unwrap());
        bytes.extend_from_slice(line.as_bytes());
        bytes.push(b'\n');
    }
    bytes
}

/// A message of the handshake with its length before it.
pub fn framed(message: &[u8]) -> Vec<u8> {
    let length = u16::try_from(message.len()).unwrap();
    [&length.to_be_bytes()[..], message].concat()
}

/// `count` first messages of random bytes.
pub fn random_messages(count: usize) -> Vec<Vec<u8>> {
    let mut random = std::fs::File::open("/dev/urandom").unwrap();
    let mut message = || {
        let mut message = vec![0; MESSAGE_1_BYTES];
        random.read_exact(&mut message).unwrap();
        message
    };
    (0..count).map(|_| framed(&message())).collect()
}

/// `count` first messages that are right in everything but the mesh secret.
pub fn wrong_psk_messages(mesh: MeshId, count: usize) -> Vec<Vec<u8>> {
    let secret = MeshSecret::from_bytes([0x5a; 32]);
    let key = StaticKey::from_secret([7; 32]);
    let params = Params::new(PreSharedKey::from(&secret), session::prologue(mesh), key);
    let mut random = std::fs::File::open("/dev/urandom").unwrap();
    let mut message = || {
        let mut bytes = Zeroizing::new([0; InitiatorRandom::BYTES]);
        random.read_exact(&mut *bytes).unwrap();
        Initiator::start(&params, InitiatorRandom::from_bytes(&bytes)).unwrap().1
    };
    (0..count).map(|_| framed(&message())).collect()
}

#[derive(Debug, Default)]
struct Counts {
    connected: AtomicU64,
    failed: AtomicU64,
    answered: AtomicU64,
}

/// What a flood did.
#[derive(Debug, Clone, Copy)]
pub struct Figures {
    /// Connections that were made.
    pub connected: u64,
    /// Those that the kernel did not make.
    pub failed: u64,
    /// Connections on which a second message came back: there must be none.
    pub answered: u64,
    /// Connections made in a second.
    pub per_second: f64,
}

/// Connections one after the other, each with one message, until it is stopped.
#[derive(Debug)]
pub struct Flood {
    over: Arc<AtomicBool>,
    counts: Arc<Counts>,
    began: Instant,
    threads: Vec<JoinHandle<()>>,
}

impl Flood {
    /// At most `per_second` connections from `from`, each of which says all of `messages`' next one at once.
    pub fn start(from: Ipv4Addr, target: SocketAddr, per_second: u32, messages: &[Vec<u8>]) -> Self {
        let (over, counts) = (Arc::new(AtomicBool::new(false)), Arc::new(Counts::default()));
        let threads = (0..2)
            .map(|_| {
                let (over, counts) = (Arc::clone(&over), Arc::clone(&counts));
                let words: Vec<_> = messages.iter().map(|m| [negotiation(), m.clone()].concat()).collect();
                thread::spawn(move || {
                    flood(from, target, f64::from(per_second) / 2.0, &words, &over, &counts)
                })
            })
            .collect();
        Self { over, counts, began: Instant::now(), threads }
    }

    /// Ends it.
    pub fn stop(mut self) -> Figures {
        self.over.store(true, Ordering::Relaxed);
        let took = self.began.elapsed();
        self.threads.drain(..).for_each(|t| t.join().unwrap());
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let connected = count(&self.counts.connected);
        Figures {
            connected,
            failed: count(&self.counts.failed),
            answered: count(&self.counts.answered),
            per_second: connected as f64 / took.as_secs_f64(),
        }
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

fn flood(
    from: Ipv4Addr,
    target: SocketAddr,
    per_second: f64,
    words: &[Vec<u8>],
    over: &AtomicBool,
    counts: &Counts,
) {
    let (began, mut done, mut open) = (Instant::now(), 0u64, VecDeque::new());
    while !over.load(Ordering::Relaxed) {
        let due = began.elapsed().as_secs_f64() * per_second;
        if done as f64 >= due {
            sleep(STEP);
            continue;
        }
        done += 1;
        let Ok(mut stream) = connection(from, target) else {
            counts.failed.fetch_add(1, Ordering::Relaxed);
            continue;
        };
        counts.connected.fetch_add(1, Ordering::Relaxed);
        // Whoever refuses at the door may have hung up by now.
        let _ = stream.write_all(&words[(done % words.len() as u64) as usize]);
        open.push_back(stream);
        if open.len() > BEHIND
            && let Some(mut oldest) = open.pop_front()
        {
            oldest.set_nonblocking(true).unwrap();
            let mut scrap = [0; 2048];
            // The negotiation's answer is short; a second message is over a thousand bytes.
            if oldest.read(&mut scrap).is_ok_and(|read| read > 200) {
                counts.answered.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// Connections that stay open; each is made again soon after the other side hangs up.
#[derive(Debug)]
pub struct Siege {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<u64>>,
    open: Arc<AtomicU64>,
}

impl Siege {
    /// Keeps `count` connections from `from` (in turn) to `target`, which say one byte of their message every `pace`, or nothing at all.
    pub fn start(from: Vec<Ipv4Addr>, target: SocketAddr, count: usize, pace: Option<Duration>) -> Self {
        let (over, open) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (ends, held) = (Arc::clone(&over), Arc::clone(&open));
        let thread = thread::spawn(move || siege(&from, target, count, pace, &ends, &held));
        Self { over, thread: Some(thread), open }
    }

    /// How many are open, as far as it knows.
    pub fn open(&self) -> u64 {
        self.open.load(Ordering::Relaxed)
    }

    /// Ends it and gives how many connections it made.
    pub fn stop(mut self) -> u64 {
        self.over.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Siege {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

fn siege(
    from: &[Ipv4Addr],
    target: SocketAddr,
    count: usize,
    pace: Option<Duration>,
    over: &AtomicBool,
    open: &AtomicU64,
) -> u64 {
    let words = [negotiation(), random_messages(1).remove(0)].concat();
    let mut held: Vec<Option<(TcpStream, usize, Instant)>> = (0..count).map(|_| None).collect();
    let mut again: Vec<Instant> = vec![Instant::now(); count];
    let mut made = 0u64;
    while !over.load(Ordering::Relaxed) {
        for (place, again) in held.iter_mut().zip(&mut again) {
            match place {
                None if *again > Instant::now() => {}
                None => {
                    *again = Instant::now() + AGAIN;
                    let source = from[(made % from.len() as u64) as usize];
                    if let Ok(stream) = connection(source, target) {
                        stream.set_nonblocking(true).unwrap();
                        *place = Some((stream, 0, Instant::now()));
                        made += 1;
                    }
                }
                Some((stream, said, at)) => {
                    let mut scrap = [0; 64];
                    let ended = match stream.read(&mut scrap) {
                        Ok(read) => read == 0,
                        Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
                    };
                    if ended {
                        *place = None;
                    } else if pace.is_some_and(|pace| at.elapsed() >= pace) {
                        let _ = stream.write_all(&words[*said % words.len()..][..1]);
                        (*said, *at) = (*said + 1, Instant::now());
                    }
                }
            }
        }
        open.store(held.iter().flatten().count() as u64, Ordering::Relaxed);
        sleep(STEP);
    }
    made
}

/// The socket address of `IP:PORT`, with 0.0.0.0 as this machine.
pub fn target(listen: &str) -> SocketAddr {
    let mut address: SocketAddr = listen.parse().unwrap();
    if address.ip().is_unspecified() {
        address.set_ip(IpAddr::V4(Ipv4Addr::LOCALHOST));
    }
    address
}
