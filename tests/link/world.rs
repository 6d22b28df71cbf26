//! Client, line and server, and the time that they share.

use crate::line::{Faults, Line, Random};
use crate::server::{Model, Server, compute};
use corelane::client::serial::{
    Opening, Port, Retries, SerialAnswer, SerialClient, SerialError, SerialModel, SerialRequest,
};
use corelane::units::{Micros, Rows};
use corelane::wire::link::LinkOptions;
use embedded_time::fraction::Fraction;
use embedded_time::{Clock, Instant};
use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::rc::Rc;

#[derive(Debug, Clone, Default)]
pub struct SimClock(Rc<Cell<u64>>);

impl SimClock {
    pub fn ns(&self) -> u64 {
        self.0.get()
    }
}

impl Clock for SimClock {
    type T = u64;
    const SCALING_FACTOR: Fraction = Fraction::new(1, 1_000_000_000);
    fn try_now(&self) -> Result<Instant<Self>, embedded_time::clock::Error> {
        Ok(Instant::new(self.0.get()))
    }
}

pub struct Machines {
    pub up: Line,
    pub down: Line,
    pub server: Server,
    pub clock: SimClock,
    /// The server restarts when the line has carried so many bytes to it.
    pub server_restart_at: Option<u64>,
    /// The client is to give up when it has sent so many bytes: it restarts then.
    pub client_restart_at: Option<u64>,
    baud: u32,
    seed: u32,
}

impl Machines {
    /// Lets the server do what it can at this instant.
    fn settle(&mut self) {
        let now = self.clock.ns();
        if self.server_restart_at.is_some_and(|at| self.up.sent >= at) {
            self.server_restart_at = None;
            self.seed += 1;
            self.server.restart(self.baud, self.seed);
        }
        let mut chunk = [0; 512];
        loop {
            let n = self.up.read(now, &mut chunk);
            self.server.receive(now, &chunk[..n]);
            if n == 0 {
                break;
            }
        }
        self.server.turn(now);
        loop {
            let room = self.down.room(now).min(chunk.len());
            let n = self.server.link.transmit(now / 1000, &mut chunk[..room]);
            assert_eq!(self.down.write(now, &chunk[..n]), n);
            if n == 0 {
                break;
            }
            self.server.turn(now);
        }
    }
    /// The next instant at which something happens by itself.
    fn next(&self) -> u64 {
        let now = self.clock.ns();
        let blocked = (self.server.link.wants_transmit()).then(|| self.down.room_at().max(now + 1));
        let up = Some(self.up.room_at()).filter(|&at| at > now);
        [self.up.next_arrival(), self.down.next_arrival(), self.server.next_instant(), blocked, up]
            .into_iter()
            .flatten()
            .min()
            .unwrap_or(u64::MAX)
            .max(now + 1)
    }
}

/// The client's end of the line.
#[derive(Clone)]
pub struct SimPort(pub Rc<RefCell<Machines>>);

impl Port for SimPort {
    type Error = Infallible;

    fn read(&mut self, into: &mut [u8]) -> Result<usize, Infallible> {
        let mut machines = self.0.borrow_mut();
        machines.settle();
        let now = machines.clock.ns();
        Ok(machines.down.read(now, into))
    }
    fn write(&mut self, bytes: &[u8]) -> Result<usize, Infallible> {
        let mut machines = self.0.borrow_mut();
        let now = machines.clock.ns();
        Ok(machines.up.write(now, bytes))
    }
    fn idle(&mut self, micros: u64) {
        let machines = self.0.borrow();
        let now = machines.clock.ns();
        let own = now.saturating_add(micros.clamp(1, 1 << 40) * 1000);
        machines.clock.0.set(machines.next().min(own));
    }
    fn cancelled(&mut self) -> bool {
        let mut machines = self.0.borrow_mut();
        let sent = machines.up.sent;
        if machines.client_restart_at.is_some_and(|at| sent >= at) {
            machines.client_restart_at = None;
            return true;
        }
        false
    }
}

pub type Client = SerialClient<SimClock, Vec<u8>, Vec<u8>>;

pub struct World {
    pub machines: Rc<RefCell<Machines>>,
    pub port: SimPort,
    pub client: Client,
    pub clock: SimClock,
    pub random: Random,
    sizes: (usize, usize),
    seed: u32,
    baud: u32,
}

/// Longest that a request may take beyond its deadline: one turn of the loop.
pub const SLACK_US: u64 = 2_000;

impl World {
    pub fn new(
        baud: u32,
        latency_us: u64,
        sizes: (usize, usize),
        models: &[Model],
        seed: u32,
    ) -> World {
        let clock = SimClock::default();
        let machines = Rc::new(RefCell::new(Machines {
            up: Line::new(baud.into(), latency_us * 1000, u64::from(seed) * 2 + 1),
            down: Line::new(baud.into(), latency_us * 1000, u64::from(seed) * 2 + 2),
            server: Server::new(baud, models, seed),
            clock: clock.clone(),
            server_restart_at: None,
            client_restart_at: None,
            baud,
            seed,
        }));
        let client = client(baud, sizes, &clock, seed);
        let port = SimPort(machines.clone());
        let random = Random::new(u64::from(seed) + 77);
        World { machines, port, client, clock, random, sizes, seed, baud }
    }
    /// The microcontroller is switched off and on.
    pub fn restart_client(&mut self) {
        self.seed += 1;
        self.client = client(self.baud, self.sizes, &self.clock, self.seed);
    }
    pub fn set_faults(&mut self, faults: Faults) {
        let mut machines = self.machines.borrow_mut();
        machines.up.faults = faults;
        machines.down.faults = faults;
    }
    pub fn open<'a>(
        &mut self,
        opening: impl Into<Opening<'a>>,
        within_ms: u32,
    ) -> Result<SerialModel, SerialError> {
        self.client.open(&mut self.port, opening, Micros(within_ms * 1000))
    }
    /// One inference with random input. Panics if the answer is wrong, or the deadline was missed.
    pub fn infer(
        &mut self,
        model: &SerialModel,
        within_ms: u32,
    ) -> Result<SerialAnswer, SerialError> {
        let input: Vec<u8> = (0..model.input_len(Rows(1)))
            .map(|_| if self.random.once_in(4) { 0 } else { self.random.next() as u8 })
            .collect();
        let wanted = compute(&input, model.output_len(Rows(1)));
        let mut got = vec![0xEE; wanted.len()];
        let begin = self.clock.ns();
        let request = SerialRequest::row(Micros(within_ms * 1000));
        let result = self.client.infer(
            &mut self.port,
            model,
            request,
            input.iter().copied(),
            &mut |at, bytes| got[at..at + bytes.len()].copy_from_slice(bytes),
        );
        let took_us = (self.clock.ns() - begin) / 1000;
        assert!(took_us <= u64::from(within_ms) * 1000 + SLACK_US, "{took_us} us: {result:?}");
        if result.is_ok() {
            assert!(got == wanted, "a wrong answer was accepted");
        }
        for (request, times) in &self.machines.borrow().server.executed {
            assert_eq!(*times, 1, "{request:?} was executed {times} times");
        }
        self.machines.borrow_mut().server.executed.clear();
        result
    }
    pub fn infer_retrying<'a>(
        &mut self,
        opening: impl Into<Opening<'a>>,
        model: &mut SerialModel,
        within_ms: u32,
        retries: Retries,
    ) -> Result<SerialAnswer, SerialError> {
        let input: Vec<u8> =
            (0..model.input_len(Rows(1))).map(|_| self.random.next() as u8).collect();
        let wanted = compute(&input, model.output_len(Rows(1)));
        let mut got = vec![0xEE; wanted.len()];
        let result = self.client.infer_retrying(
            &mut self.port,
            (opening, model),
            SerialRequest::row(Micros(within_ms * 1000)),
            retries,
            || input.iter().copied(),
            &mut |at, bytes| got[at..at + bytes.len()].copy_from_slice(bytes),
        );
        if result.is_ok() {
            assert!(got == wanted, "a wrong answer was accepted");
        }
        result
    }
}

fn client(baud: u32, (receive, send): (usize, usize), clock: &SimClock, seed: u32) -> Client {
    let options = LinkOptions { receive_window: 2048, ..LinkOptions::new(baud) };
    SerialClient::new(clock.clone(), options, vec![0; receive], vec![0; send], seed).unwrap()
}
