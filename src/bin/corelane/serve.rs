//! `corelane serve`: models behind sockets, until told to stop.

use crate::args::{Mismatch, RecordArgs, ServeArgs};
use crate::build::{self, NotServed};
use crate::exit::{Code, Exit, Outcome};
use crate::logger::OUTPUT;
use crate::out::outln;
use crate::supervisor::{Pulse, Supervisor};
use crate::{endpoint, hot, link};
use corelane::board::Machine;
use corelane::config::{Config, Listen, ModelEntry, Workers};
use corelane::engine::MemoryOptions;
use corelane::lab::schedule::Arrival;
use corelane::lab::schedule::trace::{RecordedPayloads, Trace, payloads_file};
use corelane::logs::{Format, Keeper, LogFile, Table};
use corelane::model::CacheState;
use corelane::runtime::{
    BoardMismatch, PlannedBoard, Runtime, ServeError, ServedModel, plan_board,
};
use corelane::sys::sync::{Arc, AtomicBool, Ordering};
use corelane::sys::{affinity, clock, events, memory as system_memory, region};
use corelane::transport::{Arrivals, BindError, Server, ServerOptions, TcpOptions, UnixOptions};
use corelane::units::{CoreId, ModelId, Nanos};
use log::LevelFilter;
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::mpsc;
use std::time::Duration;

/// Runs the command.
pub fn run(args: &ServeArgs, log: Option<LevelFilter>, format: Option<Format>) -> Outcome {
    serve(args, log, format, None)
}

/// Runs `record`: serves, and writes the arrivals down in the end.
pub fn record(args: &RecordArgs, log: Option<LevelFilter>, format: Option<Format>) -> Outcome {
    // A place that can't be written is found before anything is served.
    let unwritable = |e: std::io::Error| {
        Exit::new(Code::Usage, format_args!("the trace {}: {e}", args.out.display()))
    };
    std::fs::write(&args.out, "").map_err(unwritable)?;
    // Those of an earlier trace of this name are not this one's.
    match std::fs::remove_file(payloads_file(&args.out)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(unwritable(error));
        }
        _ => {}
    }
    serve(&args.serve, log, format, Some(args))
}

/// Writes the arrivals of one model.
fn write_trace(args: &RecordArgs, model: (ModelId, &str), arrivals: &Arrivals) -> Outcome {
    let failed = |e: &dyn std::fmt::Display| {
        Exit::new(Code::Failure, format_args!("the trace {}: {e}", args.out.display()))
    };
    let all = arrivals.read_with_payloads();
    let lost = arrivals.total() - all.len() as u64;
    let (mine, payloads): (Vec<_>, Vec<_>) =
        all.into_iter().filter(|(a, _)| a.model == model.0).unzip();
    let start = mine.first().map_or(Nanos(0), |a| a.at);
    let trace = Trace {
        model: model.1.into(),
        arrivals: mine
            .iter()
            .map(|a| Arrival { at: a.at.since(start), rows: a.rows.0.max(1) })
            .collect(),
    };
    std::fs::write(&args.out, trace.text()).map_err(|e| failed(&e))?;
    log::info!("{} arrivals of {} written; {lost} older ones were lost", mine.len(), model.1);
    if args.payloads.is_some() {
        let kept = payloads.iter().flatten().count();
        let payloads = payloads.into_iter().map(Option::unwrap_or_default).collect();
        std::fs::write(payloads_file(&args.out), RecordedPayloads(payloads).bytes())
            .map_err(|e| failed(&e))?;
        log::info!("payloads of {kept} of them written");
    }
    Ok(())
}

fn serve(
    args: &ServeArgs,
    level: Option<LevelFilter>,
    format: Option<Format>,
    record: Option<&RecordArgs>,
) -> Outcome {
    let mut config = match &args.config {
        Some(path) => Config::read(path).map_err(|e| Exit::new(Code::Config, e))?,
        None => from_args(args),
    };
    config.log_level = level.unwrap_or(config.log_level);
    config.log.format = format.unwrap_or(config.log.format);
    config.log.file = args.log_file.clone().or(config.log.file);
    let mut options = options(&config.listen)?;
    if options.unix.is_none() && options.tcp.is_none() && options.serial.is_empty() {
        let text = "nothing to listen on; give a Unix socket (--unix PATH, or listen.unix), a \
                    TCP address (--tcp ADDR, or listen.tcp) or a serial port (--serial DEVICE:BAUD, \
                    or listen.serial)";
        let code = if args.config.is_some() { Code::Config } else { Code::Usage };
        return Err(Exit::new(code, text));
    }
    let table = begin_log(&config)?;
    // Dropped last: what workers tell in the end is still taken.
    let mut keeper = None;
    let board = plan(&mut config)?;
    let supervisor = Supervisor::from_env()?;
    let signals = Stop::listen()?;
    let start = clock::now();
    // Before weights are allocated; the runtime asks again and tells.
    let _ = config.realtime.process.apply_early();
    region::configure(config.memory);
    let (mut runtime, not_served) = build::build(&config)?;
    let traced = record.map(|r| traced(&runtime, r)).transpose()?;
    let arrivals = record.zip(traced.as_ref()).map(|(record, (model, _))| {
        let arrivals = Arrivals::new(record.entries as usize);
        Arc::new(match record.payloads {
            Some(mib) => arrivals.with_payloads(*model, usize::from(mib) << 20),
            None => arrivals,
        })
    });
    options.arrivals.clone_from(&arrivals);
    let housekeeping = runtime.housekeeping_cores().map_err(|e| Exit::new(Code::Config, e))?;
    if !housekeeping.is_empty() {
        // This thread, and those it starts from here on, stay off the workers' cores.
        affinity::restrict(&housekeeping).map_err(|e| Exit::new(Code::Config, e))?;
    }
    let failed = |e| Exit::new(Code::Failure, format_args!("the log thread: {e}"));
    keeper.replace(Keeper::start(&OUTPUT, table).map_err(failed)?);
    let io_core = config.io_core.or(housekeeping.first().copied());
    signals.opening();
    let unix = options.unix.as_ref().map(|unix| format!("unix:{}", unix.path.display()));
    let serial: Vec<String> = options.serial.iter().map(|port| format!("serial:{port}")).collect();
    let server = runtime.serve(options, io_core).map_err(|e| refused(&e))?;
    let metrics = match &config.metrics {
        Some(address) => {
            let open = config.metrics_allow_non_loopback;
            Some(endpoint::start(address, open, runtime.client())?)
        }
        None => None,
    };
    let tcp = server.tcp_address();
    let tcp = tcp.map(|address| format!("tcp:{address}"));
    let addresses: Vec<String> = unix.into_iter().chain(tcp).chain(serial).collect();
    log::info!("ready on {}", addresses.join(" and "));
    let took = clock::now().since(start).0;
    if !not_served.is_empty() {
        let value = serde_json::to_value(&not_served).map_err(|e| Exit::new(Code::Failure, e))?;
        runtime.shared().add_stats("not_served", move || value.clone());
    }
    // Plain data with text keys: it always has a JSON form.
    let counts = || serde_json::to_value(OUTPUT.counts()).unwrap_or_default();
    runtime.shared().add_stats("log", counts);
    if let Some(board) = &board {
        let value = serde_json::to_value(board).map_err(|e| Exit::new(Code::Failure, e))?;
        runtime.shared().add_stats("board", move || value.clone());
    }
    let ready =
        Ready { board, not_served, ..Ready::new(&runtime, addresses, metrics, io_core, took) };
    let line = serde_json::to_string(&ready).map_err(|e| Exit::new(Code::Failure, e))?;
    crate::out::outlive_the_reader();
    outln!("{line}");
    supervisor.say("READY=1\nSTATUS=serving");
    let mut pulse = Pulse::new();
    signals.wait(supervisor.beat_every(), || {
        if let Some(stuck) = pulse.stuck(&runtime, &server) {
            // The supervisor hears nothing more, and acts when its patience is over.
            log::error!("{stuck}");
        } else {
            supervisor.say("WATCHDOG=1");
        }
    });
    supervisor.say("STOPPING=1\nSTATUS=draining");
    let mut outcome = drain(&runtime, server, &config);
    if let (Some(record), Some((id, name)), Some(arrivals)) = (record, &traced, &arrivals) {
        outcome = outcome.and(write_trace(record, (*id, name), arrivals));
    }
    if outcome.is_err() {
        // The time is up; dropping the runtime would wait again.
        std::mem::forget(runtime);
    }
    outcome
}

/// Opens the log as configured; what records of events mean.
fn begin_log(config: &Config) -> Result<Table, Exit> {
    log::set_max_level(config.log_level);
    OUTPUT.set_format(config.log.format);
    let table = match config.log_level {
        // No event would be told, so no thread needs a ring.
        LevelFilter::Off => Table::default(),
        _ => hot::install(config.log.ring_bytes).map_err(|e| Exit::new(Code::Failure, e))?,
    };
    if let Some(path) = &config.log.file {
        let file = LogFile::create(path, table.clone(), config.log.file_bytes_max)
            .map_err(|e| Exit::new(Code::Usage, e))?;
        OUTPUT.set_file(file);
    }
    events::set_level(config.log_level);
    Ok(table)
}

/// Takes the cores from the board's plan, where a board is named.
fn plan(config: &mut Config) -> Result<Option<PlannedBoard>, Exit> {
    let Some(asked) = &config.board else { return Ok(None) };
    let planned = plan_board(asked, &Machine::here(), config.board_mismatch)
        .map_err(|e| Exit::new(Code::Config, e))?;
    log::info!("board {}: {}, {}", planned.board, planned.title, planned.found);
    for difference in &planned.differences {
        log::warn!("board {}: {difference}", planned.board);
    }
    config.workers = Workers::Cores(planned.got_workers.clone());
    config.io_core = planned.got_io;
    Ok(Some(planned))
}

/// The model whose arrivals are to be written.
fn traced(runtime: &Runtime, args: &RecordArgs) -> Result<(ModelId, String), Exit> {
    let shared = runtime.shared();
    let names: Vec<&str> = shared.models.iter().map(|m| m.setup.name.as_str()).collect();
    let found = match (&args.trace_model, names.as_slice()) {
        (Some(wanted), _) => names.iter().position(|n| n == wanted),
        (None, [_]) => Some(0),
        (None, _) => None,
    };
    match found {
        Some(at) => Ok((ModelId(at as u16), names[at].to_string())),
        None => {
            let text = format!("choose a model (--trace-model): there are {}", names.join(", "));
            Err(Exit::new(Code::Usage, text))
        }
    }
}

/// The last line on standard output.
#[derive(Serialize)]
struct Drained {
    drained: bool,
    /// Requests accepted since the start.
    accepted: u64,
    /// Those that were answered.
    answered: u64,
    /// Those that ended in an error.
    failed: u64,
    /// Those that had no end when the time was up.
    left: u32,
}

fn drain(runtime: &Runtime, server: Server, config: &Config) -> Outcome {
    log::info!("draining");
    let report = runtime.drain_with(server, config.drain_timeout);
    let stats = runtime.stats();
    let accepted: u64 = stats.models.iter().map(|m| m.accepted).sum();
    let answered: u64 = stats.models.iter().map(|m| m.inference_request_success).sum();
    let drained = Drained {
        drained: report.clean,
        accepted,
        answered,
        failed: accepted.saturating_sub(answered + u64::from(report.left)),
        left: report.left,
    };
    let line = serde_json::to_string(&drained).map_err(|e| Exit::new(Code::Failure, e))?;
    outln!("{line}");
    if report.clean {
        return Ok(());
    }
    let text = format!(
        "stopped after {} ms with {} requests without answer, or answers not read",
        config.drain_timeout.as_millis(),
        report.left
    );
    Err(Exit::new(Code::Unclean, text))
}

/// SIGTERM and SIGINT: the first asks for a drain, the second ends the program at once.
struct Stop {
    asked: mpsc::Receiver<()>,
    open: Arc<AtomicBool>,
}

impl Stop {
    fn listen() -> Result<Stop, Exit> {
        let failed = |e: std::io::Error| Exit::new(Code::Failure, format_args!("signals: {e}"));
        let mut signals = Signals::new([SIGTERM, SIGINT]).map_err(failed)?;
        let (ask, asked) = mpsc::channel();
        let open = Arc::new(AtomicBool::new(false));
        let theirs = open.clone();
        let thread = std::thread::Builder::new().name("cl-signals".into());
        thread
            .spawn(move || {
                for (n, _) in signals.forever().enumerate() {
                    if n == 0 && !theirs.load(Ordering::Acquire) {
                        // Nothing was accepted yet, so nothing is lost.
                        std::process::exit(Code::Ok as i32);
                    }
                    if n > 0 {
                        eprintln!("corelane: stopped by a second signal");
                        std::process::exit(Code::Unclean as i32);
                    }
                    // The receiver lives as long as the program serves.
                    let _ = ask.send(());
                }
            })
            .map_err(failed)?;
        Ok(Stop { asked, open })
    }

    /// From here on requests may be accepted. Release, with the acquire of the signal thread: a
    /// signal after the doors opened drains.
    fn opening(&self) {
        self.open.store(true, Ordering::Release);
    }

    /// Waits for a signal, and calls `beat` meanwhile.
    fn wait(&self, beat_every: Option<Duration>, mut beat: impl FnMut()) {
        // An end of the channel is an end of the signal thread: stop too.
        let Some(every) = beat_every else {
            let _ = self.asked.recv();
            return;
        };
        while let Err(mpsc::RecvTimeoutError::Timeout) = self.asked.recv_timeout(every) {
            beat();
        }
    }
}

/// The configuration that the arguments describe.
fn from_args(args: &ServeArgs) -> Config {
    let default = Config::default();
    Config {
        workers: match (&args.cores, args.unpinned) {
            (Some(cores), _) => Workers::Cores(cores.0.clone()),
            (None, Some(n)) => Workers::Unpinned(n.into()),
            (None, None) => default.workers,
        },
        io_core: args.io_core.map(CoreId),
        board: args.board.clone(),
        board_mismatch: match args.board_mismatch {
            Some(Mismatch::Adapt) => BoardMismatch::Adapt,
            Some(Mismatch::Error) | None => BoardMismatch::Error,
        },
        idle: args.idle.unwrap_or(default.idle),
        models: args.models.iter().map(ModelEntry::new).collect(),
        listen: Listen {
            unix: args.unix.clone(),
            allow_uids: (!args.allow_uid.is_empty()).then(|| args.allow_uid.clone()),
            tcp: args.tcp.clone(),
            serial: args.serial.clone(),
            psk_file: args.psk_file.clone(),
            allow_non_loopback: args.non_loopback,
            ..default.listen
        },
        metrics: args.metrics.clone(),
        metrics_allow_non_loopback: args.non_loopback,
        cache: args.cache.clone(),
        memory: MemoryOptions {
            lock: args.lock_memory.unwrap_or_default(),
            huge_pages: args.huge_pages.unwrap_or_default(),
        },
        ..default
    }
}

/// An address with a port, by number or by name.
pub fn resolve(address: &str) -> Result<SocketAddr, Exit> {
    let wrong = |why: &dyn std::fmt::Display| {
        let text = format!("{address:?} is no address with a port, such as 127.0.0.1:7070: {why}");
        Exit::new(Code::Config, text)
    };
    let mut found = address.to_socket_addrs().map_err(|e| wrong(&e))?;
    found.next().ok_or_else(|| wrong(&"the name has no address"))
}

fn options(listen: &Listen) -> Result<ServerOptions, Exit> {
    let key = listen.psk_file.as_deref().map(link::read_key).transpose()?;
    let unix = listen.unix.as_ref().map(|path| UnixOptions {
        path: path.clone(),
        mode: listen.unix_mode,
        allowed_uids: listen.allow_uids.clone(),
    });
    let tcp = match &listen.tcp {
        Some(address) => Some(TcpOptions {
            address: resolve(address)?,
            allow_remote: listen.allow_non_loopback,
            key,
        }),
        None => None,
    };
    Ok(ServerOptions { unix, tcp, serial: listen.serial.clone(), ..ServerOptions::default() })
}

fn refused(error: &ServeError) -> Exit {
    let code = match error {
        ServeError::Bind(BindError::InUse { .. } | BindError::NotASocket { .. })
        | ServeError::Bind(BindError::Io { .. }) => Code::Unreachable,
        ServeError::Bind(_) | ServeError::Affinity(_) | ServeError::RealTime(_) => Code::Config,
        _ => Code::Failure,
    };
    let hint = match error {
        ServeError::Bind(BindError::NotLoopback { .. }) => {
            " (--non-loopback and --psk-file, or listen.allow_non_loopback and listen.psk_file)"
        }
        _ => "",
    };
    Exit::new(code, format_args!("{error}{hint}"))
}

/// The one line on standard output.
#[derive(Serialize)]
struct Ready {
    ready: bool,
    /// Layout version.
    schema: u32,
    pid: u32,
    version: &'static str,
    addresses: Vec<String>,
    /// Address of the Prometheus endpoint.
    metrics: Option<String>,
    models: Vec<ReadyModel>,
    /// Models that can't be served, with `on_load_error = "serve_others"`.
    not_served: Vec<NotServed>,
    workers: Vec<ReadyWorker>,
    /// The core that the I/O thread is pinned to.
    io_core: Option<u16>,
    /// The board whose plan named the cores, as wanted and as got.
    board: Option<PlannedBoard>,
    memory: Memory,
    /// Bytes of the process that are in memory.
    resident_bytes: Option<usize>,
    /// What was asked for, for weights and arenas, and what the system gave.
    regions: region::Report,
    /// From the start of loading to here.
    boot_ns: u64,
}

#[derive(Serialize)]
struct ReadyWorker {
    worker: usize,
    /// The core that it is pinned to; `null` if it runs unpinned.
    core: Option<u16>,
}

#[derive(Serialize)]
struct ReadyModel {
    name: String,
    engine: &'static str,
    batch_sizes: Vec<usize>,
    batching: bool,
    /// Why it does not batch.
    batching_reason: Option<String>,
    /// Golden rows that were compared at load.
    golden_rows: usize,
    max_queue_size: u32,
    max_request_rows: u16,
    /// Workers that serve it.
    workers: Vec<usize>,
    /// Whether its engine never calls the allocator once warm.
    allocation_free: bool,
    /// Whether it comes from a compiled cache.
    cache: CacheState,
    memory: Memory,
}

/// Bytes, all allocated before the line is printed.
#[derive(Serialize, Default, Clone, Copy)]
struct Memory {
    /// Shared by all workers, or those of each together.
    weight_bytes: usize,
    /// Intermediates, over all workers and batch sizes; `null` where an engine does not know.
    arena_bytes: Option<usize>,
    /// Staging areas, over all workers and batch sizes.
    staging_bytes: usize,
    /// Requests and answers.
    slot_bytes: usize,
}

impl ReadyModel {
    fn new(model: &ServedModel) -> ReadyModel {
        let setup = &model.setup;
        let spec = model.queue.spec();
        let description = setup.engine.describe();
        let workers: Vec<usize> =
            (0..u64::BITS as usize).filter(|w| spec.workers & (1 << w) != 0).collect();
        let batching = setup.inspection.as_ref().map(|i| &i.batching);
        ReadyModel {
            name: setup.name.clone(),
            engine: setup.engine.kind().name(),
            batch_sizes: setup.engine.batch_sizes().to_vec(),
            batching: setup.batch.max_batch_size > 1,
            batching_reason: batching.and_then(|b| b.reason.clone()),
            golden_rows: setup.inspection.as_ref().map_or(0, |i| i.golden_rows),
            max_queue_size: spec.max_queue_size,
            max_request_rows: spec.max_request_rows.0,
            allocation_free: description.allocation_free,
            cache: setup.inspection.as_ref().map_or(CacheState::Off, |i| i.cache.state),
            memory: Memory {
                weight_bytes: description.weight_bytes
                    * if description.weights_shared { 1 } else { workers.len() },
                arena_bytes: description.instance_arena_bytes.map(|n| n * workers.len()),
                staging_bytes: description.instance_staging_bytes * workers.len(),
                slot_bytes: model.queue.slot_bytes(),
            },
            workers,
        }
    }
}

impl Ready {
    fn new(
        runtime: &Runtime,
        addresses: Vec<String>,
        metrics: Option<SocketAddr>,
        io_core: Option<CoreId>,
        boot_ns: u64,
    ) -> Ready {
        let shared = runtime.shared();
        let models: Vec<ReadyModel> = shared.models.iter().map(ReadyModel::new).collect();
        let total = |f: fn(&Memory) -> usize| models.iter().map(|m| f(&m.memory)).sum();
        let memory = Memory {
            weight_bytes: total(|m| m.weight_bytes),
            arena_bytes: models.iter().map(|m| m.memory.arena_bytes).sum(),
            staging_bytes: total(|m| m.staging_bytes),
            slot_bytes: total(|m| m.slot_bytes),
        };
        let worker = |(worker, (core, _)): (usize, &(Option<CoreId>, _))| ReadyWorker {
            worker,
            core: core.map(|c| c.0),
        };
        Ready {
            ready: true,
            schema: 1,
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION"),
            addresses,
            metrics: metrics.map(|address| format!("http://{address}/metrics")),
            workers: shared.workers.iter().enumerate().map(worker).collect(),
            models,
            io_core: io_core.map(|c| c.0),
            board: None,
            not_served: Vec::new(),
            memory,
            resident_bytes: system_memory::resident_bytes(),
            regions: region::report(),
            boot_ns,
        }
    }
}
