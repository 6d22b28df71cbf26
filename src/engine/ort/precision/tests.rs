use super::*;

fn spec(name: &str, dtype: DType, row_shape: &[usize]) -> TensorSpec {
    TensorSpec { name: name.into(), dtype, row_shape: row_shape.into() }
}

fn signature(outputs: &[&[usize]]) -> Signature {
    Signature {
        inputs: vec![spec("x", DType::F32, &[3]), spec("n", DType::I64, &[2])],
        outputs: outputs.iter().map(|shape| spec("y", DType::F32, shape)).collect(),
        batched: true,
    }
}

#[test]
fn figures_are_over_each_outputs_largest_value() {
    let signature = signature(&[&[2], &[1]]);
    let single = [vec![vec![1.0, -4.0], vec![100.0]], vec![vec![0.0, 2.0], vec![50.0]]];
    let half = [vec![vec![1.0, -4.2], vec![101.0]], vec![vec![0.0, 2.0], vec![50.0]]];
    let figures = compare(&signature, &single, &half);
    assert!((figures.largest_difference - 0.05).abs() < 1e-12, "{figures:?}");
    assert!((figures.mean_difference - 0.06 / 6.0).abs() < 1e-12, "{figures:?}");
    assert_eq!(figures.top1_agreement, Some(1.0));
}

#[test]
fn what_is_no_number_in_one_of_the_two_is_infinitely_far() {
    let signature = signature(&[&[2]]);
    for bad in [f64::NAN, f64::INFINITY] {
        let figures = compare(&signature, &[vec![vec![1.0, 2.0]]], &[vec![vec![1.0, bad]]]);
        assert_eq!(figures.largest_difference, f64::INFINITY);
        let figures = compare(&signature, &[vec![vec![1.0, bad]]], &[vec![vec![1.0, bad]]]);
        assert_eq!(figures.largest_difference, 0.0);
    }
}

#[test]
fn agreement_counts_places_and_lets_either_of_two_equals_pass() {
    let single = [vec![vec![1.0, 2.0, 5.0, 4.0]]];
    let agree = |shape: &[usize], half: [f64; 4]| {
        compare(&signature(&[shape]), &single, &[vec![half.to_vec()]]).top1_agreement
    };
    assert_eq!(agree(&[4], [0.0, 0.0, 9.0, 8.0]), Some(1.0));
    assert_eq!(agree(&[4], [0.0, 0.0, 9.0, 9.0]), Some(1.0), "equals");
    assert_eq!(agree(&[4], [0.0, 0.0, 8.0, 9.0]), Some(0.0));
    assert_eq!(agree(&[2, 2], [1.0, 2.0, 8.0, 9.0]), Some(0.5), "two places");
    assert_eq!(agree(&[4], [f64::NAN, 0.0, 9.0, 8.0]), Some(0.0));
    assert_eq!(agree(&[4, 1], [0.0, 0.0, 9.0, 8.0]), None, "one class");
}

#[test]
fn random_rows_are_the_same_each_time_and_of_the_goldens_elements() {
    let signature = signature(&[&[2]]);
    let made = random_rows(&signature, &[], 3);
    assert_eq!(made, random_rows(&signature, &[], 3));
    assert_ne!(made[0], made[1]);
    assert_eq!((made.len(), made[0][0].len(), made[0][1].len()), (3, 12, 16));
    assert!(values(DType::F32, &made[0][0]).iter().all(|v| (-1.0..=1.0).contains(v)));
    assert!(values(DType::I64, &made[0][1]).iter().all(|v| [0.0, 1.0].contains(v)));
    let floats = |v: [f32; 3]| v.map(f32::to_le_bytes).concat();
    let ints = |v: [i64; 2]| v.map(i64::to_le_bytes).concat();
    let goldens = [
        vec![floats([10.0, 20.0, 30.0]), ints([7, 8])],
        vec![floats([40.0, 50.0, 60.0]), ints([9, 9])],
    ];
    let rows = random_rows(&signature, &goldens, 20);
    let first: Vec<f64> = rows.iter().flat_map(|r| values(DType::F32, &r[0])).collect();
    assert!(first.iter().all(|v| v % 10.0 == 0.0 && (10.0..=60.0).contains(v)), "{first:?}");
    assert!(first.contains(&10.0) && first.contains(&60.0), "{first:?}");
    let second: Vec<f64> = rows.iter().flat_map(|r| values(DType::I64, &r[1])).collect();
    assert!(second.iter().all(|v| [7.0, 8.0, 9.0].contains(v)), "{second:?}");
}

#[test]
fn a_refusal_carries_its_figures() {
    let report = PrecisionReport {
        wanted: "fp16",
        from: "model_fp16.onnx".into(),
        half_nodes: Some(3),
        nodes: 5,
        golden_rows: 2,
        random_rows: 16,
        largest_difference: 0.25,
        mean_difference: 0.125,
        top1_agreement: Some(0.5),
        tolerance: 1e-2,
    };
    let error = EngineError::from(PrecisionError::Strays(Box::new(report.clone())));
    assert_eq!(error.kind(), EngineErrorKind::Precision);
    let said = error.to_string();
    for part in
        ["2.5e-1 (at most 1.0e-2)", "mean 1.2e-1", "50.0 %", "2 golden and 16", "3 of 5 nodes"]
    {
        assert!(said.contains(part), "{said} lacks {part:?}");
    }
    let source = std::error::Error::source(&error).unwrap();
    let Some(PrecisionError::Strays(kept)) = source.downcast_ref() else { panic!("{source}") };
    assert_eq!(**kept, report);
}
