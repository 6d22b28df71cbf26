//! Framing and messages: bytes to meanings, without any state.

use super::Reached;
use super::script::{Script, body, frame, reply, request};
use corelane::limits::ENCODINGS_BYTES_MAX;
use corelane::units::RequestId;
use corelane::wire::link::{Decoder, Header, Kind, Offer, crc32c, encode, encoded_len_max, parse};
use corelane::wire::{
    Encodings, HEAD_BYTES_MAX, HeadDecoder, ModelEntry, Reply, Request, Signature, TensorEncoding,
    encode_head, parse_head, write_encodings,
};

const UNIT_BYTES_MAX: usize = 128;
const KINDS: [Kind; 7] =
    [Kind::Open, Kind::Accept, Kind::Data, Kind::Ack, Kind::Nak, Kind::Ping, Kind::Reset];

/// A sound frame of the link with any fields, stuffed; perhaps with damage before the checksum.
pub fn link_frame(script: &mut Script<'_>, header: Header, payload: &[u8]) -> Vec<u8> {
    let mut unit = [&header.encode()[..], payload].concat();
    script.damage(&mut unit);
    unit.extend(crc32c(&unit).to_le_bytes());
    stuffed(&unit)
}

fn stuffed(unit: &[u8]) -> Vec<u8> {
    let mut line = vec![0; encoded_len_max(unit.len())];
    let n = encode(unit, &mut line).expect("the line is long enough");
    line.truncate(n);
    line
}

/// Any header; its numbers near those of a young session.
pub fn header(script: &mut Script<'_>) -> Header {
    Header {
        kind: KINDS[script.below(7)],
        count: script.byte() % 8,
        session: u16::from(script.byte() % 8),
        seq: u16::from(script.byte()),
        ack: u16::from(script.byte()),
        credit: script.short() % 600,
    }
}

/// The framing of serial lines: noise and frames, and what they were stuffed from.
pub fn framing(input: &[u8]) -> Reached {
    let mut reached = Reached::default();
    let mut script = Script(input);
    // What is stuffed comes out the same, whatever it is.
    let mut decoder = Decoder::new([0; UNIT_BYTES_MAX]);
    let unit = &input[..input.len().min(UNIT_BYTES_MAX)];
    for (at, &byte) in stuffed(unit).iter().enumerate() {
        match decoder.push(byte) {
            Some(Ok(len)) => assert_eq!(decoder.unit(len), unit),
            Some(Err(damage)) => panic!("{damage:?} in a sound unit"),
            None => assert!(unit.is_empty() || at < encoded_len_max(unit.len())),
        }
    }
    // Noise, then a delimiter, then a sound frame: that one is understood.
    while !script.is_over() {
        let mut line = match script.below(3) {
            0 => script.bytes(64).to_vec(),
            _ => {
                let (header, payload) = (header(&mut script), script.bytes(48));
                link_frame(&mut script, header, payload)
            }
        };
        if script.below(4) == 0 {
            script.damage(&mut line);
        }
        for &byte in &line {
            if let Some(Ok(len)) = decoder.push(byte)
                && let Ok((header, payload)) = parse(decoder.unit(len))
            {
                reached.frames += 1;
                if let Some(offer) = Offer::decode(payload) {
                    assert_eq!(offer.encode()[..], payload[..offer.encode().len()]);
                }
                assert_eq!(header.encode()[..], decoder.unit(len)[..header.encode().len()]);
            }
        }
    }
    decoder.push(0);
    let last = Header { kind: Kind::Ping, count: 0, session: 1, seq: 2, ack: 3, credit: 4 };
    let line = link_frame(&mut Script(&[]), last, b"last");
    let mut found = None;
    for byte in line {
        if let Some(unit) = decoder.push(byte) {
            found = Some(unit.expect("a sound unit"));
        }
    }
    let unit = decoder.unit(found.expect("a unit after a delimiter"));
    assert_eq!(parse(unit), Ok((last, &b"last"[..])));
    reached
}

fn encoded<T: serde::Serialize>(message: &T, payload_len: usize) -> Vec<u8> {
    let mut head = [0; HEAD_BYTES_MAX];
    let n = encode_head(message, payload_len, &mut head).expect("what was read can be written");
    head[..n].to_vec()
}

/// Heads, messages and bodies: the decoder in pieces agrees with the one over whole buffers, and what
/// is understood is written the same again.
pub fn messages(input: &[u8]) -> Reached {
    let mut reached = Reached::default();
    let mut script = Script(input);
    while !script.is_over() {
        let mut bytes = match script.below(4) {
            0 => script.bytes(64).to_vec(),
            1 | 2 => {
                let (request, payload) = request(&mut script);
                frame(&mut script, &request, &payload)
            }
            _ => {
                let (reply, payload) = reply(&mut script, RequestId(1), 2);
                frame(&mut script, &reply, &payload)
            }
        };
        if script.below(4) == 0 {
            script.damage(&mut bytes);
        }
        one(&mut script, &bytes, &mut reached);
        let body = body(&mut script);
        bodies(&body, &mut reached);
    }
    reached
}

fn one(script: &mut Script<'_>, bytes: &[u8], reached: &mut Reached) {
    let whole = parse_head(bytes);
    let mut decoder = HeadDecoder::new();
    let mut at = 0;
    let pieces = loop {
        let n = (1 + script.below(9)).min(bytes.len() - at);
        match decoder.feed(&bytes[at..at + n]) {
            Err(error) => break Err(error),
            Ok(taken) => at += taken,
        }
        if decoder.missing() == 0 || at == bytes.len() {
            break Ok(decoder.head());
        }
    };
    assert_eq!(whole, pieces);
    let Ok(Some(head)) = whole else { return };
    reached.heads += 1;
    let payload = &bytes[head.head_len..];
    if let Ok(request) = Request::decode(head.header) {
        reached.requests += 1;
        reached.infers += u64::from(matches!(request, Request::Infer { .. }));
        let again = encoded(&request, 0);
        let again = parse_head(&again).expect("a frame").expect("a whole one");
        assert_eq!(Request::decode(again.header), Ok(request));
        if let Request::OpenEncoded { encodings, .. } = request {
            list(encodings, reached);
        }
    }
    if let Ok(reply) = Reply::decode(head.header) {
        reached.replies += 1;
        let again = encoded(&reply, 0);
        let again = parse_head(&again).expect("a frame").expect("a whole one");
        assert_eq!(Reply::decode(again.header), Ok(reply));
    }
    bodies(payload, reached);
}

fn list(bytes: &[u8], reached: &mut Reached) {
    let tensors: Result<Vec<TensorEncoding>, _> = Encodings::new(bytes).collect();
    if let Ok(tensors) = tensors
        && bytes.len() <= ENCODINGS_BYTES_MAX
    {
        reached.bodies += 1;
        let mut again = [0; ENCODINGS_BYTES_MAX];
        let n = write_encodings(&tensors, &mut again).expect("what was read can be written");
        assert_eq!(&again[..n], bytes);
    }
}

fn bodies(bytes: &[u8], reached: &mut Reached) {
    list(bytes, reached);
    let mut out = [0; 1024];
    if let Ok(signature) = Signature::decode(bytes) {
        reached.bodies += 1;
        let n = signature.encode(&mut out).expect("what was read can be written");
        assert_eq!(Signature::decode(&out[..n]), Ok(signature));
    }
    if let Ok((entry, rest)) = ModelEntry::decode(bytes) {
        reached.bodies += 1;
        assert!(rest.len() < bytes.len());
        let n = entry.encode(&mut out).expect("what was read can be written");
        assert_eq!(ModelEntry::decode(&out[..n]), Ok((entry, &[][..])));
    }
}
