//! Loading: the library, the providers, a first run that shows what computes where, the comparison
//! with the processor.

mod half;

use super::Goldens;
use super::cache;
use super::driver::Driver;
use super::gpu::{self, Shortage};
use super::graph::{self, GraphError};
use super::instance::{OrtInstance, trial_run};
use super::interface::{self, Interface};
use super::placement::Placement;
use super::session::{self, Live, Recipe, Traces, engine_error};
use super::settings::{Need, OrtSettings, Provider, Wanted};
use super::weights::Weights;
use crate::engine::tract::front;
use crate::engine::{
    BackendMissing, BackendReport, BackendUse, Canary, Description, Engine, EngineCacheReport,
    EngineError, EngineErrorKind, EngineKind, Instance, LoadRequest, PlanIndex, PlanMemory,
};
use crate::limits::{
    FRAME_PAYLOAD_BYTES_MAX, ORT_PROFILE_BYTES_MAX, ROW_AXES_MAX, TENSOR_NAME_LEN_MAX,
};
use crate::model::signature::{Signature, TensorSpec};
use crate::units::Nanos;
use half::Half;
use ort::session::Session;
use ort::value::ValueType;
use std::io::Read;
use std::os::unix::fs::DirBuilderExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// Runs before the canary counts, and runs that it counts.
const CANARY_RUNS: (usize, usize) = (3, 11);

/// Loads a model; half precision is compared on random rows.
///
/// # Errors
/// As [`load_with`].
pub fn load(
    request: &LoadRequest<'_>,
    settings: &OrtSettings,
) -> Result<Box<dyn Engine>, EngineError> {
    load_with(request, settings, &|_| Vec::new())
}

/// Loads a model; half precision is compared on golden rows too.
///
/// # Errors
/// `Library` where the shared library can't be used, `Backend` where a provider that is required did
/// not take, `Precision` where half precision can't be had or strays too far, and those of every engine.
pub fn load_with(
    request: &LoadRequest<'_>,
    settings: &OrtSettings,
    goldens: Goldens<'_>,
) -> Result<Box<dyn Engine>, EngineError> {
    crate::engine::check_batch_sizes(request.batch_sizes)?;
    graph::check(settings)?;
    let half = half::wanted(settings)?;
    let interface = interface::read(request.bytes, request.bind_axes, request.bind_inputs)?;
    let recipe = recipe(request, settings)?;
    // The crate panics on some answers that it does not expect.
    let loaded = catch_unwind(AssertUnwindSafe(|| match half {
        None => build(recipe, interface, request.batch_sizes, None).map(|e| e as Box<dyn Engine>),
        Some(half) => half::build_half(recipe, interface, request, half, goldens),
    }));
    loaded.unwrap_or_else(|_| {
        let message = "the crate that binds ONNX Runtime panicked on this model";
        Err(EngineError::new(EngineErrorKind::Internal, message))
    })
}

/// Opens the library, and notes what a model asks of it.
pub fn recipe(request: &LoadRequest<'_>, settings: &OrtSettings) -> Result<Recipe, EngineError> {
    let opened = session::open(settings.library.as_deref())
        .map_err(|e| EngineError::new(EngineErrorKind::Library, e.to_string()).caused_by(e))?;
    Ok(Recipe {
        opened,
        bytes: request.bytes.into(),
        bind_axes: request.bind_axes.to_vec(),
        settings: settings.clone(),
        providers: settings.providers.clone(),
        convert: false,
        engine_cache: None,
        weights: None,
        graphs: None,
    })
}

fn build(
    mut recipe: Recipe,
    interface: Interface,
    batch_sizes: &[usize],
    half: Option<&Half>,
) -> Result<Box<OrtEngine>, EngineError> {
    let device = recipe.settings.device;
    let limit = recipe.settings.gpu_memory_bytes_max;
    let on_gpu = !recipe.only_cpu();
    build_engine(&mut recipe, interface, batch_sizes, half).map_err(|error| {
        // What the library says of memory is of its own; the driver knows what is free.
        match Shortage::read(&error.to_string()).filter(|_| on_gpu) {
            Some(shortage) => {
                let more = gpu::explain(shortage, device, limit, &gpu::all());
                EngineError::new(EngineErrorKind::Limit, format!("{more}: {error}"))
                    .caused_by(error)
            }
            None => error,
        }
    })
}

/// Whether the graph shows that rows are independent. The library does not show its graph; the front end of
/// the other engines reads the same file.
fn follow_rows(
    recipe: &Recipe,
    interface: &Interface,
    batch_sizes: &[usize],
) -> Result<(), String> {
    let bound: Vec<(String, f64)> =
        interface.inputs.iter().filter_map(|i| Some((i.name.clone(), i.constant?))).collect();
    front::follow_rows(&recipe.bytes, &recipe.bind_axes, &bound, batch_sizes)
}

fn build_engine(
    recipe: &mut Recipe,
    interface: Interface,
    batch_sizes: &[usize],
    half: Option<&Half>,
) -> Result<Box<OrtEngine>, EngineError> {
    let scratch = Scratch::new()?;
    let mut missing = drop_unknown(recipe)?;
    let mut engine_cache = keep_engines(recipe);
    let (profile, optimised) = (scratch.0.join("profile"), scratch.0.join("optimised.onnx"));
    let traces = Traces { profile: &profile, optimised: Some(&optimised) };
    let sleeps = sleep_while_waiting(recipe);
    let mut scout = first_session(recipe, traces, &mut missing)?;
    if matches!(half, Some(Half::TensorRt)) && !recipe.has(Provider::TensorRt) {
        return Err(half::no_way(&recipe.settings, &missing));
    }
    let signature = read_signature(&mut scout, &interface)?;
    let profile = scout.end_profiling().map_err(|e| engine_error("the profile", &e))?;
    drop(scout);
    let placement = read_placement(Path::new(&profile))?;
    check_placement(&recipe.providers, &placement, &mut missing)?;
    if let Some(half) = half {
        half::check(half, &placement)?;
    }
    if let Some(dir) = &recipe.engine_cache
        && let Some(report) = &mut engine_cache
    {
        report.engines = cache::engines(dir);
    }
    let batch_sizes = if signature.batched { batch_sizes.to_vec() } else { vec![1] };
    let independence =
        if signature.batched { follow_rows(recipe, &interface, &batch_sizes) } else { Ok(()) };
    if recipe.only_cpu() {
        share_weights(recipe, &interface, &signature, &optimised);
    }
    let mut engine = OrtEngine {
        backend: BackendReport {
            backend_wanted: recipe.settings.providers.iter().map(Wanted::to_string).collect(),
            backend_got: used(&placement),
            backend_missing: missing,
            backend_library: recipe.opened.library.path.display().to_string(),
            backend_version: recipe.opened.library.version.to_string(),
            backend_canary: None,
            backend_pinned: None,
            backend_sleeps: None,
            backend_cuda_graph: None,
            backend_precision: None,
            backend_engine_cache: engine_cache,
        },
        recipe: recipe.clone(),
        interface,
        signature,
        batch_sizes,
        placement,
        independence,
    };
    let on_gpu = |p: &Provider| *p != Provider::Cpu && engine.placement.nodes_on(p.ort_name()) > 0;
    if let Some(gpu) = engine.recipe.providers.iter().map(|w| w.provider).find(on_gpu) {
        let (cpu, _) = time_first_plan(&engine, &engine.recipe.on_cpu())?;
        let (got, pinned) = match engine.recipe.settings.cuda_graph {
            false => time_first_plan(&engine, &engine.recipe)?,
            true => capture_graphs(&mut engine, gpu)?,
        };
        engine.backend.backend_pinned = Some(pinned);
        if let Err(why) = &sleeps {
            event!(warn, "workers may spin while the GPU computes: {}", why);
        }
        engine.backend.backend_sleeps = Some(sleeps.is_ok());
        engine.backend.backend_cuda_graph = Some(engine.recipe.graphs.is_some());
        let batch_size = engine.batch_sizes[0];
        engine.backend.backend_canary = Some(Canary { batch_size, got_ns: got, cpu_ns: cpu });
    }
    Ok(Box::new(engine))
}

/// Makes workers sleep while a GPU computes; before the library uses it.
fn sleep_while_waiting(recipe: &Recipe) -> Result<(), String> {
    if recipe.only_cpu() {
        return Ok(());
    }
    Driver::get()?.sleep_while_waiting(recipe.settings.device)
}

/// From here on instances capture their runs as graphs of `gpu`. Does so once, and times it.
fn capture_graphs(engine: &mut OrtEngine, gpu: Provider) -> Result<(Nanos, bool), EngineError> {
    graph::check_sizes(gpu, engine.recipe.opened.library.version, &engine.batch_sizes)?;
    engine.recipe.graphs = Some(gpu);
    time_first_plan(engine, &engine.recipe).map_err(|source| {
        let got = node_counts(&engine.placement);
        GraphError::Refused { provider: gpu, got, source }.into()
    })
}

/// Gives TensorRT a directory for its engines, where one is asked for; `None` where nothing is to be kept.
fn keep_engines(recipe: &mut Recipe) -> Option<EngineCacheReport> {
    if !recipe.has(Provider::TensorRt) {
        return None;
    }
    let root = recipe.settings.engine_cache.clone()?;
    let dir = gpu::all().and_then(|gpus| {
        let key = cache::Key {
            model: &recipe.bytes,
            library: recipe.opened.library.version.to_string(),
            precision: recipe.settings.precision,
            device: recipe.settings.device,
            gpus: &gpus,
            numbering: cache::NUMBERING.map(|name| std::env::var(name).ok()),
        };
        let dir = key.directory(&root);
        cache::prepare(&dir).map(|()| dir)
    });
    if let Err(why) = &dir {
        event!(warn, "TensorRT's engines are not kept: {}", why);
    }
    recipe.engine_cache = dir.as_ref().ok().cloned();
    let name = recipe.engine_cache.as_ref().map(|dir| dir.display().to_string());
    Some(EngineCacheReport { dir: name, engines: 0, reason: dir.err() })
}

/// Lets sessions share their weights, if a session that does so runs; else each has its own.
fn share_weights(
    recipe: &mut Recipe,
    interface: &Interface,
    signature: &Signature,
    optimised: &Path,
) {
    let tried = Weights::read(optimised).and_then(|weights| {
        // All that is needed of the model is in the optimised one.
        let sharing = Recipe {
            weights: Some(Arc::new(weights)),
            bind_axes: Vec::new(),
            bytes: Arc::default(),
            ..recipe.clone()
        };
        let mut instance =
            OrtInstance::new(&sharing, interface, signature, &[1]).map_err(|e| e.to_string())?;
        instance.infer(PlanIndex(0)).map_err(|e| e.to_string())?;
        Ok(sharing)
    });
    match tried {
        Ok(sharing) => *recipe = sharing,
        Err(why) => event!(debug, "sessions don't share weights: {}", why),
    }
}

/// A directory for the profile, removed with everything in it.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Scratch, EngineError> {
        let root = std::env::temp_dir();
        // Several threads may load at once.
        for n in 0..=u8::MAX {
            let dir = root.join(format!("corelane-ort-{}-{n}", std::process::id()));
            match std::fs::DirBuilder::new().mode(0o700).create(&dir) {
                Ok(()) => return Ok(Scratch(dir)),
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists && n < u8::MAX => {}
                Err(source) => {
                    let message = format!(
                        "{} can't be made for the profile that shows where nodes run (TMPDIR \
                         names another place): {source}",
                        dir.display()
                    );
                    return Err(EngineError::new(EngineErrorKind::Io, message).caused_by(source));
                }
            }
        }
        unreachable!("the last try returns")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Takes providers off the list that the library does not have.
fn drop_unknown(recipe: &mut Recipe) -> Result<Vec<BackendMissing>, EngineError> {
    let available = session::available().map_err(|e| engine_error("the providers", &e))?;
    let library = &recipe.opened.library;
    let (there, not): (Vec<Wanted>, Vec<Wanted>) = (recipe.providers.iter())
        .partition(|w| available.iter().any(|name| name == w.provider.ort_name()));
    recipe.providers = there;
    let mut missing = Vec::new();
    for wanted in not {
        let reason = format!(
            "{} (ONNX Runtime {}) was built without it; it has {}",
            library.path.display(),
            library.version,
            available.join(", ")
        );
        miss(wanted, reason, &mut missing)?;
    }
    none_left(recipe, &missing)?;
    Ok(missing)
}

/// An error where `wanted` is required, else a note.
fn miss(
    wanted: Wanted,
    reason: String,
    missing: &mut Vec<BackendMissing>,
) -> Result<(), EngineError> {
    let provider = wanted.provider.name();
    if wanted.need == Need::Required {
        let message = format!("provider {provider} is required, but did not take: {reason}");
        return Err(EngineError::new(EngineErrorKind::Backend, message));
    }
    event!(warn, "provider {} did not take: {}", provider, reason);
    missing.push(BackendMissing { provider: provider.into(), reason });
    Ok(())
}

fn none_left(recipe: &Recipe, missing: &[BackendMissing]) -> Result<(), EngineError> {
    if !recipe.providers.is_empty() {
        return Ok(());
    }
    let message = format!(
        "no provider of the list is left ({}); add cpu where the model may run there",
        reasons(missing)
    );
    Err(EngineError::new(EngineErrorKind::Backend, message))
}

fn reasons(missing: &[BackendMissing]) -> String {
    let reasons = missing.iter().map(|m| format!("{}: {}", m.provider, m.reason));
    reasons.collect::<Vec<_>>().join("; ")
}

/// A session with the providers that take; those that are only preferred are given up one by one.
fn first_session(
    recipe: &mut Recipe,
    traces: Traces<'_>,
    missing: &mut Vec<BackendMissing>,
) -> Result<Live, EngineError> {
    loop {
        // The optimised model is for sessions that share it; only those on the processor do.
        let optimised = traces.optimised.filter(|_| recipe.only_cpu());
        let error = match recipe.session(Some(Traces { optimised, ..traces })) {
            Ok(session) => return Ok(session),
            Err(error) => error,
        };
        let others = |w: &Wanted| w.provider != Provider::Cpu;
        if recipe.only_cpu() {
            return Err(engine_error("ONNX Runtime can't load the model", &error));
        }
        // What fails on the processor too is the model's fault, not the provider's.
        recipe
            .on_cpu()
            .session(None)
            .map_err(|e| engine_error("ONNX Runtime can't load the model", &e))?;
        let reason = error.message().trim().to_string();
        let preferred = |w: &Wanted| others(w) && w.need == Need::Preferred;
        let first = recipe.providers.iter().position(preferred);
        let n = first.or_else(|| recipe.providers.iter().position(others)).unwrap_or(0);
        let wanted = recipe.providers.remove(n);
        miss(wanted, reason, missing)?;
        none_left(recipe, missing)?;
    }
}

/// Runs the model on zeros at one row and, where axis 0 is open, at two, and reads what a row is.
pub fn read_signature(
    scout: &mut Session,
    interface: &Interface,
) -> Result<Signature, EngineError> {
    let one = output_specs(trial_run(scout, interface, 1)?)?;
    let scales = |two: &[TensorSpec]| {
        one.iter().zip(two).all(|(a, b)| {
            a.row_shape.len() == b.row_shape.len()
                && a.row_shape.first() == Some(&1)
                && b.row_shape.first() == Some(&2)
                && a.row_shape[1..] == b.row_shape[1..]
        })
    };
    let inputs_scale = interface.carried().all(|i| i.axes.first() == Some(&interface::Axis::Batch));
    let two = (interface.open_batch && inputs_scale).then(|| trial_run(scout, interface, 2));
    let batched = match two {
        // A model that can't do two rows is one without a batch.
        None | Some(Err(_)) => false,
        Some(Ok(types)) => scales(&output_specs(types)?),
    };
    let row = |mut spec: TensorSpec| {
        if batched {
            spec.row_shape.remove(0);
        }
        spec
    };
    let inputs = interface.carried().map(|i| TensorSpec {
        name: i.name.clone(),
        dtype: i.dtype,
        row_shape: i.shape(1),
    });
    let signature = Signature {
        inputs: inputs.map(row).collect(),
        outputs: one.iter().cloned().map(row).collect(),
        batched,
    };
    for spec in signature.inputs.iter().chain(&signature.outputs) {
        let bytes = spec.row_bytes();
        if spec.row_shape.len() > ROW_AXES_MAX || bytes > FRAME_PAYLOAD_BYTES_MAX || bytes == 0 {
            let message = format!(
                "a row of {:?} has shape {:?}, {bytes} bytes; 1 to {FRAME_PAYLOAD_BYTES_MAX} bytes \
                 and up to {ROW_AXES_MAX} axes are served",
                spec.name, spec.row_shape
            );
            return Err(EngineError::new(EngineErrorKind::Limit, message));
        }
    }
    Ok(signature)
}

fn output_specs(types: Vec<(String, ValueType)>) -> Result<Vec<TensorSpec>, EngineError> {
    let untyped = |name: &str, what: &str| {
        let message = format!("output {name:?} {what}, which can't travel");
        EngineError::new(EngineErrorKind::Untyped, message)
    };
    let spec = |(name, value): (String, ValueType)| {
        debug_assert!(name.len() <= TENSOR_NAME_LEN_MAX, "checked by the interface");
        let ValueType::Tensor { ty, shape, .. } = value else {
            return Err(untyped(&name, "is no tensor"));
        };
        let number = ort::sys::ONNXTensorElementDataType::from(ty) as i32;
        let dtype = interface::dtype_of(number);
        let dtype = dtype.ok_or_else(|| untyped(&name, &format!("has element type {ty}")))?;
        let row_shape: Option<Vec<usize>> =
            shape.iter().map(|&axis| usize::try_from(axis).ok()).collect();
        let row_shape =
            row_shape.ok_or_else(|| untyped(&name, "has an axis of negative length"))?;
        Ok(TensorSpec { name, dtype, row_shape })
    };
    types.into_iter().map(spec).collect()
}

fn read_placement(profile: &Path) -> Result<Placement, EngineError> {
    let failed = |text: String| EngineError::new(EngineErrorKind::Internal, text);
    let mut bytes = Vec::new();
    let file = std::fs::File::open(profile);
    file.and_then(|f| f.take(ORT_PROFILE_BYTES_MAX).read_to_end(&mut bytes))
        .map_err(|e| failed(format!("the profile {}: {e}", profile.display())))?;
    Placement::parse(&bytes).map_err(failed)
}

/// A required provider must run a node, or one before it in the list must.
fn check_placement(
    providers: &[Wanted],
    placement: &Placement,
    missing: &mut Vec<BackendMissing>,
) -> Result<(), EngineError> {
    let mut nodes = 0;
    for wanted in providers.iter().filter(|w| w.provider != Provider::Cpu) {
        nodes += placement.nodes_on(wanted.provider.ort_name());
        if nodes == 0 {
            miss(*wanted, format!("no node runs on it; {}", node_counts(placement)), missing)?;
        }
    }
    Ok(())
}

/// Who runs how many nodes, by our names.
fn used(placement: &Placement) -> Vec<BackendUse> {
    let ours = |name: &str| {
        let known = Provider::ALL.into_iter().find(|p| p.ort_name() == name);
        known.map_or_else(|| name.to_string(), |provider| provider.name().to_string())
    };
    let providers = placement.providers();
    providers.into_iter().map(|(name, nodes)| BackendUse { provider: ours(name), nodes }).collect()
}

/// The same as a sentence's part.
fn node_counts(placement: &Placement) -> String {
    used(placement).iter().map(BackendUse::to_string).collect::<Vec<_>>().join(", ")
}

/// Median time of a run at the first batch size, on zeros, and whether tensors were in pinned memory.
fn time_first_plan(engine: &OrtEngine, recipe: &Recipe) -> Result<(Nanos, bool), EngineError> {
    let mut instance =
        OrtInstance::new(recipe, &engine.interface, &engine.signature, &engine.batch_sizes[..1])?;
    let mut times = Vec::new();
    for n in 0..CANARY_RUNS.0 + CANARY_RUNS.1 {
        let start = Instant::now();
        instance
            .infer(PlanIndex(0))
            .map_err(|e| EngineError::new(EngineErrorKind::Internal, format!("the canary: {e}")))?;
        if n >= CANARY_RUNS.0 {
            times.push(start.elapsed().as_nanos() as u64);
        }
    }
    times.sort_unstable();
    Ok((Nanos(times[times.len() / 2]), instance.is_pinned()))
}

struct OrtEngine {
    recipe: Recipe,
    interface: Interface,
    signature: Signature,
    batch_sizes: Vec<usize>,
    placement: Placement,
    backend: BackendReport,
    independence: Result<(), String>,
}

impl OrtEngine {
    /// Nodes in half precision; not known where a provider converts inside of its nodes.
    fn half_nodes(&self) -> Option<usize> {
        let inside = self.placement.nodes_on(Provider::TensorRt.ort_name()) > 0;
        (!inside).then(|| self.placement.half_nodes())
    }
}

impl Engine for OrtEngine {
    fn kind(&self) -> EngineKind {
        EngineKind::Ort
    }
    fn signature(&self) -> &Signature {
        &self.signature
    }
    fn batch_sizes(&self) -> &[usize] {
        &self.batch_sizes
    }
    fn independence(&self) -> Result<(), &str> {
        self.independence.as_ref().copied().map_err(String::as_str)
    }
    fn describe(&self) -> Description {
        let memory = PlanMemory::staged(&self.signature, &self.batch_sizes, None);
        Description {
            operators: self.placement.operators(),
            instance_arena_bytes: None,
            instance_staging_bytes: memory.iter().map(|m| m.staging_bytes).sum(),
            memory,
            weight_bytes: match &self.recipe.weights {
                Some(weights) => weights.bytes(),
                None => self.interface.weight_bytes,
            },
            weights_shared: self.recipe.weights.is_some(),
            allocation_free: false,
            isa: None,
            precision: self.backend.backend_precision.iter().map(|p| p.to_string()).collect(),
            steps: vec![],
            backend: Some(self.backend.clone()),
        }
    }
    fn backend(&self) -> Option<&BackendReport> {
        Some(&self.backend)
    }
    fn instance(&self) -> Result<Box<dyn Instance>, EngineError> {
        OrtInstance::new(&self.recipe, &self.interface, &self.signature, &self.batch_sizes)
            .map(|instance| Box::new(instance) as Box<dyn Instance>)
    }
}
