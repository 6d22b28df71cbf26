use super::*;

fn tensor(name: &str, dtype: DType, row_shape: &[usize]) -> TensorInfo {
    let row_bytes = row_shape.iter().product::<usize>() * dtype.size_bytes();
    TensorInfo { name: name.into(), dtype, row_shape: row_shape.into(), row_bytes }
}

fn array_of(dtype: DType, shape: &[usize]) -> Array {
    let len = shape.iter().product::<usize>() * dtype.size_bytes();
    Array { dtype, shape: shape.into(), data: (0..len).map(|n| n as u8).collect() }
}

#[test]
fn payloads_take_the_rows_asked_for_and_align_each_tensor() {
    let inputs = [tensor("a", DType::U8, &[3]), tensor("b", DType::U8, &[2])];
    let arrays = [array_of(DType::U8, &[2, 3]), array_of(DType::U8, &[2, 2])];
    assert_eq!(check(&inputs, &arrays, true), Ok(2));
    let whole = [0, 1, 2, 3, 4, 5, 0, 0, 0, 1, 2, 3];
    assert_eq!(payload(&inputs, &arrays, 0..2), whole);
    assert_eq!(payload(&inputs, &arrays, 1..2), [3, 4, 5, 0, 0, 0, 0, 0, 2, 3]);
    let (spans, len) = spans(&inputs, 2);
    assert_eq!((spans, len), (vec![0..6, 8..12], 12));
}

#[test]
fn inputs_that_do_not_fit_say_what_would() {
    let inputs = [tensor("x", DType::F32, &[2, 2])];
    let says = |arrays: &[Array], batched| check(&inputs, arrays, batched).unwrap_err();
    assert_eq!(check(&inputs, &[array_of(DType::F32, &[2, 2])], true), Ok(1));
    assert_eq!(check(&inputs, &[array_of(DType::F32, &[5, 2, 2])], true), Ok(5));
    assert_eq!(check(&inputs, &[array_of(DType::F32, &[0, 2, 2])], true), Ok(0));
    assert_eq!(
        says(&[array_of(DType::F64, &[2, 2])], true),
        "input \"x\" takes float32, the file holds float64"
    );
    assert_eq!(
        says(&[array_of(DType::F32, &[4])], true),
        "input \"x\" takes the shape (rows, 2, 2) or (2, 2), the file holds (4,)"
    );
    assert_eq!(
        says(&[array_of(DType::F32, &[1, 2, 2])], false),
        "input \"x\" takes the shape (2, 2), the file holds (1, 2, 2)"
    );
    assert_eq!(says(&[], true), "the model takes 1 inputs (\"x\"), 0 are given");
    let two = [tensor("a", DType::U8, &[1]), tensor("b", DType::U8, &[1])];
    let arrays = [array_of(DType::U8, &[2, 1]), array_of(DType::U8, &[3, 1])];
    assert!(check(&two, &arrays, true).unwrap_err().starts_with("input \"b\" has 3 rows"));
}

#[test]
fn elements_print_as_json() {
    let floats: Vec<u8> = [0.1f32, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 2.0]
        .iter()
        .flat_map(|x| x.to_le_bytes())
        .collect();
    let json = |dtype, bytes: &[u8]| serde_json::to_string(&Data { dtype, bytes }).unwrap();
    assert_eq!(json(DType::F32, &floats), r#"[0.1,"NaN","Infinity","-Infinity",2.0]"#);
    assert_eq!(json(DType::I8, &[255, 1]), "[-1,1]");
    assert_eq!(json(DType::U64, &[255; 8]), "[18446744073709551615]");
    assert_eq!(json(DType::Bool, &[0, 1, 7]), "[false,true,true]");
    assert_eq!(json(DType::F16, &0x3C00u16.to_le_bytes()), "[1.0]");
    assert_eq!(json(DType::I16, &(-300i16).to_le_bytes()), "[-300]");
}

#[test]
fn differences_are_relative_to_the_largest_value() {
    let bytes = |v: &[f32]| v.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    let diff = |a: &[f32], b: &[f32]| {
        let (a, b) = (bytes(a), bytes(b));
        let data = |bytes| Data { dtype: DType::F32, bytes };
        difference(data(&a), data(&b), data(&b))
    };
    assert_eq!(diff(&[1.0, f32::NAN], &[1.0, f32::NAN]), 0.0);
    assert_eq!(diff(&[1.0, 2.0], &[1.0, 4.0]), 0.5);
    assert_eq!(diff(&[f32::NAN], &[1.0]), f64::INFINITY);
    assert_eq!(diff(&[1.0], &[1.0, 1.0]), f64::INFINITY);
    assert_eq!(diff(&[0.25], &[0.0]), 0.25);
}

#[test]
fn spans_have_three_digits() {
    let texts: Vec<String> = [7, 1_500, 23_456, 999_900_000, 2_000_000_000].map(span).into();
    assert_eq!(texts, ["7 ns", "1.50 us", "23.5 us", "1000 ms", "2.00 s"]);
}

#[test]
fn the_best_labels_come_first() {
    let labels: Vec<String> = ["a", "b", "c"].map(String::from).into();
    let row = Data { dtype: DType::U8, bytes: &[1, 9, 4] };
    assert_eq!(ranking(&labels, row, 2), [("b", 9.0), ("c", 4.0)]);
    assert_eq!(ranking(&labels[..2], row, 2), []);
}
