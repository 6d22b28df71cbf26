//! `corelane serve`: models behind sockets, until told to stop.

use crate::args::{Mismatch, ServeArgs};
use crate::build;
use crate::exit::{Code, Exit, Outcome};
use crate::logger::OUTPUT;
use crate::out::outln;
use crate::ready::{Drained, Ready};
use crate::record::Recorder;
use crate::stop::Stop;
use crate::supervisor::{Pulse, Supervisor};
use crate::{endpoint, hot, link, reload};
use corelane::board::Machine;
use corelane::config::{Config, Listen, ModelControl, ModelControlMode, ModelEntry, Workers};
use corelane::engine::MemoryOptions;
use corelane::limits::{PRINT_PATIENCE_MS_MAX, PRINT_PATIENCE_MS_MIN};
use corelane::logs::{Format, Keeper, LogFile, Table};
use corelane::metrics::http::Endpoint;
use corelane::runtime::{BoardMismatch, Runtime, ServeError, take_board};
use corelane::sys::{affinity, clock, descriptors, events};
use corelane::transport::{BindError, Server, ServerOptions, TcpOptions, UnixOptions};
use corelane::units::{CoreId, Nanos};
use log::LevelFilter;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

/// Runs the command.
pub fn run(args: &ServeArgs, log: Option<LevelFilter>, format: Option<Format>) -> Outcome {
    serve(args, log, format, None)
}

/// Serves until told to stop, and hands the arrivals to `recorder`, if there is one.
pub fn serve(
    args: &ServeArgs,
    level: Option<LevelFilter>,
    format: Option<Format>,
    mut recorder: Option<Recorder<'_>>,
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
    let board =
        take_board(&mut config, &Machine::here()).map_err(|e| Exit::new(Code::Config, e))?;
    let supervisor = Supervisor::from_env()?;
    let signals = Stop::listen(reload::hangup_ends(config.model_control, &supervisor))?;
    let start = clock::now();
    // What is still too few then is an error of the doors, with the numbers.
    descriptors::raise_limit();
    let (mut runtime, not_served) = build::build(&config)?;
    options.arrivals = recorder.as_mut().map(|r| r.begin(&runtime)).transpose()?;
    let housekeeping = runtime.housekeeping_cores().map_err(|e| Exit::new(Code::Config, e))?;
    if !housekeeping.is_empty() {
        // This thread, and those it starts from here on, stay off the workers' cores.
        affinity::restrict(&housekeeping).map_err(|e| Exit::new(Code::Config, e))?;
    }
    let failed = |e| Exit::new(Code::Failure, format_args!("the log thread: {e}"));
    keeper.replace(Keeper::start(&OUTPUT, table).map_err(failed)?);
    let io_core = config.io_core.or(housekeeping.first().copied());
    let hangup = reload::start(config.model_control, runtime.reloader(), &supervisor)?;
    signals.opening(runtime.client(), hangup);
    if config.model_control.mode != ModelControlMode::None {
        options.reload = Some(runtime.reload_handler());
    }
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
    // Plain data with text keys: it always has a JSON form.
    let counts = || serde_json::to_value(OUTPUT.counts()).unwrap_or_default();
    runtime.shared().add_stats("log", counts);
    if let Some(board) = &board {
        runtime.shared().add_fact("board", board);
    }
    let found = metrics.as_ref().map(Endpoint::address);
    let mut ready = Ready::new(&runtime, addresses, found, io_core, took);
    (ready.board, ready.not_served) = (board, not_served);
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
    let mut outcome = drain(&runtime, server, &config, &signals);
    if let Some(recorder) = recorder {
        outcome = outcome.and(recorder.write());
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

fn drain(runtime: &Runtime, server: Server, config: &Config, signals: &Stop) -> Outcome {
    log::info!("draining");
    let started = clock::now();
    let report = runtime.drain_while(server, config.drain_timeout, || !signals.is_cut_short());
    // All that is said from here on, on both outputs, has what the drain has left of its time.
    let left =
        config.drain_timeout.saturating_sub(Duration::from_nanos(clock::now().since(started).0));
    let [least, most] = [PRINT_PATIENCE_MS_MIN, PRINT_PATIENCE_MS_MAX].map(Duration::from_millis);
    OUTPUT.end_by(clock::now().after(Nanos(left.clamp(least, most).as_nanos() as u64)));
    Drained::new(&runtime.stats(), report).print();
    if report.clean {
        return Ok(());
    }
    let by = match signals.is_cut_short() {
        true => "by a second signal".to_string(),
        false => format!("after {} ms", clock::now().since(started).0 / 1_000_000),
    };
    let text = format!(
        "stopped {by}, with {} accepted requests without answer and {} answers that their clients did not take",
        report.left, report.unread
    );
    Err(Exit::new(Code::Unclean, text))
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
        model_control: ModelControl {
            mode: args.model_control_mode.unwrap_or_default(),
            ..default.model_control
        },
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
    Ok(ServerOptions {
        unix,
        tcp,
        serial: listen.serial.clone(),
        connections_max: listen.connections_max,
        workers_tend: listen.workers_tend,
        ..ServerOptions::default()
    })
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
