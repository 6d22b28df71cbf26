//! The framing and the two ends of a link, one frame at a time.

use corelane::limits::{LINK_FRAME_BYTES_MAX, LINK_FRAME_BYTES_MIN};
use corelane::wire::link::*;
use proptest::prelude::*;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ")
}

fn stuffed(unit: &[u8]) -> Vec<u8> {
    let mut out = vec![0; encoded_len_max(unit.len())];
    let n = encode(unit, &mut out).unwrap();
    out.truncate(n);
    out
}

fn units(decoder: &mut Decoder<Vec<u8>>, bytes: &[u8]) -> Vec<Result<Vec<u8>, Damage>> {
    let mut found = Vec::new();
    for &byte in bytes {
        if let Some(unit) = decoder.push(byte) {
            found.push(unit.map(|len| decoder.unit(len).to_vec()));
        }
    }
    found
}

#[test]
fn the_checksum_is_castagnolis() {
    // The check value of the catalogue of CRC algorithms.
    assert_eq!(crc32c(b"123456789"), 0xE306_9283);
    assert_eq!(crc32c(b""), 0);
}

#[test]
fn stuffing_is_as_the_paper_has_it() {
    assert_eq!(hex(&stuffed(&[])), "01 00");
    assert_eq!(hex(&stuffed(&[0])), "01 01 00");
    assert_eq!(hex(&stuffed(&[0, 0])), "01 01 01 00");
    assert_eq!(hex(&stuffed(&[0x11, 0x22, 0, 0x33])), "03 11 22 02 33 00");
    assert_eq!(hex(&stuffed(&[0x11, 0, 0, 0])), "02 11 01 01 01 00");
    let long: Vec<u8> = (1..=255).collect();
    assert_eq!(hex(&stuffed(&long[..254])), format!("ff {} 00", hex(&long[..254])));
    assert_eq!(hex(&stuffed(&long)), format!("ff {} 02 ff 00", hex(&long[..254])));
    let zero_first = [&[0], &long[..254]].concat();
    assert_eq!(hex(&stuffed(&zero_first)), format!("01 ff {} 00", hex(&long[..254])));
    let zero_last = [&long[..254], &[0]].concat();
    assert_eq!(hex(&stuffed(&zero_last)), format!("ff {} 01 01 00", hex(&long[..254])));
}

#[test]
fn an_oversized_unit_is_told_once_and_its_tail_is_dropped() {
    let mut decoder = Decoder::new(vec![0; 8]);
    let line = [stuffed(&[7; 20]), stuffed(&[1, 0, 2])].concat();
    let found = units(&mut decoder, &line);
    assert_eq!(found, [Err(Damage::TooLong { max: 8 }), Ok(vec![1, 0, 2])]);
}

#[test]
fn a_storm_of_zeros_is_nothing() {
    let mut decoder = Decoder::new(vec![0; 8]);
    assert_eq!(units(&mut decoder, &[0; 1000]), []);
    assert_eq!(units(&mut decoder, &stuffed(&[5])), [Ok(vec![5])]);
}

fn buffers() -> (Vec<u8>, Vec<u8>) {
    (vec![0; 254], vec![0; 512])
}

type End = Endpoint<Vec<u8>, Vec<u8>>;

fn endpoint(role: Role, seed: u32) -> End {
    let (receive, send) = buffers();
    let options = LinkOptions { receive_window: 512, ..LinkOptions::new(921_600) };
    Endpoint::new(role, options, receive, send, seed).unwrap()
}

fn said(endpoint: &mut End, now: u64) -> Vec<u8> {
    let mut out = vec![0; 4096];
    let n = endpoint.transmit(now, &mut out);
    out.truncate(n);
    out
}

/// What `endpoint` makes of the bytes: data as a whole, and the other events.
fn heard(endpoint: &mut End, now: u64, mut bytes: &[u8]) -> (Vec<u8>, usize) {
    let (mut data, mut ups) = (Vec::new(), 0);
    while !bytes.is_empty() {
        let (n, event) = endpoint.receive(now, bytes);
        bytes = &bytes[n..];
        match event {
            Some(LinkEvent::Data(piece)) => data.extend(piece),
            Some(LinkEvent::Up) => ups += 1,
            _ => {}
        }
    }
    (data, ups)
}

/// Both ends, with a session.
fn pair() -> (End, End) {
    let (mut client, mut server) = (endpoint(Role::Initiator, 1), endpoint(Role::Acceptor, 1));
    client.open(0);
    assert_eq!(client.poll(0), None);
    let open = said(&mut client, 0);
    assert_eq!(heard(&mut server, 0, &open).1, 1);
    let accept = said(&mut server, 0);
    assert_eq!(heard(&mut client, 0, &accept).1, 1);
    (client, server)
}

#[test]
fn golden_bytes() {
    let framed = |header: Header, payload: &[u8]| {
        let body = [&header.encode()[..], payload].concat();
        let unit = [&body[..], &crc32c(&body).to_le_bytes()].concat();
        assert_eq!(parse(&unit), Ok((header, payload)));
        hex(&stuffed(&unit))
    };
    let header =
        |kind, count, session, seq, ack, credit| Header { kind, count, session, seq, ack, credit };
    let offer = |frame_bytes_max| Offer { version: 1, frame_bytes_max, nonce: 0x0102_0304 };
    let rows = [
        (
            "`Open`, credit 512; version 1, frames of 254 bytes, nonce 01020304",
            framed(header(Kind::Open, 0, 0, 0, 0, 512), &offer(254).encode()),
        ),
        (
            "`Accept`, session 7, credit 4096; version 1, frames of 1024 bytes, nonce 01020304",
            framed(header(Kind::Accept, 0, 7, 0, 0, 4096), &offer(1024).encode()),
        ),
        (
            "`Data`, count 5, session 7, seq 0, ack 0, credit 512: c1 00 02",
            framed(header(Kind::Data, 5, 7, 0, 0, 512), &[0xC1, 0, 2]),
        ),
        (
            "`Ack`, session 7, seq 0, ack 3, credit 4093",
            framed(header(Kind::Ack, 0, 7, 0, 3, 4093), &[]),
        ),
        (
            "`Nak`, about 6, session 7, seq 0, ack 300, credit 4096",
            framed(header(Kind::Nak, 6, 7, 0, 300, 4096), &[]),
        ),
        (
            "`Ping`, session 7, seq 3, ack 0, credit 512",
            framed(header(Kind::Ping, 0, 7, 3, 0, 512), &[]),
        ),
        ("`Reset`, session 7", framed(header(Kind::Reset, 0, 7, 0, 0, 0), &[])),
    ];
    let table: String =
        rows.iter().map(|(what, bytes)| format!("//! | {what} | `{bytes}` |\n")).collect();
    let docs = include_str!("../../src/wire/link/mod.rs");
    assert!(docs.contains(&table), "the table should be:\n{table}");
}

#[test]
fn the_client_says_what_the_table_says() {
    let mut client = endpoint(Role::Initiator, 0x0102_0304);
    client.open(0);
    client.poll(0);
    let open = said(&mut client, 0);
    assert_eq!(open[0], 0, "a delimiter first, since the line was idle");
    let mut decoder = Decoder::new(vec![0; 254]);
    let unit = units(&mut decoder, &open).remove(0).unwrap();
    let (header, payload) = parse(&unit).unwrap();
    assert_eq!((header.kind, header.session, header.credit), (Kind::Open, 0, 512));
    let offer = Offer::decode(payload).unwrap();
    assert_eq!((offer.version, offer.frame_bytes_max), (VERSION, 254));
}

#[test]
fn a_repeated_open_is_accepted_again_and_a_new_one_begins_anew() {
    let (mut client, mut server) = (endpoint(Role::Initiator, 1), endpoint(Role::Acceptor, 1));
    client.open(0);
    client.poll(0);
    let open = said(&mut client, 0);
    assert_eq!(heard(&mut server, 0, &open).1, 1);
    let first = said(&mut server, 0);
    // The acceptance is lost.
    assert_eq!(heard(&mut server, 0, &open).1, 0);
    let second = said(&mut server, 0);
    assert_eq!(first[1..], second[1..], "the same session");
    heard(&mut client, 0, &second);
    assert_eq!(client.send(b"hello", false), 5);
    let data = said(&mut client, 0);
    assert_eq!(heard(&mut server, 0, &data).0, b"hello");
    // Used by now: the same bytes come from a client that restarted with the same seed.
    assert_eq!(heard(&mut server, 0, &open).1, 1);
    assert_ne!(said(&mut server, 0)[..first.len()], first[..]);
}

#[test]
fn a_restarted_acceptor_resets_the_session() {
    let (mut client, _) = pair();
    client.send(b"hello", false);
    let data = said(&mut client, 0);
    let mut server = endpoint(Role::Acceptor, 99);
    heard(&mut server, 0, &data);
    let reset = said(&mut server, 0);
    let mut event = None;
    for &byte in &reset {
        if let (_, Some(LinkEvent::Down(reason))) = client.receive(0, &[byte]) {
            event = Some(reason);
        }
    }
    assert_eq!(event, Some(DownReason::PeerReset));
    assert!(client.is_down());
}

#[test]
fn a_loss_is_repaired_once_however_many_frames_say_so() {
    let (mut client, mut server) = pair();
    let bytes: Vec<u8> = (0..500).map(|i| i as u8).collect();
    assert_eq!(client.send(&bytes, false), 500);
    let line = said(&mut client, 0);
    let end_of_first = 2 + line[2..].iter().position(|&byte| byte == 0).unwrap();
    // The first frame is lost: everything behind it is out of order.
    let (data, _) = heard(&mut server, 0, &line[end_of_first..]);
    assert_eq!(data, b"");
    let naks = said(&mut server, 0);
    heard(&mut client, 0, &naks);
    heard(&mut client, 0, &naks);
    let again = said(&mut client, 0);
    let (data, _) = heard(&mut server, 0, &again);
    assert_eq!(data, bytes);
    assert_eq!(client.counters().rewinds, 1);
    let ack = said(&mut server, 0);
    heard(&mut client, 0, &ack);
    assert!(client.all_acked());
    assert_eq!(client.next_timeout(), None);
}

#[test]
fn what_was_taken_is_not_taken_again() {
    let (mut client, mut server) = pair();
    client.send(b"once", false);
    let line = said(&mut client, 0);
    assert_eq!(heard(&mut server, 0, &line).0, b"once");
    assert_eq!(heard(&mut server, 0, &line).0, b"");
    assert_eq!(server.counters().duplicates, 1);
}

#[test]
fn a_silent_peer_is_given_up_after_bounded_tries() {
    let (mut client, _) = pair();
    client.send(b"hello", false);
    client.set_waiting(true, 0);
    let mut now = 0;
    let mut sends = 0;
    let reason = loop {
        let said = said(&mut client, now);
        sends += usize::from(!said.is_empty());
        now = client.next_timeout().expect("something is always due");
        if let Some(reason) = client.poll(now) {
            break reason;
        }
        assert!(sends < 100);
    };
    assert!(matches!(reason, DownReason::Silence | DownReason::NoProgress));
    assert!(now <= 2 * corelane::limits::LINK_SILENCE_MS_MAX * 1_000, "{now}");
    assert!(client.is_down());
}

#[test]
fn small_buffers_are_refused_and_the_smallest_work() {
    let options = LinkOptions::new(9600);
    let min = LINK_FRAME_BYTES_MIN;
    let refused = Endpoint::new(Role::Initiator, options, [0u8; 31], [0u8; 64], 1);
    assert_eq!(refused.err(), Some(BufferTooSmall { len: 31, min }));
    let mut client =
        Endpoint::new(Role::Initiator, options, vec![0; min], vec![0; min], 1).unwrap();
    let mut server = endpoint(Role::Acceptor, 1);
    client.open(0);
    client.poll(0);
    let open = said(&mut client, 0);
    heard(&mut server, 0, &open);
    let accept = said(&mut server, 0);
    heard(&mut client, 0, &accept);
    let bytes: Vec<u8> = (0..1000u32).map(|i| i as u8).collect();
    let mut rest = &bytes[..];
    let mut got = Vec::new();
    for now in 0..1000 {
        rest = &rest[server.send(rest, false)..];
        let line = said(&mut server, now);
        got.extend(heard(&mut client, now, &line).0);
        let line = said(&mut client, now);
        heard(&mut server, now, &line);
    }
    assert_eq!(got, bytes);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn stuffing_comes_back(unit in prop::collection::vec(prop_oneof![Just(0u8), any::<u8>()], 0..1100)) {
        let line = stuffed(&unit);
        prop_assert!(line.len() <= encoded_len_max(unit.len()));
        prop_assert_eq!(line.iter().position(|&byte| byte == 0), Some(line.len() - 1));
        let mut decoder = Decoder::new(vec![0; LINK_FRAME_BYTES_MAX]);
        let found = units(&mut decoder, &line);
        if unit.len() <= LINK_FRAME_BYTES_MAX {
            prop_assert_eq!(found, [Ok(unit)]);
        } else {
            prop_assert_eq!(found, [Err(Damage::TooLong { max: LINK_FRAME_BYTES_MAX })]);
        }
    }

    #[test]
    fn after_any_bytes_the_next_frame_is_understood(
        noise in prop::collection::vec(any::<u8>(), 0..600),
        unit in prop::collection::vec(any::<u8>(), 1..64),
    ) {
        let mut decoder = Decoder::new(vec![0; 64]);
        units(&mut decoder, &noise);
        units(&mut decoder, &[0]);
        prop_assert_eq!(units(&mut decoder, &stuffed(&unit)), [Ok(unit)]);
    }

    #[test]
    fn neither_side_panics_or_stalls_whatever_comes(
        pieces in prop::collection::vec(
            (prop::collection::vec(prop_oneof![2 => Just(0u8), 5 => any::<u8>()], 0..80), 0u64..200_000),
            0..40,
        ),
    ) {
        let (mut client, mut server) = pair();
        let mut now = 0;
        for (bytes, pause) in pieces {
            now += pause;
            for end in [&mut client, &mut server] {
                heard(end, now, &bytes);
                end.send(&bytes, false);
                end.poll(now);
                said(end, now);
            }
        }
    }
}
