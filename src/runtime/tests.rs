use super::*;
use crate::engine::LoadRequest;
use crate::engine::fake::{FakeCompute, FakeEngine, FakeFault};
use crate::engine::kernels::Isa;
use crate::engine::plan::{self, PlanEngine};
use crate::model::signature::{Signature, TensorSpec};
use crate::queue::{Failure, Refusal};
use crate::sys::affinity;
use crate::sys::clock;
use crate::units::DType;
use crate::worker::IdleStrategy;
use std::time::Duration;

const BAD_ROW: u8 = 0xEE;
const PANIC_ROW: u8 = 0xDD;

fn setup(name: &str, row_bytes: usize, sizes: &[usize], per_run: Duration) -> ModelSetup {
    let tensor =
        |name: &str| TensorSpec { name: name.into(), dtype: DType::U8, row_shape: vec![row_bytes] };
    let signature =
        Signature { inputs: vec![tensor("x")], outputs: vec![tensor("y")], batched: true };
    let compute = FakeCompute { per_run, per_row: Duration::ZERO };
    let engine = FakeEngine::new(signature, sizes, compute)
        .unwrap()
        .with_fault(FakeFault { error_marker: Some(BAD_ROW), panic_marker: Some(PANIC_ROW) });
    ModelSetup {
        max_request_rows: Rows(4.min(*sizes.last().unwrap()) as u16),
        priority_levels: 2,
        default_priority: Priority(2),
        ..ModelSetup::new(name, Arc::new(engine))
    }
}

fn runtime(setups: Vec<ModelSetup>) -> Runtime {
    setups.into_iter().fold(Runtime::builder().unpinned(2), |b, s| b.model(s)).build().unwrap()
}

fn ask(model: &ModelHandle, byte: u8, rows: usize) -> Result<Answer, InferError> {
    let mut request = model.request(rows)?;
    request.input_bytes_mut(0)?.fill(byte);
    request.infer()
}

#[test]
fn large_requests_have_a_shorter_queue() {
    let mib = 1024 * 1024;
    assert_eq!(queue_size(0, 8), 64);
    assert_eq!(queue_size(mib, 8), 64);
    assert_eq!(queue_size(mib + 1, 8), 63);
    assert_eq!(queue_size(5 * mib, 8), 12);
    // A batch of single rows can always wait.
    assert_eq!(queue_size(40 * mib, 8), 8);
    assert_eq!(queue_size(40 * mib, 1024), 64);
}

#[test]
fn answers_carry_their_own_rows() {
    let rt = runtime(vec![setup("echo", 24, &[1, 2, 4, 8], Duration::from_micros(20))]);
    std::thread::scope(|s| {
        for client in 0..4u8 {
            let model = rt.client().model("echo").unwrap();
            s.spawn(move || {
                for n in 0..500u32 {
                    let byte = (n % 50) as u8 * 4 + client;
                    let rows = 1 + n as usize % 4;
                    let answer = ask(&model, byte, rows).unwrap();
                    let output = answer.output::<u8>(0).unwrap();
                    assert_eq!(output.len(), rows * 24);
                    assert!(output.iter().all(|&b| b == byte));
                    assert!(answer.receipt().batch_size.0 as usize >= rows);
                }
            });
        }
    });
    // A request leaves the count of outstanding ones just after its client sees the answer.
    assert!(rt.drain(Duration::from_secs(10)).clean);
    let stats = rt.stats();
    assert_eq!(stats.models[0].inference_request_success, 2_000);
    assert_eq!(stats.models[0].request.count, 2_000);
    assert_eq!(stats.models[0].outstanding, 0);
    assert!(stats.prometheus().contains("corelane_inference_request_success{model=\"echo\"} 2000"));
}

#[test]
fn a_bad_row_fails_alone_and_a_panic_does_not_end_the_worker() {
    let rt = runtime(vec![setup("echo", 8, &[1, 8], Duration::from_millis(2))]);
    let model = rt.client().model("echo").unwrap();
    for marker in [BAD_ROW, PANIC_ROW] {
        for round in 0..5 {
            // While two workers are busy with these, the rest queue up and form batches.
            let mut pending = Vec::new();
            for n in 0..12u8 {
                let mut request = model.request(1).unwrap();
                let bad = n == 5 || n == 9;
                request.input_bytes_mut(0).unwrap().fill(if bad { marker } else { n });
                pending.push((bad, n, request.submit().unwrap()));
            }
            for (bad, n, p) in pending {
                match p.wait() {
                    Ok(answer) => {
                        assert!(!bad, "round {round}");
                        assert!(answer.output::<u8>(0).unwrap().iter().all(|&b| b == n));
                    }
                    Err(InferError::Failed(failure)) => {
                        let expected = if marker == BAD_ROW {
                            Failure::ModelFailed
                        } else {
                            Failure::ModelPanicked
                        };
                        assert!(bad && failure == expected, "round {round}: {failure:?}");
                    }
                    Err(other) => panic!("{other}"),
                }
            }
        }
    }
    let stats = rt.stats();
    assert_eq!(stats.models[0].inference_request_failure["model_failed"], 10);
    assert_eq!(stats.models[0].inference_request_failure["model_panicked"], 10);
    assert!(stats.workers.iter().map(|w| w.rebuilds).sum::<u64>() >= 10);
}

#[test]
fn an_expired_request_is_answered_before_the_running_batch_ends() {
    let mut slow = setup("slow", 8, &[1], Duration::from_millis(200));
    slow.max_queue_size = 8;
    let rt = Runtime::builder().unpinned(1).model(slow).build().unwrap();
    let model = rt.client().model("slow").unwrap();
    let running = model.request(1).unwrap().submit().unwrap();
    while rt.stats().models[0].queued > 0 {
        std::thread::yield_now();
    }
    // 120 ms is more than nothing waiting plus... the estimate sees only what waits, and one run.
    let refused = model.request(1).unwrap().timeout(Micros(120_000)).submit().unwrap_err();
    assert!(
        matches!(
            refused,
            InferError::Refused(Refusal::DeadlineUnmeetable { given_us: 120_000, .. })
        ),
        "{refused:?}"
    );
    // 300 ms: more than one run, however busy the machine; less than the two ahead of it.
    let began = clock::now();
    let expired = model.request(1).unwrap().timeout(Micros(300_000));
    // A request ahead of it makes its wait too long only after it was accepted.
    let ahead = model.request(1).unwrap().priority(Priority(1));
    let expired = expired.submit().unwrap();
    let ahead = ahead.submit().unwrap();
    assert_eq!(expired.wait().unwrap_err(), InferError::Failed(Failure::DeadlineExpired));
    let waited = clock::now().since(began);
    assert!(waited >= Nanos(300_000_000));
    assert!(running.wait().is_ok());
    assert!(ahead.wait().is_ok());
    assert_eq!(rt.stats().models[0].inference_request_failure["deadline_expired"], 1);
}

#[test]
fn drain_answers_all_that_was_accepted_and_refuses_the_rest() {
    let rt = runtime(vec![setup("echo", 8, &[1, 4], Duration::from_millis(1))]);
    let model = rt.client().model("echo").unwrap();
    let pending: Vec<_> = (0..40).map(|_| model.request(1).unwrap().submit().unwrap()).collect();
    let report = rt.drain(Duration::from_secs(10));
    assert_eq!(report, DrainReport { clean: true, left: 0, unread: 0 });
    for p in pending {
        assert!(p.wait().is_ok());
    }
    assert_eq!(model.request(1).unwrap_err(), InferError::Refused(Refusal::ShuttingDown));
}

#[test]
fn cancelled_requests_do_not_run_and_their_slots_come_back() {
    let mut slow = setup("slow", 8, &[1], Duration::from_millis(30));
    slow.max_queue_size = 4;
    let rt = Runtime::builder().unpinned(1).model(slow).build().unwrap();
    let model = rt.client().model("slow").unwrap();
    let before = rt.stats().models[0].exec_count;
    let running = model.request(1).unwrap().submit().unwrap();
    while rt.stats().models[0].queued > 0 {
        std::thread::yield_now();
    }
    let waiting: Vec<_> = (0..4).map(|_| model.request(1).unwrap().submit().unwrap()).collect();
    for w in waiting {
        assert!(w.cancel());
    }
    // Its place is free at once; its slot as soon as the worker comes by.
    assert!(running.wait().is_ok());
    for _ in 0..20 {
        assert!(ask(&model, 1, 1).is_ok());
    }
    let stats = rt.stats();
    assert_eq!(stats.models[0].exec_count - before, 21);
    assert_eq!(stats.models[0].inference_request_failure["cancelled"], 4);
}

#[test]
fn a_busy_model_does_not_starve_another() {
    let busy = setup("busy", 8, &[1], Duration::from_millis(10));
    let quiet = setup("quiet", 8, &[1], Duration::from_micros(100));
    let rt = Runtime::builder().unpinned(1).model(busy).model(quiet).build().unwrap();
    let (busy, quiet) = (rt.client().model("busy").unwrap(), rt.client().model("quiet").unwrap());
    let backlog: Vec<_> = (0..60).map(|_| busy.request(1).unwrap().submit().unwrap()).collect();
    for _ in 0..10 {
        assert!(ask(&quiet, 1, 1).is_ok());
    }
    // Ten answers of the quiet model came while the busy one still had a backlog.
    assert!(rt.stats().models[0].queued > 0, "the backlog was served first");
    for b in backlog {
        assert!(b.wait().is_ok());
    }
}

#[test]
fn every_idle_strategy_serves() {
    for idle in [IdleStrategy::Park, IdleStrategy::SpinUs(Micros(20)), IdleStrategy::Adaptive] {
        let rt = Runtime::builder()
            .unpinned(1)
            .idle(idle)
            .model(setup("echo", 8, &[1], Duration::ZERO))
            .build()
            .unwrap();
        let model = rt.client().model("echo").unwrap();
        for n in 0..200 {
            assert!(ask(&model, n as u8, 1).is_ok());
            if n % 50 == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        let stats = rt.stats();
        assert!(stats.workers[0].parks > 0, "{idle:?} sleeps when nothing comes");
        assert_eq!(stats.workers[0].spin_ns > 0, idle != IdleStrategy::Park);
    }
}

#[test]
fn cores_that_are_not_allowed_are_named() {
    let none = CoreId(1_000);
    let built =
        Runtime::builder().cores([none]).model(setup("echo", 8, &[1], Duration::ZERO)).build();
    let Err(error) = built else { panic!("core 1000 was allowed") };
    let text = error.to_string();
    assert!(text.contains("cores 1000 are wanted"), "{text}");
    let allowed = crate::sys::affinity::allowed().unwrap();
    assert!(text.contains(&crate::sys::affinity::core_list(&allowed)), "{text}");
}

#[test]
fn workers_are_pinned_and_named() {
    let core = *crate::sys::affinity::allowed().unwrap().last().unwrap();
    let rt = Runtime::builder()
        .cores([core])
        .model(setup("echo", 8, &[1], Duration::ZERO))
        .build()
        .unwrap();
    assert_eq!(rt.stats().workers[0].core, Some(core.0));
    let named = std::fs::read_dir("/proc/self/task").unwrap().flatten().any(|task| {
        let comm = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        let status = std::fs::read_to_string(task.path().join("status")).unwrap_or_default();
        comm.trim() == "cl-worker-0"
            && status.lines().any(|l| l == format!("Cpus_allowed_list:\t{}", core.0))
    });
    assert!(named);
}

#[test]
fn contradictions_are_refused() {
    let echo = || setup("echo", 8, &[1], Duration::ZERO);
    let fails = |b: RuntimeBuilder, part: &str| {
        let Err(error) = b.build() else { panic!("built in spite of: {part}") };
        assert!(error.to_string().contains(part), "{error}");
    };
    fails(Runtime::builder().unpinned(1), "models: 0 asked for");
    fails(Runtime::builder().unpinned(0).model(echo()), "workers: 0 asked for");
    fails(Runtime::builder().unpinned(1).model(echo()).model(echo()), "two models are called");
    let mut elsewhere = echo();
    elsewhere.cores = Some(vec![CoreId(77)]);
    fails(Runtime::builder().unpinned(1).model(elsewhere), "names core 77");
    let mut rows = echo();
    rows.max_request_rows = Rows(2);
    fails(Runtime::builder().unpinned(1).model(rows), "max_request_rows");
    let mut large = echo();
    large.max_queue_size = 1 << 20;
    fails(Runtime::builder().unpinned(1).model(large), "the limit is 4096");
}

#[test]
fn models_are_served_as_their_manifests_say() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("models/mlp");
    let runtime = Runtime::builder().model_dir(&path).unpinned(1).build().unwrap();
    let mlp = runtime.client().model("mlp").unwrap();
    let golden = |name: &str| {
        let bytes = std::fs::read(path.join("golden").join(name)).unwrap();
        let array = crate::model::npy::read(&bytes).unwrap();
        array.data.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect::<Vec<_>>()
    };
    let mut request = mlp.request(1).unwrap();
    request.input_mut::<f32>(0).unwrap().copy_from_slice(&golden("input_0.npy"));
    let answer = request.infer().unwrap();
    let (got, wanted) = (answer.output::<f32>(0).unwrap(), golden("output_0.npy"));
    let largest = wanted.iter().fold(0f32, |m, v| m.max(v.abs()));
    assert!(
        got.iter().zip(&wanted).all(|(a, b)| (a - b).abs() <= 1e-5 * largest),
        "{got:?} {wanted:?}"
    );
    let error = Runtime::builder().model_dir("no/such/model").build().err().unwrap();
    assert!(error.to_string().contains("no/such/model"), "{error}");
}

#[test]
fn a_request_of_more_rows_than_batching_pays_for_is_served() {
    let mut setup = setup("dear", 8, &[1, 2, 4], Duration::ZERO);
    let tensor =
        |name: &str| TensorSpec { name: name.into(), dtype: DType::U8, row_shape: vec![8] };
    let signature =
        Signature { inputs: vec![tensor("x")], outputs: vec![tensor("y")], batched: true };
    // Every row costs more in a batch than alone, so the policy takes one row at a time.
    let compute = FakeCompute { per_run: Duration::ZERO, per_row: Duration::from_micros(200) };
    setup.engine = Arc::new(FakeEngine::new(signature, &[1, 2, 4], compute).unwrap());
    let rt = runtime(vec![setup]);
    let model = rt.client().model("dear").unwrap();
    for rows in [4, 1, 3, 2] {
        let mut request = model.request(rows).unwrap();
        request.input_bytes_mut(0).unwrap().fill(rows as u8);
        let timeout = Micros(20_000_000);
        let answer = request.timeout(timeout).infer().unwrap();
        assert_eq!(answer.output_bytes(0).unwrap(), vec![rows as u8; rows * 8]);
        assert_eq!(answer.receipt().batch_size, Rows(rows as u16));
    }
}

/// An engine that is slow on the second worker, as on a little core.
struct Unlike {
    fast: FakeEngine,
    slow: FakeEngine,
}

impl crate::engine::Engine for Unlike {
    fn kind(&self) -> crate::engine::EngineKind {
        self.fast.kind()
    }
    fn signature(&self) -> &Signature {
        self.fast.signature()
    }
    fn batch_sizes(&self) -> &[usize] {
        self.fast.batch_sizes()
    }
    fn describe(&self) -> crate::engine::Description {
        self.fast.describe()
    }
    fn instance(&self) -> Result<Box<dyn crate::engine::Instance>, crate::engine::EngineError> {
        match std::thread::current().name() {
            Some("cl-worker-1") => self.slow.instance(),
            _ => self.fast.instance(),
        }
    }
}

#[test]
fn workers_on_unlike_cores_measure_for_themselves() {
    const SLOW: Duration = Duration::from_millis(100);
    let mut unlike = setup("unlike", 8, &[1], Duration::ZERO);
    let engine = |per_run: Duration| {
        let compute = FakeCompute { per_run, per_row: Duration::ZERO };
        FakeEngine::new(unlike.engine.signature().clone(), &[1], compute).unwrap()
    };
    let (fast, slow) = (engine(Duration::from_micros(20)), engine(SLOW));
    unlike.engine = Arc::new(Unlike { fast, slow });
    unlike.max_request_rows = Rows(1);
    let builder = Runtime::builder().unpinned(2).kinds(&["big", "little"]).model(unlike);
    let stats = builder.build().unwrap().stats();
    let [big, little] = &stats.models[0].service_ns[..] else { panic!("two kinds") };
    assert_eq!((big.core_kind.as_deref(), &big.workers[..]), (Some("big"), &[0][..]));
    assert_eq!((little.core_kind.as_deref(), &little.workers[..]), (Some("little"), &[1][..]));
    assert!(u128::from(little.by_batch_size[&1]) >= SLOW.as_nanos(), "{little:?}");
    assert!(u128::from(big.by_batch_size[&1]) < SLOW.as_nanos(), "{big:?}");
}

/// Engine `plan` on a machine made of files, and which loops each worker's instance took.
struct OnMachine {
    engine: PlanEngine,
    root: std::path::PathBuf,
    in_order: std::sync::Mutex<Vec<(String, bool)>>,
}

impl crate::engine::Engine for OnMachine {
    fn kind(&self) -> crate::engine::EngineKind {
        self.engine.kind()
    }
    fn signature(&self) -> &Signature {
        self.engine.signature()
    }
    fn batch_sizes(&self) -> &[usize] {
        self.engine.batch_sizes()
    }
    fn describe(&self) -> crate::engine::Description {
        self.engine.describe()
    }
    fn instance(&self) -> Result<Box<dyn crate::engine::Instance>, crate::engine::EngineError> {
        let instance = self.engine.instance_below(&self.root)?;
        let worker = std::thread::current().name().unwrap_or_default().to_string();
        self.in_order.lock().unwrap().push((worker, instance.in_order()));
        Ok(Box::new(instance))
    }
}

#[test]
fn a_worker_on_a_little_core_takes_that_cores_loops() {
    let cores: Vec<CoreId> = affinity::allowed().unwrap().into_iter().take(2).collect();
    let bytes =
        std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/models/mlp/model.onnx")).unwrap();
    // A Cortex-A55 and a Cortex-A76, in either order: where there is one core only, it is each once.
    for little in [0, 1] {
        let root =
            std::env::temp_dir().join(format!("corelane-loops-{}-{little}", std::process::id()));
        for (n, core) in cores.iter().enumerate() {
            let dir = root.join(format!("sys/devices/system/cpu/cpu{core}/regs/identification"));
            std::fs::create_dir_all(&dir).unwrap();
            let midr = if n == little { "0x00000000412fd050\n" } else { "0x00000000414fd0b0\n" };
            std::fs::write(dir.join("midr_el1"), midr).unwrap();
        }
        let request = LoadRequest {
            bytes: &bytes,
            batch_sizes: &[1],
            bind_axes: &[],
            bind_inputs: &[],
            arena_bytes_max: 1 << 20,
            isa: Isa::detect(),
        };
        let engine = plan::compile(&request).unwrap();
        let engine =
            Arc::new(OnMachine { engine, root: root.clone(), in_order: Default::default() });
        let setup = ModelSetup::new("mlp", engine.clone());
        let runtime = Runtime::builder().cores(cores.clone()).model(setup).build().unwrap();
        runtime.client().model("mlp").unwrap().request(1).unwrap().infer().unwrap();
        let mut taken = engine.in_order.lock().unwrap().clone();
        taken.sort();
        let worker = |n: usize| (format!("cl-worker-{n}"), n == little);
        assert_eq!(taken, (0..cores.len()).map(worker).collect::<Vec<_>>());
        std::fs::remove_dir_all(&root).unwrap();
    }
}
