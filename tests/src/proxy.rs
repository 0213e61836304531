//! A wire with an ear: forwards TCP connections and keeps every byte of both directions.
//!
//! All of them in the order in which they came, and those of each connection for whoever wants to say them again.
use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

/// Forwards until it is dropped.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    heard: Arc<Mutex<Vec<u8>>>,
    connections: Arc<Mutex<Vec<Heard>>>,
    over: Arc<AtomicBool>,
}

/// What was said on one connection.
#[derive(Debug, Clone, Default)]
pub struct Heard {
    /// By the side that dialled.
    pub dialler: Vec<u8>,
    /// By the side that was dialled.
    pub listener: Vec<u8>,
}

impl Proxy {
    /// Listens on `port` of 127.0.0.1 and forwards to `target`.
    ///
    /// # Panics
    /// When the port is taken.
    pub fn start(port: u16, target: SocketAddr) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
        let address = listener.local_addr().unwrap();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let over = Arc::new(AtomicBool::new(false));
        let connections = Arc::new(Mutex::new(Vec::new()));
        let (ear, ends, all) = (Arc::clone(&heard), Arc::clone(&over), Arc::clone(&connections));
        thread::spawn(move || {
            for near in listener.incoming() {
                if ends.load(Ordering::Relaxed) {
                    return;
                }
                let (Ok(near), Ok(far)) = (near, TcpStream::connect(target)) else { continue };
                let number = {
                    let mut all = all.lock().unwrap();
                    all.push(Heard::default());
                    all.len() - 1
                };
                for (from, to, dialled) in
                    [(near.try_clone().unwrap(), far.try_clone().unwrap(), true), (far, near, false)]
                {
                    let (ear, all) = (Arc::clone(&ear), Arc::clone(&all));
                    forward(from, to, move |bytes| {
                        ear.lock().unwrap().extend_from_slice(bytes);
                        let heard = &mut all.lock().unwrap()[number];
                        if dialled { &mut heard.dialler } else { &mut heard.listener }
                            .extend_from_slice(bytes);
                    });
                }
            }
        });
        Self { address, heard, connections, over }
    }

    /// What was said on each connection so far.
    pub fn connections(&self) -> Vec<Heard> {
        self.connections.lock().unwrap().clone()
    }

    /// Everything that went over the wire so far.
    pub fn heard(&self) -> Vec<u8> {
        self.heard.lock().unwrap().clone()
    }
}

fn forward(mut from: TcpStream, mut to: TcpStream, ear: impl Fn(&[u8]) + Send + 'static) {
    thread::spawn(move || {
        let mut buffer = [0; 16 * 1024];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            ear(&buffer[..count]);
            if to.write_all(&buffer[..count]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
        let _ = from.shutdown(Shutdown::Both);
    });
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        // The listener waits for one more connection.
        let _ = TcpStream::connect(self.address);
    }
}
