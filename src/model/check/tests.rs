use super::*;
use crate::engine::{Description, EngineKind, PlanIndex};
use crate::model::manifest::Manifest;

/// What an engine of these tests does to its rows.
#[derive(Clone, Copy, PartialEq)]
enum Flaw {
    None,
    /// Adds a little of the row before it.
    Crosses(f32),
    /// Errs in batches.
    Errs,
    /// Panics in batches.
    Panics,
    /// Errs always.
    ErrsAlone,
    /// Answers NaN for everything, which equals itself.
    Nan,
}

struct Flawed {
    flaw: Flaw,
    signature: Signature,
}

struct FlawedInstance {
    flaw: Flaw,
    staging: [(Vec<u8>, Vec<u8>); 2],
}

const SIZES: [usize; 2] = [1, 4];

impl Flawed {
    fn new(flaw: Flaw) -> Flawed {
        let tensor =
            |name: &str| TensorSpec { name: name.into(), dtype: DType::F32, row_shape: vec![3] };
        let signature =
            Signature { inputs: vec![tensor("x")], outputs: vec![tensor("y")], batched: true };
        Flawed { flaw, signature }
    }
}

impl Engine for Flawed {
    fn kind(&self) -> EngineKind {
        EngineKind::Fake
    }
    fn signature(&self) -> &Signature {
        &self.signature
    }
    fn batch_sizes(&self) -> &[usize] {
        &SIZES
    }
    fn describe(&self) -> Description {
        unreachable!("the check does not ask")
    }
    fn instance(&self) -> Result<Box<dyn Instance>, EngineError> {
        let staging = SIZES.map(|n| (vec![0; n * 12], vec![0; n * 12]));
        Ok(Box::new(FlawedInstance { flaw: self.flaw, staging }))
    }
}

impl Instance for FlawedInstance {
    fn input_mut(&mut self, plan: PlanIndex, _: usize) -> &mut [u8] {
        &mut self.staging[plan.0].0
    }
    fn infer(&mut self, plan: PlanIndex) -> Result<(), RunError> {
        let in_batch = plan.0 > 0;
        match self.flaw {
            Flaw::Errs if in_batch => return Err(RunError::Injected),
            Flaw::ErrsAlone => return Err(RunError::Injected),
            Flaw::Panics if in_batch => panic!("as the test wants"),
            _ => {}
        }
        let (input, output) = &mut self.staging[plan.0];
        let x: Vec<f32> = input.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        for (i, y) in output.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let before = if i >= 3 { x[i - 3] } else { 0.0 };
            *y = match self.flaw {
                Flaw::Crosses(share) => x[i] + share * before,
                Flaw::Nan => f32::NAN,
                _ => x[i],
            }
            .to_le_bytes();
        }
        Ok(())
    }
    fn output(&self, plan: PlanIndex, _: usize) -> &[u8] {
        &self.staging[plan.0].1
    }
}

fn checked(flaw: Flaw) -> Checked {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/mlp/model.onnx");
    // The manifest of a bare file: no goldens, the default tolerance.
    check(&Manifest::read(&path).unwrap(), &Flawed::new(flaw), &SIZES).unwrap()
}

#[test]
fn independent_rows_may_be_batched() {
    let checked = checked(Flaw::None);
    assert_eq!((checked.refused, checked.max_difference), (None, Some(0.0)));
    assert_eq!((checked.golden_rows, checked.golden_difference), (0, None));
    let nan = self::checked(Flaw::Nan);
    assert_eq!(nan.refused, None, "NaN passes through and is equal to itself");
}

#[test]
fn crossed_rows_may_not() {
    for share in [1.0, 1e-2, 5e-5] {
        let checked = checked(Flaw::Crosses(share));
        let refused = checked.refused.expect("a share of another row is noticed");
        assert!(refused.contains("at batch size 4") && refused.contains("\"y\""), "{refused}");
    }
    let rounding = checked(Flaw::Crosses(1e-7));
    assert_eq!(rounding.refused, None);
    assert!(rounding.max_difference.unwrap() < 1e-6);
}

#[test]
fn runs_that_fail_keep_batching_off_and_say_so() {
    assert!(checked(Flaw::Errs).refused.unwrap().contains("batch size 4 failed"));
    assert!(checked(Flaw::Panics).refused.unwrap().contains("panicked"));
    assert!(checked(Flaw::ErrsAlone).refused.unwrap().contains("could not be checked"));
}

#[test]
fn differences_are_over_the_largest_value() {
    let wanted = vec![vec![100.0, 0.0], vec![f64::INFINITY, f64::NAN]];
    let scales = [100.0, 0.0];
    let got = |a: f64, b: f64| vec![vec![100.0, a], vec![f64::INFINITY, b]];
    assert_eq!(worst(&wanted, &got(0.0, f64::NAN), &scales).difference, 0.0);
    let found = worst(&wanted, &got(1.0, f64::NAN), &scales);
    assert_eq!(found, Worst { output: 0, element: 1, difference: 0.01 });
    let found = worst(&wanted, &got(1.0, 3.0), &scales);
    assert_eq!(found, Worst { output: 1, element: 1, difference: f64::INFINITY });
}

#[test]
fn elements_of_every_type_are_read() {
    assert_eq!(values(DType::I8, &[0xFF, 2]), [-1.0, 2.0]);
    assert_eq!(values(DType::U16, &[0xFF, 0xFF]), [65535.0]);
    assert_eq!(values(DType::F16, &[0x00, 0x3C]), [1.0]);
    assert_eq!(values(DType::I64, &(-5i64).to_le_bytes()), [-5.0]);
    assert_eq!(values(DType::F64, &0.25f64.to_le_bytes()), [0.25]);
    assert_eq!(values(DType::Bool, &[1, 0]), [1.0, 0.0]);
}

#[test]
fn made_up_rows_differ_and_fit_their_type() {
    for dtype in DType::ALL {
        for row_shape in [vec![1], vec![7, 2]] {
            let spec = TensorSpec { name: "x".into(), dtype, row_shape };
            let rows = [made_up(&spec, 0), made_up(&spec, 100)];
            assert!(rows.iter().all(|r| r.len() == spec.row_bytes()));
            let within = |v: &f64| (-1.0..=1.0).contains(v);
            assert!(rows.iter().all(|r| values(dtype, r).iter().all(within)));
            if matches!(dtype, DType::F32 | DType::F16 | DType::F64) {
                assert_ne!(rows[0], rows[1], "{dtype}");
            }
        }
    }
}
