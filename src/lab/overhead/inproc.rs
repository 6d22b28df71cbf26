//! In-process figures: round trip against a bare ping-pong, batching on against off, two workers
//! against one.

use super::floors::{Waiting, on_core, ping_pong};
use super::{Comparison, Effort, Error, Latency, Pair, run_pairs, two_cores};
use crate::engine::fake::{FakeCompute, FakeEngine};
use crate::lab::sample::{Spread, percentile};
use crate::model::signature::{Signature, TensorSpec};
use crate::runtime::{ModelHandle, ModelSetup, Runtime, WaitPolicy};
use crate::sys::clock;
use crate::sys::sync::Arc;
use crate::units::{CoreId, DType, Micros};
use crate::worker::IdleStrategy;
use std::time::Duration;

/// A fake model: `bytes` in, the same bytes out, `compute` for each run.
pub(crate) fn echo_model(
    bytes: usize,
    sizes: &[usize],
    compute: FakeCompute,
) -> Result<ModelSetup, Error> {
    let tensor =
        |name: &str| TensorSpec { name: name.into(), dtype: DType::U8, row_shape: vec![bytes] };
    let signature =
        Signature { inputs: vec![tensor("x")], outputs: vec![tensor("y")], batched: true };
    let engine = Arc::new(FakeEngine::new(signature, sizes, compute)?);
    Ok(ModelSetup::new(&format!("echo{bytes}"), engine))
}

/// Round trips of a closed loop, one in flight, in nanoseconds.
fn round_trips(model: &ModelHandle, iterations: usize) -> Result<Vec<u64>, Error> {
    let mut times = Vec::with_capacity(iterations);
    for n in 0..iterations {
        let start = clock::now();
        let mut request = model.request(1)?;
        request.input_bytes_mut(0)?.fill(n as u8);
        let answer = request.infer()?;
        let right = answer.output_bytes(0)?[0] == n as u8;
        times.push(clock::now().since(start).0);
        if !right {
            return Err("the runtime returned other bytes".into());
        }
    }
    Ok(times)
}

pub(super) fn latencies(effort: Effort) -> Result<Vec<Latency>, Error> {
    let (first, last) = two_cores()?;
    let parked = Runtime::builder()
        .cores([last])
        .idle(IdleStrategy::Park)
        .model(echo_model(64, &[1], FakeCompute::default())?)
        .build()?;
    let model = parked.client().model("echo64")?;
    let mut pairs = Vec::new();
    for client in if first == last { vec![last] } else { vec![last, first] } {
        let model = model.clone();
        pairs.push(Pair {
            name: "in-process round trip, futex parked".into(),
            placement: format!("client on core {client}, worker on core {last}"),
            goal: 2.0,
            ours: Box::new(move || on_core(client, || round_trips(&model, effort.iterations))?),
            floor: Box::new(move || {
                Ok(ping_pong(client, last, Waiting::Parked, effort.iterations)?)
            }),
        });
    }
    let mut told = run_pairs(&mut pairs, effort.repeats)?;
    drop(pairs);
    drop(parked);
    if first != last {
        let spinning = Runtime::builder()
            .cores([last])
            .idle(IdleStrategy::SpinUs(Micros(1_000_000)))
            .model(echo_model(64, &[1], FakeCompute::default())?)
            .build()?;
        let model = spinning.client().model("echo64")?.with_wait(WaitPolicy { spins: u32::MAX });
        let mut pairs = [Pair {
            name: "in-process round trip, spinning".into(),
            placement: format!("client on core {first}, worker on core {last}"),
            goal: 2.0,
            ours: Box::new(move || on_core(first, || round_trips(&model, effort.iterations))?),
            floor: Box::new(move || {
                Ok(ping_pong(first, last, Waiting::Spinning, effort.iterations)?)
            }),
        }];
        told.extend(run_pairs(&mut pairs, effort.repeats)?);
    }
    Ok(told)
}

/// Requests per second with `in_flight` requests always in flight, for `span`.
fn throughput(model: &ModelHandle, in_flight: usize, span: Duration) -> Result<f64, Error> {
    let mut pending = std::collections::VecDeque::with_capacity(in_flight);
    let start = clock::now();
    let mut answered = 0u64;
    loop {
        while pending.len() < in_flight {
            pending.push_back(model.request(1)?.submit()?);
        }
        if let Some(oldest) = pending.pop_front() {
            oldest.wait()?;
            answered += 1;
        }
        let elapsed = clock::now().since(start).0;
        if elapsed >= span.as_nanos() as u64 {
            return Ok(answered as f64 * 1e9 / elapsed as f64);
        }
    }
}

pub(super) fn comparisons(effort: Effort) -> Result<Vec<Comparison>, Error> {
    let (first, last) = two_cores()?;
    // On one core, where nothing but the runtime's own work varies, and across two.
    let mut told = vec![batching_is_free(last, last, effort)?];
    if first != last {
        told.push(batching_is_free(first, last, effort)?);
        told.push(scaling(first, last, effort)?);
    }
    Ok(told)
}

/// Blocks into which a repeat is divided, so that both ways meet the same moods of the machine.
const BLOCKS: usize = 20;

/// One in flight, batching off against on.
fn batching_is_free(client: CoreId, worker: CoreId, effort: Effort) -> Result<Comparison, Error> {
    let compute =
        FakeCompute { per_run: Duration::from_micros(20), per_row: Duration::from_micros(5) };
    let build = |sizes: &[usize]| -> Result<Runtime, Error> {
        Ok(Runtime::builder().cores([worker]).model(echo_model(64, sizes, compute)?).build()?)
    };
    let (off, on) = (build(&[1])?, build(&[1, 2, 4, 8])?);
    let models = [off.client().model("echo64")?, on.client().model("echo64")?];
    let mut figures = [Vec::new(), Vec::new()];
    for repeat in 0..effort.repeats {
        let mut times = [Vec::new(), Vec::new()];
        for block in 0..2 * BLOCKS {
            let way = (block + repeat) % 2;
            let iterations = effort.iterations.div_ceil(BLOCKS);
            times[way].extend(on_core(client, || round_trips(&models[way], iterations))??);
        }
        for (figures, mut times) in figures.iter_mut().zip(times) {
            figures.push(percentile(&mut times, 500) as f64);
        }
    }
    let [a, b] = figures;
    Ok(Comparison {
        name: format!(
            "one in flight: batching off (a), on (b), alternating in {BLOCKS} blocks each; 25 us of \
             compute; p50"
        ),
        placement: format!("client on core {client}, worker on core {worker}"),
        ratio: Spread::of_ratios(&b, &a),
        a: Spread::of(&a),
        b: Spread::of(&b),
        unit: "ns",
        goal: "within 5 %",
    })
}

/// Saturation, one worker against two. The generator keeps 16 in flight from the first core; it
/// sleeps while it waits, and its share of that core is part of the figure.
fn scaling(first: CoreId, last: CoreId, effort: Effort) -> Result<Comparison, Error> {
    let compute = FakeCompute { per_run: Duration::from_millis(2), per_row: Duration::ZERO };
    let build = |cores: &[CoreId]| -> Result<Runtime, Error> {
        let setup = echo_model(64, &[1], compute)?;
        Ok(Runtime::builder().cores(cores.iter().copied()).model(setup).build()?)
    };
    let (one, two) = (build(&[last])?, build(&[first, last])?);
    let (mut a, mut b) = (Vec::new(), Vec::new());
    for repeat in 0..effort.repeats {
        for step in 0..2 {
            let (rt, figures) =
                if (step + repeat) % 2 == 0 { (&one, &mut a) } else { (&two, &mut b) };
            let model = rt.client().model("echo64")?;
            let span = Duration::from_millis(500);
            figures.push(on_core(first, || throughput(&model, 16, span))??);
        }
    }
    Ok(Comparison {
        name: "saturation, 16 in flight, 2 ms of compute: one worker (a), two workers (b)".into(),
        placement: format!(
            "generator on core {first}; worker a on core {last}; workers b on cores {first}, {last}"
        ),
        ratio: Spread::of_ratios(&b, &a),
        a: Spread::of(&a),
        b: Spread::of(&b),
        unit: "requests/s",
        goal: "at least 1.9 x",
    })
}
