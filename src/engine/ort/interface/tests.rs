use super::*;

#[test]
fn element_types_have_onnx_numbers() {
    for dtype in DType::ALL {
        assert_eq!(dtype_of(onnx_number(dtype)), Some(dtype));
    }
    // Text, and what is not known.
    assert_eq!((dtype_of(8), dtype_of(0), dtype_of(99)), (None, None, None));
}

#[test]
fn the_interface_of_a_file_is_read() {
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("models/mlp/model.onnx");
    let bytes = std::fs::read(file).unwrap();
    let interface = read(&bytes, &[], &[]).unwrap();
    assert!(interface.open_batch);
    let input = &interface.inputs[0];
    assert_eq!(input.axes[0], Axis::Batch);
    assert_eq!(input.bytes(2), input.bytes(1).map(|n| 2 * n));
    assert!(interface.weight_bytes > 0 && interface.weight_bytes < bytes.len());
    let bound = read(&bytes, &[], &[(input.name.clone(), 0.5)]);
    assert_eq!(bound.unwrap_err().kind(), EngineErrorKind::Limit, "no input is left");
    let wrong = read(&bytes, &[("no such".into(), 1)], &[]).unwrap_err();
    assert_eq!(wrong.kind(), EngineErrorKind::Manifest, "{wrong}");
    let cut = read(&bytes[..bytes.len() / 2], &[], &[]).unwrap_err();
    assert_eq!(cut.kind(), EngineErrorKind::Malformed, "{cut}");
}
