use super::*;
use crate::engine::fake::{FakeCompute, FakeEngine};
use crate::model::signature::Signature;
use crate::units::DType;

#[test]
fn ratios_are_of_pairs_and_their_range_holds_the_median() {
    let base: Vec<u64> = (0..100).map(|i| 1000 + 10 * (i % 7)).collect();
    // Half as long, but for one pair that was disturbed.
    let mut ours: Vec<u64> = base.iter().map(|ns| ns / 2).collect();
    ours[3] = 1_000_000;
    let r = Ratio::of(&ours, &base);
    assert_eq!((r.median, r.quartile_1, r.quartile_3, r.of_minima), (0.5, 0.5, 0.5, 0.5));
    assert_eq!((r.median_low, r.median_high), (0.5, 0.5));
    // From the 40th to the 61st of 100: half a binomial's heads, 96 % of all throws.
    let (ours, base): (Vec<u64>, Vec<u64>) = ((1..=100).collect(), vec![1; 100]);
    let r = Ratio::of(&ours, &base);
    assert_eq!((r.median, r.median_low, r.median_high), (50.5, 40.0, 61.0));
    assert_eq!((r.quartile_1, r.quartile_3, r.of_minima), (25.75, 75.25, 1.0));
    // Too few for any confidence: the whole range.
    let r = Ratio::of(&[3, 1, 2], &[1, 1, 1]);
    assert_eq!((r.median, r.median_low, r.median_high), (2.0, 1.0, 3.0));
    // From so many on, all pairs lie on one side of the median in at most 5 of 100 cases.
    let beside = |pairs: usize| 2.0 * 0.5f64.powi(pairs as i32);
    assert!(beside(PAIRS_MIN) <= 0.05 && beside(PAIRS_MIN - 1) > 0.05);
    let r = Ratio::of(&[3], &[2]);
    assert_eq!((r.median, r.median_low, r.median_high, r.quartile_1), (1.5, 1.5, 1.5, 1.5));
}

#[test]
fn both_sides_run_the_same_rows() {
    let spec = |name: &str| TensorSpec { name: name.into(), dtype: DType::U8, row_shape: vec![3] };
    let signature = Signature { inputs: vec![spec("x")], outputs: vec![spec("y")], batched: true };
    let engine = FakeEngine::new(signature.clone(), &[1, 4], FakeCompute::default()).unwrap();
    let mut instance = engine.instance().unwrap();
    let fill = |_: usize, row: usize, bytes: &mut [u8]| bytes.fill(row as u8 + 1);
    let mut rows = Rows::new(&engine, PlanIndex(1), fill).unwrap();
    assert!(rows.alone.iter().map(|r| r.inputs[0].get()).eq([[1; 3], [2; 3], [3; 3], [4; 3]]));
    assert_eq!(rows.batch.inputs[0].get(), [1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4]);
    assert!(rows.alone.iter().all(|r| r.inputs[0].get().as_ptr().addr() % 64 == 0));
    let cost = rows.measure(&mut *instance, 5).unwrap();
    assert_eq!((cost.alone_ns.len(), cost.batch_ns.len()), (5, 5));
    // The fake engine answers a row with its own bytes.
    assert_eq!(rows.batch.outputs[0].get(), rows.batch.inputs[0].get());
    assert!(rows.same_answers());
    rows.batch.outputs[0].get_mut()[4] = 9;
    assert!(!rows.same_answers());
    assert!(!rows.same_steps(), "it has none");
    assert_eq!(rows.steps(&mut *instance, 3).unwrap(), []);
    let eights = FakeEngine::new(signature, &[8], FakeCompute::default()).unwrap();
    assert!(Rows::new(&eights, PlanIndex(0), fill).is_none(), "there is no plan for one row");
}
