//! Seeded faults between client and server, in memory and on sockets.

use crate::support::*;
use corelane::transport::{FaultPlan, Faulty, LoopbackStream, ServerOptions};
use corelane::wire::{ErrorCode, Request};
use std::io::{Read, Write};
use std::time::Duration;

/// A small generator with a known seed.
struct Random(u64);
impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n
    }
}

fn models() -> Vec<corelane::runtime::ModelSetup> {
    vec![model("m", 48, &[1, 2, 4], Duration::ZERO), model("big", 70_000, &[1], Duration::ZERO)]
}

fn memory(fixture: &Fixture) -> LoopbackStream {
    let mut stream = fixture.server().loopback().connect().unwrap();
    stream.set_timeout(Some(PATIENCE));
    stream
}

/// Sends `count` requests, one at a time, and checks each answer.
fn converse<S: Read + Write>(raw: &mut Raw<S>, count: u32) {
    for id in 1..=count {
        let (model, bytes) = if id % 7 == 0 { (1, 70_000) } else { (0, 48) };
        let payload = vec![(id % 200) as u8; bytes];
        raw.send(&infer(id, model, 1, &payload));
        assert_eq!(raw.hear(), Heard::Answer { id, rows: 1, payload });
    }
}

#[test]
fn connections_in_memory_serve_like_sockets() {
    let fixture = serve(models());
    for _ in 0..3 {
        let mut raw = Raw::new(memory(&fixture));
        raw.hello();
        converse(&mut raw, 30);
        raw.send(&frame(&Request::Goodbye, &[]));
        assert_eq!(raw.hear(), Heard::Goodbye);
        raw.closed();
    }
    let mut raw = Raw::new(memory(&fixture));
    raw.send(b"garbage");
    raw.expect_error(None, ErrorCode::Malformed, b'g' as u64, 0);
    raw.closed();
    fixture.still_serves();
}

#[test]
fn pieces_and_pauses_change_no_answer() {
    let plan = FaultPlan { short: 700, pause: 20, pause_us_max: 300, ..FaultPlan::default() };
    let fixture = serve(models());
    for seed in 0..6 {
        let mut raw = Raw::new(Faulty::new(memory(&fixture), plan, seed));
        raw.hello();
        converse(&mut raw, 40);
        let mut raw = Raw::new(Faulty::new(fixture.raw().stream, plan, seed));
        raw.hello();
        converse(&mut raw, 40);
        assert_eq!(raw.stream.damage(), 0);
    }
    fixture.still_serves();
}

#[test]
fn damage_costs_its_connection_only() {
    // Whatever a damaged stream says, the server answers with sound frames or closes, gives every
    // slot back, and serves the next.
    let options =
        ServerOptions { half_frame: Duration::from_millis(50), ..ServerOptions::default() };
    let fixture = serve_with(models(), options);
    let plans = [
        FaultPlan { flip: 2, ..FaultPlan::default() },
        FaultPlan { lose: 2, ..FaultPlan::default() },
        FaultPlan { double: 2, short: 300, ..FaultPlan::default() },
        FaultPlan { cut: 50, ..FaultPlan::default() },
        FaultPlan { flip: 1, lose: 1, double: 1, cut: 5, short: 300, ..FaultPlan::default() },
    ];
    let mut damage = 0;
    for (n, plan) in plans.iter().cycle().take(60).enumerate() {
        let stream = fixture.raw().stream;
        let mut reader = Raw::new(stream.try_clone().unwrap());
        let thread = std::thread::spawn(move || while reader.try_hear().is_ok() {});
        let mut faulty = Faulty::new(stream, *plan, n as u64);
        let mut alive = faulty.write_all(&frame(&HELLO, &[])).is_ok();
        for id in 1..60 {
            alive = alive && faulty.write_all(&infer(id, 0, 1, &[1; 48])).is_ok();
        }
        damage += faulty.damage();
        drop(faulty.into_inner().shutdown(std::net::Shutdown::Write));
        thread.join().unwrap();
    }
    assert!(damage > 60, "{damage} faults");
    fixture.still_serves();
}

#[test]
fn arbitrary_bytes_at_the_server_are_harmless() {
    let inputs = 4_000;
    let options =
        ServerOptions { half_frame: Duration::from_millis(50), ..ServerOptions::default() };
    let fixture = serve_with(models(), options);
    let mut random = Random(0x5EED);
    let good: Vec<Vec<u8>> = vec![
        ping(1),
        infer(2, 0, 1, &[1; 48]),
        infer(3, 0, 4, &[2; 192]),
        infer_with(4, 0, 1, 1, 1, &[3; 48]),
        frame(&Request::Open { id: corelane::units::RequestId(5), name: "m" }, &[]),
        frame(&Request::Models { id: corelane::units::RequestId(6) }, &[]),
        frame(&Request::Cancel { id: corelane::units::RequestId(2) }, &[]),
        frame(&Request::Stats { id: corelane::units::RequestId(7) }, &[]),
        frame(&Request::Goodbye, &[]),
        frame(&HELLO, &[]),
    ];
    for n in 0..inputs {
        let mut bytes = if n % 4 == 0 { Vec::new() } else { frame(&HELLO, &[]) };
        for _ in 0..random.below(6) {
            bytes.extend(&good[random.below(good.len())]);
        }
        for _ in 0..random.below(4) {
            if bytes.is_empty() {
                break;
            }
            let at = random.below(bytes.len());
            match random.below(4) {
                0 => bytes[at] = random.below(256) as u8,
                1 => bytes[at] ^= 1 << random.below(8),
                2 => bytes.truncate(at),
                _ => bytes.insert(at, random.below(256) as u8),
            }
        }
        let mut stream = memory(&fixture);
        for piece in bytes.chunks(1 + random.below(200)) {
            if stream.write_all(piece).is_err() {
                break;
            }
        }
        // Some hang up at once, some read what comes first.
        if n % 16 == 0 {
            let mut raw = Raw::new(stream);
            while !matches!(raw.try_hear(), Err(_) | Ok(Heard::Goodbye)) {
                if random.below(3) == 0 {
                    break;
                }
                raw.stream.set_timeout(Some(Duration::from_millis(20)));
            }
        }
    }
    println!("{inputs} inputs at the server");
    // Those that hung up right after their last byte are gone too, and hold no connection.
    let open = |f: &Fixture| {
        f.server().counters().connections_open.load(std::sync::atomic::Ordering::Relaxed)
    };
    fixture.until("every connection has ended", |f| open(f) == 0);
    fixture.still_serves();
}
