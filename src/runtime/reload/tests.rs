use super::*;
use crate::engine::fake::{FakeCompute, FakeEngine, FakeFault};
use crate::engine::{Description, Engine, EngineError, EngineKind, Instance, PlanIndex, RunError};
use crate::limits::{FRAME_BODY_BYTES_MAX, MODEL_NAME_LEN_MAX, MODELS_MAX};
use crate::model::signature::{Signature, TensorSpec};
use crate::runtime::{InferError, ModelHandle, ModelSetup, Pending};
use crate::sys::affinity;
use crate::units::{CoreId, DType, Micros, Priority, Rows};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex};

const PANIC_ROW: u8 = 0xDD;
/// A row whose run waits until its engine is let go.
const HANG_ROW: u8 = 0xAA;

/// An engine whose answers are `mark`, whatever it is asked.
struct Marked {
    inner: FakeEngine,
    mark: u8,
    /// Who makes an instance comes here twice.
    gate: Option<Arc<Barrier>>,
    /// What a run of a [`HANG_ROW`] waits for.
    let_go: Arc<AtomicBool>,
    fault: Fault,
    /// Instances of all versions that are alive.
    alive: Arc<AtomicU64>,
    /// The cores that instances were told to run on.
    settled: Arc<Mutex<Vec<CoreId>>>,
}

#[derive(Clone, Copy, PartialEq)]
enum Fault {
    None,
    NoInstance,
    WarmUpFails,
    WarmUpPanics,
}

struct MarkedInstance {
    inner: Box<dyn Instance>,
    mark: u8,
    out: Vec<u8>,
    let_go: Arc<AtomicBool>,
    fault: Fault,
    alive: Arc<AtomicU64>,
    settled: Arc<Mutex<Vec<CoreId>>>,
}

impl Drop for MarkedInstance {
    fn drop(&mut self) {
        self.alive.fetch_sub(1, Ordering::Relaxed);
    }
}

fn signature(row_bytes: usize) -> Signature {
    let tensor =
        |name: &str| TensorSpec { name: name.into(), dtype: DType::U8, row_shape: vec![row_bytes] };
    Signature { inputs: vec![tensor("x")], outputs: vec![tensor("y")], batched: true }
}

const ROW_BYTES: usize = 16;

impl Marked {
    fn new(mark: u8, sizes: &[usize], per_run: Duration) -> Marked {
        let compute = FakeCompute { per_run, per_row: Duration::ZERO };
        let inner = FakeEngine::new(signature(ROW_BYTES), sizes, compute)
            .unwrap()
            .with_fault(FakeFault { error_marker: None, panic_marker: Some(PANIC_ROW) });
        Marked {
            inner,
            mark,
            gate: None,
            let_go: Arc::default(),
            fault: Fault::None,
            alive: Arc::default(),
            settled: Arc::default(),
        }
    }

    fn setup(self) -> ModelSetup {
        let largest = *self.inner.batch_sizes().last().unwrap();
        ModelSetup {
            max_request_rows: Rows(2.min(largest as u16)),
            ..ModelSetup::new("marked", Arc::new(self))
        }
    }
}

impl Engine for Marked {
    fn kind(&self) -> EngineKind {
        EngineKind::Fake
    }
    fn signature(&self) -> &Signature {
        self.inner.signature()
    }
    fn batch_sizes(&self) -> &[usize] {
        self.inner.batch_sizes()
    }
    fn describe(&self) -> Description {
        self.inner.describe()
    }
    fn instance(&self) -> Result<Box<dyn Instance>, EngineError> {
        if let Some(gate) = &self.gate {
            gate.wait();
            gate.wait();
        }
        if self.fault == Fault::NoInstance {
            let text = "no room for an arena";
            return Err(EngineError::new(crate::engine::EngineErrorKind::Limit, text));
        }
        self.alive.fetch_add(1, Ordering::Relaxed);
        let largest = *self.batch_sizes().last().unwrap();
        Ok(Box::new(MarkedInstance {
            inner: self.inner.instance()?,
            mark: self.mark,
            out: vec![self.mark; largest * ROW_BYTES],
            let_go: self.let_go.clone(),
            fault: self.fault,
            alive: self.alive.clone(),
            settled: self.settled.clone(),
        }))
    }
}

impl Instance for MarkedInstance {
    fn settle_on(&mut self, core: CoreId) {
        self.settled.lock().unwrap().push(core);
    }
    fn input_mut(&mut self, plan: PlanIndex, input: usize) -> &mut [u8] {
        self.inner.input_mut(plan, input)
    }
    fn infer(&mut self, plan: PlanIndex) -> Result<(), RunError> {
        self.inner.infer(plan)
    }
    fn output(&self, _: PlanIndex, _: usize) -> &[u8] {
        &self.out
    }
    fn warm_up(&mut self, plan: PlanIndex) -> Result<(), RunError> {
        match self.fault {
            Fault::WarmUpFails => Err(RunError::Injected),
            Fault::WarmUpPanics => panic!("a weight is missing"),
            _ => self.infer(plan),
        }
    }
    fn infer_direct(
        &mut self,
        plan: PlanIndex,
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
    ) -> Result<(), RunError> {
        while inputs[0][0] == HANG_ROW && !self.let_go.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.inner.infer_direct(plan, inputs, outputs)?;
        outputs[0].fill(self.mark);
        Ok(())
    }
}

fn runtime(setup: ModelSetup) -> Runtime {
    Runtime::builder().unpinned(2).model(setup).build().unwrap()
}

/// The version that answered; every row must be of the same.
fn ask(model: &ModelHandle, byte: u8, rows: usize) -> Result<u8, InferError> {
    let mut request = model.request(rows)?;
    request.input_bytes_mut(0)?.fill(byte);
    let answer = request.infer()?;
    let output = answer.output::<u8>(0)?;
    assert_eq!(output.len(), rows * ROW_BYTES);
    assert!(output.iter().all(|&b| b == output[0]), "an answer of two versions: {output:?}");
    Ok(output[0])
}

fn next(mark: u8) -> ModelSetup {
    Marked::new(mark, &[1, 2, 4], Duration::ZERO).setup()
}

#[test]
fn every_answer_is_of_one_version_and_none_of_a_former_one() {
    const VERSIONS: u8 = 50;
    let alive = Arc::new(AtomicU64::new(0));
    let counted = |mark: u8| {
        Marked {
            alive: alive.clone(),
            ..Marked::new(mark, &[1, 2, 4], Duration::from_micros(u64::from(mark % 3) * 20))
        }
        .setup()
    };
    let rt = runtime(counted(0));
    // The version whose reload has returned.
    let floor = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let (mut answers, mut seen) = (0, [0u64; VERSIONS as usize + 1]);
    std::thread::scope(|s| {
        let clients: Vec<_> = (0..3)
            .map(|n: usize| {
                let model = rt.client().model("marked").unwrap();
                let (floor, stop) = (&floor, &stop);
                s.spawn(move || {
                    let mut seen = [0u64; VERSIONS as usize + 1];
                    while !stop.load(Ordering::Acquire) {
                        let least = floor.load(Ordering::SeqCst);
                        let mark = ask(&model, 1, 1 + n % 2).unwrap();
                        assert!(u64::from(mark) >= least, "version {mark} after {least} was in");
                        seen[mark as usize] += 1;
                    }
                    seen
                })
            })
            .collect();
        for version in 1..=VERSIONS {
            let done = rt.replace(counted(version)).unwrap();
            assert_eq!((done.changed, done.version), (true, u64::from(version) + 1));
            floor.store(version.into(), Ordering::SeqCst);
            // Each version answers.
            let model = rt.client().model("marked").unwrap();
            assert_eq!(ask(&model, 1, 1).unwrap(), version);
            answers += 1;
            // Only two workers have an instance: the former ones are freed when the call has returned.
            assert_eq!(alive.load(Ordering::Relaxed), 2);
        }
        stop.store(true, Ordering::Release);
        for client in clients {
            for (all, more) in seen.iter_mut().zip(client.join().unwrap()) {
                *all += more;
            }
        }
    });
    answers += seen.iter().sum::<u64>();
    assert!(rt.drain(Duration::from_secs(10)).clean);
    let stats = &rt.stats().models[0];
    assert_eq!(stats.inference_request_success, answers, "{seen:?}");
    assert_eq!(stats.inference_request_failure.values().sum::<u64>(), 0);
    assert_eq!((stats.version, stats.model_reload_success_total), (51, 50));
    assert_eq!(stats.outstanding, 0);
}

#[test]
fn what_is_fixed_is_refused_by_its_names_and_the_former_version_serves_on() {
    let rt = runtime(next(7));
    let model = rt.client().model("marked").unwrap();
    let mut wide = next(9);
    wide.engine =
        Arc::new(FakeEngine::new(signature(17), &[1, 2, 4], FakeCompute::default()).unwrap());
    wide.max_queue_size = 32;
    let mut larger = Marked::new(9, &[1, 2, 4, 8], Duration::ZERO).setup();
    larger.priority_levels = 2;
    larger.default_priority = Priority(2);
    larger.cores = Some(vec![crate::units::CoreId(0)]);
    let mut unbatched = next(9);
    let flat = Signature { batched: false, ..signature(ROW_BYTES) };
    unbatched.engine = Arc::new(FakeEngine::new(flat, &[1], FakeCompute::default()).unwrap());
    unbatched.max_request_rows = Rows(1);
    unbatched.batch.max_batch_size = 1;
    for (setup, said) in [
        (
            wide,
            &[
                "input 0 is \"x\" uint8 [17], and was \"x\" uint8 [16]",
                "output 0 is",
                "max_queue_size is 32, and was 64",
                "restart to change the signature",
            ][..],
        ),
        (
            larger,
            &[
                "max_batch_size is 8, and was 4 at the most",
                "priority_levels is 2, and was 1",
                "default_priority is 2, and was 1",
                "instance_group is cores 0, and was all cores",
                "restart to change that",
            ],
        ),
        (
            unbatched,
            &["the batch axis is none, and was axis 0", "max_request_rows is 1, and was 2"],
        ),
    ] {
        let error = rt.replace(setup).unwrap_err();
        let text = error.to_string();
        assert!(said.iter().all(|part| text.contains(part)), "{text}");
        assert_eq!(error.reason(), "fixed");
        assert_eq!(ask(&model, 1, 2).unwrap(), 7);
    }
    let stats = &rt.stats().models[0];
    assert_eq!((stats.version, stats.model_reload_failure_total["fixed"]), (1, 3));
    assert!(stats.model_reload_error.as_ref().unwrap().contains("the batch axis"));
    // One that is right clears it.
    rt.replace(next(8)).unwrap();
    assert_eq!(rt.stats().models[0].model_reload_error, None);
    let error = rt.replace(ModelSetup { name: "other".into(), ..next(9) }).unwrap_err();
    assert_eq!(error.to_string(), "there is no model \"other\"; there are: marked");
    let error = rt.reload("marked").unwrap_err();
    assert!(matches!(error, ReloadError::NoSource { .. }), "{error}");
}

#[test]
fn a_version_that_can_not_run_is_not_served() {
    let rt = runtime(next(7));
    let model = rt.client().model("marked").unwrap();
    for (fault, said) in [
        (Fault::NoInstance, "no room for an arena"),
        (Fault::WarmUpFails, "a fault was injected"),
        (Fault::WarmUpPanics, "it panicked: a weight is missing"),
    ] {
        let broken = Marked { fault, ..Marked::new(9, &[1, 2, 4], Duration::ZERO) };
        let error = rt.replace(broken.setup()).unwrap_err();
        assert!(error.to_string().contains(said), "{error}");
        assert_eq!(error.reason(), "instance");
        assert_eq!(ask(&model, 1, 1).unwrap(), 7);
    }
    rt.replace(next(8)).unwrap();
    assert_eq!(ask(&model, 1, 1).unwrap(), 8);
}

#[test]
fn instances_are_made_for_their_workers_cores() {
    let cores = affinity::allowed().unwrap();
    let builder = Runtime::builder().cores(cores.iter().copied());
    let rt = builder.model(next(7)).build().unwrap();
    let other = Marked::new(8, &[1, 2, 4], Duration::ZERO);
    let settled = other.settled.clone();
    rt.replace(other.setup()).unwrap();
    assert_eq!(*settled.lock().unwrap(), cores);
    // A worker that may run anywhere says nothing of its core.
    let rt = runtime(next(7));
    let other = Marked::new(8, &[1, 2, 4], Duration::ZERO);
    let settled = other.settled.clone();
    rt.replace(other.setup()).unwrap();
    assert_eq!(*settled.lock().unwrap(), []);
}

#[test]
fn batch_sizes_and_deadlines_change_with_the_version() {
    let rt = runtime(next(7));
    let model = rt.client().model("marked").unwrap();
    assert_eq!(ask(&model, 1, 2).unwrap(), 7);
    let sizes = |rt: &Runtime| rt.stats().models[0].batch_ran.clone();
    assert_eq!(sizes(&rt).into_iter().collect::<Vec<_>>(), [(1, 0), (2, 1), (4, 0)]);
    let mut other = Marked::new(8, &[1, 3], Duration::from_millis(20)).setup();
    other.default_timeout = Micros(1);
    rt.replace(other).unwrap();
    // Measured on another core: no reason to refuse. Whether it runs or is too late then, it is of this version.
    let first = ask(&model, 1, 2);
    assert!(
        matches!(first, Ok(8) | Err(InferError::Failed(crate::queue::Failure::DeadlineExpired))),
        "{first:?}"
    );
    let mut request = model.request(2).unwrap().timeout(Micros(60_000_000));
    request.input_bytes_mut(0).unwrap().fill(1);
    assert_eq!(request.infer().unwrap().output::<u8>(0).unwrap()[0], 8);
    let ran = sizes(&rt);
    assert_eq!(ran.keys().copied().collect::<Vec<_>>(), [1, 3]);
    assert!(ran[&3] >= 1, "{ran:?}");
    // A worker has measured it: 20 ms are more than the model's deadline.
    let refused = ask(&model, 1, 2).unwrap_err();
    assert!(
        matches!(
            refused,
            InferError::Refused(crate::queue::Refusal::DeadlineUnmeetable { given_us: 1, .. })
        ),
        "{refused}"
    );
}

#[test]
fn two_reloads_at_once_take_turns() {
    let rt = runtime(next(0));
    let reloader = rt.reloader();
    let versions: Vec<u64> = std::thread::scope(|s| {
        let each = |mark: u8| {
            let reloader = &reloader;
            s.spawn(move || reloader.replace(next(mark)).unwrap().version)
        };
        let all: Vec<_> = (1..=8).map(each).collect();
        all.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let mut sorted = versions.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, (2..=9).collect::<Vec<u64>>());
    // The one that came last serves.
    let last = versions.iter().position(|&v| v == 9).unwrap() as u8 + 1;
    assert_eq!(ask(&rt.client().model("marked").unwrap(), 1, 1).unwrap(), last);
}

#[test]
fn a_worker_that_panics_meanwhile_goes_on_with_the_version_that_it_has() {
    let rt = runtime(next(0));
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        let model = rt.client().model("marked").unwrap();
        let stop = &stop;
        let asker = s.spawn(move || {
            let mut panics = 0;
            while !stop.load(Ordering::Acquire) {
                match ask(&model, PANIC_ROW, 1) {
                    Err(InferError::Failed(crate::queue::Failure::ModelPanicked)) => panics += 1,
                    other => panic!("{other:?}"),
                }
            }
            panics
        });
        let model = rt.client().model("marked").unwrap();
        for version in 1..=10 {
            rt.replace(next(version)).unwrap();
            assert_eq!(ask(&model, 1, 1).unwrap(), version);
        }
        stop.store(true, Ordering::Release);
        assert!(asker.join().unwrap() > 0);
    });
    assert!(rt.stats().workers.iter().map(|w| w.rebuilds).sum::<u64>() > 0);
}

/// Asks for a run that hangs, and waits until a worker is in it.
fn hang(rt: &Runtime) -> Pending {
    let model = rt.client().model("marked").unwrap();
    let mut request = model.request(1).unwrap();
    request.input_bytes_mut(0).unwrap().fill(HANG_ROW);
    let pending = request.submit().unwrap();
    while rt.stats().models[0].queued > 0 {
        std::thread::yield_now();
    }
    pending
}

/// Lets workers go also where an assertion fails: the runtime's end waits for them.
struct LetGo([Arc<AtomicBool>; 2]);

impl Drop for LetGo {
    fn drop(&mut self) {
        self.0.iter().for_each(|let_go| let_go.store(true, Ordering::Release));
    }
}

fn mark_of(pending: Pending) -> u8 {
    pending.wait().unwrap().output::<u8>(0).unwrap()[0]
}

/// The end of a runtime waits no longer for such a worker than a reload does. It stays sound.
#[test]
fn a_worker_that_hangs_is_left_behind_by_the_end() {
    let alive = Arc::new(AtomicU64::new(0));
    let hung = Arc::new(AtomicBool::new(false));
    let rt = runtime(
        Marked {
            alive: alive.clone(),
            let_go: hung.clone(),
            ..Marked::new(7, &[1], Duration::ZERO)
        }
        .setup(),
    );
    let _at_end = LetGo([hung.clone(), hung.clone()]);
    let pending = hang(&rt);
    let model = rt.client().model("marked").unwrap();
    let ended = rt.shutdown(Duration::from_secs(3));
    assert_eq!((ended.left, ended.stuck.len()), (1, 1), "{ended:?}");
    // The other worker has ended, and freed what it had.
    assert_eq!(alive.load(Ordering::Relaxed), 1);
    assert!(matches!(model.request(1), Err(InferError::Refused(_))));
    drop(model);
    // What it answers after all is there for who still waits, and then it ends.
    hung.store(true, Ordering::Release);
    assert_eq!(mark_of(pending), 7);
    while alive.load(Ordering::Relaxed) > 0 {
        std::thread::yield_now();
    }
}

#[test]
fn an_end_in_time_leaves_nobody() {
    let rt = runtime(Marked::new(7, &[1], Duration::ZERO).setup());
    assert_eq!(ask(&rt.client().model("marked").unwrap(), 1, 1).unwrap(), 7);
    let ended = rt.shutdown(Duration::from_secs(60));
    assert_eq!((ended.left, ended.stuck), (0, vec![]));
}

#[test]
fn a_worker_that_hangs_is_not_waited_for_and_the_former_version_stays() {
    let alive = Arc::new(AtomicU64::new(0));
    let version = |mark: u8, let_go: &Arc<AtomicBool>| {
        let (alive, let_go) = (alive.clone(), let_go.clone());
        Marked { alive, let_go, ..Marked::new(mark, &[1, 2, 4], Duration::ZERO) }.setup()
    };
    let free = Arc::new(AtomicBool::new(true));
    let [former, next] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
    let rt = runtime(version(7, &former));
    let _at_end = LetGo([former.clone(), next.clone()]);
    let model = rt.client().model("marked").unwrap();
    let first = hang(&rt);
    let hasty = rt.reloader().with_patience(Duration::from_millis(20));
    for tries in 1..=3 {
        let error = hasty.replace(version(9, &free)).unwrap_err();
        assert_eq!(error.reason(), "worker");
        assert!(error.to_string().contains(" did not end its batch within 20ms"), "{error}");
        // The worker that had come has gone back, and nothing is left of the other version.
        assert_eq!(ask(&model, 1, 2).unwrap(), 7);
        assert_eq!(alive.load(Ordering::Relaxed), 2);
        let stats = &rt.stats().models[0];
        assert_eq!((stats.version, stats.model_reload_failure_total["worker"]), (1, tries));
    }
    // The other worker hangs, too, after it has come: it goes back when it can.
    let second = std::thread::scope(|s| {
        let patient = rt.reloader().with_patience(Duration::from_secs(10));
        let setup = version(9, &next);
        let reload = s.spawn(move || patient.replace(setup));
        while ask(&model, 1, 1).unwrap() != 9 {}
        let second = hang(&rt);
        assert_eq!(reload.join().unwrap().unwrap_err().reason(), "worker");
        second
    });
    assert_eq!(alive.load(Ordering::Relaxed), 3);
    assert_eq!(hasty.replace(version(10, &free)).unwrap_err().reason(), "worker");
    next.store(true, Ordering::Release);
    assert_eq!(mark_of(second), 9);
    assert_eq!(ask(&model, 1, 1).unwrap(), 7);
    former.store(true, Ordering::Release);
    assert_eq!(mark_of(first), 7);
    let done = rt.replace(version(11, &free)).unwrap();
    assert_eq!((done.version, ask(&model, 1, 2).unwrap()), (2, 11));
    assert_eq!(alive.load(Ordering::Relaxed), 2);
}

/// A version whose instances wait at a gate that has two sides.
fn gated(mark: u8) -> (ModelSetup, Arc<Barrier>) {
    let gate = Arc::new(Barrier::new(2));
    let gated =
        Marked { gate: Some(gate.clone()), ..Marked::new(mark, &[1, 2, 4], Duration::ZERO) };
    (gated.setup(), gate)
}

#[test]
fn a_drain_does_not_wait_for_a_reload_nor_lose_anything() {
    let rt = runtime(next(7));
    let model = rt.client().model("marked").unwrap();
    let (setup, gate) = gated(8);
    std::thread::scope(|s| {
        let reloader = rt.reloader();
        let reload = s.spawn(move || reloader.replace(setup));
        gate.wait();
        // In the middle of the reload.
        assert_eq!(ask(&model, 1, 1).unwrap(), 7);
        assert!(rt.drain(Duration::from_secs(10)).clean);
        let refused = rt.reload("marked").unwrap_err();
        gate.wait();
        gate.wait();
        gate.wait();
        // Its workers are still there, and take it.
        assert_eq!(reload.join().unwrap().unwrap().version, 2);
        assert_eq!(refused.reason(), "stopping");
    });
}

#[test]
fn a_runtime_that_ends_meanwhile_ends_the_reload() {
    let rt = runtime(next(7));
    let reloader = rt.reloader();
    let (setup, gate) = gated(8);
    std::thread::scope(|s| {
        let reload = s.spawn(move || reloader.replace(setup));
        gate.wait();
        drop(rt);
        gate.wait();
        gate.wait();
        gate.wait();
        assert_eq!(reload.join().unwrap().unwrap_err().reason(), "stopping");
    });
}

#[test]
fn memory_that_is_not_there_is_an_error_with_both_numbers() {
    assert!(enough("m", "it", 1_000, Some(1_000)).is_ok());
    assert!(enough("m", "it", 1_000, None).is_ok());
    let error = enough("m", "loading", 1_001, Some(1_000)).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("loading takes 1001 bytes at the least, 1000 are there"), "{text}");
    assert_eq!(error.reason(), "memory");
}

#[test]
fn what_came_of_every_model_fits_an_answer_however_long_the_reasons_are() {
    let name = |n: usize| format!("{n:0>MODEL_NAME_LEN_MAX$}");
    let refusal = |n, reason: &str| ReloadError::Instance { model: name(n), reason: reason.into() };
    let read = |results| {
        let text = told(results);
        assert!(text.len() <= FRAME_BODY_BYTES_MAX, "{}", text.len());
        serde_json::from_str::<Vec<serde_json::Value>>(&text).unwrap()
    };
    // What fits is told whole.
    let long = "x".repeat(60_000);
    let alone = read(vec![(name(0), Err(refusal(0, &long)))]);
    assert_eq!(alone[0]["error"], refusal(0, &long).to_string());
    // Characters of one byte, of several, and those that JSON writes in two and in six.
    for piece in ["x", "\u{e9}\u{20ac}", "\"\n", "\u{1}"] {
        let reason = |n| if n == 1 { "short".to_string() } else { piece.repeat(70_000) };
        let mut results: Vec<_> =
            (0..MODELS_MAX).map(|n| (name(n), Err(refusal(n, &reason(n))))).collect();
        let (version_hash, took_ns) = (Some("f".repeat(64)), Nanos(u64::MAX));
        let (model, version) = (name(2), u64::MAX);
        results[2].1 = Ok(Reloaded { model, changed: true, version, version_hash, took_ns });
        let all = read(results);
        assert_eq!(all.len(), MODELS_MAX);
        for (n, model) in all.iter().enumerate() {
            assert_eq!((&model["model"], &model["ok"]), (&name(n).into(), &(n == 2).into()));
            let whole = refusal(n, &reason(n)).to_string();
            match n {
                1 => assert_eq!(model["error"], whole),
                2 => assert_eq!(model["version"], u64::MAX),
                _ => {
                    assert_eq!(model["reason"], "instance");
                    let error = model["error"].as_str().unwrap();
                    let (start, more) = error.rsplit_once(" ... and ").unwrap();
                    assert!(whole.starts_with(start), "{error}");
                    assert_eq!(more, format!("{} bytes more", whole.len() - start.len()));
                    // No more is cut than must be.
                    assert!(model.to_string().len() > 2_030, "{error}");
                }
            }
        }
    }
}
