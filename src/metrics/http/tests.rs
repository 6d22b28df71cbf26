use super::*;
use crate::sys::sync::{Arc, AtomicU64, Ordering};
use std::time::Duration;

/// Longest that a step may take on a loaded machine.
const STEP: Duration = Duration::from_secs(20);

fn endpoint() -> (Endpoint, Arc<AtomicU64>) {
    let made = Arc::new(AtomicU64::new(0));
    let theirs = made.clone();
    let page = move || {
        let n = theirs.fetch_add(1, Ordering::Relaxed) + 1;
        // More than a socket takes at once.
        format!("pages {n}\n{}", "# filler\n".repeat(600_000))
    };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    (Endpoint::start(listener, page).unwrap(), made)
}

fn connect(endpoint: &Endpoint) -> TcpStream {
    let stream = TcpStream::connect(endpoint.address()).unwrap();
    stream.set_read_timeout(Some(STEP)).unwrap();
    stream
}

fn ask(endpoint: &Endpoint, request: &[u8]) -> (String, String) {
    let mut stream = connect(endpoint);
    stream.write_all(request).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

fn scrape(endpoint: &Endpoint) {
    let request = b"GET /metrics HTTP/1.1\r\nHost: here\r\nAccept: text/plain\r\n\r\n";
    let (head, body) = ask(endpoint, request);
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains("Content-Type: text/plain; version=0.0.4; charset=utf-8"), "{head}");
    assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
    assert!(body.starts_with("pages "));
}

#[test]
fn requests_are_answered_or_told_what_is_wrong() {
    let (endpoint, made) = endpoint();
    scrape(&endpoint);
    let long = [b"GET /metrics HTTP/1.1\r\nX: ".to_vec(), vec![b'x'; 9_000]].concat();
    for (request, status) in [
        (&b"GET /metrics HTTP/1.0\r\n\r\n"[..], "200 OK"),
        (b"GET /metrics?a=b HTTP/1.1\n\n", "200 OK"),
        (b"GET / HTTP/1.1\r\n\r\n", "404 Not Found"),
        (b"GET /metricsx HTTP/1.1\r\n\r\n", "404 Not Found"),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", "405 Method Not Allowed"),
        (b"GET /metrics HTTP/2\r\n\r\n", "505 HTTP Version Not Supported"),
        (b"GET /metrics\r\n\r\n", "400 Bad Request"),
        (b"\r\n\r\n", "400 Bad Request"),
        (b"\xFF\xFE\x00\x01\n\n", "400 Bad Request"),
        (&long, "431 Request Header Fields Too Large"),
    ] {
        let (head, body) = ask(&endpoint, request);
        assert!(head.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{head}");
        assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
    }
    let before = made.load(Ordering::Relaxed);
    let (head, body) = ask(&endpoint, b"HEAD /metrics HTTP/1.1\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && body.is_empty());
    assert_eq!(made.load(Ordering::Relaxed), before + 1);
    // A request that comes byte by byte is one all the same.
    let mut slow = connect(&endpoint);
    for byte in b"GET /metrics HTTP/1.1\r\n\r\n" {
        slow.write_all(&[*byte]).unwrap();
    }
    let mut text = String::new();
    slow.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n"));
}

#[test]
fn those_who_say_nothing_or_read_nothing_keep_nobody_out() {
    let (endpoint, _) = endpoint();
    // Three times as many as there are places of each kind.
    let mut held: Vec<TcpStream> = Vec::new();
    for n in 0..3 * METRICS_CONNECTIONS_MAX {
        let mut silent = connect(&endpoint);
        if n % 3 == 1 {
            silent.write_all(b"GET /metr").unwrap();
        }
        held.push(silent);
        let mut deaf = connect(&endpoint);
        deaf.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        held.push(deaf);
        if n % 8 == 0 {
            scrape(&endpoint);
        }
    }
    scrape(&endpoint);
    // Those who were given up see it: of the silent ones, all but as many as there are places.
    let over = held.iter_mut().step_by(2).take(METRICS_CONNECTIONS_MAX).all(|silent| {
        let ended = silent.read(&mut [0; 16]);
        matches!(ended, Ok(0)) || ended.is_err_and(|e| e.kind() == ErrorKind::ConnectionReset)
    });
    assert!(over);
}

#[test]
fn thousands_of_connections_leave_it_serving() {
    let (endpoint, _) = endpoint();
    for n in 0..10_000 {
        // Gone at once, in most cases before it was accepted.
        drop(TcpStream::connect(endpoint.address()).unwrap());
        if n % 2_000 == 0 {
            scrape(&endpoint);
        }
    }
    scrape(&endpoint);
    let address = endpoint.address();
    drop(endpoint);
    assert!(TcpStream::connect(address).is_err(), "the port is closed");
}
