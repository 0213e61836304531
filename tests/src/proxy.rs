//! A wire with an ear: forwards TCP connections and keeps every byte of both directions.
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
    over: Arc<AtomicBool>,
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
        let (ear, ends) = (Arc::clone(&heard), Arc::clone(&over));
        thread::spawn(move || {
            for near in listener.incoming() {
                if ends.load(Ordering::Relaxed) {
                    return;
                }
                let (Ok(near), Ok(far)) = (near, TcpStream::connect(target)) else { continue };
                forward(near.try_clone().unwrap(), far.try_clone().unwrap(), Arc::clone(&ear));
                forward(far, near, Arc::clone(&ear));
            }
        });
        Self { address, heard, over }
    }

    /// Everything that went over the wire so far.
    pub fn heard(&self) -> Vec<u8> {
        self.heard.lock().unwrap().clone()
    }
}

fn forward(mut from: TcpStream, mut to: TcpStream, ear: Arc<Mutex<Vec<u8>>>) {
    thread::spawn(move || {
        let mut buffer = [0; 16 * 1024];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            ear.lock().unwrap().extend_from_slice(&buffer[..count]);
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
