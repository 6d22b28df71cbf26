//! ONNX Runtime's objects: the one environment of the process, sessions, tensors over memory of ours.

use super::library::{self, Library, LibraryError};
use super::settings::{OrtSettings, Provider, Wanted};
use crate::engine::{EngineError, EngineErrorKind};
use crate::limits::BUFFER_ALIGN_BYTES;
use crate::units::DType;
use ort::environment::Environment;
use ort::ep::{self, ExecutionProviderDispatch};
use ort::logging::LogLevel;
use ort::memory::MemoryInfo;
use ort::session::Session;
use ort::session::builder::{GraphOptimizationLevel, SessionBuilder};
use ort::{AsPointer, ErrorCode};
use std::alloc::Layout;
use std::ffi::{CStr, c_char};
use std::panic::catch_unwind;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

/// The environment, and the library that it is in.
#[derive(Clone)]
pub struct Opened {
    /// Where sessions are made.
    pub environment: Environment,
    /// The library.
    pub library: Arc<Library>,
}

/// One per process: ONNX Runtime is never closed again.
static OPENED: Mutex<Option<Opened>> = Mutex::new(None);

/// Opens the library that is asked for, once; later calls give the same.
///
/// # Errors
/// Every kind of [`LibraryError`].
pub fn open(configured: Option<&Path>) -> Result<Opened, LibraryError> {
    let mut slot = OPENED.lock().unwrap_or_else(|e| e.into_inner());
    if let Some(opened) = &*slot {
        let (wanted, _) = library::find(configured)?;
        if wanted != opened.library.path {
            return Err(LibraryError::Another { open: opened.library.path.clone(), wanted });
        }
        return Ok(opened.clone());
    }
    let library = library::probe(configured)?;
    let failed = |said: String| LibraryError::Open {
        path: library.path.clone(),
        version: library.version,
        said,
    };
    // The crate panics where a library keeps its interface back.
    let environment = catch_unwind(|| {
        let builder = ort::init_from(&library.path).map_err(|e| e.to_string())?;
        builder
            .with_name("corelane")
            .with_telemetry(false)
            .with_logger(Arc::new(log))
            .build()
            .map_err(|e| e.to_string())
    });
    let environment = match environment {
        Ok(Ok(environment)) => environment,
        Ok(Err(said)) => return Err(failed(said)),
        Err(panic) => return Err(failed(panic_text(&*panic))),
    };
    let opened = Opened { environment, library: Arc::new(library) };
    *slot = Some(opened.clone());
    Ok(opened)
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
    unsafe {
        ort::Error::result_from_status((ort::api().GetAvailableProviders)(&mut list, &mut count))?
    };
    let mut names = Vec::new();
    for n in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the list has `count` texts that end in 0, until it is released below.
        names.push(unsafe { CStr::from_ptr(*list.add(n)) }.to_string_lossy().into_owned());
    }
    // SAFETY: it is what was given, released once.
    unsafe { ort::Error::result_from_status((ort::api().ReleaseAvailableProviders)(list, count))? };
    Ok(names)
}

fn dispatch(provider: Provider, settings: &OrtSettings) -> Option<ExecutionProviderDispatch> {
    let device = i32::try_from(settings.device).unwrap_or(i32::MAX);
    match provider {
        // It is always there, behind all others.
        Provider::Cpu => None,
        Provider::Cuda => {
            let mut cuda = ep::CUDA::default().with_device_id(device);
            if let Some(bytes) = settings.gpu_memory_bytes_max {
                cuda = cuda.with_memory_limit(usize::try_from(bytes).unwrap_or(usize::MAX));
            }
            Some(cuda.build().error_on_failure())
        }
        Provider::TensorRt => {
            let mut trt = ep::TensorRT::default().with_device_id(device);
            if let Some(bytes) = settings.gpu_memory_bytes_max {
                trt = trt.with_max_workspace_size(usize::try_from(bytes).unwrap_or(usize::MAX));
            }
            Some(trt.build().error_on_failure())
        }
    }
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
}

impl Recipe {
    /// A session; with `profile`, one that writes a profile to a file whose name begins so.
    pub fn session(&self, profile: Option<&Path>) -> Result<Session, ort::Error> {
        let mut builder = self.builder()?;
        if let Some(prefix) = profile {
            builder = builder.with_profiling(prefix)?;
        }
        builder.commit_from_memory(&self.bytes)
    }

    fn builder(&self) -> Result<SessionBuilder, ort::Error> {
        let mut builder = Session::builder(&self.opened.environment)?
            .with_log_level(LogLevel::Warning)?
            .with_optimization_level(GraphOptimizationLevel::All)?
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
            if let Some(provider) = dispatch(wanted.provider, &self.settings) {
                builder = builder.with_execution_providers([provider])?;
            }
        }
        if self.providers.iter().all(|w| w.provider != Provider::Cpu) {
            builder = builder.with_config_entry("session.disable_cpu_ep_fallback", "1")?;
        }
        Ok(builder)
    }

    /// The same on the processor alone, to compare with.
    pub fn on_cpu(&self) -> Recipe {
        let cpu = OrtSettings::default().providers;
        Recipe { providers: cpu, ..self.clone() }
    }
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
        _ if said.contains("out of memory") || said.contains("Failed to allocate memory") => {
            EngineErrorKind::Limit
        }
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

/// Zeros at a fixed address, aligned for vectors, that ONNX Runtime reads and writes between our uses.
pub struct Buffer {
    start: NonNull<u8>,
    layout: Layout,
}

impl Buffer {
    /// `len` zeros.
    pub fn new(len: usize) -> Buffer {
        // Never empty, so that there is an address.
        let layout = Layout::from_size_align(len.max(1), BUFFER_ALIGN_BYTES).expect("within isize");
        // SAFETY: the layout is not empty.
        let start = unsafe { std::alloc::alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { std::alloc::handle_alloc_error(layout) };
        Buffer { start, layout }
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
        // SAFETY: allocated in `new` with this layout, freed once.
        unsafe { std::alloc::dealloc(self.start.as_ptr(), self.layout) };
    }
}

/// A tensor in a buffer of ours. Bindings that name it must go before it.
pub struct Tensor {
    value: NonNull<ort::sys::OrtValue>,
    /// The elements.
    pub buffer: Buffer,
}

impl Tensor {
    /// Zeros of a type and shape.
    pub fn new(dtype: DType, shape: &[usize]) -> Result<Tensor, ort::Error> {
        let bytes = shape.iter().product::<usize>() * dtype.size_bytes();
        let buffer = Buffer::new(bytes);
        let dims: Vec<i64> = shape.iter().map(|&n| n as i64).collect();
        let memory = MemoryInfo::default();
        let mut value = std::ptr::null_mut();
        // SAFETY: the buffer has as many bytes as the shape asks for and lives as long as the value:
        // both are dropped together, the value first.
        unsafe {
            ort::Error::result_from_status((ort::api().CreateTensorWithDataAsOrtValue)(
                memory.ptr(),
                buffer.start.as_ptr().cast(),
                bytes,
                dims.as_ptr(),
                dims.len(),
                element_type(dtype),
                &mut value,
            ))?;
        }
        let value = NonNull::new(value).ok_or_else(|| ort::Error::new("no tensor was made"))?;
        Ok(Tensor { value, buffer })
    }

    /// ONNX Runtime's view of it.
    pub fn ptr(&self) -> *const ort::sys::OrtValue {
        self.value.as_ptr()
    }
}

impl Drop for Tensor {
    fn drop(&mut self) {
        // SAFETY: made in `new`, released once; the buffer is freed after this.
        unsafe { (ort::api().ReleaseValue)(self.value.as_ptr()) };
    }
}

fn element_type(dtype: DType) -> ort::sys::ONNXTensorElementDataType {
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
