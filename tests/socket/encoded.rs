//! Tensors that travel encoded: what arrives in the slot, what comes back, what is refused, and that
//! nothing is allocated meanwhile (the counting allocator, as everywhere here).

use crate::support::*;
use corelane::client::ClientError;
use corelane::engine::fake::{FakeCompute, FakeEngine, FakeFault};
use corelane::limits::ENCODED_OPENS_COUNT_MAX;
use corelane::model::signature::{Signature, TensorSpec};
use corelane::model::{LoadedModel, npy};
use corelane::runtime::ModelSetup;
use corelane::units::{DType, Micros, ModelId, RequestId, Rows};
use corelane::wire::{Encoding, ErrorCode, Place, Request, Scale, TensorEncoding};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const F16: Encoding = Encoding::F16;

fn i8(scale: f32, zero_point: i8) -> Encoding {
    Encoding::I8 { scale: Scale::new(scale).unwrap(), zero_point }
}

fn input(at: u8, encoding: Encoding) -> TensorEncoding {
    TensorEncoding { place: Place::Input(at), encoding }
}

fn output(at: u8, encoding: Encoding) -> TensorEncoding {
    TensorEncoding { place: Place::Output(at), encoding }
}

/// Echoes three tensors; the odd lengths leave gaps, encoded and not.
fn three(name: &str, sizes: &[usize]) -> ModelSetup {
    let tensor =
        |name: &str, dtype, len| TensorSpec { name: name.into(), dtype, row_shape: vec![len] };
    let three = |prefix: &str| {
        vec![
            tensor(&format!("{prefix}a"), DType::F32, 5),
            tensor(&format!("{prefix}n"), DType::I32, 3),
            tensor(&format!("{prefix}b"), DType::F32, 7),
        ]
    };
    let signature = Signature { inputs: three("x"), outputs: three("y"), batched: true };
    let engine = FakeEngine::new(signature, sizes, FakeCompute::default()).unwrap();
    ModelSetup {
        max_request_rows: Rows(*sizes.last().unwrap() as u16),
        ..ModelSetup::new(name, Arc::new(engine))
    }
}

/// Echoes `len` numbers.
pub fn long(name: &str, len: usize) -> ModelSetup {
    let tensor =
        |name: &str| TensorSpec { name: name.into(), dtype: DType::F32, row_shape: vec![len] };
    let signature =
        Signature { inputs: vec![tensor("x")], outputs: vec![tensor("y")], batched: true };
    let fault = FakeFault { error_marker: Some(BAD_ROW), panic_marker: None };
    let engine =
        FakeEngine::new(signature, &[1], FakeCompute::default()).unwrap().with_fault(fault);
    ModelSetup { max_request_rows: Rows(1), ..ModelSetup::new(name, Arc::new(engine)) }
}

/// Numbers that are exact in every encoding used here.
fn numbers(n: usize, seed: u32) -> Vec<f32> {
    (0..n as u32).map(|i| ((i * 7 + seed) % 200) as f32 * 0.5 - 50.0).collect()
}

fn le(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// The payload of `rows` rows of `three`, as it is.
fn plain(rows: usize, seed: u32) -> Vec<u8> {
    let mut payload = le(&numbers(5 * rows, seed));
    payload.resize(payload.len().next_multiple_of(8), 0);
    payload.extend((0..3 * rows as i32).flat_map(|i| (i * 1_000_003 - 7).to_le_bytes()));
    payload.resize(payload.len().next_multiple_of(8), 0);
    payload.extend(le(&numbers(7 * rows, seed + 3)));
    payload
}

#[test]
fn encoded_tensors_arrive_and_come_back_beside_others() {
    let fixture = serve(vec![three("m", &[1, 2, 4])]);
    let mut client = fixture.client();
    let as_is = client.open("m").unwrap();
    let lists: [&[TensorEncoding]; 6] = [
        &[input(0, F16)],
        &[output(2, F16), input(0, i8(0.5, 0))],
        &[input(0, i8(0.5, 10)), input(2, F16), output(0, F16), output(2, i8(0.5, 0))],
        &[output(0, i8(0.5, -3))],
        &[input(2, i8(0.5, 0)), input(0, Encoding::F32)],
        &[input(0, i8(0.5, 0)), input(2, i8(0.5, 0)), output(0, i8(0.5, 0)), output(2, i8(0.5, 0))],
    ];
    let models: Vec<_> = lists.iter().map(|list| client.open_encoded("m", list).unwrap()).collect();
    assert_eq!(models.iter().map(|m| m.id.0).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6]);
    assert!(models[5].input_len(4) < as_is.input_len(4) / 2);
    let mut expected = Vec::new();
    for seed in 0..200u32 {
        let rows = 1 + seed as usize % 4;
        let payload = plain(rows, seed);
        let model = &models[seed as usize % models.len()];
        let encoded = model.encode_input(rows, payload.clone()).unwrap();
        assert_eq!(encoded.len(), model.input_len(rows));
        // Encoded and plain requests side by side, many in flight.
        let rows16 = Rows(rows as u16);
        let ticket = client.submit(model, rows16, &encoded).unwrap();
        expected.push((ticket, Some(model), rows, payload.clone()));
        let ticket = client.submit(&as_is, rows16, &payload).unwrap();
        expected.push((ticket, None, rows, payload));
        if expected.len() > 20 {
            for (ticket, model, rows, payload) in expected.drain(..).rev() {
                let answer = client.wait(ticket).unwrap();
                let got = match model {
                    Some(model) => {
                        assert_eq!(answer.payload.len(), model.output_len(rows));
                        model.decode_output(rows, &answer.payload).unwrap()
                    }
                    None => answer.payload.clone(),
                };
                assert!(got == payload, "another answer");
                client.give_back(answer.payload);
            }
        }
    }
    fixture.all_slots_come_back(0);
    // Conversions refuse what is not the rows'.
    let error = models[0].encode_input(1, vec![0; 3]).unwrap_err();
    assert!(matches!(error, ClientError::PayloadLength { len: 3, wanted: 68 }), "{error}");
    assert!(models[0].decode_output(1, &[0; 3]).is_err());
    drop(client);
    fixture.still_serves();
}

#[test]
fn long_payloads_come_in_any_pieces() {
    const LEN: usize = 50_001;
    let fixture = serve(vec![long("m", LEN)]);
    let mut client = fixture.client();
    for (list, encoded_bytes) in [
        (&[input(0, F16), output(0, F16)], 2 * LEN),
        (&[input(0, i8(0.5, 1)), output(0, i8(0.5, 1))], LEN),
    ] {
        let model = client.open_encoded("m", list).unwrap();
        assert_eq!((model.input_len(1), model.output_len(1)), (encoded_bytes, encoded_bytes));
        let payload = le(&numbers(LEN, 9));
        let encoded = model.encode_input(1, payload.clone()).unwrap();
        let answer = client.infer(&model, Rows(1), &encoded).unwrap();
        assert!(answer.payload == encoded);
        assert!(model.decode_output(1, &answer.payload).unwrap() == payload);
        // In pieces that end within an element, another frame behind it.
        let mut raw = fixture.raw();
        raw.send(&frame(&Request::Hello { version_min: 1, version_max: 2, client: "" }, &[]));
        assert_eq!(raw.hear(), Heard::HelloOk);
        let mut listed = [0; corelane::limits::ENCODINGS_BYTES_MAX];
        let n = corelane::wire::write_encodings(list, &mut listed).unwrap();
        let open = Request::OpenEncoded { id: RequestId(1), name: "m", encodings: &listed[..n] };
        raw.send(&frame(&open, &[]));
        assert!(matches!(raw.hear(), Heard::Other(2, Some(1), _)));
        let bytes = [infer(2, 1, 1, &encoded), ping(3)].concat();
        let mut rest = &bytes[..];
        for len in
            [31, 1, 1, 1, 2, 3, 20_001, 16_384, 1, 5].into_iter().chain(std::iter::repeat(7_777))
        {
            let (piece, after) = rest.split_at(len.min(rest.len()));
            raw.send(piece);
            std::thread::sleep(Duration::from_millis(1));
            rest = after;
            if rest.is_empty() {
                break;
            }
        }
        let mut heard = [raw.hear(), raw.hear()];
        heard.sort_by_key(|heard| matches!(heard, Heard::Pong(_)));
        assert!(heard[0] == Heard::Answer { id: 2, rows: 1, payload: encoded.clone() });
        assert_eq!(heard[1], Heard::Pong(3));
    }
    drop(client);
    // `still_serves` sends sevens, which echo as any others.
    fixture.still_serves();
}

#[test]
fn numbers_that_an_encoding_has_not_become_what_the_table_says() {
    let fixture = serve(vec![long("m", 6)]);
    let mut client = fixture.client();
    let values = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e9, -1e9, 0.3];
    let mut ask = |list: &[TensorEncoding]| {
        let model = client.open_encoded("m", list).unwrap();
        let encoded = model.encode_input(1, le(&values)).unwrap();
        let answer = client.infer(&model, Rows(1), &encoded).unwrap();
        let bytes = model.decode_output(1, &answer.payload).unwrap();
        bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect::<Vec<_>>()
    };
    let inf = f32::INFINITY;
    let got = ask(&[output(0, F16)]);
    assert!(got[0].is_nan());
    assert_eq!(got[1..], [inf, -inf, inf, -inf, 0.30004883]);
    let got = ask(&[output(0, i8(0.125, 0))]);
    assert_eq!(got, [0.0, 15.875, -16.0, 15.875, -16.0, 0.25]);
    // By the client, on the way in.
    let got = ask(&[input(0, i8(0.125, -128))]);
    assert_eq!(got, [0.0, 31.875, 0.0, 31.875, 0.0, 0.25]);
    drop(client);
    fixture.still_serves();
}

#[test]
fn what_can_not_be_encoded_is_named() {
    let fixture = serve(vec![three("m", &[1]), model("bytes", 16, &[1], Duration::ZERO)]);
    let mut client = fixture.client();
    let mut refused = |name: &str, list: &[TensorEncoding]| match client.open_encoded(name, list) {
        Err(ClientError::Server(error)) => (error.code().unwrap(), error.a, error.b, error.text),
        other => panic!("{other:?}"),
    };
    let (code, a, b, text) = refused("m", &[input(0, F16), input(1, F16)]);
    assert_eq!((code, a, b), (ErrorCode::BadEncoding, 1, 1));
    assert_eq!(text, "input 1 \"xn\" is int32; only float32 tensors travel as f16 or i8");
    let (code, a, b, text) = refused("m", &[output(1, i8(1.0, 0))]);
    assert_eq!((code, a, b), (ErrorCode::BadEncoding, 0x81, 2));
    assert!(text.starts_with("output 1 \"yn\" is int32"), "{text}");
    let (code, a, b, text) = refused("m", &[output(3, F16)]);
    assert_eq!((code, a, b), (ErrorCode::BadEncoding, 0x83, 1));
    assert_eq!(text, "the model has no output 3");
    let (code, a, _, text) = refused("m", &[input(2, F16), input(2, F16)]);
    assert_eq!((code, a), (ErrorCode::BadEncoding, 2));
    assert_eq!(text, "input 2 \"xb\" is listed twice");
    assert_eq!(refused("bytes", &[input(0, Encoding::F32)]).0, ErrorCode::BadEncoding);
    assert_eq!(refused("nobody", &[input(0, F16)]).0, ErrorCode::UnknownModel);

    let mut raw = fixture.raw();
    raw.send(&frame(&Request::Hello { version_min: 2, version_max: 2, client: "" }, &[]));
    assert_eq!(raw.hear(), Heard::HelloOk);
    let mut open = |encodings: &[u8]| {
        raw.send(&frame(&Request::OpenEncoded { id: RequestId(9), name: "m", encodings }, &[]));
        raw.hear()
    };
    let bad = |code, a, b| Heard::Error { id: Some(9), code, a, b };
    // An encoding of the future, a scale of 0, half an entry.
    assert_eq!(open(&[0, 77]), bad(ErrorCode::BadEncoding, 0, 77));
    assert_eq!(open(&[0x82, 2, 0, 0, 0, 0, 0]), bad(ErrorCode::BadEncoding, 0x82, 2));
    assert_eq!(open(&[0, 2, 0]), bad(ErrorCode::Malformed, 10, 0));
    assert!(matches!(open(&[]), Heard::Other(2, Some(9), _)));
    raw.still_talks();
    drop((raw, client));
    fixture.all_slots_come_back(0);
}

#[test]
fn lengths_and_numbers_are_the_views() {
    let fixture = serve(vec![long("m", 6)]);
    let mut client = fixture.client();
    let model = client.open_encoded("m", &[input(0, F16)]).unwrap();
    let error = |result: Result<corelane::client::Answer, ClientError>| match result {
        Err(ClientError::Server(error)) => (error.code().unwrap(), error.a, error.b),
        other => panic!("{other:?}"),
    };
    let wrong = error(client.infer(&model, Rows(1), &[0; 24]));
    assert_eq!(wrong, (ErrorCode::WrongPayloadLength, 24, 12));
    let none = corelane::client::Model { id: ModelId(2), ..model.clone() };
    assert_eq!(error(client.infer(&none, Rows(1), &[0; 12])), (ErrorCode::UnknownModel, 2, 1));
    let rows = error(client.infer(&model, Rows(2), &[0; 24]));
    assert_eq!(rows, (ErrorCode::WrongRows, 2, 1));
    // A row that makes the model fail: the first byte of the decoded number.
    let bad = f32::from_le_bytes([BAD_ROW, 0, 0x80, 0x3F]);
    let plain = client.open("m").unwrap();
    assert_eq!(error(client.infer(&plain, Rows(1), &le(&[bad; 6]))).0, ErrorCode::ModelFailed);
    let whole = client.open_encoded("m", &[output(0, F16)]).unwrap();
    assert_eq!(error(client.infer(&whole, Rows(1), &le(&[bad; 6]))).0, ErrorCode::ModelFailed);
    // The same list gets the same number; others are bounded, on this connection.
    assert_eq!(client.open_encoded("m", &[input(0, F16)]).unwrap().id, model.id);
    for n in 2..ENCODED_OPENS_COUNT_MAX {
        let list = [output(0, i8(n as f32, 0))];
        assert_eq!(client.open_encoded("m", &list).unwrap().id, ModelId(n as u16 + 1));
    }
    let max = ENCODED_OPENS_COUNT_MAX as u64;
    match client.open_encoded("m", &[output(0, i8(77.0, 0))]) {
        Err(ClientError::Server(error)) => {
            assert_eq!(error.code(), Some(ErrorCode::TooManyEncodings));
            assert_eq!((error.a, error.b), (max, max));
        }
        other => panic!("{other:?}"),
    }
    // They end with their connection.
    let mut other = fixture.client();
    let none = corelane::client::Model { id: model.id, ..model.clone() };
    assert_eq!(error(other.infer(&none, Rows(1), &[0; 12])), (ErrorCode::UnknownModel, 1, 1));
    assert_eq!(other.open_encoded("m", &[output(0, F16)]).unwrap().id, model.id);
    drop((client, other));
    fixture.still_serves();
}

#[test]
fn a_conversation_of_version_1_knows_no_encodings() {
    let fixture = serve(vec![long("m", 6)]);
    let mut raw = fixture.greeted();
    let open = Request::OpenEncoded { id: RequestId(1), name: "m", encodings: &[0, 1] };
    raw.send(&frame(&open, &[]));
    raw.expect_error(None, ErrorCode::Malformed, 10, 0);
    raw.still_talks();
    raw.send(&infer(1, 1, 1, &[0; 12]));
    raw.expect_error(Some(1), ErrorCode::UnknownModel, 1, 1);
    drop(raw);
    fixture.still_serves();
}

#[test]
fn encoded_requests_are_withdrawn_and_expire_like_others() {
    let mut slow = long("m", 6);
    let signature = slow.engine.signature().clone();
    let compute = FakeCompute { per_run: Duration::from_millis(100), per_row: Duration::ZERO };
    slow.engine = Arc::new(FakeEngine::new(signature, &[1], compute).unwrap());
    let fixture = serve(vec![slow]);
    let mut client = fixture.client();
    let model = client.open_encoded("m", &[input(0, F16), output(0, F16)]).unwrap();
    let row = model.encode_input(1, le(&numbers(6, 1))).unwrap();
    let first = client.submit(&model, Rows(1), &row).unwrap();
    let second = client.submit(&model, Rows(1), &row).unwrap();
    client.cancel(second).unwrap();
    assert_eq!(client.wait(second).unwrap_err().code(), Some(ErrorCode::Cancelled));
    assert_eq!(client.wait(first).unwrap().payload, row);
    // Half a payload, and then nobody.
    let request = corelane::client::Infer {
        model: model.id,
        rows: Rows(1),
        deadline: Micros(0),
        priority: Default::default(),
    };
    client.submit_with(request, &row).unwrap();
    drop(client);
    fixture.still_serves();
}

fn f32s(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

fn best(row: &[f32]) -> usize {
    (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap()
}

/// A scale for numbers up to `largest`, of both signs.
fn fitting(values: &[f32]) -> Encoding {
    i8(values.iter().fold(0f32, |most, v| most.max(v.abs())) / 127.0, 0)
}

#[test]
fn real_models_answer_nearly_the_same() {
    let dir = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("models").join(name);
    let golden = |name: &str, file: &str| {
        let path = dir(name).join("golden/batch4").join(file);
        npy::read(&std::fs::read(path).unwrap()).unwrap().data
    };
    let setup = |name: &str| ModelSetup::from(LoadedModel::read(dir(name)).unwrap());
    let fixture = serve(vec![setup("dscnn_kws"), setup("magika")]);
    let mut client = fixture.client();
    // Probabilities lie between 0 and 1: all bytes are used.
    let probabilities = i8(1.0 / 255.0, -128);
    for (name, rows) in [("dscnn_kws", 4), ("magika", 4)] {
        let plain = golden(name, "input_0.npy");
        let wanted = f32s(&golden(name, "output_0.npy"));
        let whole = client.open(name).unwrap();
        let mut lists = vec![vec![output(0, F16)], vec![output(0, probabilities)]];
        if whole.inputs[0].dtype == DType::F32 {
            lists.push(vec![input(0, F16), output(0, F16)]);
            lists.push(vec![input(0, fitting(&f32s(&plain))), output(0, probabilities)]);
        } else {
            let refused = client.open_encoded(name, &[input(0, F16)]).unwrap_err();
            assert_eq!(refused.code(), Some(ErrorCode::BadEncoding), "{refused}");
            assert!(refused.to_string().contains("\"bytes\" is int32"), "{refused}");
        }
        for list in lists {
            let model = client.open_encoded(name, &list).unwrap();
            let encoded = model.encode_input(rows, plain.clone()).unwrap();
            let answer = client.infer(&model, Rows(rows as u16), &encoded).unwrap();
            let got = f32s(&model.decode_output(rows, &answer.payload).unwrap());
            let worst =
                got.iter().zip(&wanted).fold(0f32, |worst, (a, b)| worst.max((a - b).abs()));
            let asked: Vec<String> =
                list.iter().map(|asked| format!("{} {}", asked.place, asked.encoding)).collect();
            println!(
                "{name}, {}: {} + {} bytes instead of {} + {}; largest difference {worst:.1e}",
                asked.join(", "),
                model.input_len(1),
                model.output_len(1),
                whole.input_len(1),
                whole.output_len(1)
            );
            let len = wanted.len() / rows;
            for (got, wanted) in got.chunks(len).zip(wanted.chunks(len)) {
                assert_eq!(best(got), best(wanted), "another class");
            }
            // Half a step of what the output can say, and what the input's rounding makes of it.
            let bound = match (list.len(), list[0].encoding) {
                (1, Encoding::F16) => 1e-3,
                (1, _) => 0.5 / 255.0 + 1e-4,
                (_, Encoding::F16) => 5e-3,
                _ => 5e-2,
            };
            assert!(worst <= bound, "{worst}");
        }
    }
    drop(client);
    let queues: Vec<_> = fixture.runtime.shared().models.iter().map(|m| m.queue.clone()).collect();
    assert_eq!(queues.iter().map(|q| q.outstanding()).sum::<u32>(), 0);
    assert_eq!(corelane::sys::alloc::hot_calls(), 0);
}
