use super::*;
use crate::engine::ort::OrtSettings;
use crate::engine::ort::settings::{Need, Provider};

fn parse(text: &str) -> Result<Config, String> {
    Config::parse("c.toml", text, Path::new("/base")).map_err(|e| e.to_string())
}

const MODEL: &str = "[[model]]\npath = 'm'\n";

#[test]
fn a_full_file_is_read() {
    let config = parse(
        "metrics = '127.0.0.1:9100'\ncache = 'plans'\n\
         [memory]\nlock = 'require'\nhuge_pages = 'try'\n\
         [runtime]\ncores = [1, 3]\nio_core = 0\nidle = { spin_us = 20 }\ndrain_timeout_ms = 50\nonnxruntime = 'ort.so'\n\
         [[model]]\npath = 'models/a'\nname = 'b'\nengine = 'ort'\nproviders = ['cuda:preferred', 'cpu']\nmax_batch_size = 4\nmax_queue_size = 7\nweight = 2\ncores = [3]\n\
         max_queue_delay_microseconds = 100\ndefault_timeout_microseconds = 0\n\
         [[model]]\npath = '/elsewhere/c.onnx'\n\
         [listen]\nunix = 'cl.sock'\nunix_mode = 0o660\nallow_uids = [0, 1000]\n\
         serial = ['/dev/ttyS1:921600', 'a:b:9600:rtscts']\n\
         tcp = '0.0.0.0:7070'\npsk_file = 'key'\nallow_non_loopback = true\nconnections_max = 30\nworkers_tend = false\n\
         [log]\nlevel = 'debug'\n",
    )
    .unwrap();
    let wanted = Config {
        workers: Workers::Cores(vec![CoreId(1), CoreId(3)]),
        io_core: Some(CoreId(0)),
        idle: IdleStrategy::SpinUs(Micros(20)),
        drain_timeout: Duration::from_millis(50),
        models: vec![
            ModelEntry {
                path: "/base/models/a".into(),
                name: Some("b".into()),
                engine: Some(EngineKind::Ort),
                providers: Some(vec![
                    Wanted { provider: Provider::Cuda, need: Need::Preferred },
                    Wanted { provider: Provider::Cpu, need: Need::Required },
                ]),
                onnxruntime: Some("/base/ort.so".into()),
                max_batch_size: Some(4),
                max_queue_size: Some(7),
                max_queue_delay: Some(Micros(100)),
                default_timeout: Some(Micros(0)),
                weight: Some(2),
                cores: Some(vec![CoreId(3)]),
            },
            ModelEntry {
                onnxruntime: Some("/base/ort.so".into()),
                ..ModelEntry::new("/elsewhere/c.onnx")
            },
        ],
        listen: Listen {
            unix: Some("/base/cl.sock".into()),
            unix_mode: 0o660,
            allow_uids: Some(vec![0, 1000]),
            tcp: Some("0.0.0.0:7070".into()),
            serial: vec![
                SerialOptions { path: "/dev/ttyS1".into(), baud: 921_600, rts_cts: false },
                SerialOptions { path: "a:b".into(), baud: 9_600, rts_cts: true },
            ],
            psk_file: Some("/base/key".into()),
            allow_non_loopback: true,
            connections_max: 30,
            workers_tend: false,
        },
        metrics: Some("127.0.0.1:9100".into()),
        log_level: log::LevelFilter::Debug,
        cache: Some("/base/plans".into()),
        memory: MemoryOptions { lock: Wish::Require, huge_pages: Wish::Try },
        ..Config::default()
    };
    assert_eq!(config, wanted);
}

#[test]
fn what_is_absent_has_its_default() {
    let models = vec![ModelEntry::new("/base/m")];
    assert_eq!(parse(MODEL).unwrap(), Config { models, ..Config::default() });
}

#[test]
fn a_serial_port_needs_a_device_and_a_speed() {
    for wrong in ["/dev/ttyS1", ":9600", "/dev/ttyS1:fast", "/dev/ttyS1:50", "/dev/ttyS1:9600:dtr"]
    {
        let error = parse(&format!("{MODEL}[listen]\nserial = ['{wrong}']\n")).unwrap_err();
        assert!(error.contains("write DEVICE:BAUD"), "{error}");
    }
}

#[test]
fn a_board_says_which_cores() {
    let with = |runtime: &str| parse(&format!("{MODEL}[runtime]\n{runtime}"));
    let config = with("board = 'rpi5'\nboard_mismatch = 'adapt'\n").unwrap();
    assert_eq!(config.board.as_deref(), Some("rpi5"));
    assert_eq!(config.board_mismatch, BoardMismatch::Adapt);
    let file = with("board = 'mine.toml'\n").unwrap();
    assert_eq!(file.board.as_deref(), Some("/base/mine.toml"));
    assert_eq!(file.board_mismatch, BoardMismatch::Error);
    for other in ["cores = [1]", "pin = false", "workers = 1", "io_core = 0"] {
        let error = with(&format!("board = 'auto'\n{other}\n")).unwrap_err();
        assert!(error.contains("not with `board`, whose plan says it"), "{error}");
    }
    let error = with("board = 'auto'\nboard_mismatch = 'ignore'\n").unwrap_err();
    assert!(error.contains("choose \"error\" or \"adapt\""), "{error}");
}

#[test]
fn real_time_options_are_read() {
    use crate::runtime::{Policy, ProcessOptions, ThreadOptions};
    use crate::units::Nanos;
    let with = |text: &str| parse(&format!("{MODEL}[realtime]\n{text}")).map(|c| c.realtime);
    let all = "scheduler = 'fifo'\npriority = 80\ntimer_slack_ns = 1000\nlock_memory = true\n\
               cpu_dma_latency_us = 0\ntransparent_huge_pages = 'off'\nrefused = 'run_on'\n";
    let wanted = RealTime {
        thread: ThreadOptions { policy: Some(Policy::Fifo(80)), timer_slack: Some(Nanos(1_000)) },
        process: ProcessOptions {
            lock_memory: true,
            cpu_dma_latency: Some(Micros(0)),
            no_huge_pages: true,
        },
        run_on: true,
    };
    assert_eq!(with(all), Ok(wanted));
    assert_eq!(with(""), Ok(RealTime::default()));
    assert_eq!(with("scheduler = 'rr'").unwrap().thread.policy, Some(Policy::RoundRobin(50)));
    for (text, says) in [
        ("priority = 5", "only with scheduler = \"fifo\" or \"rr\""),
        ("scheduler = 'other'\npriority = 5", "only with scheduler"),
        ("scheduler = 'fifo'\npriority = 100", "within 1 to 99"),
        ("scheduler = 'batch'", "choose \"fifo\", \"rr\" or \"other\""),
        ("transparent_huge_pages = 'on'", "choose \"system\" or \"off\""),
        ("refused = 'no'", "choose \"error\" or \"run_on\""),
        ("mlock = true", "unknown key"),
    ] {
        let error = with(text).unwrap_err();
        assert!(error.contains(says), "{text}: {error}");
    }
}

#[test]
fn unpinned_workers_are_asked_for() {
    let with = |runtime: &str| parse(&format!("{MODEL}[runtime]\n{runtime}")).map(|c| c.workers);
    assert_eq!(with("pin = false\nworkers = 3\n"), Ok(Workers::Unpinned(3)));
    assert_eq!(with("pin = false\n"), Ok(Workers::Unpinned(1)));
    assert_eq!(with("pin = true\n"), Ok(Workers::AllButFirst));
    let error = with("workers = 3\n").unwrap_err();
    assert!(
        error.starts_with("c.toml, line 4: `runtime.workers`: only with pin = false"),
        "{error}"
    );
    let error = with("pin = false\ncores = [0]\n").unwrap_err();
    assert!(error.starts_with("c.toml, line 5: `runtime.cores`: not with pin = false"), "{error}");
}

#[test]
fn errors_name_the_key_the_line_and_what_would_be_right() {
    for (text, wanted) in [
        (
            "[runtime]\ncors = [1]\n",
            "line 4: unknown key `runtime.cors`; did you mean `runtime.cores`?",
        ),
        ("[listen]\nunx = 'a'\n", "line 4: unknown key `listen.unx`; did you mean `listen.unix`?"),
        ("[lisen]\n", "line 3: unknown key `lisen`; did you mean `listen`?"),
        (
            "[[model]]\npath = 'x'\nmax_queue = 3\n",
            "line 5: unknown key `model[1].max_queue`; did you mean `model[1].max_queue_size`?",
        ),
        ("[[model]]\nname = 'x'\n", "`model[1].path` is missing"),
        (
            "[[model]]\npath = 'x'\nname = 'a b'\n",
            "line 5: `model[1].name`: \"a b\" is no model name",
        ),
        (
            "[runtime]\ncores = 'all'\n",
            "line 4: `runtime.cores` must be a list of whole numbers, but is text",
        ),
        ("[runtime]\ncores = []\n", "line 4: `runtime.cores`: names no core"),
        (
            "[runtime]\nio_core = 70000\n",
            "line 4: `runtime.io_core` is 70000; it must be within 0 to 65535",
        ),
        (
            "[runtime]\nidle = 'sleep'\n",
            "line 4: `runtime.idle`: \"sleep\" is no idle strategy; write park, adaptive",
        ),
        (
            "[runtime]\nidle = 3\n",
            "line 4: `runtime.idle` must be text or a table, but is a whole number",
        ),
        ("[runtime]\nidle = { spin = 3 }\n", "`runtime.idle.spin_us` is missing"),
        (
            "[listen]\nallow_non_loopback = true\n",
            "line 4: `listen.allow_non_loopback`: needs psk_file",
        ),
        ("[listen]\nunix_mode = 0o7777\n", "line 4: `listen.unix_mode` is "),
        (
            "[runtime]\non_load_error = 'ignore'\n",
            "line 4: `runtime.on_load_error`: \"ignore\"; choose \"exit\" or \"serve_others\"",
        ),
        (
            "[runtime]\nmodel_control_mode = 'auto'\n",
            "line 4: `runtime.model_control_mode`: \"auto\"; choose \"none\", \"explicit\" or \"poll\"",
        ),
        (
            "[runtime]\nmodel_control_mode = 'explicit'\nrepository_poll_secs = 2\n",
            "line 5: `runtime.repository_poll_secs`: only with model_control_mode = \"poll\"",
        ),
        ("[log]\nlevel = 'loud'\n", "line 4: `log.level`: \"loud\" is no level; choose off, error"),
        (
            "[memory]\nlock = 'yes'\n",
            "line 4: `memory.lock`: \"yes\" is none of off, try and require",
        ),
        ("[log\n", "line 3: not valid TOML"),
    ] {
        let error = parse(&format!("{MODEL}{text}")).unwrap_err();
        assert!(error.starts_with("c.toml, line ") && error.contains(wanted), "{text}: {error}");
    }
    assert_eq!(parse("[runtime]\n").unwrap_err(), "c.toml, line 1: `model` is missing");
    let many = MODEL.repeat(MODELS_MAX + 1);
    assert!(parse(&many).unwrap_err().contains("33 models; at most 32 are served"));
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let error = Config::read(Path::new("/nowhere/corelane.toml")).unwrap_err().to_string();
    assert!(error.starts_with("the configuration /nowhere/corelane.toml can't be read"), "{error}");
}

/// The documented keys are those that the parser asks for: an unknown key in each table makes it
/// tell them.
#[test]
fn the_reference_lists_exactly_the_keys_there_are() {
    use crate::toml_errors::TomlErrorKind;
    for table in ["", "memory", "runtime", "realtime", "model", "listen", "log"] {
        let text = match table {
            "" => format!("qqqqqqqqqqqq = 1\n{MODEL}"),
            "model" => format!("{MODEL}qqqqqqqqqqqq = 1\n"),
            _ => format!("{MODEL}[{table}]\nqqqqqqqqqqqq = 1\n"),
        };
        let error = Config::parse("c.toml", &text, Path::new("")).unwrap_err();
        let TomlErrorKind::UnknownKey { known, .. } = *error.kind else { panic!("{error}") };
        let tables = ["memory", "runtime", "realtime", "model", "listen", "log"];
        let mut known: Vec<String> = known
            .into_iter()
            .filter(|k| !table.is_empty() || !tables.contains(&k.as_str()))
            .collect();
        let mut documented: Vec<String> =
            KEYS.iter().filter(|k| k.table == table).map(|k| k.key.to_string()).collect();
        known.sort();
        known.dedup();
        documented.sort();
        assert_eq!(known, documented, "table {table:?}");
    }
}

#[test]
fn the_reference_tells_the_defaults_that_hold() {
    let config = Config::default();
    let default = |table: &str, key: &str| {
        KEYS.iter().find(|k| (k.table, k.key) == (table, key)).expect("the key is listed").default
    };
    let idle = default("runtime", "idle").trim_matches('"');
    assert_eq!(parse_idle(idle), Ok(config.idle));
    let ms = config.drain_timeout.as_millis().to_string();
    assert_eq!(default("runtime", "drain_timeout_ms"), ms);
    assert_eq!(default("listen", "unix_mode"), format!("0o{:o}", config.listen.unix_mode));
    assert_eq!(default("log", "level").parse(), Ok(config.log_level));
    assert_eq!(
        default("runtime", "on_load_error").trim_matches('"').parse(),
        Ok(config.on_load_error)
    );
    assert_eq!(
        default("runtime", "model_control_mode").trim_matches('"').parse(),
        Ok(config.model_control.mode)
    );
    assert_eq!(
        default("runtime", "repository_poll_secs"),
        config.model_control.poll_every.as_secs().to_string()
    );
    assert_eq!(default("log", "format").trim_matches('"').parse(), Ok(config.log.format));
    assert_eq!(default("log", "file_bytes_max"), config.log.file_bytes_max.to_string());
    assert_eq!(default("log", "ring_bytes"), config.log.ring_bytes.to_string());
    assert_eq!(default("listen", "connections_max"), config.listen.connections_max.to_string());
    assert_eq!(default("listen", "workers_tend"), config.listen.workers_tend.to_string());
    assert_eq!(
        default("listen", "allow_non_loopback"),
        config.listen.allow_non_loopback.to_string()
    );
    assert_eq!(
        default("", "metrics_allow_non_loopback"),
        config.metrics_allow_non_loopback.to_string()
    );
    assert_eq!(default("runtime", "board_mismatch"), "\"error\"");
    assert_eq!(config.board_mismatch, BoardMismatch::Error);
    let priority = default("realtime", "priority").parse().unwrap();
    let fifo = parse(&format!("{MODEL}[realtime]\nscheduler = 'fifo'\n")).unwrap();
    assert_eq!(fifo.realtime.thread.policy, Some(crate::runtime::Policy::Fifo(priority)));
    for (key, wish) in [("lock", config.memory.lock), ("huge_pages", config.memory.huge_pages)] {
        assert_eq!(parse_wish(default("memory", key).trim_matches('"')), Ok(wish));
    }
    assert_eq!(default("runtime", "pin"), "true");
    assert_eq!(config.workers, Workers::AllButFirst);
    let Ok(Workers::Unpinned(n)) =
        parse(&format!("{MODEL}[runtime]\npin = false\n")).map(|c| c.workers)
    else {
        panic!("unpinned")
    };
    assert_eq!(default("runtime", "workers"), n.to_string());
    for line in reference().lines() {
        assert_eq!(
            line.matches(" | ").count(),
            if line.starts_with("|--") { 0 } else { 3 },
            "{line}"
        );
    }
}

#[test]
fn core_lists_are_read() {
    let read = |text| parse_cores(text).map(|list| list.iter().map(|c| c.0).collect::<Vec<_>>());
    assert_eq!(read("0"), Ok(vec![0]));
    assert_eq!(read("0,2-4"), Ok(vec![0, 2, 3, 4]));
    for wrong in ["", "a", "1-", "3-1", "0-64", "1,,2", "-1", "0-65535"] {
        assert!(read(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn a_models_entry_goes_before_its_manifest() {
    let dir = std::env::temp_dir().join(format!("corelane-config-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let file = dir.join("manifest.toml");
    std::fs::write(&file, "name = 'm'\nmax_batch_size = 8\nmax_queue_size = 9\nweight = 3\n")
        .unwrap();
    let mut manifest = Manifest::read(&file).unwrap();
    let before = manifest.clone();
    ModelEntry::new(&file).apply(&mut manifest).unwrap();
    assert_eq!(manifest, before);
    let entry = ModelEntry {
        path: file,
        name: Some("other".into()),
        engine: Some(EngineKind::Plan),
        providers: None,
        onnxruntime: Some("/lib/ort.so".into()),
        max_batch_size: Some(4),
        max_queue_size: Some(5),
        max_queue_delay: Some(Micros(6)),
        default_timeout: Some(Micros(7)),
        weight: None,
        cores: Some(vec![CoreId(8)]),
    };
    let more = ModelEntry { max_batch_size: Some(9), ..entry.clone() };
    let error = more.apply(&mut manifest.clone()).unwrap_err();
    assert!(matches!(error, ModelError::BatchSize { wanted: 9, max: 8, .. }), "{error}");
    // A size that the manifest does not compile is compiled.
    let between = ModelEntry { max_batch_size: Some(6), ..entry.clone() };
    let mut six = manifest.clone();
    between.apply(&mut six).unwrap();
    assert_eq!((six.max_batch_size, six.batch_sizes), (6, vec![1, 2, 4, 6]));
    entry.apply(&mut manifest).unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
    let library = Some("/lib/ort.so".into());
    let wanted = Manifest {
        ort: OrtSettings { library, ..OrtSettings::default() },
        name: "other".into(),
        engine: EngineKind::Plan,
        max_batch_size: 4,
        batch_sizes: vec![1, 2, 4],
        max_request_rows: 4,
        max_queue_size: Some(5),
        max_queue_delay: Micros(6),
        default_timeout: Micros(7),
        instance_group: InstanceGroup::Cores(vec![CoreId(8)]),
        ..before
    };
    assert_eq!(manifest, wanted);
}

#[test]
fn models_change_only_where_that_is_asked_for() {
    let control = |text: &str| parse(&format!("[runtime]\n{text}\n{MODEL}")).unwrap().model_control;
    assert_eq!(control("").mode, ModelControlMode::None);
    assert_eq!(control("model_control_mode = 'explicit'").mode, ModelControlMode::Explicit);
    let poll = control("model_control_mode = 'poll'\nrepository_poll_secs = 3");
    let every = Duration::from_secs(3);
    assert_eq!(poll, ModelControl { mode: ModelControlMode::Poll, poll_every: every });
}

#[test]
fn a_program_that_embeds_it_is_told_of_what_only_a_server_does() {
    let parse = |text: &str| {
        Config::parse_embedded("c.toml", text, Path::new("/base")).map_err(|e| e.to_string())
    };
    for (before, after, said) in [
        ("metrics = '127.0.0.1:1'\n", "", "line 1: `metrics`"),
        ("metrics_allow_non_loopback = true\n", "", "line 1: `metrics_allow_non_loopback`"),
        ("", "[listen]\nunix = 'a'\n", "line 3: `listen`"),
        ("", "[log]\nlevel = 'debug'\n", "line 3: `log`"),
        ("", "[runtime]\nidle = 'park'\nio_core = 0\n", "line 5: `runtime.io_core`"),
        ("", "[runtime]\ndrain_timeout_ms = 5\n", "line 4: `runtime.drain_timeout_ms`"),
        (
            "",
            "[runtime]\nmodel_control_mode = 'explicit'\n",
            "line 4: `runtime.model_control_mode`",
        ),
        (
            "",
            "[runtime]\nmodel_control_mode = 'poll'\nrepository_poll_secs = 9\n",
            "line 4: `runtime.model_control_mode`",
        ),
    ] {
        let text = format!("{before}{MODEL}{after}");
        let error = parse(&text).unwrap_err();
        assert!(error.starts_with(&format!("c.toml, {said}: ")), "{text}: {error}");
        Config::parse("c.toml", &text, Path::new("/base")).unwrap();
    }
    // All else is taken, as a server takes it.
    let texts = [
        "cache = 'plans'\n[memory]\nlock = 'require'\nhuge_pages = 'try'\n\
         [runtime]\ncores = [1, 3]\nidle = 'adaptive'\non_load_error = 'serve_others'\n\
         model_control_mode = 'none'\nonnxruntime = 'ort.so'\n\
         [realtime]\nscheduler = 'rr'\npriority = 7\ntimer_slack_ns = 1\nlock_memory = true\n\
         cpu_dma_latency_us = 0\ntransparent_huge_pages = 'off'\nrefused = 'run_on'\n\
         [[model]]\npath = 'a'\nname = 'b'\nengine = 'ort'\nproviders = ['cpu']\n\
         max_batch_size = 4\nmax_queue_size = 7\nmax_queue_delay_microseconds = 1\n\
         default_timeout_microseconds = 2\nweight = 2\ncores = [3]\n",
        "[runtime]\npin = false\nworkers = 2\n[[model]]\npath = 'a'\n",
        "[runtime]\nboard = 'auto'\nboard_mismatch = 'adapt'\n[[model]]\npath = 'a'\n",
    ];
    for text in texts {
        assert_eq!(parse(text), Ok(Config::parse("c.toml", text, Path::new("/base")).unwrap()));
    }
    // No key is forgotten here.
    for k in KEYS {
        let word = format!("{} = ", k.key);
        let taken = texts.iter().any(|t| t.contains(&format!("\n{word}")) || t.starts_with(&word));
        let servers = ["listen", "log"].contains(&k.table)
            || ["metrics", "metrics_allow_non_loopback", "io_core", "drain_timeout_ms"]
                .contains(&k.key)
            || k.key == "repository_poll_secs";
        assert_ne!(taken, servers, "{} {}", k.table, k.key);
    }
}
