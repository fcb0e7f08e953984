// SPDX-License-Identifier: Apache-2.0
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::Wake,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use super::*;

/// Returns our end and the server's end of a connection.
async fn pair() -> (Socket, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let connecting = TcpStream::connect(listener.local_addr().unwrap());
    let (connected, accepted) = tokio::join!(connecting, listener.accept());
    (Socket::new(connected.unwrap()), accepted.unwrap().0)
}

fn is_polled(socket: &Socket) -> bool {
    matches!(socket.mode, Mode::Polled(_))
}

/// Returns bytes in which missing or misplaced parts are detectable.
fn much(length: usize) -> Vec<u8> {
    (0..length).map(|at| ((at / 7) ^ at) as u8).collect()
}

/// Lets the server send until the socket is polled, and checks that everything arrives.
async fn make_busy(socket: &mut Socket, server: &mut TcpStream) {
    let sent = much(256 << 10);
    while !is_polled(socket) {
        let mut came = vec![0; sent.len()];
        let send = server.write_all(&sent);
        // Wait for one more byte, so that the socket finds no bytes available.
        let read = async {
            socket.read_exact(&mut came).await.unwrap();
            let mut one = [0];
            tokio::select! {
                biased;
                read = socket.read(&mut one) => panic!("nothing more was sent: {read:?}"),
                () = std::future::ready(()) => {}
            }
        };
        let (sent_all, ()) = tokio::join!(send, read);
        sent_all.unwrap();
        assert_eq!(came, sent);
    }
}

#[tokio::test]
async fn polls_a_busy_socket_until_it_is_quiet() {
    let (mut socket, mut server) = pair().await;
    make_busy(&mut socket, &mut server).await;
    let mut byte = [0];
    // The server sends nothing until the socket is back at the reactor, or this would not end.
    let quiet = std::future::poll_fn(|cx| {
        let mut read = ReadBuf::new(&mut byte);
        assert!(Pin::new(&mut socket).poll_read(cx, &mut read).is_pending());
        if is_polled(&socket) {
            Poll::Pending
        } else {
            Poll::Ready(())
        }
    });
    quiet.await;
    assert_eq!(socket.buffer.len(), BUFFER_MIN);
    server.write_all(b"x").await.unwrap();
    assert_eq!(socket.read(&mut byte).await.unwrap(), 1);
    assert_eq!(&byte, b"x");
}

#[tokio::test]
async fn a_polled_socket_receives_data_and_the_end() {
    let (mut socket, mut server) = pair().await;
    make_busy(&mut socket, &mut server).await;
    let sent = much(1 << 20);
    let send = async {
        server.write_all(&sent).await.unwrap();
        drop(server);
    };
    let mut came = Vec::new();
    let (_, read) = tokio::join!(send, socket.read_to_end(&mut came));
    assert_eq!(read.unwrap(), sent.len());
    assert_eq!(came, sent);
}

#[tokio::test]
async fn writes_to_a_polled_socket() {
    let (mut socket, mut server) = pair().await;
    make_busy(&mut socket, &mut server).await;
    socket.write_all(b"hello").await.unwrap();
    let mut heard = [0; 5];
    server.read_exact(&mut heard).await.unwrap();
    assert_eq!(&heard, b"hello");
    server.write_all(b"you").await.unwrap();
    let mut answer = [0; 3];
    socket.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"you");
}

/// A response arrives soon after the request, with no read between them.
#[tokio::test]
async fn a_write_wakes_a_reader_of_a_polled_socket() {
    struct Woken(AtomicBool);
    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    let (mut socket, mut server) = pair().await;
    make_busy(&mut socket, &mut server).await;
    let woken = Arc::new(Woken(AtomicBool::new(false)));
    let waker = Waker::from(Arc::clone(&woken));
    let mut byte = [0];
    let mut read = ReadBuf::new(&mut byte);
    let polled = Pin::new(&mut socket).poll_read(&mut Context::from_waker(&waker), &mut read);
    assert!(polled.is_pending() && is_polled(&socket));
    socket.write_all(b"hello").await.unwrap();
    assert!(!is_polled(&socket));
    assert!(woken.0.load(Ordering::Relaxed), "no tick will come any more");
}

#[tokio::test]
async fn does_not_poll_a_socket_with_a_waiting_writer() {
    let (mut socket, server) = pair().await;
    let cx = &mut Context::from_waker(Waker::noop());
    let mut byte = [0];
    for (is_full, expected) in [(true, false), (false, true)] {
        while is_full && Pin::new(&mut socket).poll_write(cx, &[7; 4096]).is_ready() {}
        socket.writer_waits &= is_full;
        socket.rate.bytes = BUSY;
        let mut read = ReadBuf::new(&mut byte);
        assert!(Pin::new(&mut socket).poll_read(cx, &mut read).is_pending());
        assert_eq!(is_polled(&socket), expected);
    }
    drop(server);
}

#[tokio::test]
async fn waits_for_a_slow_stream() {
    let (mut socket, mut server) = pair().await;
    for _ in 0..200 {
        server.write_all(&[7; 100]).await.unwrap();
        let mut came = [0; 100];
        socket.read_exact(&mut came).await.unwrap();
        assert!(!is_polled(&socket), "100 bytes now and then are no list");
    }
}
