use super::conn::{failure_code, refusal_code};
use super::link::Link;
use super::loopback::Hub;
use super::replies::{Flushed, Replies};
use super::table::{Held, Table};
use super::*;
use crate::model::signature::{Signature, TensorSpec};
use crate::queue::idle::IdleSet;
use crate::queue::{
    Completion, Done, Failure, ModelQueue, Notify, QueueSpec, Refusal, ServiceTimes, Submit, Ticket,
};
use crate::units::*;
use crate::wire::{HeadDecoder, Reply};
use std::collections::BTreeMap;
use std::io::{Read, Write};

/// A small generator with a known seed.
struct Random(u64);
impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n
    }
}

fn served(id: u16, row_bytes: usize, slots: u32) -> Served {
    let tensor =
        |name: &str| TensorSpec { name: name.into(), dtype: DType::U8, row_shape: vec![row_bytes] };
    let spec = QueueSpec {
        id: ModelId(id),
        signature: Signature {
            inputs: vec![tensor("x")],
            outputs: vec![tensor("y")],
            batched: true,
        },
        max_queue_size: slots - 1,
        max_request_rows: Rows(1),
        priority_levels: 1,
        default_priority: Priority(1),
        default_timeout: Micros(0),
        extra_slots: 1,
        workers: 1,
    };
    let service = ServiceTimes::new(&[1], &[Nanos(1)]);
    let queue = ModelQueue::make(spec, Arc::new(IdleSet::new(1)), service);
    Served { name: format!("m{id}"), queue }
}

fn submit(served: &Served, timeout: u32) -> Ticket {
    let options =
        Submit { timeout: Micros(timeout), priority: Priority(0), notify: Notify::Io, tag: 0 };
    served.queue.lease(Rows(1)).unwrap().submit(options).unwrap()
}

/// Runs what waits; outputs are `byte`.
fn work(served: &Served, byte: u8) -> Vec<Completion> {
    let mut completions = Vec::new();
    served.queue.take(0, 1000, 1000, |mut work| {
        work.output_mut().1.fill(byte);
        let receipt = Receipt {
            queue_ns: Nanos(u64::MAX),
            compute_input_ns: Nanos(u64::MAX),
            compute_infer_ns: Nanos(u64::MAX),
            compute_output_ns: Nanos(u64::MAX),
            batch_size: Rows(u16::MAX),
            close_reason: CloseReason::Drain,
            worker: WorkerId(u8::MAX),
        };
        completions.extend(work.complete(Ok(receipt)));
    });
    completions
}

fn held(conn: u16, request: u32) -> Held {
    Held {
        conn,
        request: RequestId(request),
        submitted_at: Nanos(0),
        allowed: Micros(0),
        view: None,
    }
}

#[test]
fn the_table_finds_requests_by_slot_and_by_deadline() {
    let models = [served(0, 8, 40), served(1, 8, 20)];
    let mut table = Table::new(&models);
    let mut random = Random(7);
    let mut model: BTreeMap<u32, (Nanos, Held)> = BTreeMap::new();
    for step in 0..20_000u32 {
        let at = random.below(2);
        match random.below(3) {
            0 if models[at].queue.lease(Rows(1)).is_ok()
                && models[at].queue.queued() < models[at].queue.spec().max_queue_size =>
            {
                let timeout =
                    if random.below(4) == 0 { 0 } else { 1_000_000 + random.below(1_000_000) };
                let ticket = submit(&models[at], timeout as u32);
                let deadline = ticket.deadline();
                let held = held(at as u16, step);
                let index = table.insert(at, ticket, held);
                assert!(model.insert(index, (deadline, held)).is_none());
            }
            1 if !model.is_empty() => {
                let index = *model.keys().nth(random.below(model.len())).unwrap();
                let (ticket, found) = table.remove(index).unwrap();
                let (deadline, held) = model.remove(&index).unwrap();
                assert_eq!((ticket.deadline(), found), (deadline, held));
                // Given up: withdrawn, or dropped by the worker that runs it.
                drop(ticket);
                assert!(table.remove(index).is_none());
            }
            _ => {
                for completion in work(&models[at], 1) {
                    if let Some((_, done, found)) = table.done(completion) {
                        let index = at as u32 * 40 + done.index();
                        assert_eq!(model.remove(&index).unwrap().1, found);
                        assert!(table.done(completion).is_none(), "an answer comes once");
                    }
                }
            }
        }
        let first = model.values().map(|(deadline, _)| *deadline).min();
        assert_eq!(table.next_deadline(), first.filter(|&d| d != Nanos(u64::MAX)));
        assert_eq!(table.held(), model.len());
        if let Some(first) = table.next_deadline() {
            assert_eq!(table.expired(Nanos(first.0 - 1)), None);
            assert_eq!(model[&table.expired(first).unwrap()].0, first);
        }
    }
    // An answer that nobody announced is found too.
    let ticket = submit(&models[0], 0);
    table.insert(0, ticket, held(9, 99));
    work(&models[0], 1);
    let found = std::iter::from_fn(|| table.find_done()).any(|(_, _, found)| found == held(9, 99));
    assert!(found);
}

fn answer(served: &Served, byte: u8) -> (Done, Receipt) {
    let ticket = submit(served, 0);
    work(served, byte);
    let done = ticket.into_done().unwrap();
    let receipt = done.outcome().unwrap();
    (done, receipt)
}

#[test]
fn replies_and_answers_never_mix_however_the_peer_reads() {
    for (seed, row_bytes) in [(1, 100), (2, 3_000), (3, 40_000), (4, 90_000)] {
        let served = served(0, row_bytes, 30);
        let hub = Hub::new(IoWaker::new().unwrap());
        let mut client = Loopback(hub.clone()).connect().unwrap();
        client.set_timeout(Some(Duration::from_secs(10)));
        let link = Link::Memory(hub.accept().unwrap());
        let counters = TransportCounters::default();
        let mut replies = Replies::new(30);
        let mut random = Random(seed);
        let mut received = Vec::new();
        let (mut pongs, mut answers) = (Vec::new(), Vec::new());
        // Bytes sent, answers so far, and those of them that are not wholly sent.
        let mut looks = Vec::new();
        let mut blocked = 0;
        for id in 0..600u32 {
            if random.below(2) == 0 && replies.has_room() {
                assert!(replies.push(&Reply::Pong { id: RequestId(id) }, &[]));
                pongs.push(id);
            } else if replies.endings() < 25 {
                let (done, receipt) = answer(&served, id as u8);
                let reply = Reply::Answer { id: RequestId(id), rows: Rows(1), receipt };
                replies.push_ending(&reply, Some((done, row_bytes)), 0);
                answers.push(id);
            }
            if random.below(3) == 0 {
                let flushed = replies.flush(&link, &counters).unwrap();
                blocked += (flushed != Flushed::All) as u32;
                let sent = counters.sent_bytes_total.load(Ordering::Relaxed) as usize;
                looks.push((sent, answers.len(), replies.unsent_ends()));
                if flushed != Flushed::All {
                    let mut piece = vec![0; 1 + random.below(60_000)];
                    let n = client.read(&mut piece).unwrap();
                    received.extend(&piece[..n]);
                }
            }
        }
        while replies.flush(&link, &counters).unwrap() != Flushed::All {
            let mut piece = vec![0; 50_000];
            let n = client.read(&mut piece).unwrap();
            received.extend(&piece[..n]);
        }
        link.finish();
        client.read_to_end(&mut received).unwrap();
        assert!(row_bytes < 3_000 || blocked > 0);

        let (mut rest, mut decoder) = (received.as_slice(), HeadDecoder::new());
        let (mut got_pongs, mut got_answers) = (Vec::new(), Vec::new());
        let mut ends = Vec::new();
        while !rest.is_empty() {
            rest = &rest[decoder.feed(rest).unwrap()..];
            rest = &rest[decoder.feed(rest).unwrap()..];
            let head = decoder.head().unwrap();
            let (payload, after) = rest.split_at(head.payload_len as usize);
            match Reply::decode(head.header).unwrap() {
                Reply::Pong { id } => got_pongs.push(id.0),
                Reply::Answer { id, .. } => {
                    assert_eq!(payload, vec![id.0 as u8; row_bytes]);
                    got_answers.push(id.0);
                    ends.push(received.len() - after.len());
                }
                other => panic!("{other:?}"),
            }
            rest = after;
            decoder.clear();
        }
        for (sent, pushed, unsent) in looks {
            let whole = ends.iter().filter(|&&end| end <= sent).count();
            assert_eq!(unsent, pushed - whole, "after {sent} bytes");
        }
        assert_eq!(replies.unsent_ends(), 0);
        got_answers.sort();
        assert_eq!((got_pongs, got_answers), (pongs, answers));
        // Every slot came back.
        let leases: Vec<_> = std::iter::from_fn(|| served.queue.lease(Rows(1)).ok()).collect();
        assert_eq!(leases.len(), 30);
    }
}

#[test]
fn a_stalled_reader_does_not_keep_slots_of_small_answers() {
    let served = served(0, 1_000, 30);
    let hub = Hub::new(IoWaker::new().unwrap());
    let client = Loopback(hub.clone()).connect().unwrap();
    let link = Link::Memory(hub.accept().unwrap());
    let counters = TransportCounters::default();
    let mut replies = Replies::new(256);
    for id in 0..150 {
        let (done, receipt) = answer(&served, 1);
        let reply = Reply::Answer { id: RequestId(id), rows: Rows(1), receipt };
        replies.push_ending(&reply, Some((done, 1_000)), 0);
        let _ = replies.flush(&link, &counters).unwrap();
    }
    assert!(replies.endings() <= 1, "at most the one that is half sent");
    drop(client);
    assert!(replies.flush(&link, &counters).is_err());
    replies.clear();
    let leases: Vec<_> = std::iter::from_fn(|| served.queue.lease(Rows(1)).ok()).collect();
    assert_eq!(leases.len(), 30);
}

#[test]
fn failures_and_refusals_have_codes_of_their_own() {
    for failure in Failure::ALL {
        assert_eq!(failure_code(failure).name(), failure.name());
    }
    let cases = [
        (Refusal::QueueFull { queued: 1, max: 2 }, ErrorCode::QueueFull, 1, 2),
        (
            Refusal::DeadlineUnmeetable { needed_us: 3, given_us: 4 },
            ErrorCode::DeadlineUnmeetable,
            3,
            4,
        ),
        (Refusal::WrongRows { rows: 5, max: 6 }, ErrorCode::WrongRows, 5, 6),
        (Refusal::BadPriority { priority: 7, levels: 8 }, ErrorCode::BadPriority, 7, 8),
        (Refusal::TimeoutTooLong { given_us: 9, max_us: 10 }, ErrorCode::BadDeadline, 9, 10),
        (Refusal::ShuttingDown, ErrorCode::ShuttingDown, 0, 0),
    ];
    for (refusal, code, a, b) in cases {
        assert_eq!(refusal_code(refusal), (code, a, b));
    }
}

#[test]
fn faults_repeat_with_their_seed() {
    let plan = FaultPlan { flip: 20, lose: 20, double: 20, short: 300, ..FaultPlan::default() };
    let run = |seed| {
        let mut faulty = Faulty::new(Vec::new(), plan, seed);
        faulty.write_all(&[0x55; 5_000]).unwrap();
        (faulty.damage(), faulty.into_inner())
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
    let (damage, bytes) = run(3);
    assert!(damage > 100 && bytes.iter().any(|&b| b != 0x55));
    // Pieces alone damage nothing; a cut ends it.
    let mut whole = Faulty::new(Vec::new(), FaultPlan { short: 900, ..FaultPlan::default() }, 5);
    whole.write_all(&[7; 1_000]).unwrap();
    assert_eq!((whole.damage(), whole.into_inner()), (0, vec![7; 1_000]));
    let mut cut = Faulty::new(Vec::new(), FaultPlan { cut: 1_000, ..FaultPlan::default() }, 5);
    assert!(cut.write_all(&[7; 10]).is_err() && cut.write_all(&[7; 10]).is_err());
}

#[test]
fn pipes_in_memory_block_end_and_refuse() {
    let hub = Hub::new(IoWaker::new().unwrap());
    let mut client = Loopback(hub.clone()).connect().unwrap();
    client.set_timeout(Some(Duration::from_millis(5)));
    let error = client.read(&mut [0; 4]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
    // Full in one direction.
    let error = client.write_all(&vec![1; 1 << 20]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
    drop(hub.accept().unwrap());
    assert_eq!(client.read(&mut [0; 4]).unwrap(), 0);
    let error = client.write(&[1]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
    let mut waiting = Loopback(hub.clone()).connect().unwrap();
    hub.close();
    assert_eq!(waiting.read(&mut [0; 4]).unwrap(), 0);
    let refused = Loopback(hub).connect().unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
}

#[test]
fn the_desk_makes_pages_on_demand_and_bounds_them() {
    let mut n = 0;
    let render = move |text: &mut String| {
        n += 1;
        text.push_str(&"x".repeat(if n == 1 { 10 } else { 70_000 }));
    };
    let mut desk = StatsDesk::spawn(IoWaker::new().unwrap(), render).unwrap();
    assert!(!desk.is_new());
    let mut pages = Vec::new();
    for _ in 0..2 {
        desk.want();
        while !desk.is_new() {
            std::thread::yield_now();
        }
        desk.read(|page| pages.push(String::from_utf8(page.to_vec()).unwrap()));
    }
    assert_eq!(pages, ["x".repeat(10), "{\"too_long\":70000}".to_string()]);
}
