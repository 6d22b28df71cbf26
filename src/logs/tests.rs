use super::*;
use crate::sys::clock;
use crate::sys::events::{Event, KINDS, Value};
use crate::sys::records;
use crate::units::Nanos;
use std::path::Path;
use std::sync::Mutex;

/// A table as a program might have it: indices anywhere, in no order.
fn table() -> Table {
    let entries = KINDS.iter().enumerate().map(|(n, kind)| Entry::new(index(n), kind)).collect();
    Table::new(entries).unwrap()
}

fn index(n: usize) -> u16 {
    (n as u16).wrapping_mul(40_503)
}

/// A record as defmt writes it.
fn encoded(event: Event, at: Nanos) -> Vec<u8> {
    let n = KINDS.iter().position(|kind| kind.name == event.name()).unwrap();
    let mut record = index(n).to_le_bytes().to_vec();
    record.extend(at.0.to_le_bytes());
    for ((_, kind), value) in KINDS[n].fields.iter().zip(event.values()) {
        match value {
            Value::Number(number) => {
                let bytes = match kind {
                    crate::sys::events::FieldType::U8 => 1,
                    crate::sys::events::FieldType::U16 => 2,
                    crate::sys::events::FieldType::U32 => 4,
                    _ => 8,
                };
                record.extend(&number.to_le_bytes()[..bytes]);
            }
            Value::Text(text) => {
                record.extend((text.len() as u32).to_le_bytes());
                record.extend(text.as_bytes());
            }
        }
    }
    record
}

const RAN: Event =
    Event::BatchRan { model: 2, rows: 4, requests: 3, reason: "idle", ns: 5_000_000_000 };

fn tell(event: Event, at: Nanos) {
    records::begin();
    records::append(&encoded(event, at));
    records::commit();
}

/// A directory of its own that is gone afterwards.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let dir = std::env::temp_dir().join(format!("corelane-logs-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Scratch(dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// All lines, as text without their times, and how it ended.
fn read(bytes: &[u8]) -> (Vec<String>, Result<(), ReadError>) {
    let mut lines = Vec::new();
    let mut reader = match Reader::open(bytes) {
        Ok(reader) => reader,
        Err(error) => return (lines, Err(error)),
    };
    loop {
        match reader.next() {
            Ok(Some(line)) => {
                let mut text = String::new();
                line.print(Format::Text, Wall { unix: Nanos(0), at: Nanos(0) }, &mut text);
                lines.push(text.trim_end().split_once(' ').unwrap().1.to_owned());
            }
            Ok(None) => return (lines, Ok(())),
            Err(error) => return (lines, Err(error)),
        }
    }
}

#[test]
fn a_record_is_read_back_and_a_wrong_one_says_why() {
    let table = table();
    for event in Event::samples().into_iter().chain([RAN]) {
        let record = encoded(event, Nanos(7));
        let told = table.read(&record).unwrap();
        assert_eq!((told.entry.name.as_str(), told.at), (event.name(), Nanos(7)));
        assert_eq!(told.values, event.values());
        assert_eq!(told.to_string(), event.to_string());
        for len in 0..record.len() {
            assert_eq!(table.read(&record[..len]), Err(RecordError::Short { len }));
        }
    }
    let mut record = encoded(RAN, Nanos(7));
    record.push(0);
    assert_eq!(table.read(&record), Err(RecordError::Long { left: 1 }));
    record.pop();
    let text = record.len() - 8 - 4;
    record[text] = 0xFF;
    assert_eq!(table.read(&record), Err(RecordError::NotText));
    record[..2].copy_from_slice(&[1, 0]);
    assert_eq!(table.read(&record), Err(RecordError::UnknownIndex { index: 1 }));
}

#[test]
fn a_table_with_one_index_twice_is_none() {
    let same = vec![Entry::new(5, &KINDS[0]), Entry::new(5, &KINDS[1])];
    let names = [KINDS[0].name.to_owned(), KINDS[1].name.to_owned()];
    assert_eq!(Table::new(same), Err(TableError::SameIndex { index: 5, names }));
    let mut long = Entry::new(5, &KINDS[0]);
    long.fields = vec![long.fields[0].clone(); 6];
    let error = Table::new(vec![long]).unwrap_err();
    assert_eq!(error.to_string(), "the event worker_serves has 6 fields; at most 5 are read");
}

#[test]
fn lines_as_text_and_as_json() {
    let table = table();
    let record = encoded(RAN, Nanos(12_345_678_901));
    let mut out = String::new();
    let line = Line::event("cl-worker-0", table.read(&record).unwrap());
    // Ten seconds after the start of the machine it was 2024-02-29, 23:59:59 UTC.
    let wall = Wall { unix: Nanos(1_709_251_199_000_000_000), at: Nanos(10_000_000_000) };
    line.print(Format::Text, wall, &mut out);
    line.print(Format::Json, wall, &mut out);
    Line::lost("cl-io", Nanos(1_000), 9).print(Format::Text, wall, &mut out);
    Line::lost("cl-io", Nanos(1_000), 9).print(Format::Json, wall, &mut out);
    let body = Body::Message("two\n\"lines\"");
    Line { at: Nanos(0), level: Level::Info, thread: "main", body }.print(
        Format::Json,
        wall,
        &mut out,
    );
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(
        lines[0],
        "2024-03-01T00:00:01.345678Z DEBUG cl-worker-0: model 2: 4 rows of 3 requests, closed by idle, took 5000000000 ns"
    );
    let json: Vec<serde_json::Value> =
        [1, 3, 4].iter().map(|&n| serde_json::from_str(lines[n]).unwrap()).collect();
    assert_eq!(
        json[0],
        serde_json::json!({
            "at_ns": 12_345_678_901u64, "unix_ns": 1_709_251_201_345_678_901u64, "level": "debug", "thread": "cl-worker-0",
            "event": "batch_ran", "model": 2, "rows": 4, "requests": 3, "reason": "idle",
            "ns": 5_000_000_000u64,
            "text": "model 2: 4 rows of 3 requests, closed by idle, took 5000000000 ns",
        })
    );
    assert_eq!(
        lines[2],
        "2024-02-29T23:59:49.000001Z WARN  cl-io: 9 records before this were lost"
    );
    assert_eq!((&json[1]["event"], &json[1]["records"]), (&"records_lost".into(), &9.into()));
    assert_eq!(json[2]["text"], "two\n\"lines\"");
}

static PRINTED: Mutex<String> = Mutex::new(String::new());

fn print(lines: &str) {
    PRINTED.lock().unwrap().push_str(lines);
}

/// Lines of the threads of one test, without their times.
fn printed(thread: &str) -> Vec<String> {
    let all = PRINTED.lock().unwrap();
    let part = format!(" {thread}: ");
    let lines = all.lines().filter(|line| line.contains(&part));
    lines.map(|line| line.split_once(' ').unwrap().1.to_owned()).collect()
}

fn on_thread(name: &str, f: impl FnOnce() + Send) {
    std::thread::scope(|s| {
        std::thread::Builder::new().name(name.into()).spawn_scoped(s, f).unwrap().join().unwrap();
    });
}

#[test]
fn the_keeper_prints_what_threads_told_until_its_end() {
    let _turn = records::tests::turn();
    static OUTPUT: Output = Output::new(print);
    on_thread("keep-a", || {
        records::open(4096);
        tell(RAN, clock::now());
    });
    let keeper = Keeper::start(&OUTPUT, table()).unwrap();
    on_thread("keep-b", || {
        records::open(512);
        for n in 0..100 {
            tell(Event::ConnectionClosed { connection: n }, clock::now());
        }
        OUTPUT.message(Level::Info, "beside");
    });
    drop(keeper);
    assert_eq!(printed("keep-a").len(), 1);
    let lines = printed("keep-b");
    assert!(lines[0].contains("connection 0 closed") || lines[0].contains("beside"), "{lines:?}");
    assert_eq!(lines.iter().filter(|l| *l == "INFO  keep-b: beside").count(), 1);
    // The ring holds some; how many more depends on how fast the keeper was. None is unaccounted for.
    let lost: usize = lines
        .iter()
        .filter_map(|l| l.strip_suffix(" records before this were lost")?.rsplit(' ').next())
        .map(|n| n.parse::<usize>().unwrap())
        .sum();
    let told = lines.iter().filter(|l| l.ends_with(" closed")).count();
    assert_eq!(told + lost, 100, "{lines:?}");
    assert_eq!(OUTPUT.counts().unread_total, 0);
}

fn file_with(path: &Path, output: &'static Output, thread: &str, events: u16) {
    output.set_file(LogFile::create(path, table(), LOG_FILE_BYTES_DEFAULT).unwrap());
    let keeper = Keeper::start(output, table()).unwrap();
    on_thread(thread, || {
        records::open(1 << 16);
        for n in 0..events {
            tell(Event::ConnectionClosed { connection: n }, clock::now());
        }
    });
    drop(keeper);
}

#[test]
fn a_file_holds_events_and_messages_and_is_read_back() {
    let _turn = records::tests::turn();
    static OUTPUT: Output = Output::new(|_| {});
    let scratch = Scratch::new("file");
    let path = scratch.0.join("log");
    file_with(&path, &OUTPUT, "file-a", 3);
    OUTPUT.message(Level::Warn, &"é".repeat(crate::limits::LOG_TEXT_BYTES_MAX));
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!(OUTPUT.counts().file_bytes, Some(bytes.len() as u64));
    let reader = Reader::open(bytes.as_slice()).unwrap();
    assert_eq!(reader.head().pid, std::process::id());
    assert_eq!(reader.head().events.len(), KINDS.len());
    let (lines, end) = read(&bytes);
    end.unwrap();
    for (n, line) in lines[..3].iter().enumerate() {
        assert_eq!(*line, format!("DEBUG file-a: connection {n} closed"));
    }
    assert!(lines[3].starts_with("WARN  ") && lines[3].ends_with('é'), "{}", lines[3].len());
    assert_eq!(lines.len(), 4);
    // Cut anywhere, it says so, after everything that is whole.
    let start = bytes.len() - reader_rest(&bytes).len();
    for len in 0..bytes.len() {
        let (whole, end) = read(&bytes[..len]);
        assert!(lines.starts_with(&whole));
        match (len, end) {
            (0, Err(ReadError::Empty)) => {}
            (_, Err(ReadError::Cut { at })) => assert!(at < len as u64),
            (_, Ok(())) => assert!(len >= start, "{len}"),
            (_, Err(other)) => panic!("{len}: {other}"),
        }
    }
    // A second run puts it aside, and never what is no log.
    file_with(&path, &OUTPUT, "file-b", 1);
    assert_eq!(std::fs::read(scratch.0.join("log.1")).unwrap(), bytes);
    let other = scratch.0.join("notes");
    std::fs::write(&other, "text").unwrap();
    for wrong in [&other, &scratch.0] {
        let error = LogFile::create(wrong, table(), LOG_FILE_BYTES_DEFAULT).unwrap_err();
        assert!(matches!(error, LogFileError::NotALog { .. }), "{error}");
    }
    assert_eq!(std::fs::read_to_string(&other).unwrap(), "text");
    let nowhere = scratch.0.join("no/such/dir/log");
    let error = LogFile::create(&nowhere, table(), LOG_FILE_BYTES_DEFAULT).unwrap_err();
    assert!(error.to_string().contains("no/such/dir/log can't be written"), "{error}");
}

/// The bytes after the head.
fn reader_rest(bytes: &[u8]) -> &[u8] {
    let len = u32::from_le_bytes(bytes[8..12].try_into().unwrap()) as usize;
    &bytes[12 + len..]
}

#[test]
fn what_is_no_log_file_is_told_apart() {
    let head = |text: &str| {
        let mut bytes = b"corelog1".to_vec();
        bytes.extend((text.len() as u32).to_le_bytes());
        bytes.extend(text.as_bytes());
        bytes
    };
    let failed = |bytes: &[u8]| read(bytes).1.unwrap_err();
    assert!(matches!(failed(b""), ReadError::Empty));
    assert!(matches!(failed(b"core"), ReadError::Cut { at: 0 }));
    assert!(matches!(failed(b"\x7fELF"), ReadError::NotALog));
    assert!(matches!(failed(b"corelane.toml and more"), ReadError::NotALog));
    assert!(matches!(failed(b"corelog2\x00\x00\x00\x00"), ReadError::Layout { got: b'2' }));
    assert!(matches!(failed(b"corelog1\xFF\xFF\xFF\xFF"), ReadError::Head { .. }));
    assert!(matches!(failed(&head("{}")), ReadError::Head { .. }));
    let events =
        serde_json::to_value([Entry::new(1, &KINDS[0]), Entry::new(1, &KINDS[1])]).unwrap();
    let mut value = serde_json::json!({
        "version": "9.9.9", "pid": 1, "unix_s": 0, "at_ns": 0, "events": events,
    });
    let error = failed(&head(&value.to_string()));
    assert!(error.to_string().contains("have the same index, 1"), "{error}");
    // Of another version, with events that this one does not have.
    value["events"] = serde_json::json!([{
        "index": 9, "name": "news", "level": "info", "format": "{=u8} of {=str}",
        "fields": [["n", "u8"], ["what", "str"]],
    }]);
    let good = head(&value.to_string());
    let with = |record: &[u8]| [good.as_slice(), record].concat();
    let content = b"\x09\x00\x01\x00\x00\x00\x00\x00\x00\x00\x05\x02\x00\x00\x00it";
    let event = [&[2, 0, 0, 0, 0, content.len() as u8, 0][..], &content[..]].concat();
    let (lines, end) = read(&with(&event));
    end.unwrap();
    assert_eq!(lines, ["INFO  ?: 5 of it"]);
    let at = good.len() as u64;
    for (record, reason) in [
        (&b"\x09\x00\x00\x00\x00\x00\x00"[..], "a record of kind 9 with 0 bytes"),
        (&b"\x03\x00\x00\x00\x00\x01\x00\x00"[..], "a record of kind 3 with 1 bytes"),
        (&b"\x02\x00\x00\x00\x00\x01\x00\x00"[..], "its 1 bytes end before its fields do"),
        (&b"\x04\x00\x00\x00\x00\x01\x00\x00"[..], "a message that is none"),
    ] {
        match failed(&with(record)) {
            ReadError::Record { at: where_, reason: why } => {
                assert_eq!((where_, why.as_str()), (at, reason));
            }
            other => panic!("{other}"),
        }
    }
}

/// Any bytes: an error or lines, never a panic.
#[test]
fn damage_anywhere_is_no_panic() {
    let _turn = records::tests::turn();
    static OUTPUT: Output = Output::new(|_| {});
    let scratch = Scratch::new("damage");
    let path = scratch.0.join("log");
    file_with(&path, &OUTPUT, "damage", 20);
    let bytes = std::fs::read(&path).unwrap();
    let mut seed = 88_172_645_463_325_252u64;
    let mut whole = 0;
    for _ in 0..5_000 {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        let mut damaged = bytes.clone();
        let at = seed as usize % damaged.len();
        damaged[at] ^= (seed >> 32) as u8 | 1;
        whole += usize::from(read(&damaged).1.is_ok());
    }
    assert!((1..5_000).contains(&whole), "{whole}");
}

#[test]
fn a_file_that_grew_is_put_aside_and_the_new_one_stands_alone() {
    let _turn = records::tests::turn();
    static OUTPUT: Output = Output::new(|_| {});
    let scratch = Scratch::new("grown");
    let path = scratch.0.join("log");
    let max = crate::limits::LOG_FILE_BYTES_MIN;
    OUTPUT.set_file(LogFile::create(&path, table(), max).unwrap());
    let keeper = Keeper::start(&OUTPUT, table()).unwrap();
    // More than one file's worth, all in one ring.
    on_thread("grown", || {
        records::open(1 << 20);
        for n in 0..5_000 {
            tell(Event::ConnectionClosed { connection: n }, clock::now());
        }
    });
    drop(keeper);
    let counts = OUTPUT.counts();
    assert_eq!(counts.unwritten_total, 0);
    let (new, end) = read(&std::fs::read(&path).unwrap());
    end.unwrap();
    let (old, end) = read(&std::fs::read(scratch.0.join("log.1")).unwrap());
    end.unwrap();
    for lines in [&old, &new] {
        assert!(lines.iter().all(|l| l.starts_with("DEBUG grown: connection ")), "{:?}", lines[0]);
    }
    assert_eq!(new.last().unwrap(), "DEBUG grown: connection 4999 closed");
    assert!(!old.is_empty());
    for file in ["log", "log.1"] {
        assert!(std::fs::metadata(scratch.0.join(file)).unwrap().len() <= max, "{file}");
    }
    assert!(!scratch.0.join("log.new").exists());
}

/// The disk is full: `/dev/full` says so to every write.
#[test]
fn what_a_full_disk_does_not_take_is_counted() {
    let _turn = records::tests::turn();
    let full = Path::new("/dev/full");
    if !full.exists() {
        eprintln!("skipped: no {}", full.display());
        return;
    }
    static OUTPUT: Output = Output::new(|_| {});
    let scratch = Scratch::new("disk");
    let path = scratch.0.join("log");
    let mut file = LogFile::create(&path, table(), LOG_FILE_BYTES_DEFAULT).unwrap();
    file.replace_for_test(std::fs::OpenOptions::new().write(true).open(full).unwrap());
    OUTPUT.set_file(file);
    let keeper = Keeper::start(&OUTPUT, table()).unwrap();
    on_thread("disk", || {
        records::open(4096);
        for n in 0..5 {
            tell(Event::ConnectionClosed { connection: n }, clock::now());
        }
    });
    drop(keeper);
    OUTPUT.message(Level::Warn, "not written");
    assert_eq!(OUTPUT.counts().unwritten_total, 6);
    // There is room again: what is missing is said where it is missing.
    let real = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    OUTPUT.with_file_for_test(|file| file.replace_for_test(real));
    OUTPUT.message(Level::Warn, "written");
    let (lines, end) = read(&std::fs::read(&path).unwrap());
    end.unwrap();
    assert_eq!(lines[0], "WARN  ?: 6 records before this were lost");
    assert!(lines[1].ends_with(": written"), "{lines:?}");
    assert_eq!(OUTPUT.counts().unwritten_total, 6);
}

#[test]
fn instants_are_named_as_the_calendar_has_them() {
    let named = |unix_s: u64| {
        let mut out = String::new();
        let wall = Wall { unix: Nanos(unix_s * 1_000_000_000), at: Nanos(5) };
        Line::lost("t", Nanos(5), 1).print(Format::Text, wall, &mut out);
        out.split_once(' ').unwrap().0.to_owned()
    };
    for (unix_s, text) in [
        (0, "1970-01-01T00:00:00.000000Z"),
        (951_782_400, "2000-02-29T00:00:00.000000Z"),
        (951_868_799, "2000-02-29T23:59:59.000000Z"),
        (951_868_800, "2000-03-01T00:00:00.000000Z"),
        (1_735_689_599, "2024-12-31T23:59:59.000000Z"),
        (1_767_225_600, "2026-01-01T00:00:00.000000Z"),
        (4_107_542_400, "2100-03-01T00:00:00.000000Z"),
    ] {
        assert_eq!(named(unix_s), text);
    }
    // Day after day: each date is the one before it or its successor, in order as text.
    let days: Vec<String> = (0..80_000).map(|day| named(day * 86_400)[..10].to_owned()).collect();
    assert!(days.is_sorted_by(|a, b| a < b));
    assert_eq!(days.iter().filter(|day| day.ends_with("-02-29")).count(), 54);
}

/// A reader who takes nothing until he is told to.
static READS: (Mutex<bool>, std::sync::Condvar) = (Mutex::new(false), std::sync::Condvar::new());
static TAKEN: Mutex<String> = Mutex::new(String::new());

fn wait_and_take(lines: &str) {
    let reads = READS.0.lock().unwrap();
    drop(READS.1.wait_while(reads, |reads| !*reads).unwrap());
    TAKEN.lock().unwrap().push_str(lines);
}

#[test]
fn a_reader_who_takes_nothing_holds_nobody_and_what_is_lost_is_counted() {
    let _turn = records::tests::turn();
    static OUTPUT: Output = Output::new(wait_and_take);
    let keeper = Keeper::start(&OUTPUT, table()).unwrap();
    assert!(OUTPUT.is_kept());
    let text = "x".repeat(1_000);
    // Twice as much as there is room for. That this ends is the point.
    let said = 2 * crate::limits::LOG_PRINT_BYTES_MAX / 1_000;
    for _ in 0..said {
        OUTPUT.message(Level::Info, &text);
    }
    let lost = OUTPUT.counts().unprinted_total;
    assert!(lost > 0 && lost < said as u64, "{lost} of {said}");
    on_thread("no-reader", || {
        records::open(1 << 16);
        for n in 0..1_000 {
            tell(Event::ConnectionClosed { connection: n }, clock::now());
        }
    });
    drop(keeper);
    let lost = OUTPUT.counts().unprinted_total;
    // He reads again: the next line says what is missing.
    *READS.0.lock().unwrap() = true;
    READS.1.notify_all();
    assert!(OUTPUT.flush());
    OUTPUT.say("the last words");
    assert!(OUTPUT.flush());
    assert_eq!(OUTPUT.counts().unprinted_total, lost);
    let taken = TAKEN.lock().unwrap();
    let lines: Vec<&str> = taken.lines().collect();
    assert_eq!(lines.last(), Some(&"the last words"));
    let told: u64 = lines
        .iter()
        .filter_map(|l| {
            l.split_once("cl-print: ")?.1.strip_suffix(" records before this were lost")
        })
        .map(|n| n.parse::<u64>().unwrap())
        .sum();
    assert_eq!(told, lost);
    let printed = lines.iter().filter(|l| l.ends_with('x') || l.ends_with(" closed")).count();
    assert_eq!(printed as u64 + lost, said as u64 + 1_000);
}

#[test]
fn panics_are_told_by_the_keeper_with_their_place() {
    let _turn = records::tests::turn();
    static OUTPUT: Output = Output::new(print);
    let keeper = Keeper::start(&OUTPUT, table()).unwrap();
    let report = std::sync::Arc::new(std::panic::take_hook());
    let others = report.clone();
    std::panic::set_hook(Box::new(move |panic| {
        if std::thread::current().name().is_some_and(|name| name.starts_with("panics-")) {
            assert!(OUTPUT.panicked(panic));
        } else {
            others(panic);
        }
    }));
    let line = line!() + 4;
    std::thread::scope(|s| {
        for name in ["panics-a", "panics-b"] {
            let spawn = std::thread::Builder::new().name(name.into());
            let ended = spawn.spawn_scoped(s, || panic!("out of {}", "luck")).unwrap().join();
            ended.unwrap_err();
        }
    });
    std::panic::set_hook(Box::new(move |panic| report(panic)));
    drop(keeper);
    for name in ["panics-a", "panics-b"] {
        let [said] = &printed(name)[..] else { panic!("{:?}", printed(name)) };
        let place = format!("{}:{line}:", file!());
        assert!(said.starts_with(&format!("ERROR {name}: panicked at {place}")), "{said}");
        assert!(said.ends_with(": out of luck"), "{said}");
    }
}

#[test]
fn a_program_that_ends_waits_for_its_readers_until_then() {
    let _turn = records::tests::turn();
    fn block(_: &str) {
        loop {
            std::thread::park();
        }
    }
    static OUTPUT: Output = Output::new(block);
    let keeper = Keeper::start(&OUTPUT, table()).unwrap();
    let most = std::time::Duration::from_millis(crate::limits::PRINT_PATIENCE_MS_MAX);
    assert_eq!(OUTPUT.patience(), most);
    let now = clock::now();
    OUTPUT.end_by(now.after(Nanos(3_600_000_000_000)));
    assert_eq!(OUTPUT.patience(), most, "never longer than for any reader");
    OUTPUT.end_by(now.after(Nanos(most.as_nanos() as u64 / 2)));
    assert!(OUTPUT.patience() <= most / 2);
    OUTPUT.end_by(now);
    assert_eq!(OUTPUT.patience(), std::time::Duration::ZERO);
    OUTPUT.say("nobody reads this");
    assert!(!OUTPUT.flush());
    drop(keeper);
}
