//! Arbitrary bytes against framing, messages and both ends of a link; never a panic, never a state
//! that the next clean exchange does not lead out of. `CORELANE_FUZZ_INPUTS` sets how many inputs.

use crate::line::Random;
use corelane::wire::link::{
    DownReason, Endpoint, Header, Kind, LinkEvent, LinkOptions, Role, crc32c, encode, parse,
};
use corelane::wire::{HeadDecoder, Reply, Request, Signature, parse_head};

/// Inputs of one run, unless the environment says otherwise.
const INPUTS: u64 = 300_000;

type End = Endpoint<[u8; 128], [u8; 256]>;

fn end(role: Role, seed: u32) -> End {
    let options = LinkOptions { receive_window: 256, ..LinkOptions::new(921_600) };
    Endpoint::new(role, options, [0; 128], [0; 256], seed).unwrap()
}

/// What `from` says goes to `to`; returns what `to` got of the stream. Counts sessions in `ups`.
fn pass(from: &mut End, to: &mut End, now: u64, ups: &mut u16) -> Vec<u8> {
    let mut line = [0; 1024];
    let n = from.transmit(now, &mut line);
    let mut bytes = &line[..n];
    let mut got = Vec::new();
    while !bytes.is_empty() {
        let (n, event) = to.receive(now, bytes);
        bytes = &bytes[n..];
        match event {
            Some(LinkEvent::Data(data)) => got.extend(data),
            Some(LinkEvent::Up) => *ups = ups.wrapping_add(1),
            _ => {}
        }
    }
    got
}

/// An input: noise, zeros, small numbers, or a sound frame with arbitrary fields.
fn input(random: &mut Random, session: u16, out: &mut Vec<u8>) {
    out.clear();
    let len = random.below(48) as usize;
    match random.below(4) {
        0 => out.extend((0..len).map(|_| random.next() as u8)),
        1 => out.extend((0..len).map(|_| random.below(4) as u8)),
        _ => {
            let kinds = [
                Kind::Open,
                Kind::Accept,
                Kind::Data,
                Kind::Ack,
                Kind::Nak,
                Kind::Ping,
                Kind::Reset,
            ];
            let mut small = |n| if random.once_in(4) { random.next() } else { random.below(n) };
            let header = Header {
                kind: kinds[small(7) as usize % 7],
                count: small(4) as u8,
                session: if small(4) == 0 { 0 } else { session },
                seq: small(64) as u16,
                ack: small(64) as u16,
                credit: small(300) as u16,
            };
            let mut unit = header.encode().to_vec();
            unit.extend((0..len).map(|_| random.below(3) as u8));
            unit.extend(crc32c(&unit).to_le_bytes());
            let mut line = [0; 128];
            let n = encode(&unit, &mut line).unwrap();
            out.extend(&line[..n]);
            if random.once_in(3) {
                let at = random.below(n as u64) as usize;
                out[at] ^= 1 << random.below(8);
            }
        }
    }
}

#[test]
fn arbitrary_bytes() {
    let inputs = std::env::var("CORELANE_FUZZ_INPUTS").ok().and_then(|n| n.parse().ok());
    let inputs = inputs.unwrap_or(INPUTS);
    let mut random = Random::new(20_260_101);
    let (mut client, mut server) = (end(Role::Initiator, 1), end(Role::Acceptor, 1));
    let mut now = 0;
    let mut bytes = Vec::new();
    let (mut sessions, mut data) = (0u64, 0u64);
    // The acceptor counts from its seed.
    let (mut session, mut ignored) = (1u16, 0u16);
    for n in 0..inputs {
        input(&mut random, session, &mut bytes);
        let _ = parse(&bytes);
        let _ = parse_head(&bytes);
        let _ = HeadDecoder::new().feed(&bytes);
        let _ = Request::decode(&bytes);
        let _ = Reply::decode(&bytes);
        let _ = Signature::decode(&bytes);
        now += random.below(20_000);
        if client.is_down() {
            client.open(now);
        }
        client.set_waiting(random.once_in(2), now);
        for (end, accepts) in [(&mut client, false), (&mut server, true)] {
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let (taken, event) = end.receive(now, rest);
                assert!(taken > 0);
                rest = &rest[taken..];
                match event {
                    Some(LinkEvent::Up) => {
                        sessions += 1;
                        session = session.wrapping_add(u16::from(accepts));
                    }
                    Some(LinkEvent::Data(piece)) => data += piece.len() as u64,
                    _ => {}
                }
            }
            end.send(&bytes, random.once_in(2));
            let _: Option<DownReason> = end.poll(now);
            end.transmit(now, &mut [0; 64]);
            assert!(end.next_timeout().is_none_or(|at| at > now || end.is_up() || at == now));
        }
        if n % 1_000 == 0 {
            // The noise stops: a new session carries bytes both ways.
            client.open(now);
            for _ in 0..40 {
                now += 100_000;
                client.poll(now);
                pass(&mut client, &mut server, now, &mut session);
                server.poll(now);
                pass(&mut server, &mut client, now, &mut ignored);
                if client.is_up() && server.is_up() {
                    break;
                }
            }
            assert!(client.is_up() && server.is_up(), "after input {n}");
            client.send(b"ping", false);
            let mut got = Vec::new();
            for _ in 0..40 {
                now += 100_000;
                client.poll(now);
                server.poll(now);
                got.extend(pass(&mut client, &mut server, now, &mut session));
                pass(&mut server, &mut client, now, &mut ignored);
            }
            assert_eq!(got, b"ping", "after input {n}");
        }
    }
    println!("{inputs} inputs, {sessions} sessions begun by them, {data} bytes of data taken");
    assert!(sessions > 0 && data > 0);
}
