//! What the two ends owe each other while nothing is damaged: signs of life, and room.

use corelane::limits::{LINK_KEEP_ALIVE_MS, LINK_SILENCE_MS_MAX};
use corelane::wire::link::*;

type End = Endpoint<Vec<u8>, Vec<u8>>;

/// The room that an end has in the beginning, in bytes.
const ROOM: u16 = 300;

/// Moves what both have to say until neither has more; what came to `b` as data.
fn exchange(a: &mut End, b: &mut End, now: u64) -> usize {
    let mut bytes = 0;
    let mut line = [0; 4096];
    loop {
        let n = a.transmit(now, &mut line);
        bytes += heard(b, now, &line[..n]);
        let m = b.transmit(now, &mut line);
        heard(a, now, &line[..m]);
        if n + m == 0 {
            return bytes;
        }
    }
}

fn heard(end: &mut End, now: u64, mut bytes: &[u8]) -> usize {
    let mut data = 0;
    while !bytes.is_empty() {
        let (n, event) = end.receive(now, bytes);
        bytes = &bytes[n..];
        if let Some(LinkEvent::Data(piece)) = event {
            data += piece.len();
        }
    }
    data
}

fn pair() -> (End, End) {
    let end = |role| {
        let options = LinkOptions { receive_window: ROOM, ..LinkOptions::new(921_600) };
        End::new(role, options, vec![0; 128], vec![0; 4096], 1).unwrap()
    };
    let (mut client, mut server) = (end(Role::Initiator), end(Role::Acceptor));
    client.open(0);
    client.poll(0);
    exchange(&mut client, &mut server, 0);
    assert!(client.is_up() && server.is_up());
    (client, server)
}

#[test]
fn who_waits_asks_for_a_sign_of_life_and_gets_it() {
    let (mut client, mut server) = pair();
    let (mut now, mut sent) = (0, client.counters().frames_sent);
    client.set_waiting(true, now);
    for _ in 0..50 {
        assert_eq!(client.next_timeout(), Some(now + LINK_KEEP_ALIVE_MS * 1_000));
        now += LINK_KEEP_ALIVE_MS * 1_000;
        assert_eq!((client.poll(now), server.poll(now)), (None, None));
        exchange(&mut client, &mut server, now);
        sent += 1;
        assert_eq!(client.counters().frames_sent, sent, "one ping");
    }
    assert!(now > 2 * LINK_SILENCE_MS_MAX * 1_000);
    // Who waits for nothing asks nothing: the server, which always does, ends the session.
    client.set_waiting(false, now);
    assert_eq!(client.next_timeout(), None);
    assert_eq!(server.next_timeout(), Some(now + LINK_SILENCE_MS_MAX * 1_000));
    now += LINK_SILENCE_MS_MAX * 1_000;
    assert_eq!(server.poll(now), Some(DownReason::Silence));
}

#[test]
fn a_probe_after_hours_is_one_ping() {
    let (mut client, mut server) = pair();
    client.probe(1_000);
    assert!(!client.is_probing(), "it was heard a moment ago");
    // Longer than 32 bits of microseconds.
    for hours in [1, 5, 24 * 365] {
        let now = hours * 3_600_000_000;
        client.probe(now);
        assert!(client.is_probing());
        exchange(&mut client, &mut server, now);
        assert!(!client.is_probing() && client.is_up(), "{hours} hours");
    }
}

#[test]
fn no_more_is_sent_than_the_peer_has_room_for() {
    let (mut client, mut server) = pair();
    assert_eq!(client.send(&[1; 1_000], false), 1_000);
    server.set_room(0);
    // What the server told when the session began.
    let first = exchange(&mut client, &mut server, 0);
    assert_eq!(first, 0, "it has no room any more, and drops what came");
    // It is asked for room, and says it when there is some.
    let mut now = client.next_timeout().expect("somebody looks again");
    assert_eq!(client.poll(now), None);
    server.set_room(200);
    let mut taken = exchange(&mut client, &mut server, now);
    let mut room = 200;
    while taken < 1_000 {
        assert!(taken <= room, "{taken} bytes for {room}");
        server.set_room(100);
        room = taken + 100;
        if let Some(at) = client.next_timeout() {
            now = now.max(at);
            assert_eq!(client.poll(now), None);
        }
        taken += exchange(&mut client, &mut server, now);
    }
    assert_eq!(taken, 1_000);
    assert!(client.all_acked());
}
