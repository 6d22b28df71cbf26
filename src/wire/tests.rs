use super::*;
use crate::limits::*;
use crate::units::*;
use proptest::prelude::*;
use std::string::{String, ToString};
use std::vec::Vec;
use std::{format, println};

fn frame<T: serde::Serialize>(message: &T, payload: &[u8]) -> Vec<u8> {
    let mut out = [0; HEAD_BYTES_MAX];
    let n = encode_head(message, payload.len(), &mut out).unwrap();
    [&out[..n], payload].concat()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(" ")
}

fn receipt() -> Receipt {
    Receipt {
        queue_ns: Nanos(1000),
        compute_input_ns: Nanos(2000),
        compute_infer_ns: Nanos(3000),
        compute_output_ns: Nanos(4000),
        batch_size: Rows(1),
        close_reason: CloseReason::Idle,
        worker: WorkerId(0),
    }
}

fn signature() -> Signature<'static> {
    let tensor = |name, dtype, axis| Tensor {
        name,
        dtype,
        row_shape: heapless::Vec::from_slice(&[axis]).unwrap(),
    };
    Signature {
        batched: true,
        inputs: heapless::Vec::from_iter([tensor("x", DType::F32, 4)]),
        outputs: heapless::Vec::from_iter([tensor("y", DType::I64, 1)]),
    }
}

/// Every golden request: label, message, payload.
fn golden_requests() -> Vec<(&'static str, Request<'static>, Vec<u8>)> {
    let id = RequestId;
    std::vec![
        (
            "Hello 1..1 \"cl\"",
            Request::Hello { version_min: 1, version_max: 1, client: "cl" },
            std::vec![]
        ),
        ("Auth 32 times ab", Request::Auth { proof: [0xab; 32] }, std::vec![]),
        ("Open 1 \"mlp\"", Request::Open { id: id(1), name: "mlp" }, std::vec![]),
        (
            "Infer 300, model 2, 1 row, 5000 us, priority 0, payload 01 02 03 04",
            Request::Infer {
                id: id(300),
                model: ModelId(2),
                rows: Rows(1),
                deadline: Micros(5000),
                priority: Priority(0),
            },
            std::vec![1, 2, 3, 4],
        ),
        ("Cancel 300", Request::Cancel { id: id(300) }, std::vec![]),
        ("Stats 2", Request::Stats { id: id(2) }, std::vec![]),
        ("Ping 7", Request::Ping { id: id(7) }, std::vec![]),
        ("Health 8 ready", Request::Health { id: id(8), kind: HealthKind::Ready }, std::vec![]),
        ("Models 9", Request::Models { id: id(9) }, std::vec![]),
        ("Goodbye (client)", Request::Goodbye, std::vec![]),
        (
            "OpenEncoded 1 \"kws\", input 0 f16, output 1 i8 0.5 zero -128",
            Request::OpenEncoded {
                id: id(1),
                name: "kws",
                encodings: &[0x00, 1, 0x81, 2, 0, 0, 0, 0x3F, 0x80],
            },
            std::vec![],
        ),
        ("Reload 1 \"mlp\"", Request::Reload { id: id(1), name: "mlp" }, std::vec![]),
    ]
}

/// Every golden reply: label, message, payload.
fn golden_replies() -> Vec<(&'static str, Reply<'static>, Vec<u8>)> {
    let id = RequestId;
    let mut body = [0; 64];
    let n = signature().encode(&mut body).unwrap();
    let signature = body[..n].to_vec();
    let entry = ModelEntry { model: ModelId(2), rows_max: Rows(8), name: "mlp" };
    let n = entry.encode(&mut body).unwrap();
    let entry = body[..n].to_vec();
    std::vec![
        (
            "HelloOk 1, 67108864 bytes, 256 in flight, 3 models",
            Reply::HelloOk {
                version: 1,
                limits: ServerLimits { payload_bytes_max: 67108864, in_flight_max: 256, models: 3 },
            },
            std::vec![],
        ),
        ("Challenge 32 times cd", Reply::Challenge { nonce: [0xcd; 32] }, std::vec![]),
        (
            "Opened 1, model 2, 8 rows, 1 level, 0 us, batched x f32[4] to y i64[1]",
            Reply::Opened {
                id: id(1),
                model: ModelId(2),
                rows_max: Rows(8),
                priority_levels: 1,
                timeout: Micros(0),
            },
            signature,
        ),
        (
            "Answer 300, 1 row, 1000 2000 3000 4000 ns, batch 1, idle, worker 0, payload 05 06",
            Reply::Answer { id: id(300), rows: Rows(1), receipt: receipt() },
            std::vec![5, 6],
        ),
        (
            "Error 300 queue_full \"full\" 64 64",
            Reply::Error {
                id: Some(id(300)),
                code: ErrorCode::QueueFull.number(),
                text: "full",
                a: 64,
                b: 64,
            },
            std::vec![],
        ),
        (
            "Error malformed \"\" 3 0",
            Reply::Error { id: None, code: ErrorCode::Malformed.number(), text: "", a: 3, b: 0 },
            std::vec![],
        ),
        ("Stats 2, payload {}", Reply::Stats { id: id(2) }, b"{}".to_vec()),
        ("Pong 7", Reply::Pong { id: id(7) }, std::vec![]),
        (
            "Health 8 ready true",
            Reply::Health { id: id(8), kind: HealthKind::Ready, ok: true },
            std::vec![],
        ),
        ("Models 9, one: 2, 8 rows, \"mlp\"", Reply::Models { id: id(9), count: 1 }, entry),
        ("Goodbye (server)", Reply::Goodbye, std::vec![]),
    ]
}

#[test]
fn golden_bytes_of_the_documentation_are_what_the_code_writes_and_reads() {
    let documented: Vec<(&str, &str)> = include_str!("mod.rs")
        .lines()
        .filter_map(|line| line.strip_prefix("//! | `"))
        .filter_map(|line| line.strip_suffix("` |"))
        .filter_map(|line| line.split_once("` | `"))
        .filter(|(_, bytes)| bytes.starts_with("c1 "))
        .collect();
    let mut expected = Vec::new();
    for (label, message, payload) in golden_requests() {
        let bytes = frame(&message, &payload);
        let head = parse_head(&bytes).unwrap().unwrap();
        assert_eq!(Request::decode(head.header), Ok(message), "{label}");
        assert_eq!(head.header[0], message.number(), "{label}");
        assert_eq!(&bytes[head.head_len..], payload, "{label}");
        expected.push((label, hex(&bytes)));
    }
    for (label, message, payload) in golden_replies() {
        let bytes = frame(&message, &payload);
        let head = parse_head(&bytes).unwrap().unwrap();
        assert_eq!(Reply::decode(head.header), Ok(message), "{label}");
        assert_eq!(head.header[0], message.number(), "{label}");
        assert_eq!(&bytes[head.head_len..], payload, "{label}");
        expected.push((label, hex(&bytes)));
    }
    for ((label, bytes), documented) in expected.iter().zip(&documented) {
        assert_eq!((*label, bytes.as_str()), *documented);
    }
    assert_eq!(expected.len(), documented.len());
    // Every message of both directions has a golden frame.
    let numbers: std::collections::BTreeSet<u8> =
        golden_requests().iter().map(|(_, m, _)| m.number()).collect();
    assert_eq!(numbers, (0..=Request::NUMBER_MAX).collect());
    let numbers: std::collections::BTreeSet<u8> =
        golden_replies().iter().map(|(_, m, _)| m.number()).collect();
    assert_eq!(numbers, (0..=Reply::NUMBER_MAX).collect());
}

#[test]
fn error_codes_go_round_and_are_unique() {
    let mut names = std::collections::BTreeSet::new();
    let mut last = 0;
    for &code in ErrorCode::ALL {
        assert_eq!(ErrorCode::from_number(code.number()), Some(code));
        assert!(code.number() > last, "ascending");
        last = code.number();
        assert!(names.insert(code.name()));
        assert_eq!(code.to_string(), code.name());
    }
    let known = (0..=u16::MAX).filter(|&n| ErrorCode::from_number(n).is_some()).count();
    assert_eq!(known, ErrorCode::ALL.len());
    // The numbers are a promise.
    let numbers: Vec<(u16, &str)> = ErrorCode::ALL.iter().map(|c| (c.number(), c.name())).collect();
    assert_eq!(
        numbers,
        [
            (100, "malformed"),
            (101, "frame_too_long"),
            (102, "unexpected_message"),
            (110, "unsupported_version"),
            (111, "auth_required"),
            (112, "auth_failed"),
            (113, "too_many_connections"),
            (114, "peer_not_allowed"),
            (115, "timed_out"),
            (200, "unknown_model"),
            (201, "wrong_payload_length"),
            (202, "wrong_rows"),
            (203, "bad_priority"),
            (204, "duplicate_request_id"),
            (205, "too_many_in_flight"),
            (206, "bad_deadline"),
            (207, "bad_encoding"),
            (208, "too_many_encodings"),
            (209, "not_allowed"),
            (300, "queue_full"),
            (301, "deadline_unmeetable"),
            (302, "deadline_expired"),
            (303, "cancelled"),
            (400, "model_failed"),
            (401, "model_panicked"),
            (500, "shutting_down"),
            (501, "not_ready"),
            (502, "internal"),
        ]
    );
}

#[test]
fn broken_frames_are_named_at_the_first_byte_that_shows_it() {
    assert_eq!(parse_head(b"G"), Err(FrameError::BadMagic { got: b'G' }));
    assert_eq!(parse_head(&[0xC1, 0]), Err(FrameError::EmptyHeader));
    assert_eq!(parse_head(&[0xC1, 1, 0, 1]), Err(FrameError::BadReserved { got: 0x100 }));
    assert_eq!(
        parse_head(&[0xC1, 1, 0, 0, 1, 0, 0, 4]),
        Err(FrameError::PayloadTooLong {
            len: FRAME_PAYLOAD_BYTES_MAX as u32 + 1,
            max: FRAME_PAYLOAD_BYTES_MAX as u32
        })
    );
    // The longest payload is allowed.
    assert_eq!(parse_head(&[0xC1, 1, 0, 0, 0, 0, 0, 4]), Ok(None));
    assert_eq!(parse_head(&[]), Ok(None));
    let mut decoder = HeadDecoder::new();
    assert_eq!(decoder.feed(&[0xC1, 0]), Err(FrameError::EmptyHeader));
}

#[test]
fn bad_headers_are_typed() {
    assert_eq!(Request::decode(&[12]), Err(MessageError::UnknownNumber { number: 12 }));
    // A list of encodings that no model could have.
    let long = [&[10, 1, 1, b'x', 113][..], &[0; 113]].concat();
    assert_eq!(Request::decode(&long), Err(MessageError::BadField { number: 10 }));
    assert_eq!(Request::decode(&[6]), Err(MessageError::BadField { number: 6 }));
    assert_eq!(Request::decode(&[]), Err(MessageError::BadField { number: 0 }));
    assert_eq!(Request::decode(&[6, 7, 1]), Err(MessageError::TrailingBytes { extra: 1 }));
    assert_eq!(Request::decode(&[7, 8, 2]), Err(MessageError::BadField { number: 7 }));
    let mut long = std::vec![2, 1, 65];
    long.extend([b'x'; 65]);
    assert_eq!(Request::decode(&long), Err(MessageError::TextTooLong { len: 65, max: 64 }));
    long[0] = 11;
    assert_eq!(Request::decode(&long), Err(MessageError::TextTooLong { len: 65, max: 64 }));
    // A length that points beyond the header, and a varint that overflows.
    assert_eq!(Request::decode(&[2, 1, 200, b'x']), Err(MessageError::BadField { number: 2 }));
    assert_eq!(
        Request::decode(&[6, 0xff, 0xff, 0xff, 0xff, 0xff, 1]),
        Err(MessageError::BadField { number: 6 })
    );
    // Text that is not UTF-8.
    assert_eq!(Request::decode(&[2, 1, 1, 0xff]), Err(MessageError::BadField { number: 2 }));
}

#[test]
fn the_longest_messages_fit_a_head() {
    let text = "x".repeat(ERROR_TEXT_LEN_MAX);
    let worst = Reply::Error {
        id: Some(RequestId(u32::MAX)),
        code: u16::MAX,
        text: &text,
        a: u64::MAX,
        b: u64::MAX,
    };
    assert!(frame(&worst, &[]).len() <= HEAD_BYTES_MAX);
    let name = "n".repeat(MODEL_NAME_LEN_MAX);
    assert!(frame(&Request::Open { id: RequestId(u32::MAX), name: &name }, &[]).len() < 100);
    let text = "x".repeat(300);
    assert_eq!(
        encode_head(&Request::Open { id: RequestId(0), name: &text }, 0, &mut [0; 400]),
        Err(EncodeError::HeaderTooLong { max: FRAME_HEADER_BYTES_MAX })
    );
    assert_eq!(
        encode_head(&Request::Goodbye, FRAME_PAYLOAD_BYTES_MAX + 1, &mut [0; 400]),
        Err(EncodeError::PayloadTooLong {
            len: FRAME_PAYLOAD_BYTES_MAX + 1,
            max: FRAME_PAYLOAD_BYTES_MAX
        })
    );
    assert_eq!(
        encode_head(&Request::Goodbye, 0, &mut [0; 4]),
        Err(EncodeError::HeaderTooLong { max: 0 })
    );
    // Error texts are cut at a character.
    let text = "ä".repeat(ERROR_TEXT_LEN_MAX);
    assert_eq!(error_text(&text).len(), ERROR_TEXT_LEN_MAX);
    let text = format!("x{text}");
    assert_eq!(error_text(&text).len(), ERROR_TEXT_LEN_MAX - 1);
}

#[test]
fn versions_are_negotiated() {
    assert_eq!(negotiate((1, 1), (1, 3)), Some(1));
    assert_eq!(negotiate((1, 4), (2, 3)), Some(3));
    assert_eq!(negotiate((1, 1), (2, 3)), None);
    assert_eq!(negotiate((1, 1), (3, 0)), None);
}

#[test]
fn payload_lengths_follow_the_signature() {
    let signature = signature();
    assert_eq!(payload_len(&signature.inputs, Rows(3)), Some(48));
    let mut two = signature.inputs.clone();
    two[0].row_shape[0] = 1;
    two.extend(signature.outputs.clone());
    // 4 bytes, a gap of 4, 8 bytes.
    assert_eq!(payload_len(&two, Rows(1)), Some(16));
    let huge = heapless::Vec::from_slice(&[u32::MAX; 7]).unwrap();
    let huge = Tensor { name: "h", dtype: DType::F64, row_shape: huge };
    assert_eq!(huge.row_bytes(), None);
    assert_eq!(payload_len(&[huge], Rows(1)), None);
}

#[test]
fn signatures_and_lists_go_round_and_refuse_damage() {
    let mut out = [0; 64];
    let n = signature().encode(&mut out).unwrap();
    assert_eq!(Signature::decode(&out[..n]), Ok(signature()));
    assert_eq!(Signature::decode(&out[..n + 1]), Err(BodyError));
    for cut in 0..n {
        assert_eq!(Signature::decode(&out[..cut]), Err(BodyError));
    }
    // More tensors than there may be.
    assert_eq!(Signature::decode(&[1, 9]), Err(BodyError));
    assert_eq!(signature().encode(&mut [0; 3]), Err(BodyError));
    let entry = ModelEntry { model: ModelId(1), rows_max: Rows(1), name: "a" };
    let n = entry.encode(&mut out).unwrap();
    assert_eq!(ModelEntry::decode(&out[..n + 2]).unwrap().0, entry);
    assert_eq!(ModelEntry::decode(&out[..n - 1]), Err(BodyError));
}

#[test]
fn proofs_verify_and_keys_have_bounds() {
    let key = Key::new(b"0123456789abcdef").unwrap();
    let proof = key.prove(&[7; 32]);
    assert!(key.verify(&[7; 32], &proof));
    assert!(!key.verify(&[8; 32], &proof));
    let mut wrong = proof;
    wrong[31] ^= 1;
    assert!(!key.verify(&[7; 32], &wrong));
    assert_eq!(Key::new(b"short").unwrap_err(), KeyLengthError { len: 5 });
    assert_eq!(Key::new(&[0; 1025]).unwrap_err(), KeyLengthError { len: 1025 });
    // Reference computed with Python: hmac.new(key, b"corelane v1 client" + b"\x07" * 32, sha256).
    assert_eq!(
        hex(&proof),
        "64 92 e2 28 ee f6 ce 34 15 76 bd 36 58 f4 e1 5c 29 f4 ad ee a5 21 b9 a0 5b 72 98 cc 80 13 9c 7f"
    );
}

/// A small generator for byte fuzzing, so that the count can be large and the seed is known.
struct Lcg(u64);
impl Lcg {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.0 >> 33
    }
}

#[test]
fn byte_fuzzing_finds_no_panic_and_no_disagreement() {
    // Valid frames with a few bytes changed, cut or added, then fed in pieces: the incremental
    // decoder and the one over whole buffers must agree, and the messages must never panic.
    let mut random = Lcg(0xC0FE);
    let mut seeds: Vec<Vec<u8>> = Vec::new();
    seeds.extend(golden_requests().iter().map(|(_, m, p)| frame(m, p)));
    seeds.extend(golden_replies().iter().map(|(_, m, p)| frame(m, p)));
    let inputs = 200_000;
    let (mut heads, mut broken, mut partial) = (0u32, 0u32, 0u32);
    for _ in 0..inputs {
        let mut bytes = seeds[random.next() as usize % seeds.len()].clone();
        for _ in 0..random.next() % 4 {
            let at = random.next() as usize % bytes.len();
            match random.next() % 4 {
                0 => bytes[at] = random.next() as u8,
                1 => bytes[at] ^= 1 << (random.next() % 8),
                2 => bytes.truncate(at.max(1)),
                _ => bytes.insert(at, random.next() as u8),
            }
        }
        let whole = parse_head(&bytes);
        let mut decoder = HeadDecoder::new();
        let mut at = 0;
        let pieces = loop {
            let n = (1 + random.next() as usize % 9).min(bytes.len() - at);
            match decoder.feed(&bytes[at..at + n]) {
                Err(error) => break Err(error),
                Ok(taken) => at += taken,
            }
            if decoder.missing() == 0 || at == bytes.len() {
                break Ok(decoder.head());
            }
        };
        assert_eq!(whole, pieces);
        match whole {
            Err(_) => broken += 1,
            Ok(None) => partial += 1,
            Ok(Some(head)) => {
                heads += 1;
                let _ = Reply::decode(head.header);
                if let Ok(request) = Request::decode(head.header) {
                    let again = frame(&request, &[]);
                    let again = parse_head(&again).unwrap().unwrap();
                    assert_eq!(Request::decode(again.header), Ok(request));
                }
                let _ = Signature::decode(&bytes[head.head_len..]);
                let _ = ModelEntry::decode(&bytes[head.head_len..]);
            }
        }
    }
    println!("{inputs} fuzzed inputs: {heads} heads, {broken} broken, {partial} partial");
    assert!(heads > 0 && broken > 0 && partial > 0);
}

/// Replies as postcard reads them, with the same errors.
fn reply_by_postcard(header: &[u8]) -> Result<Reply<'_>, MessageError> {
    let number = header.first().copied().unwrap_or(0);
    match postcard::take_from_bytes::<Reply<'_>>(header) {
        Ok((Reply::Error { text, .. }, [])) if text.len() > ERROR_TEXT_LEN_MAX => {
            Err(MessageError::TextTooLong { len: text.len(), max: ERROR_TEXT_LEN_MAX })
        }
        Ok((reply, [])) => Ok(reply),
        Ok((_, rest)) => Err(MessageError::TrailingBytes { extra: rest.len() }),
        Err(_) if number > Reply::NUMBER_MAX => Err(MessageError::UnknownNumber { number }),
        Err(_) => Err(MessageError::BadField { number }),
    }
}

#[test]
fn replies_are_read_as_postcard_reads_them() {
    let mut random = Lcg(0xBEEF);
    let seeds: Vec<Vec<u8>> = golden_replies()
        .iter()
        .map(|(_, m, _)| frame(m, &[])[FRAME_PREFIX_BYTES..].to_vec())
        .collect();
    let (mut sound, mut bad) = (0u32, 0u32);
    for n in 0..200_000usize {
        let mut bytes = seeds[n % seeds.len()].clone();
        for _ in 0..random.next() % 4 {
            let at = random.next() as usize % bytes.len();
            match random.next() % 5 {
                0 => bytes[at] = random.next() as u8,
                1 => bytes[at] ^= 1 << (random.next() % 8),
                2 => bytes.truncate(at.max(1)),
                // Longer varints, and those that say the same in more bytes.
                3 => bytes.insert(at, 0x80 | random.next() as u8),
                _ => bytes.insert(at, [0, 1, 0x7F, 0x80, 0xFF][random.next() as usize % 5]),
            }
        }
        let read = Reply::decode(&bytes);
        assert_eq!(read, reply_by_postcard(&bytes), "{bytes:?}");
        if read.is_ok() { sound += 1 } else { bad += 1 }
    }
    println!("{sound} sound, {bad} bad");
    assert!(sound > 0 && bad > 0);
}

proptest! {
    #[test]
    fn requests_go_round(id: u32, model: u16, rows: u16, deadline: u32, priority: u8, payload in 0..FRAME_PAYLOAD_BYTES_MAX) {
        let request = Request::Infer {
            id: RequestId(id), model: ModelId(model), rows: Rows(rows),
            deadline: Micros(deadline), priority: Priority(priority),
        };
        let mut out = [0; HEAD_BYTES_MAX];
        let n = encode_head(&request, payload, &mut out).unwrap();
        let head = parse_head(&out[..n]).unwrap().unwrap();
        prop_assert_eq!(head.payload_len as usize, payload);
        prop_assert_eq!(head.head_len, n);
        prop_assert_eq!(Request::decode(head.header), Ok(request));
        for cut in 0..n {
            prop_assert_eq!(parse_head(&out[..cut]), Ok(None));
        }
    }

    #[test]
    fn errors_go_round(id: Option<u32>, code: u16, text in ".{0,40}", a: u64, b: u64) {
        let reply = Reply::Error { id: id.map(RequestId), code, text: error_text(&text), a, b };
        let mut out = [0; HEAD_BYTES_MAX];
        let n = encode_head(&reply, 0, &mut out).unwrap();
        let head = parse_head(&out[..n]).unwrap().unwrap();
        prop_assert_eq!(Reply::decode(head.header), Ok(reply));
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = parse_head(&bytes);
        let _ = Request::decode(&bytes);
        let _ = Reply::decode(&bytes);
        let _ = Signature::decode(&bytes);
        let _ = ModelEntry::decode(&bytes);
    }
}
