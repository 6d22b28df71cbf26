//! The ways to the runtime, with a model that computes nothing: what each of them costs.

use super::WayRow;
use crate::client::serial::{Port, SerialClient, SerialRequest};
use crate::client::{Address, Client, Options};
use crate::engine::fake::FakeCompute;
use crate::lab::overhead::{Error, echo_model, on_core, two_cores};
use crate::lab::run::Percentiles;
use crate::runtime::Runtime;
use crate::sys::clock;
use crate::sys::terminal::{hold_open, pseudo_terminal};
use crate::transport::{SerialOptions, ServerOptions, TcpOptions, UnixOptions};
use crate::units::{Micros, Nanos, Rows};
use crate::wire::link::LinkOptions;
use embedded_time::fraction::Fraction;
use rustix::io::Errno;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

/// How many ways there are.
pub(super) const COUNT: usize = 4;
/// Bytes each way.
const BYTES: usize = 64;
/// Round trips that every figure has at least.
const TRIPS_MIN: usize = 50;
/// Speed that is asked of the pseudo-terminal, which has none: what is left is the link's own cost.
const BAUD: u32 = 921_600;
/// Within which a serial request must have ended.
const PATIENCE: Micros = Micros(10_000_000);

/// Calls `trip` for as long as the box is; the first ones are not counted.
fn trips(
    time_box: Nanos,
    mut trip: impl FnMut() -> Result<(), Error>,
) -> Result<Percentiles, Error> {
    for _ in 0..TRIPS_MIN {
        trip()?;
    }
    let mut times = Vec::new();
    let end = clock::now().after(time_box);
    while times.len() < TRIPS_MIN || clock::now() < end {
        let start = clock::now();
        trip()?;
        times.push(clock::now().since(start).0);
    }
    Ok(Percentiles::of(&mut times))
}

fn right(answer: &[u8], sent: &[u8]) -> Result<(), Error> {
    if answer == sent { Ok(()) } else { Err("the runtime returned other bytes".into()) }
}

/// The client's end of a pseudo-terminal.
struct Line {
    fd: OwnedFd,
    /// Held, so that the line does not hang up before the server has it.
    _other: OwnedFd,
}

impl Line {
    fn new() -> Result<(Line, PathBuf), Errno> {
        let (fd, path) = pseudo_terminal()?;
        rustix::fs::fcntl_setfl(&fd, rustix::fs::OFlags::NONBLOCK)?;
        let other = hold_open(fd.as_fd())?;
        Ok((Line { fd, _other: other }, path))
    }
}

impl Port for Line {
    type Error = Errno;
    fn read(&mut self, into: &mut [u8]) -> Result<usize, Errno> {
        match rustix::io::read(&self.fd, into) {
            Err(Errno::AGAIN | Errno::IO) => Ok(0),
            result => result,
        }
    }
    fn write(&mut self, bytes: &[u8]) -> Result<usize, Errno> {
        match rustix::io::write(&self.fd, bytes) {
            Err(Errno::AGAIN) => Ok(0),
            result => result,
        }
    }
    fn idle(&mut self, micros: u64) {
        // Sleeps until bytes come, as firmware sleeps until its interrupt.
        let mut fds = [rustix::event::PollFd::new(&self.fd, rustix::event::PollFlags::IN)];
        let timeout = rustix::time::Timespec {
            tv_sec: (micros / 1_000_000) as _,
            tv_nsec: (micros % 1_000_000 * 1000) as _,
        };
        let _ = rustix::event::poll(&mut fds, Some(&timeout));
    }
}

struct MicroClock;

impl embedded_time::Clock for MicroClock {
    type T = u64;
    const SCALING_FACTOR: Fraction = Fraction::new(1, 1_000_000);
    fn try_now(&self) -> Result<embedded_time::Instant<Self>, embedded_time::clock::Error> {
        Ok(embedded_time::Instant::new(clock::now().0 / 1000))
    }
}

fn socket(address: &Address, name: &str, time_box: Nanos) -> Result<Percentiles, Error> {
    let mut client = Client::connect(address, Options::default())?;
    let model = client.open(name)?;
    let payload = [7u8; BYTES];
    trips(time_box, || {
        let answer = client.infer(&model, Rows(1), &payload)?;
        right(&answer.payload, &payload)?;
        client.give_back(answer.payload);
        Ok(())
    })
}

fn serial(line: &mut Line, name: &str, time_box: Nanos) -> Result<Percentiles, Error> {
    let told = |e: &dyn std::fmt::Debug| -> Error { format!("serial line: {e:?}").into() };
    let options = LinkOptions::new(BAUD);
    let mut client =
        SerialClient::new(MicroClock, options, [0u8; 512], [0u8; 2048], 1).map_err(|e| told(&e))?;
    let model = client.open(line, name, PATIENCE).map_err(|e| told(&e))?;
    let payload = [7u8; BYTES];
    trips(time_box, || {
        let mut answer = [0u8; BYTES];
        let request = SerialRequest::row(PATIENCE);
        client
            .infer(line, &model, request, payload.iter().copied(), &mut |at, bytes| {
                if let Some(to) = answer.get_mut(at..at + bytes.len()) {
                    to.copy_from_slice(bytes);
                }
            })
            .map_err(|e| told(&e))?;
        right(&answer, &payload)
    })
}

pub(super) fn measure(
    time_box: Nanos,
    progress: &mut impl FnMut(&str),
) -> Result<Vec<WayRow>, Error> {
    let (client, worker) = two_cores()?;
    let setup = echo_model(BYTES, &[1], FakeCompute::default())?;
    let name = setup.name.clone();
    let mut runtime = Runtime::builder().cores([worker]).model(setup).build()?;
    let path = std::env::temp_dir().join(format!(
        "corelane-card-{}-{}.sock",
        std::process::id(),
        clock::now()
    ));
    let line = Line::new();
    let serial_options =
        |path: &PathBuf| SerialOptions { path: path.clone(), baud: BAUD, rts_cts: false };
    let options = ServerOptions {
        unix: Some(UnixOptions::new(&path)),
        tcp: Some(TcpOptions::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))),
        serial: line.iter().map(|(_, path)| serial_options(path)).collect(),
        ..ServerOptions::default()
    };
    let model = runtime.client().model(&name)?;
    let server = runtime.serve(options, Some(worker))?;
    let placement = format!("client on core {client}, I/O and worker on core {worker}");
    let row = |way, round_trip: Result<Percentiles, String>| WayRow {
        way,
        bytes: BYTES,
        placement: placement.clone(),
        absent: round_trip.as_ref().err().cloned(),
        round_trip: round_trip.ok(),
    };
    let mut rows = Vec::new();
    progress("way in process");
    let in_process = on_core(client, || {
        trips(time_box, || {
            let mut request = model.request(1)?;
            request.input_bytes_mut(0)?.fill(7);
            right(request.infer()?.output_bytes(0)?, &[7; BYTES])
        })
    })??;
    rows.push(row("in process", Ok(in_process)));
    progress("way unix");
    let unix = Address::Unix(path);
    rows.push(row("unix", Ok(on_core(client, || socket(&unix, &name, time_box))??)));
    progress("way tcp");
    let tcp = match server.tcp_address() {
        Some(at) => {
            let address = Address::Tcp(at.to_string());
            Ok(on_core(client, || socket(&address, &name, time_box))??)
        }
        None => Err("the server has no TCP address".into()),
    };
    rows.push(row("tcp", tcp));
    progress("way serial");
    let serial = match line {
        Ok((mut line, _)) => Ok(on_core(client, || serial(&mut line, &name, time_box))??),
        Err(error) => Err(format!("no pseudo-terminal: {error}")),
    };
    rows.push(row("serial (pseudo-terminal)", serial));
    drop(server);
    Ok(rows)
}
