//! A server in simulated time: workers that take requests in order, each with its own service time.

use super::{Broken, End, Ends, Port};
use crate::units::{CloseReason, Nanos, Receipt, Rows, WorkerId};
use crate::wire::ErrorCode;
use rand_pcg::Pcg32;
use rand_pcg::rand_core::{Rng, SeedableRng};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// What the server is like.
#[derive(Debug, Clone)]
pub(crate) struct Server {
    /// Workers.
    pub workers: usize,
    /// Mean service time of a request.
    pub service: Nanos,
    /// Service time of each further row.
    pub per_row: Nanos,
    /// A lock that all workers share is held while one computes.
    pub one_lock: bool,
    /// How much single service times vary: 0.1 is within 10 %.
    pub jitter: f64,
    /// How much the whole run's service time varies from run to run.
    pub drift: f64,
    /// Nothing begins in this window.
    pub stall: Option<(Nanos, Nanos)>,
    /// Requests that may wait or run; others are refused.
    pub in_system_max: usize,
    /// What one send costs the generator.
    pub send_cost: Nanos,
    /// The connection breaks at this instant.
    pub dies_at: Option<Nanos>,
}

impl Default for Server {
    fn default() -> Self {
        Server {
            workers: 1,
            service: Nanos(1_000_000),
            per_row: Nanos(0),
            one_lock: false,
            jitter: 0.0,
            drift: 0.0,
            stall: None,
            in_system_max: usize::MAX,
            send_cost: Nanos(0),
            dies_at: None,
        }
    }
}

pub(crate) struct SimPort {
    server: Server,
    random: Pcg32,
    scale: f64,
    now: Nanos,
    /// When each worker is free.
    free: Vec<Nanos>,
    /// When each ends, request, how long it waits and runs; the next to end on top.
    running: BinaryHeap<Reverse<(Nanos, u32, Nanos, Nanos)>>,
    refused: Vec<(u32, Nanos)>,
}

impl SimPort {
    pub(crate) fn new(server: Server, seed: u64) -> SimPort {
        let mut random = Pcg32::seed_from_u64(seed);
        let scale = 1.0 + server.drift * spread(&mut random);
        let free = vec![Nanos(0); server.workers];
        SimPort {
            server,
            random,
            scale,
            now: Nanos(1_000_000_000),
            free,
            running: BinaryHeap::new(),
            refused: Vec::new(),
        }
    }
}

/// About normal, with deviation 1, within 6.
fn spread(random: &mut Pcg32) -> f64 {
    (0..12).map(|_| f64::from(random.next_u32()) / f64::from(u32::MAX)).sum::<f64>() - 6.0
}

impl Port for SimPort {
    fn now(&self) -> Nanos {
        self.now
    }

    fn send(&mut self, index: u32, rows: u16) -> Result<bool, Broken> {
        self.now = self.now.after(self.server.send_cost);
        let limited = self.server.in_system_max < usize::MAX;
        let now = self.now;
        let in_system = || self.running.iter().filter(|r| r.0.0 > now).count();
        if limited && in_system() >= self.server.in_system_max {
            self.refused.push((index, now));
            return Ok(true);
        }
        let worker = (0..self.free.len()).min_by_key(|w| self.free[*w]).expect("a worker");
        let mut begin = self.free[worker].max(self.now);
        if let Some((from, to)) = self.server.stall
            && begin >= from
            && begin < to
        {
            begin = to;
        }
        let rows = self.server.per_row.0 * u64::from(rows.saturating_sub(1));
        let service = (self.server.service.0 + rows) as f64 * self.scale;
        let service = service * (1.0 + self.server.jitter * spread(&mut self.random)).max(0.1);
        // Who waits for the lock has begun: to the outside that is time in the model.
        let holders = if self.server.one_lock { self.free.as_slice() } else { &[] };
        let held_until = holders.iter().copied().max().unwrap_or_default();
        let service = held_until.since(begin).0 + service as u64;
        let end = begin.after(Nanos(service));
        self.free[worker] = end;
        let waits = begin.since(self.now);
        self.running.push(Reverse((end, index, waits, Nanos(service))));
        Ok(true)
    }

    fn turn(&mut self, ends: &mut Ends<'_>) -> Result<(), Broken> {
        if self.server.dies_at.is_some_and(|at| self.now >= at) {
            return Err(Broken("the server closed the connection".into()));
        }
        for (index, at) in self.refused.drain(..) {
            ends.note(index, at, End::Failed(ErrorCode::QueueFull.number()), None);
        }
        while let Some(Reverse((end, index, queue_ns, compute_infer_ns))) = self.running.peek() {
            if *end > self.now {
                break;
            }
            let receipt = Receipt {
                queue_ns: *queue_ns,
                compute_input_ns: Nanos(0),
                compute_infer_ns: *compute_infer_ns,
                compute_output_ns: Nanos(0),
                batch_size: Rows(1),
                close_reason: CloseReason::Idle,
                worker: WorkerId(0),
            };
            ends.note(*index, *end, End::Answered, Some(receipt));
            self.running.pop();
        }
        Ok(())
    }

    fn wait(&mut self, until: Nanos) {
        let next = self.running.peek().map_or(until, |r| r.0.0);
        // Time always goes on.
        self.now = until.min(next).max(self.now.after(Nanos(1)));
    }

    fn in_flight(&self) -> usize {
        self.running.len() + self.refused.len()
    }
}
