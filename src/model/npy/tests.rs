use super::*;
use proptest::prelude::*;

fn dtypes() -> impl Strategy<Value = DType> {
    proptest::sample::select(DESCRS.iter().map(|(d, _)| *d).collect::<Vec<_>>())
}

fn file(header: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend([1, 0]);
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend(data);
    bytes
}

#[test]
fn bytes_as_numpy_writes_them() {
    // numpy.save of numpy.array([[1, 2, 3]], dtype='<i2'), byte for byte.
    let mut golden =
        b"\x93NUMPY\x01\x00\x76\x00{'descr': '<i2', 'fortran_order': False, 'shape': (1, 3), }"
            .to_vec();
    golden.resize(127, b' ');
    golden.push(b'\n');
    golden.extend([1, 0, 2, 0, 3, 0]);
    let array = read(&golden).unwrap();
    assert_eq!(array, Array { dtype: DType::I16, shape: vec![1, 3], data: vec![1, 0, 2, 0, 3, 0] });
    assert_eq!(write(&array), golden);
}

#[test]
fn shapes_of_any_rank_are_read() {
    for (text, shape) in
        [("()", vec![]), ("(2,)", vec![2]), ("(1,2)", vec![1, 2]), ("( 2 , 1, )", vec![2, 1])]
    {
        let len: usize = shape.iter().product();
        let header = format!("{{ 'shape':{text},'fortran_order' : False,\"descr\":'<u1'}} \n");
        let array = read(&file(&header, &vec![7; len])).unwrap();
        assert_eq!((array.shape, array.data.len()), (shape, len));
    }
}

#[test]
fn what_is_not_served_is_refused_by_name() {
    let header = |descr: &str, order: &str, shape: &str| {
        format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}\n")
    };
    let error = |h: String, data: &[u8]| read(&file(&h, data)).unwrap_err();
    assert_eq!(error(header("<f4", "True", "(2, 3)"), &[0; 24]), NpyError::FortranOrder);
    assert!(read(&file(&header("<f4", "True", "(2,)"), &[0; 8])).is_ok());
    for descr in [">f4", "<c8", "<U3", "|O", "", "1", "<f1", "é1"] {
        assert_eq!(
            error(header(descr, "False", "(1,)"), &[0; 4]),
            NpyError::Dtype { descr: descr.into() }
        );
    }
    assert!(matches!(error(header("<f4", "False", "(-1,)"), &[]), NpyError::Header { .. }));
    let huge = "(18446744073709551615, 4)";
    assert_eq!(error(header("<f4", "False", huge), &[0; 4]), NpyError::Overflow);
    assert_eq!(error(header("<f4", "False", "(99999999999999999999,)"), &[]), NpyError::Overflow);
    assert!(matches!(
        error(header("<f4", "False", "(1000000000,)"), &[0; 4]),
        NpyError::Truncated { .. }
    ));
    assert!(matches!(error(header("<f4", "False", "(1,)"), &[0; 5]), NpyError::Trailing { .. }));
    assert!(matches!(error("{'descr': '<f4'}".into(), &[]), NpyError::Header { .. }));
    assert_eq!(read(b"PK\x03\x04").unwrap_err(), NpyError::NotNpy);
    assert_eq!(
        read(b"\x93NUMPY\x03\x00\x00\x00\x00\x00").unwrap_err(),
        NpyError::Version { major: 3 }
    );
    assert_eq!(read(b"\x93NUMPY\x01").unwrap_err(), NpyError::Truncated { wanted: 8, got: 7 });
}

proptest! {
    #[test]
    fn written_arrays_read_back(dtype in dtypes(), shape in proptest::collection::vec(0usize..5, 0..5), seed: u8) {
        let len = shape.iter().product::<usize>() * dtype.size_bytes();
        let data = (0..len).map(|i| seed.wrapping_add(i as u8)).collect();
        let array = Array { dtype, shape, data };
        let bytes = write(&array);
        prop_assert_eq!((bytes.len() - len) % 64, 0);
        prop_assert_eq!(read(&bytes).unwrap(), array);
        for cut in 0..bytes.len() {
            prop_assert!(read(&bytes[..cut]).is_err());
        }
    }

    #[test]
    fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = read(&bytes);
    }

    #[test]
    fn garbage_headers_never_panic(header in "[{}(),:'\" a-z0-9<|é]{0,80}", data in proptest::collection::vec(any::<u8>(), 0..20)) {
        let _ = read(&file(&header, &data));
        let _ = read(&file(&format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({header}"), &data));
    }

    #[test]
    fn damaged_files_never_panic(at in 0usize..150, byte: u8) {
        let mut bytes = write(&Array { dtype: DType::F32, shape: vec![2, 2], data: vec![0; 16] });
        let at = at % bytes.len();
        bytes[at] = byte;
        let _ = read(&bytes);
    }
}
