//! What a model asks of ONNX Runtime: which providers, in which order, and which of them it must have.

use std::fmt;
use std::path::PathBuf;

/// Providers in one list.
pub const PROVIDERS_MAX: usize = 3;

/// Where ONNX Runtime computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Provider {
    /// The processor; every library has it.
    Cpu,
    /// NVIDIA's GPUs.
    Cuda,
    /// NVIDIA's GPUs, whole subgraphs compiled.
    TensorRt,
}

impl Provider {
    /// All.
    pub const ALL: [Provider; 3] = [Provider::TensorRt, Provider::Cuda, Provider::Cpu];

    /// The name in manifests and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Provider::Cpu => "cpu",
            Provider::Cuda => "cuda",
            Provider::TensorRt => "tensorrt",
        }
    }

    /// The name that ONNX Runtime has for it.
    pub const fn ort_name(self) -> &'static str {
        match self {
            Provider::Cpu => "CPUExecutionProvider",
            Provider::Cuda => "CUDAExecutionProvider",
            Provider::TensorRt => "TensorrtExecutionProvider",
        }
    }
}

/// What happens where a provider did not take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Need {
    /// The model is not loaded.
    Required,
    /// The next one in the list computes, and the state says so.
    Preferred,
}

/// One provider that is asked for: `cuda`, `cuda:required` (the same) or `cuda:preferred`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Wanted {
    /// Which.
    pub provider: Provider,
    /// Whether it must take.
    pub need: Need,
}

impl Wanted {
    /// Reads `NAME`, `NAME:required` or `NAME:preferred`.
    ///
    /// # Errors
    /// A sentence that says what would be right.
    pub fn parse(text: &str) -> Result<Wanted, String> {
        let (name, need) = text.split_once(':').unwrap_or((text, "required"));
        let provider = Provider::ALL.into_iter().find(|p| p.name() == name);
        let need = match need {
            "required" => Some(Need::Required),
            "preferred" => Some(Need::Preferred),
            _ => None,
        };
        match (provider, need) {
            (Some(provider), Some(need)) => Ok(Wanted { provider, need }),
            _ => Err(format!(
                "{text:?} is no provider; write cpu, cuda or tensorrt, with :preferred behind it \
                 where the model may do without"
            )),
        }
    }
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let need = match self.need {
            Need::Required => "required",
            Need::Preferred => "preferred",
        };
        write!(f, "{}:{need}", self.provider.name())
    }
}

/// Reads a list of providers, first choice first.
///
/// Where `cpu` is not in it, no node may run on the processor.
///
/// # Errors
/// A sentence: an entry is no provider, one is named twice, `cpu` is not the last, there is none.
pub fn parse_providers(list: &[String]) -> Result<Vec<Wanted>, String> {
    let wanted: Vec<Wanted> =
        list.iter().map(|text| Wanted::parse(text)).collect::<Result<_, _>>()?;
    if wanted.is_empty() {
        return Err("names no provider; leave it out for cpu".into());
    }
    for (n, w) in wanted.iter().enumerate() {
        if wanted[..n].iter().any(|other| other.provider == w.provider) {
            return Err(format!("names {} twice", w.provider.name()));
        }
        if w.provider == Provider::Cpu && n + 1 != wanted.len() {
            return Err(
                "has cpu before others; it can do everything, so it must be the last".into()
            );
        }
    }
    Ok(wanted)
}

/// `fp16_tolerance` where none is given: halves have 11 significant bits, and a deep network adds up a few
/// times the rounding of one of them (5e-4).
pub const FP16_TOLERANCE_DEFAULT: f64 = 1e-2;

/// In which precision a model is to be computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Precision {
    /// As the model file has it.
    #[default]
    Fp32,
    /// In half precision, compared with the model file at load.
    Fp16,
}

impl Precision {
    /// All.
    pub const ALL: [Precision; 2] = [Precision::Fp32, Precision::Fp16];

    /// The name in manifests.
    pub const fn name(self) -> &'static str {
        match self {
            Precision::Fp32 => "fp32",
            Precision::Fp16 => "fp16",
        }
    }
}

/// What a model asks of ONNX Runtime.
#[derive(Debug, Clone, PartialEq)]
pub struct OrtSettings {
    /// The shared library; `None`: [`find`](super::library::find) looks for it.
    pub library: Option<PathBuf>,
    /// Providers, first choice first.
    pub providers: Vec<Wanted>,
    /// Which GPU.
    pub device: u32,
    /// Most bytes of GPU memory that one instance takes for tensors; `None` is what there is.
    pub gpu_memory_bytes_max: Option<u64>,
    /// Whether runs are captured as CUDA graphs and replayed ([`graph`](super::graph)).
    pub cuda_graph: bool,
    /// In which precision to compute.
    pub precision: Precision,
    /// The model in half precision; `None` where there is no such file, and only `tensorrt` can do.
    pub fp16_file: Option<PathBuf>,
    /// Allowed difference between half and single precision, over the largest value.
    pub fp16_tolerance: f64,
    /// Where TensorRT's engines are kept for the next start, in directories of their own; nowhere if `None`.
    pub engine_cache: Option<PathBuf>,
}

impl Default for OrtSettings {
    fn default() -> Self {
        OrtSettings {
            library: None,
            providers: vec![Wanted { provider: Provider::Cpu, need: Need::Required }],
            device: 0,
            gpu_memory_bytes_max: None,
            cuda_graph: false,
            precision: Precision::Fp32,
            fp16_file: None,
            fp16_tolerance: FP16_TOLERANCE_DEFAULT,
            engine_cache: None,
        }
    }
}

#[cfg(test)]
mod tests;
