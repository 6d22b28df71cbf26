use super::*;
use std::cell::RefCell;

#[test]
fn every_kind_has_a_text_with_its_fields_and_a_name_of_its_own() {
    let taken = ["at_ns", "level", "thread", "text", "event", "records"];
    let mut names = vec!["records_lost"];
    for (kind, event) in KINDS.iter().zip(Event::samples()) {
        assert_eq!((kind.name, kind.format), (event.name(), event.format()));
        assert_eq!(kind.level, event.level());
        // The types in the text are those of the fields, in order: that is what defmt encodes.
        let types: Vec<&str> = kind.format.split('{').skip(1).map(|p| &p[..3]).collect();
        let expected: Vec<&str> = kind
            .fields
            .iter()
            .map(|(_, kind)| match kind {
                FieldType::U8 => "=u8",
                FieldType::U16 => "=u1",
                FieldType::U32 => "=u3",
                FieldType::U64 => "=u6",
                FieldType::Str => "=st",
            })
            .collect();
        assert_eq!(types, expected, "{}", kind.name);
        assert_eq!(kind.fields.len(), event.values().len());
        for (field, _) in kind.fields {
            assert!(!taken.contains(field), "{}: {field} is a key of every line", kind.name);
        }
        assert!(!names.contains(&kind.name), "{} is there twice", kind.name);
        names.push(kind.name);
    }
    assert_eq!(KINDS.len(), Event::samples().len());
}

#[test]
fn a_text_is_filled_in_from_left_to_right() {
    let event = Event::BatchRan { model: 3, rows: 8, requests: 2, reason: "full", ns: 12 };
    assert_eq!(event.to_string(), "model 3: 8 rows of 2 requests, closed by full, took 12 ns");
    let text = |format: &str, values: &[Value<'_>]| {
        let mut out = String::new();
        write_message(&mut out, format, values).unwrap();
        out
    };
    assert_eq!(text("{=u8}{=str}", &[Value::Number(1), Value::Text("{x}")]), "1{x}");
    assert_eq!(text("a {=u8} b {=u8}", &[Value::Number(1)]), "a 1 b ?");
    assert_eq!(text("open {=u8", &[Value::Number(1)]), "open 1");
    assert_eq!(text("", &[]), "");
}

thread_local! {
    static SEEN: RefCell<Vec<Event>> = const { RefCell::new(Vec::new()) };
}

/// The one test of this process that installs a sink: other tests' threads keep what they tell to
/// themselves.
#[test]
fn only_events_up_to_the_level_reach_the_one_sink() {
    let told = Event::SerialFound { port: 1 };
    let error = Event::EnginePanicked { model: 1, rebuilt: 1 };
    let seen = || SEEN.take();
    tell(error);
    let sink = Sink { thread: || {}, event: |event| SEEN.with_borrow_mut(|s| s.push(event)) };
    install(sink).unwrap();
    assert_eq!(install(FACADE), Err(Installed));
    tell(error);
    assert_eq!(seen(), [], "no level is set");
    set_level(log::LevelFilter::Warn);
    tell(told);
    tell(error);
    assert_eq!(seen(), [error]);
    assert_eq!(level(), log::LevelFilter::Warn);
    set_level(log::LevelFilter::Info);
    tell(told);
    assert_eq!(seen(), [told]);
    set_level(log::LevelFilter::Off);
    tell(error);
    assert_eq!(seen(), []);
    assert_eq!(level(), log::LevelFilter::Off);
}
