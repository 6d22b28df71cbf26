//! One connection that asks alone: the worker that runs its requests reads them, too, until there is
//! company.

use crate::support::*;
use corelane::client::Client;
use corelane::engine::fake::FakeEngine;
use corelane::engine::{
    Description, Engine, EngineError, EngineKind, Instance, PlanIndex, RunError,
};
use corelane::model::signature::Signature;
use corelane::runtime::ModelSetup;
use corelane::transport::ServerOptions;
use corelane::units::Rows;
use corelane::wire::{HealthKind, Request};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// First byte of a row whose run waits until the gate is open.
pub const WAIT: u8 = 0xAA;

#[derive(Default)]
pub struct Gate {
    open: Mutex<bool>,
    changed: Condvar,
}

impl Gate {
    pub fn open(&self) {
        *self.open.lock().unwrap() = true;
        self.changed.notify_all();
    }
    fn pass(&self) {
        drop(self.changed.wait_while(self.open.lock().unwrap(), |open| !*open).unwrap());
    }
}

/// A fake engine whose runs on marked rows wait at a gate.
struct Gated(Arc<FakeEngine>, Arc<Gate>);

struct GatedInstance(Box<dyn Instance>, Arc<Gate>);

impl Engine for Gated {
    fn kind(&self) -> EngineKind {
        self.0.kind()
    }
    fn signature(&self) -> &Signature {
        self.0.signature()
    }
    fn batch_sizes(&self) -> &[usize] {
        self.0.batch_sizes()
    }
    fn describe(&self) -> Description {
        self.0.describe()
    }
    fn instance(&self) -> Result<Box<dyn Instance>, EngineError> {
        Ok(Box::new(GatedInstance(self.0.instance()?, self.1.clone())))
    }
}

impl Instance for GatedInstance {
    fn input_mut(&mut self, plan: PlanIndex, input: usize) -> &mut [u8] {
        self.0.input_mut(plan, input)
    }
    fn infer(&mut self, plan: PlanIndex) -> Result<(), RunError> {
        if self.0.input_mut(plan, 0)[0] == WAIT {
            self.1.pass();
        }
        self.0.infer(plan)
    }
    fn output(&self, plan: PlanIndex, output: usize) -> &[u8] {
        self.0.output(plan, output)
    }
}

/// A model whose runs on rows that begin with [`WAIT`] wait until the gate is open.
pub fn gated(name: &str, gate: &Arc<Gate>) -> ModelSetup {
    let signature = model(name, 64, &[1], Duration::ZERO).engine.signature().clone();
    let engine = FakeEngine::new(signature, &[1], Default::default()).unwrap();
    let engine = Arc::new(Gated(Arc::new(engine), gate.clone()));
    ModelSetup { engine, ..model(name, 64, &[1], Duration::ZERO) }
}

fn lone(fixture: &Fixture) -> u64 {
    fixture.server().counters().lone_requests_total.load(Ordering::Relaxed)
}

/// Asks one thing at a time until a worker reads the requests.
pub fn until_lone(fixture: &Fixture, raw: &mut Raw<UnixStream>, model: u16, row: usize) {
    let before = lone(fixture);
    let mut id = 1 << 20;
    fixture.until("a worker reads the requests", |_| {
        for _ in 0..20 {
            id += 1;
            raw.send(&infer(id, model, 1, &vec![3; row]));
            assert_eq!(raw.hear(), Heard::Answer { id, rows: 1, payload: vec![3; row] });
        }
        lone(fixture) > before
    });
}

#[test]
fn a_connection_that_asks_alone_costs_one_read_one_write_and_one_sleep() {
    const REQUESTS: u64 = 2_000;
    let fixture = serve(vec![model("m", 64, &[1], Duration::ZERO)]);
    let mut raw = fixture.greeted();
    until_lone(&fixture, &mut raw, 0, 64);
    let counters = fixture.server().shared_counters();
    let calls = || {
        let of = [
            &counters.reads_total,
            &counters.writes_total,
            &counters.sleeps_total,
            &counters.seat_loans_total,
            &counters.lone_requests_total,
        ];
        of.map(|counter| counter.load(Ordering::Relaxed))
    };
    let before = calls();
    for n in 0..REQUESTS as u32 {
        let payload = vec![(n % 100) as u8; 64];
        raw.send(&infer(n, 0, 1, &payload));
        assert_eq!(raw.hear(), Heard::Answer { id: n, rows: 1, payload });
    }
    let after = calls();
    let [reads, writes, sleeps, loans, lone] = [0, 1, 2, 3, 4].map(|i| after[i] - before[i]);
    println!(
        "{REQUESTS} requests, {lone} of them read by the worker: {reads} reads, {writes} writes, \
         {sleeps} sleeps where connections are tended; the seat went to the worker {loans} times"
    );
    assert!(reads <= REQUESTS + 2, "{reads} reads");
    assert!((REQUESTS - 1..=REQUESTS + 1).contains(&writes), "{writes} writes");
    assert!(lone > 0);
    // Runs that are seen as long, since the machine did something else meanwhile, send the seat home:
    // then there are the I/O thread's sleeps, too. And a few for timers.
    let most = REQUESTS + 2 * (REQUESTS - lone) + 3 * loans + REQUESTS / 20;
    assert!(sleeps <= most, "{sleeps} sleeps");
    fixture.still_serves();
}

#[test]
fn workers_read_nothing_where_they_are_told_not_to() {
    let options = ServerOptions { workers_tend: false, ..ServerOptions::default() };
    let fixture = serve_with(vec![model("m", 64, &[1], Duration::ZERO)], options);
    let mut raw = fixture.greeted();
    for n in 0..500 {
        raw.send(&infer(n, 0, 1, &[1; 64]));
        assert_eq!(raw.hear(), Heard::Answer { id: n, rows: 1, payload: vec![1; 64] });
    }
    assert_eq!(lone(&fixture), 0);
    assert_eq!(fixture.server().counters().seat_loans_total.load(Ordering::Relaxed), 0);
    fixture.still_serves();
}

#[test]
fn company_comes_and_goes() {
    let fixture = serve(vec![model("m", 64, &[1, 4], Duration::ZERO)]);
    let mut raw = fixture.greeted();
    for round in 0..30u8 {
        until_lone(&fixture, &mut raw, 0, 64);
        // Another one comes, asks several things at once, and leaves.
        let mut other = fixture.client();
        let m = other.open("m").unwrap();
        let tickets: Vec<_> =
            (0..16).map(|n| (n, other.submit(&m, Rows(1), &[round ^ n; 64]).unwrap())).collect();
        raw.send(&infer(7, 0, 1, &[round; 64]));
        for (n, ticket) in tickets {
            assert_eq!(other.wait(ticket).unwrap().payload, [round ^ n; 64]);
        }
        assert_eq!(raw.hear(), Heard::Answer { id: 7, rows: 1, payload: vec![round; 64] });
        raw.still_talks();
    }
    fixture.still_serves();
}

#[test]
fn who_asks_in_process_wakes_the_worker_that_waits_for_bytes() {
    let fixture = serve(vec![model("m", 64, &[1], Duration::ZERO)]);
    let mut raw = fixture.greeted();
    let local = fixture.runtime.client().model("m").unwrap();
    let ask = |byte: u8| {
        let mut request = local.request(1).unwrap();
        request.input_bytes_mut(0).unwrap().fill(byte);
        let answer = request.infer().unwrap();
        assert_eq!(answer.output_bytes(0).unwrap(), [byte; 64]);
    };
    until_lone(&fixture, &mut raw, 0, 64);
    for n in 0..300u32 {
        // Between two requests of the connection: then the worker sleeps where its bytes come in.
        for _ in 0..n % 3 {
            ask((n % 200) as u8);
        }
        raw.send(&infer(n, 0, 1, &[5; 64]));
        assert_eq!(raw.hear(), Heard::Answer { id: n, rows: 1, payload: vec![5; 64] });
    }
    // Both at once.
    std::thread::scope(|s| {
        s.spawn(|| (0..2_000).for_each(|n| ask((n % 200) as u8)));
        for n in 0..500u32 {
            raw.send(&infer(n, 0, 1, &[6; 64]));
            assert_eq!(raw.hear(), Heard::Answer { id: n, rows: 1, payload: vec![6; 64] });
        }
    });
    fixture.still_serves();
}

#[test]
fn a_model_that_hangs_holds_nobody_up_but_who_asked() {
    let gate = Arc::new(Gate::default());
    let fixture = serve(vec![gated("m", &gate)]);
    let mut raw = fixture.greeted();
    until_lone(&fixture, &mut raw, 0, 64);
    // The worker leaves the seat open for a run that was always short, and does not come back.
    let mut row = vec![0; 64];
    row[0] = WAIT;
    raw.send(&infer(1, 0, 1, &row));
    fixture.until("it runs", |fixture| fixture.is_running(0));
    let mut other = fixture.client();
    assert!(other.health(HealthKind::Live).unwrap());
    other.stats().unwrap();
    raw.still_talks();
    assert!(fixture.is_running(0), "nobody opened the gate");
    gate.open();
    assert_eq!(raw.hear(), Heard::Answer { id: 1, rows: 1, payload: row });
    until_lone(&fixture, &mut raw, 0, 64);
    fixture.still_serves();
}

#[test]
fn a_long_run_for_others_sends_the_seat_home_first() {
    let gate = Arc::new(Gate::default());
    let slow = model("slow", 64, &[1], Duration::from_millis(1));
    let fixture = serve(vec![gated("m", &gate), slow]);
    let mut raw = fixture.greeted();
    let local = fixture.runtime.client().model("slow").unwrap();
    for n in 0..20 {
        until_lone(&fixture, &mut raw, 0, 64);
        let loans = fixture.server().counters().seat_loans_total.load(Ordering::Relaxed);
        let lone_before = lone(&fixture);
        local.request(1).unwrap().infer().unwrap();
        // The seat went home, so that the next one is not read by the worker.
        raw.send(&infer(n, 0, 1, &[4; 64]));
        assert_eq!(raw.hear(), Heard::Answer { id: n, rows: 1, payload: vec![4; 64] });
        assert_eq!(lone(&fixture), lone_before);
        // It is still alone, and so the worker has the seat again before long.
        until_lone(&fixture, &mut raw, 0, 64);
        assert!(fixture.server().counters().seat_loans_total.load(Ordering::Relaxed) > loans);
    }
    fixture.still_serves();
}

#[test]
fn a_slow_reader_gets_its_answers_whole_from_a_worker_too() {
    const ROW: usize = 600_000;
    let fixture = serve(vec![model("m", ROW, &[1], Duration::ZERO)]);
    let mut raw = fixture.greeted();
    for round in 0..6u8 {
        until_lone(&fixture, &mut raw, 0, ROW);
        // Not read until all are sent: the socket takes a part of the first, and then the server takes
        // no more.
        let mut writer = raw.stream.try_clone().unwrap();
        let sender = std::thread::spawn(move || {
            for id in 0..8 {
                writer.write_all(&infer(id, 0, 1, &vec![round ^ id as u8; ROW])).unwrap();
            }
            writer.write_all(&ping(99)).unwrap();
        });
        std::thread::sleep(Duration::from_millis(5));
        let (mut answers, mut pongs) = (Vec::new(), 0);
        while answers.len() < 8 || pongs < 1 {
            match raw.hear() {
                Heard::Answer { id, rows: 1, payload } => {
                    assert_eq!(payload, vec![round ^ id as u8; ROW]);
                    answers.push(id);
                }
                Heard::Pong(99) => pongs += 1,
                other => panic!("{other:?}"),
            }
        }
        sender.join().unwrap();
        answers.sort();
        assert_eq!(answers, (0..8).collect::<Vec<_>>());
    }
    fixture.still_serves();
}

#[test]
fn one_that_leaves_in_the_middle_costs_only_its_connection() {
    const ROW: usize = 60_000;
    let fixture = serve(vec![model("m", ROW, &[1], Duration::ZERO)]);
    for n in 0..60usize {
        let mut raw = fixture.greeted();
        until_lone(&fixture, &mut raw, 0, ROW);
        let last = infer(1, 0, 1, &vec![1; ROW]);
        match n % 4 {
            // With its answer on the way.
            0 => raw.send(&last),
            // In the middle of a request.
            1 => raw.send(&last[..1 + n * 900]),
            // With something that is no request.
            2 => raw.send(&[n as u8 | 1; 40]),
            // With a goodbye, answers first.
            _ => {
                raw.send(&last);
                raw.send(&frame(&Request::Goodbye, &[]));
                assert!(matches!(raw.hear(), Heard::Answer { id: 1, .. }));
                assert_eq!(raw.hear(), Heard::Goodbye);
            }
        }
    }
    fixture.still_serves();
}

#[test]
fn seeded_conversations_alone_and_in_company_lose_nothing() {
    for seed in 1..=6u64 {
        let fixture = serve(vec![
            model("small", 48, &[1, 4], Duration::ZERO),
            model("large", 200_000, &[1], Duration::ZERO),
        ]);
        let mut random = seed;
        let mut below = move |n: u64| {
            // xorshift
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % n
        };
        let mut clients: Vec<Client> = (0..3).map(|_| fixture.client()).collect();
        let models: Vec<_> = clients
            .iter_mut()
            .map(|client| [client.open("small").unwrap(), client.open("large").unwrap()])
            .collect();
        for _ in 0..60 {
            // One that asks alone for a while, or all of them with several in flight.
            let (who, alone) = (below(3) as usize, below(2) == 0);
            let (many, depth) = if alone { (30, 1) } else { (3, 1 + below(12)) };
            for _ in 0..many {
                let askers = if alone { who..who + 1 } else { 0..3 };
                let mut asked = Vec::new();
                for at in askers {
                    for _ in 0..depth {
                        let model = &models[at][usize::from(below(10) == 0)];
                        let payload = vec![below(200) as u8; model.input_len(1)];
                        let ticket = clients[at].submit(model, Rows(1), &payload).unwrap();
                        if below(20) == 0 {
                            clients[at].cancel(ticket).unwrap();
                            asked.push((at, ticket, None));
                        } else {
                            asked.push((at, ticket, Some(payload)));
                        }
                    }
                }
                for (at, ticket, payload) in asked {
                    let answer = clients[at].wait(ticket);
                    if let Some(payload) = payload {
                        assert_eq!(answer.unwrap().payload, payload);
                    }
                }
            }
        }
        drop(clients);
        fixture.still_serves();
    }
}

#[test]
fn it_ends_from_a_workers_hands() {
    for n in 0..20 {
        let mut fixture = serve(vec![model("m", 64, &[1], Duration::ZERO)]);
        let mut raw = fixture.greeted();
        until_lone(&fixture, &mut raw, 0, 64);
        raw.send(&infer(1, 0, 1, &[9; 64]));
        let server = fixture.server.take().unwrap();
        if n % 2 == 0 {
            server.drain();
            match raw.hear() {
                // It was read before the drain began, or after.
                Heard::Answer { id: 1, .. } | Heard::Error { id: Some(1), .. } => {
                    assert_eq!(raw.hear(), Heard::Goodbye);
                }
                heard => assert_eq!(heard, Heard::Goodbye),
            }
            drop(raw);
            server.join();
        } else {
            drop(server);
        }
        drop(fixture);
    }
}

#[test]
fn over_tcp_too() {
    let address = "127.0.0.1:0".parse().unwrap();
    let tcp = Some(corelane::transport::TcpOptions::new(address));
    let options = ServerOptions { tcp, ..ServerOptions::default() };
    let fixture = serve_with(vec![model("m", 300_000, &[1], Duration::ZERO)], options);
    let address = fixture.server().tcp_address().unwrap();
    let address = corelane::client::Address::Tcp(address.to_string());
    let mut client = Client::connect(&address, Default::default()).unwrap();
    let m = client.open("m").unwrap();
    let mut n = 0u8;
    fixture.until("a worker reads the requests", |fixture| {
        for _ in 0..20 {
            n = n.wrapping_add(1) % 200;
            let answer = client.infer(&m, Rows(1), &vec![n; 300_000]).unwrap();
            assert_eq!(answer.payload, vec![n; 300_000]);
        }
        lone(fixture) > 0
    });
    fixture.still_serves();
}
