//! A model's figures: every batch size on one worker, and the throughput of one and of all.

use super::{BatchRow, CardModel, ModelRow, Throughput};
use crate::lab::overhead::{Error, on_core};
use crate::lab::run::Percentiles;
use crate::runtime::{ModelHandle, ModelSetup, Pending, Runtime};
use crate::sys::{affinity, clock};
use crate::units::{CoreId, Nanos};
use std::collections::VecDeque;

/// Requests that every figure has at least, however long they take.
const REQUESTS_MIN: usize = 20;
/// Requests before the clock counts.
const WARM: usize = 5;
/// In flight for each worker, so that none waits for the client.
const IN_FLIGHT: usize = 2;

fn build(setup: &ModelSetup, cores: &[CoreId]) -> Result<(Runtime, ModelHandle), Error> {
    let runtime = Runtime::builder().cores(cores.iter().copied()).model(setup.clone()).build()?;
    let model = runtime.client().model(&setup.name)?;
    Ok((runtime, model))
}

/// A request of `batch` rows, handed over.
fn submit(model: &ModelHandle, rows: &[Vec<u8>], batch: usize) -> Result<Pending, Error> {
    let mut request = model.request(batch)?;
    for (i, row) in rows.iter().enumerate() {
        request
            .input_bytes_mut(i)?
            .chunks_exact_mut(row.len())
            .for_each(|r| r.copy_from_slice(row));
    }
    Ok(request.submit()?)
}

fn alone(
    model: &ModelHandle,
    rows: &[Vec<u8>],
    batch: usize,
    time_box: Nanos,
) -> Result<BatchRow, Error> {
    let (mut request, mut infer) = (Vec::new(), Vec::new());
    for _ in 0..WARM {
        submit(model, rows, batch)?.wait()?;
    }
    let end = clock::now().after(time_box);
    while request.len() < REQUESTS_MIN || clock::now() < end {
        let start = clock::now();
        let answer = submit(model, rows, batch)?.wait()?;
        request.push(clock::now().since(start).0);
        infer.push(answer.receipt().compute_infer_ns.0);
    }
    let (request, infer) = (Percentiles::of(&mut request), Percentiles::of(&mut infer));
    Ok(BatchRow { batch, request, infer })
}

/// Rows per second with `in_flight` requests in flight.
fn throughput(
    model: &ModelHandle,
    rows: &[Vec<u8>],
    (batch, in_flight): (usize, usize),
    time_box: Nanos,
) -> Result<f64, Error> {
    let mut pending = VecDeque::with_capacity(in_flight);
    let mut start = clock::now();
    let (mut answered, mut warm) = (0usize, in_flight.max(WARM));
    loop {
        while pending.len() < in_flight {
            pending.push_back(submit(model, rows, batch)?);
        }
        if let Some(oldest) = pending.pop_front() {
            oldest.wait()?;
        }
        if warm > 0 {
            warm -= 1;
            start = clock::now();
            continue;
        }
        answered += 1;
        let elapsed = clock::now().since(start);
        if answered >= REQUESTS_MIN && elapsed >= time_box {
            return Ok((answered * batch) as f64 * 1e9 / elapsed.0 as f64);
        }
    }
}

pub(super) fn measure(
    model: &CardModel,
    cores: &[CoreId],
    time_box: Nanos,
    progress: &mut impl FnMut(&str),
) -> Result<ModelRow, Error> {
    let CardModel { setup, rows, .. } = model;
    let last = *cores.last().ok_or("no core for a worker")?;
    let allowed = affinity::allowed()?;
    let client = allowed.iter().copied().find(|core| *core != last).unwrap_or(last);
    let description = setup.engine.describe();
    let largest = usize::from(setup.max_request_rows.0);
    let (one, handle) = build(setup, &[last])?;
    let mut batches = Vec::new();
    for &batch in setup.engine.batch_sizes().iter().filter(|b| **b <= largest) {
        progress(&format!("{}, batch {batch}", setup.name));
        batches.push(on_core(client, || alone(&handle, rows, batch, time_box))??);
    }
    let batch = batches.last().map_or(1, |b| b.batch);
    progress(&format!("{}, throughput of one worker", setup.name));
    let one_rows_per_s =
        on_core(client, || throughput(&handle, rows, (batch, IN_FLIGHT), time_box))??;
    let mut allocations = one.stats().hot_path_allocations_total;
    drop((handle, one));
    progress(&format!("{}, throughput of {} workers", setup.name, cores.len()));
    let mut all_rows_per_s = one_rows_per_s;
    if cores.len() > 1 {
        let (all, handle) = build(setup, cores)?;
        let in_flight = (IN_FLIGHT * cores.len()).min(setup.max_queue_size as usize);
        all_rows_per_s =
            on_core(client, || throughput(&handle, rows, (batch, in_flight), time_box))??;
        let more = all.stats().hot_path_allocations_total;
        allocations = allocations.zip(more).map(|(a, b)| a + b);
    }
    Ok(ModelRow {
        name: setup.name.clone(),
        engine: setup.engine.kind().name(),
        load_ns: model.load.0,
        input: if model.golden { "golden" } else { "zeros" },
        core: last,
        batches,
        throughput: Throughput {
            batch,
            cores: cores.to_vec(),
            one_rows_per_s,
            all_rows_per_s,
            efficiency: all_rows_per_s / (one_rows_per_s * cores.len() as f64),
        },
        hot_path_allocations: allocations,
        allocation_free: description.allocation_free,
    })
}
