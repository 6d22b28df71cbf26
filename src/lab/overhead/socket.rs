//! Socket figures: a round trip over a Unix socket against a raw blocking echo of as many bytes, and
//! requests per second with many in flight.

use super::floors::{on_core, unix_echo};
use super::inproc::echo_model;
use super::{Comparison, Effort, Error, Latency, Pair, run_pairs, two_cores};
use crate::client::{Address, Client, Options};
use crate::engine::fake::FakeCompute;
use crate::lab::sample::Spread;
use crate::runtime::{ModelSetup, Runtime};
use crate::sys::clock;
use crate::transport::{Server, ServerOptions, UnixOptions};
use crate::units::{CoreId, Micros, Rows};
use crate::worker::IdleStrategy;
use std::path::PathBuf;
use std::time::Duration;

/// Payload sizes, in bytes each way: a few numbers, an audio window, a small and a large image.
const SIZES: [usize; 4] = [64, 2 * 1024, 27 * 1024, 600 * 1024];

/// A server with its runtime; the server goes first.
struct Host {
    _server: Server,
    _runtime: Runtime,
    path: PathBuf,
}

impl Host {
    fn start(
        models: Vec<ModelSetup>,
        (worker, idle): (CoreId, IdleStrategy),
        io: CoreId,
    ) -> Result<Host, Error> {
        let path = std::env::temp_dir().join(format!(
            "corelane-overhead-{}-{}.sock",
            std::process::id(),
            clock::now()
        ));
        let builder = Runtime::builder().cores([worker]).idle(idle);
        let mut runtime = models.into_iter().fold(builder, |b, m| b.model(m)).build()?;
        let unix = Some(UnixOptions::new(&path));
        let server = runtime.serve(ServerOptions { unix, ..ServerOptions::default() }, Some(io))?;
        Ok(Host { _server: server, _runtime: runtime, path })
    }

    fn address(&self) -> Address {
        Address::Unix(self.path.clone())
    }
}

fn round_trips(host: &Address, bytes: usize, iterations: usize) -> Result<Vec<u64>, Error> {
    let mut client = Client::connect(host, Options::default())?;
    let model = client.open(&format!("echo{bytes}"))?;
    let payload = vec![7u8; bytes];
    let mut times = Vec::with_capacity(iterations);
    for _ in 0..iterations {
        let start = clock::now();
        let answer = client.infer(&model, Rows(1), &payload)?;
        times.push(clock::now().since(start).0);
        if answer.payload != payload {
            return Err("the server returned other bytes".into());
        }
        client.give_back(answer.payload);
    }
    Ok(times)
}

pub(super) fn latencies(effort: Effort) -> Result<Vec<Latency>, Error> {
    let (first, last) = two_cores()?;
    let models = SIZES.iter().map(|&bytes| echo_model(bytes, &[1], FakeCompute::default()));
    let host = Host::start(models.collect::<Result<_, _>>()?, (last, IdleStrategy::Park), last)?;
    let address = &host.address();
    let mut pairs = Vec::new();
    for client in if first == last { vec![last] } else { vec![last, first] } {
        for bytes in SIZES {
            // Large payloads take longer; their count shrinks so that each size takes alike.
            let iterations = (effort.iterations * 4096 / (4096 + bytes)).max(50);
            pairs.push(Pair {
                name: format!("Unix socket round trip, {bytes} B"),
                placement: format!("client on core {client}, I/O and worker on core {last}"),
                goal: 1.5,
                ours: Box::new(move || {
                    on_core(client, || round_trips(address, bytes, iterations))?
                }),
                floor: Box::new(move || unix_echo(client, last, bytes, iterations)),
            });
        }
    }
    run_pairs(&mut pairs, effort.repeats)
}

/// Requests per second on one connection with `in_flight` requests always in flight.
fn throughput(host: &Address, model: &str, in_flight: usize, span: Duration) -> Result<f64, Error> {
    let mut client = Client::connect(host, Options::default())?;
    let model = client.open(model)?;
    let payload = vec![0u8; model.input_len(1)];
    let start = clock::now();
    let mut answered = 0u64;
    loop {
        while client.in_flight() < in_flight {
            client.submit(&model, Rows(1), &payload)?;
        }
        let (_, answer) = client.wait_any()?;
        client.give_back(answer?.payload);
        answered += 1;
        let elapsed = clock::now().since(start).0;
        if elapsed >= span.as_nanos() as u64 {
            let rate = answered as f64 * 1e9 / elapsed as f64;
            while client.in_flight() > 0 {
                client.wait_any()?.1?;
            }
            return Ok(rate);
        }
    }
}

/// One in flight against 32 on one connection, for the model in `setup`: with everything on one core,
/// and across two with a worker that parks or spins.
pub(super) fn in_flight(setup: &ModelSetup, effort: Effort) -> Result<Vec<Comparison>, Error> {
    let (first, last) = two_cores()?;
    let mut ways = vec![(last, IdleStrategy::Park, "parks")];
    if first != last {
        ways.push((first, IdleStrategy::Park, "parks"));
        ways.push((first, IdleStrategy::SpinUs(Micros(200)), "spins for 200 us"));
    }
    ways.into_iter()
        .map(|(client, idle, how)| {
            let host = Host::start(vec![setup.clone()], (last, idle), client)?;
            let address = host.address();
            let span = Duration::from_millis(300);
            let (mut a, mut b) = (Vec::new(), Vec::new());
            for repeat in 0..effort.repeats {
                for step in 0..2 {
                    let (depth, figures) =
                        if (step + repeat) % 2 == 0 { (1, &mut a) } else { (32, &mut b) };
                    let rate = on_core(client, || throughput(&address, &setup.name, depth, span))??;
                    figures.push(rate);
                }
            }
            Ok(Comparison {
                name: format!(
                    "{} over a Unix socket, one connection: 1 (a), 32 (b) in flight",
                    setup.name
                ),
                placement: format!(
                    "client and I/O on core {client}, worker on core {last}, which {how}"
                ),
                ratio: Spread::of_ratios(&b, &a),
                a: Spread::of(&a),
                b: Spread::of(&b),
                unit: "requests/s",
                goal: "at least 4 x; 20000 with 1, 80000 with 32",
            })
        })
        .collect()
}
