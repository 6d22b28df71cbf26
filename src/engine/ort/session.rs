//! ONNX Runtime's objects: the one environment of the process, sessions, tensors over memory of ours.

use super::fixed::no_capture;
use super::gpu::Shortage;
use super::library::{self, Library, LibraryError};
use super::settings::{OrtSettings, Provider, Wanted};
use super::weights::Weights;
use crate::engine::{EngineError, EngineErrorKind, RunError};
use crate::limits::BUFFER_ALIGN_BYTES;
use crate::units::DType;
use ort::environment::Environment;
use ort::ep::{self, ExecutionProviderDispatch};
use ort::logging::LogLevel;
use ort::memory::{AllocationDevice, Allocator, AllocatorType, MemoryInfo, MemoryType};
use ort::session::Session;
use ort::session::builder::{GraphOptimizationLevel, SessionBuilder};
use ort::sys::{OrtStatusPtr, OrtValue};
use ort::{AsPointer, ErrorCode};
use std::alloc::Layout;
use std::ffi::{CStr, c_char};
use std::fmt::Display;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

/// The environment, and the library that it is in.
#[derive(Clone)]
pub struct Opened {
    /// Where sessions are made.
    pub environment: Environment,
    /// The library.
    pub library: Arc<Library>,
}

/// The library that this process has, for good: it is never closed again.
struct Held {
    path: PathBuf,
    /// `None` where it was loaded, but does not work.
    opened: Option<Opened>,
}

static HELD: Mutex<Option<Held>> = Mutex::new(None);

/// Opens the library that is asked for, once; later calls give the same.
///
/// # Errors
/// Every kind of [`LibraryError`].
pub fn open(configured: Option<&Path>) -> Result<Opened, LibraryError> {
    let mut held = HELD.lock().unwrap_or_else(|e| e.into_inner());
    if let Some(Held { path, opened }) = &*held {
        let (wanted, _) = library::find(configured)?;
        if wanted != *path {
            return Err(LibraryError::Another { open: path.clone(), wanted });
        }
        if let Some(opened) = opened {
            return Ok(opened.clone());
        }
    }
    let library = library::probe(configured)?;
    let failed = |said: String| LibraryError::Open {
        path: library.path.clone(),
        version: library.version,
        said,
    };
    let builder = guarded(|| ort::init_from(&library.path)).map_err(failed)?;
    // From here on the crate has this one, and would take it for any other that it is asked for.
    let held = held.insert(Held { path: library.path.clone(), opened: None });
    let builder = builder.with_name("corelane").with_telemetry(false).with_logger(Arc::new(log));
    let environment = guarded(|| builder.build()).map_err(failed)?;
    let opened = Opened { environment, library: Arc::new(library) };
    held.opened = Some(opened.clone());
    Ok(opened)
}

/// What a call of the crate gives, or what it said; it panics where a library keeps its interface back.
fn guarded<T, E: Display>(call: impl FnOnce() -> Result<T, E>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result.map_err(|e| e.to_string()),
        Err(panic) => Err(panic_text(&*panic)),
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic").to_string()
}

/// ONNX Runtime's messages go where the others go.
fn log(level: LogLevel, _category: &str, _id: &str, _location: &str, message: &str) {
    match level {
        LogLevel::Verbose | LogLevel::Info => event!(trace, "onnxruntime: {}", message),
        LogLevel::Warning => event!(debug, "onnxruntime: {}", message),
        LogLevel::Error | LogLevel::Fatal => event!(warn, "onnxruntime: {}", message),
    }
}

/// Providers that the library was built with, as ONNX Runtime calls them. The library must be open.
pub fn available() -> Result<Vec<String>, ort::Error> {
    let mut list: *mut *mut c_char = std::ptr::null_mut();
    let mut count = 0;
    // SAFETY: both are written by the call.
    unsafe { checked((ort::api().GetAvailableProviders)(&mut list, &mut count))? };
    let mut names = Vec::new();
    for n in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the list has `count` texts that end in 0, until it is released below.
        names.push(unsafe { CStr::from_ptr(*list.add(n)) }.to_string_lossy().into_owned());
    }
    // SAFETY: it is what was given, released once.
    unsafe { checked((ort::api().ReleaseAvailableProviders)(list, count))? };
    Ok(names)
}

/// What every session of a model is made from.
#[derive(Clone)]
pub struct Recipe {
    /// Where sessions are made.
    pub opened: Opened,
    /// The model file.
    pub bytes: Arc<[u8]>,
    /// Lengths of open axes other than the batch.
    pub bind_axes: Vec<(String, usize)>,
    /// What the model asks for.
    pub settings: OrtSettings,
    /// The providers that are registered, in order.
    pub providers: Vec<Wanted>,
    /// Whether TensorRT is to compute in half precision.
    pub convert: bool,
    /// Where TensorRT keeps its engines.
    pub engine_cache: Option<PathBuf>,
    /// What sessions share; `None` where each has weights of its own.
    pub weights: Option<Arc<Weights>>,
    /// Whose runs are captured as CUDA graphs; `None` where none are.
    pub graphs: Option<Provider>,
}

/// What the first session writes, for what follows.
#[derive(Clone, Copy)]
pub struct Traces<'a> {
    /// How the name of the profile of its runs begins.
    pub profile: &'a Path,
    /// The optimised model, where sessions are to share its weights.
    pub optimised: Option<&'a Path>,
}

/// A session and what it borrows.
pub struct Live {
    session: ManuallyDrop<Session>,
    /// After the session: it goes first.
    _weights: Option<Arc<Weights>>,
    /// Whether it has memory on a GPU.
    on_gpu: bool,
}

impl Deref for Live {
    type Target = Session;
    fn deref(&self) -> &Session {
        &self.session
    }
}

impl DerefMut for Live {
    fn deref_mut(&mut self) -> &mut Session {
        &mut self.session
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        let _gpu = self.on_gpu.then(no_capture);
        // SAFETY: dropped once, here, and not used after.
        unsafe { ManuallyDrop::drop(&mut self.session) };
    }
}

impl Recipe {
    /// A session; with `traces`, one that leaves them.
    pub fn session(&self, traces: Option<Traces<'_>>) -> Result<Live, ort::Error> {
        let on_gpu = !self.only_cpu();
        let _gpu = on_gpu.then(no_capture);
        let mut builder = self.builder()?;
        if let Some(traces) = traces {
            builder = builder.with_profiling(traces.profile)?;
            if let Some(path) = traces.optimised {
                builder = builder.with_optimized_model_path(path)?;
            }
        }
        let session = match &self.weights {
            Some(weights) => weights.lend(builder)?.commit_from_memory(&weights.model()?)?,
            None => builder.commit_from_memory(&self.bytes)?,
        };
        let session = ManuallyDrop::new(session);
        Ok(Live { session, _weights: self.weights.clone(), on_gpu })
    }

    fn builder(&self) -> Result<SessionBuilder, ort::Error> {
        // Shared weights are those of a model that is optimised already.
        let level = match self.weights {
            Some(_) => GraphOptimizationLevel::Disable,
            None => GraphOptimizationLevel::All,
        };
        let mut builder = Session::builder(&self.opened.environment)?
            .with_log_level(LogLevel::Warning)?
            .with_optimization_level(level)?
            // The parallelism is workers, and a worker that waits does so by its own strategy.
            .with_intra_threads(1)?
            .with_inter_threads(1)?
            .with_config_entry("session.intra_op.allow_spinning", "0")?
            .with_config_entry("session.inter_op.allow_spinning", "0")?
            // Without it, sums of 8-bit products saturate on processors without VNNI instructions.
            .with_config_entry("session.x64quantprecision", "1")?;
        for (symbol, length) in &self.bind_axes {
            builder = builder.with_dimension_override(symbol, *length as i64)?;
        }
        for wanted in &self.providers {
            if let Some(provider) = self.dispatch(wanted.provider) {
                builder = builder.with_execution_providers([provider])?;
            }
        }
        if !self.has(Provider::Cpu) {
            builder = builder.with_config_entry("session.disable_cpu_ep_fallback", "1")?;
        }
        Ok(builder)
    }

    /// Whether a provider is registered.
    pub fn has(&self, provider: Provider) -> bool {
        self.providers.iter().any(|w| w.provider == provider)
    }

    /// Whether everything is computed on the processor.
    pub fn only_cpu(&self) -> bool {
        self.providers.iter().all(|w| w.provider == Provider::Cpu)
    }

    fn dispatch(&self, provider: Provider) -> Option<ExecutionProviderDispatch> {
        let graphs = self.graphs == Some(provider);
        match provider {
            // It is always there, behind all others.
            Provider::Cpu => None,
            Provider::Cuda => Some(cuda(&self.settings, graphs).build().error_on_failure()),
            Provider::TensorRt => {
                let mut trt = tensorrt(&self.settings, graphs);
                if self.convert {
                    trt = trt.with_fp16(true);
                }
                if let Some(dir) = &self.engine_cache {
                    trt = trt.with_engine_cache(true).with_engine_cache_path(dir.display());
                }
                Some(trt.build().error_on_failure())
            }
        }
    }

    /// The same on the processor alone, to compare with.
    pub fn on_cpu(&self) -> Recipe {
        let cpu = OrtSettings::default().providers;
        Recipe {
            providers: cpu,
            convert: false,
            engine_cache: None,
            weights: None,
            graphs: None,
            ..self.clone()
        }
    }
}

/// What is asked of provider `cuda`.
fn cuda(settings: &OrtSettings, graphs: bool) -> ep::CUDA {
    let mut cuda = ep::CUDA::default().with_device_id(device_id(settings.device));
    if let Some(bytes) = memory_bytes_max(settings) {
        cuda = cuda.with_memory_limit(bytes);
    }
    if graphs {
        cuda = cuda.with_cuda_graph(true);
    }
    cuda
}

/// What is asked of provider `tensorrt`, whatever the precision.
fn tensorrt(settings: &OrtSettings, graphs: bool) -> ep::TensorRT {
    let mut trt = ep::TensorRT::default().with_device_id(device_id(settings.device));
    if let Some(bytes) = memory_bytes_max(settings) {
        trt = trt.with_max_workspace_size(bytes);
    }
    if graphs {
        trt = trt.with_cuda_graph(true);
    }
    trt
}

fn memory_bytes_max(settings: &OrtSettings) -> Option<usize> {
    settings.gpu_memory_bytes_max.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX))
}

fn device_id(device: u32) -> i32 {
    i32::try_from(device).unwrap_or(i32::MAX)
}

/// What a call of ONNX Runtime said.
pub fn checked(status: OrtStatusPtr) -> Result<(), ort::Error> {
    // SAFETY: given to us by the call, and taken once.
    unsafe { ort::Error::result_from_status(status) }
}

/// Whether a call of ONNX Runtime succeeded. Does not allocate on our side, even where it did not.
pub fn succeeded(status: OrtStatusPtr) -> Result<(), RunError> {
    if status.0.is_null() {
        return Ok(());
    }
    // SAFETY: given to us by the call, released once.
    unsafe { (ort::api().ReleaseStatus)(status.0) };
    Err(RunError::Step { step: u32::MAX })
}

/// An error of ONNX Runtime as one of ours.
pub fn engine_error(what: &str, error: &ort::Error) -> EngineError {
    let said = error.message();
    let operator = said.contains("No Op registered for")
        || said.contains("is not a registered function/op")
        || error.code() == ErrorCode::NotImplemented;
    let kind = match error.code() {
        _ if operator => EngineErrorKind::UnsupportedOperator,
        ErrorCode::InvalidProtobuf | ErrorCode::InvalidGraph | ErrorCode::NoModel => {
            EngineErrorKind::Malformed
        }
        ErrorCode::ExecutionProviderFailure => EngineErrorKind::Backend,
        _ if Shortage::read(said).is_some() => EngineErrorKind::Limit,
        _ => EngineErrorKind::Internal,
    };
    let short: String = said.chars().take(600).collect();
    let ours = EngineError::new(kind, format!("{what}: {short}"));
    match named_node(said) {
        Some(node) => ours.at_node(node),
        None => ours,
    }
}

/// The node that a message of ONNX Runtime names.
fn named_node(said: &str) -> Option<&str> {
    let node = |before: &str, after: &str| {
        let (_, rest) = said.split_once(before)?;
        Some(rest.split_once(after)?.0.trim()).filter(|name| !name.is_empty())
    };
    node("In Node, (\"", "\"")
        .or_else(|| node("node with name '", "'"))
        .or_else(|| node(" in node (", ")"))
        .or_else(|| node("Name:'", "'"))
}

/// Memory that a session gives.
pub struct Memory(Allocator);

impl Memory {
    /// Memory of the host that the driver has locked: GPU `device` copies from and to it without a stop in
    /// between.
    ///
    /// # Errors
    /// Where the session has none, or the library gives another kind.
    pub fn pinned(session: &Session, device: u32) -> Result<Rc<Memory>, ort::Error> {
        let place = AllocationDevice::CUDA_PINNED;
        Memory::of(session, "CudaPinned", place, device, MemoryType::CPUInput)
    }

    /// Memory of GPU `device`.
    ///
    /// # Errors
    /// As [`pinned`](Self::pinned).
    pub fn on_device(session: &Session, device: u32) -> Result<Rc<Memory>, ort::Error> {
        Memory::of(session, "Cuda", AllocationDevice::CUDA, device, MemoryType::Default)
    }

    /// Memory of the host, as any session has it.
    #[cfg(test)]
    pub fn on_host(session: &Session) -> Result<Rc<Memory>, ort::Error> {
        Memory::of(session, "Cpu", AllocationDevice::CPU, 0, MemoryType::Default)
    }

    /// `name` is what ONNX Runtime calls `place`.
    fn of(
        session: &Session,
        name: &str,
        place: AllocationDevice<'static>,
        device: u32,
        memory: MemoryType,
    ) -> Result<Rc<Memory>, ort::Error> {
        let info = MemoryInfo::new(place, device_id(device), AllocatorType::Device, memory)?;
        let allocator = Allocator::new(session, info)?;
        let (mut info, mut got) = (std::ptr::null(), std::ptr::null());
        // SAFETY: the allocator is alive; both are written by the calls, and are the allocator's own.
        let got = unsafe {
            let api = ort::api();
            checked((api.AllocatorGetInfo)(allocator.ptr(), &mut info))?;
            checked((api.MemoryInfoGetName)(info, &mut got))?;
            CStr::from_ptr(got).to_string_lossy()
        };
        if got != name {
            return Err(ort::Error::new(format!("{name} was asked for, and {got} was given")));
        }
        Ok(Rc::new(Memory(allocator)))
    }

    /// What gives it.
    pub fn allocator(&self) -> &Allocator {
        &self.0
    }
}

/// Zeros at a fixed address, aligned for vectors, that ONNX Runtime reads and writes between our uses.
pub struct Buffer {
    start: NonNull<u8>,
    layout: Layout,
    /// Whose memory it is; of the heap if `None`.
    pinned: Option<Rc<Memory>>,
}

impl Buffer {
    /// `len` zeros.
    pub fn new(len: usize, pinned: Option<&Rc<Memory>>) -> Result<Buffer, ort::Error> {
        // Never empty, so that there is an address.
        let layout = Layout::from_size_align(len.max(1), BUFFER_ALIGN_BYTES).expect("within isize");
        let start = match pinned {
            Some(pinned) => {
                let start = pinned.allocator().alloc::<u8>(layout.size())?.into_raw().cast::<u8>();
                // SAFETY: so many bytes were just given, to us alone.
                unsafe { start.write_bytes(0, layout.size()) };
                start
            }
            // SAFETY: the layout is not empty.
            None => unsafe { std::alloc::alloc_zeroed(layout) },
        };
        // Batches are as large as a manifest says: an error, and no end of the process.
        let short = || ort::Error::new(format!("out of memory: a tensor of {len} bytes"));
        let start = NonNull::new(start).ok_or_else(short)?;
        Ok(Buffer { start, layout, pinned: pinned.cloned() })
    }

    /// The bytes.
    pub fn get(&self) -> &[u8] {
        // SAFETY: allocated and initialised in `new`; ONNX Runtime writes only inside `run`, which
        // takes the instance by `&mut`, so not while this borrow lives.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.layout.size()) }
    }

    /// The bytes, to be written.
    pub fn get_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `get`, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.layout.size()) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        match &self.pinned {
            // SAFETY: allocated in `new` by this allocator, freed once.
            Some(pinned) => unsafe { pinned.0.free(self.start.as_ptr()) },
            // SAFETY: allocated in `new` with this layout, freed once.
            None => unsafe { std::alloc::dealloc(self.start.as_ptr(), self.layout) },
        }
    }
}

/// A value that is ours to release.
pub struct Value(NonNull<OrtValue>);

impl Value {
    /// What a call gave.
    ///
    /// # Errors
    /// Where it gave nothing.
    pub fn new(given: *mut OrtValue) -> Result<Value, ort::Error> {
        NonNull::new(given).map(Value).ok_or_else(|| ort::Error::new("no value was made"))
    }

    /// ONNX Runtime's view of it.
    pub fn ptr(&self) -> *mut OrtValue {
        self.0.as_ptr()
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        // SAFETY: given to us by a call, released once.
        unsafe { (ort::api().ReleaseValue)(self.0.as_ptr()) };
    }
}

/// A tensor in a buffer of ours. Bindings that name it must go before it.
pub struct Tensor {
    value: Value,
    /// The elements; after the value, which is a view of them.
    pub buffer: Buffer,
}

impl Tensor {
    /// Zeros of a type and shape, in pinned memory where it is given.
    pub fn new(
        dtype: DType,
        shape: &[usize],
        pinned: Option<&Rc<Memory>>,
    ) -> Result<Tensor, ort::Error> {
        let bytes = shape.iter().product::<usize>() * dtype.size_bytes();
        let buffer = Buffer::new(bytes, pinned)?;
        let dims = dims(shape);
        let heap = MemoryInfo::default();
        let memory = pinned.map_or(&heap, |pinned| pinned.0.memory_info());
        let mut value = std::ptr::null_mut();
        // SAFETY: the buffer has as many bytes as the shape asks for, and outlives the value (field
        // order).
        unsafe {
            checked((ort::api().CreateTensorWithDataAsOrtValue)(
                memory.ptr(),
                buffer.start.as_ptr().cast(),
                bytes,
                dims.as_ptr(),
                dims.len(),
                element_type(dtype),
                &mut value,
            ))?;
        }
        Ok(Tensor { value: Value::new(value)?, buffer })
    }

    /// ONNX Runtime's view of it.
    pub fn ptr(&self) -> *const OrtValue {
        self.value.ptr()
    }
}

/// A shape as ONNX Runtime takes it.
pub fn dims(shape: &[usize]) -> Vec<i64> {
    shape.iter().map(|&n| n as i64).collect()
}

/// An element type as ONNX Runtime takes it.
pub fn element_type(dtype: DType) -> ort::sys::ONNXTensorElementDataType {
    use ort::sys::ONNXTensorElementDataType as E;
    match dtype {
        DType::F32 => E::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT,
        DType::U8 => E::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8,
        DType::I8 => E::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8,
        DType::U16 => E::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16,
        DType::I16 => E::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16,
        DType::I32 => E::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32,
        DType::I64 => E::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64,
        DType::Bool => E::ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL,
        DType::F16 => E::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16,
        DType::F64 => E::ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE,
        DType::U32 => E::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT32,
        DType::U64 => E::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64,
    }
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
