//! Half precision at load: where it comes from, and the comparison with the model file.

use super::super::Goldens;
use super::super::instance::OrtInstance;
use super::super::interface::{self, Interface};
use super::super::placement::Placement;
use super::super::precision::{self, PrecisionError};
use super::super::session::{Recipe, engine_error};
use super::super::settings::{OrtSettings, Precision, Provider};
use super::{build, node_counts, read_signature, reasons};
use crate::engine::{
    BackendMissing, Engine, EngineError, EngineErrorKind, LoadRequest, PrecisionReport,
};
use crate::limits::MODEL_FILE_BYTES_MAX;
use crate::model::signature::{Signature, TensorSpec};
use crate::sys::files;
use std::path::PathBuf;

/// Where half precision comes from.
pub enum Half {
    /// A model file, and its bytes.
    File(PathBuf, Vec<u8>),
    /// TensorRT converts.
    TensorRt,
}

impl Half {
    fn name(&self) -> String {
        match self {
            Half::File(path, _) => path.display().to_string(),
            Half::TensorRt => Provider::TensorRt.name().into(),
        }
    }
}

/// Finds out whether half precision is asked for, and where it comes from.
pub fn wanted(settings: &OrtSettings) -> Result<Option<Half>, EngineError> {
    if settings.precision == Precision::Fp32 {
        return Ok(None);
    }
    if let Some(path) = &settings.fp16_file {
        let io = |source| PrecisionError::Io { path: path.clone(), source };
        let bytes = std::fs::metadata(path).map_err(io)?.len();
        if bytes > MODEL_FILE_BYTES_MAX {
            let (path, max) = (path.clone(), MODEL_FILE_BYTES_MAX);
            return Err(PrecisionError::TooLarge { path, bytes, max }.into());
        }
        return Ok(Some(Half::File(
            path.clone(),
            files::read(path, MODEL_FILE_BYTES_MAX).map_err(io)?,
        )));
    }
    if settings.providers.iter().any(|w| w.provider == Provider::TensorRt) {
        return Ok(Some(Half::TensorRt));
    }
    Err(no_way(settings, &[]))
}

pub fn no_way(settings: &OrtSettings, missing: &[BackendMissing]) -> EngineError {
    let providers: Vec<&str> = settings.providers.iter().map(|w| w.provider.name()).collect();
    PrecisionError::NoWay { providers: providers.join(", "), missing: reasons(missing) }.into()
}

/// Builds the engine in half precision, and compares it with the model file on the processor.
pub fn build_half(
    recipe: Recipe,
    interface: Interface,
    request: &LoadRequest<'_>,
    half: Half,
    goldens: Goldens<'_>,
) -> Result<Box<dyn Engine>, EngineError> {
    let single = recipe.on_cpu();
    let mut scout = single
        .session(None)
        .map_err(|e| engine_error("ONNX Runtime can't load the model in single precision", &e))?;
    let signature = read_signature(&mut scout, &interface)?;
    drop(scout);
    // TensorRT converts inside of its nodes, also where the file is in half precision.
    let mut recipe = Recipe { convert: recipe.has(Provider::TensorRt), ..recipe };
    let mut engine = match &half {
        Half::TensorRt => build(recipe, interface.clone(), request.batch_sizes, Some(&half))?,
        Half::File(path, bytes) => {
            let bad = |source| PrecisionError::Model { path: path.clone(), source };
            let halved = interface::read(bytes, request.bind_axes, request.bind_inputs);
            recipe.bytes = bytes.as_slice().into();
            build(recipe, halved.map_err(bad)?, request.batch_sizes, Some(&half)).map_err(|e| {
                match e.kind() {
                    // What the library says of the file, not of the machine.
                    EngineErrorKind::Malformed
                    | EngineErrorKind::UnsupportedOperator
                    | EngineErrorKind::Untyped
                    | EngineErrorKind::Internal => bad(e).into(),
                    _ => e,
                }
            })?
        }
    };
    if let Half::File(path, _) = &half
        && let Some(what) = differs(&engine.signature, &signature)
    {
        return Err(PrecisionError::Interface { path: path.clone(), what }.into());
    }
    let goldens: Vec<_> =
        goldens(&signature).into_iter().take(precision::GOLDEN_ROWS_MAX).collect();
    let random = precision::random_rows(&signature, &goldens, precision::RANDOM_ROWS);
    let rows = [&goldens[..], &random[..]].concat();
    let answers = |recipe: &Recipe, interface: &Interface, precision: &'static str| {
        let mut instance = OrtInstance::new(recipe, interface, &signature, &[1])?;
        precision::run_alone(&mut instance, &signature, &rows)
            .map_err(|source| EngineError::from(PrecisionError::Run { precision, source }))
    };
    let halves = answers(&engine.recipe, &engine.interface, "half")?;
    let figures = precision::compare(&signature, &answers(&single, &interface, "single")?, &halves);
    let report = PrecisionReport {
        wanted: Precision::Fp16.name(),
        from: half.name(),
        half_nodes: engine.half_nodes(),
        nodes: engine.placement.all_nodes(),
        golden_rows: goldens.len(),
        random_rows: random.len(),
        largest_difference: figures.largest_difference,
        mean_difference: figures.mean_difference,
        top1_agreement: figures.top1_agreement,
        tolerance: engine.recipe.settings.fp16_tolerance,
    };
    if report.largest_difference > report.tolerance {
        return Err(PrecisionError::Strays(Box::new(report)).into());
    }
    event!(info, "{}", report);
    engine.backend.backend_precision = Some(report);
    Ok(engine)
}

/// The first tensor that is another one: what the file has, and what the model has.
fn differs(file: &Signature, model: &Signature) -> Option<String> {
    let text = |spec: Option<&TensorSpec>| match spec {
        Some(s) => format!("{:?}, {} {:?}", s.name, s.dtype, s.row_shape),
        None => "nothing".to_string(),
    };
    for (what, file, model) in
        [("input", &file.inputs, &model.inputs), ("output", &file.outputs, &model.outputs)]
    {
        for n in 0..file.len().max(model.len()) {
            let (a, b) = (file.get(n), model.get(n));
            if a != b {
                return Some(format!("{what} {n} is {}, in the model file {}", text(a), text(b)));
            }
        }
    }
    (file.batched != model.batched).then(|| "only one of the two files has a batch axis".into())
}

/// Something must compute in half precision, or it was asked for in vain.
pub fn check(half: &Half, placement: &Placement) -> Result<(), EngineError> {
    let taken = match half {
        Half::File(..) => placement.half_nodes(),
        Half::TensorRt => 0,
    } + placement.nodes_on(Provider::TensorRt.ort_name());
    if taken > 0 {
        return Ok(());
    }
    Err(PrecisionError::NotHalf { from: half.name(), got: node_counts(placement) }.into())
}
