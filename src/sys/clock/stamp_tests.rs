use super::*;

/// A counter of 2.5 ticks a nanosecond, and a clock that began at another moment.
fn at(ns: u64) -> Reading {
    let ticks = 1_000_000 + ns * 5 / 2;
    Reading { before: ticks - 50, ns: 70 + ns, after: ticks + 50 }
}

fn begun() -> Anchor {
    Anchor::measured_from(at(0).ticks(), at(0).ns)
}

#[test]
fn a_stamp_is_what_the_clock_would_say() {
    // Too little time has passed to know the rate.
    let early = begun().next(at(RATE_SPAN_NS_MIN / 2));
    assert_eq!(early.at(at(RATE_SPAN_NS_MIN / 2).ticks()), None);
    let anchor = early.next(at(RATE_SPAN_NS_MIN));
    for later in [0, 1, 10, 1_000, WINDOW_NS - 10] {
        let ns = RATE_SPAN_NS_MIN + later;
        let stamp = anchor.at(at(ns).ticks()).expect("within the window").0;
        assert!(stamp.abs_diff(at(ns).ns) <= 1, "{stamp} at {ns}");
    }
    assert_eq!(anchor.at(at(RATE_SPAN_NS_MIN + WINDOW_NS + 10).ticks()), None, "too old");
    assert_eq!(anchor.at(at(RATE_SPAN_NS_MIN - 10).ticks()), None, "from before it");
}

#[test]
fn an_interrupted_reading_is_not_taken() {
    let anchor = begun().next(at(RATE_SPAN_NS_MIN));
    let mut reading = at(2 * RATE_SPAN_NS_MIN);
    reading.after += 5 * READING_NS_MAX;
    let same = anchor.next(reading);
    assert_eq!(same.at(reading.before), None);
    assert!(same.at(at(RATE_SPAN_NS_MIN).ticks()).is_some());
}

#[test]
fn the_rate_is_measured_anew_from_later_moments() {
    let mut anchor = begun();
    let mut ns = 0;
    while ns < 3 * RATE_SPAN_NS_MAX {
        ns += RATE_SPAN_NS_MAX / 3;
        anchor = anchor.next(at(ns));
        assert!(anchor.at(at(ns + 1_000).ticks()).is_some());
        assert!(ns - (anchor.from.1 - 70) <= RATE_SPAN_NS_MAX + RATE_SPAN_NS_MAX / 3);
    }
    // A thread that slept for long keeps the rate that it knew.
    let ns = 100 * RATE_SPAN_NS_MAX;
    let anchor = anchor.next(at(ns));
    let stamp = anchor.at(at(ns + 1_000).ticks()).unwrap().0;
    assert!(stamp.abs_diff(at(ns + 1_000).ns) <= 2);
}

#[test]
fn a_thread_that_begins_late_goes_by_the_rate_that_another_measured() {
    let rate = begun().next(at(RATE_SPAN_NS_MIN)).rate;
    let late = 100 * RATE_SPAN_NS_MAX;
    let here = at(late + 1_000);
    assert_eq!(begun().next(at(late)).at(here.ticks()), None, "it knows none itself");
    let anchor = begun().with_rate(rate).next(at(late));
    assert!(anchor.at(here.ticks()).unwrap().0.abs_diff(here.ns) <= 2);
    // Its own measurement follows, and one that is far from it means that the counter jumped.
    let own = anchor.next(at(late + RATE_SPAN_NS_MIN));
    assert!(own.rate.abs_diff(rate) <= 2 && own.from == anchor.from);
    let other = begun().with_rate(rate * 2).next(at(RATE_SPAN_NS_MIN));
    assert_eq!(other.at(at(RATE_SPAN_NS_MIN).ticks()), None);
}

#[test]
fn a_counter_that_jumped_is_not_used_until_its_rate_is_known_again() {
    let anchor = begun().next(at(RATE_SPAN_NS_MIN));
    // The clock stood still while the counter went on, as in a machine that slept.
    let jump = 1_000_000_000;
    let jumped = |ns: u64| {
        let Reading { before, ns, after } = at(ns);
        Reading { before: before + jump, ns, after: after + jump }
    };
    let anchor = anchor.next(jumped(2 * RATE_SPAN_NS_MIN));
    assert_eq!(anchor.at(jumped(2 * RATE_SPAN_NS_MIN).ticks()), None);
    let ns = 3 * RATE_SPAN_NS_MIN;
    let stamp = anchor.next(jumped(ns)).at(jumped(ns + 500).ticks()).unwrap().0;
    assert!(stamp.abs_diff(at(ns + 500).ns) <= 2);
    // And one that does not count at all is never used.
    let stopped = begun().next(Reading { ns: at(RATE_SPAN_NS_MIN).ns, ..at(0) });
    assert_eq!(stopped.at(at(0).ticks() + 1), None);
}

#[test]
fn stamps_are_of_the_clock() {
    prepare();
    let before = crate::sys::clock::now();
    let stamps: Vec<Nanos> = (0..1_000).map(|_| stamp()).collect();
    let after = crate::sys::clock::now();
    // However long this takes: a stamp is never outside by more than a reading may be wide.
    for stamp in stamps {
        assert!(before.since(stamp).0 <= 2 * READING_NS_MAX, "{stamp:?} before {before:?}");
        assert!(stamp.since(after).0 <= 2 * READING_NS_MAX, "{stamp:?} after {after:?}");
    }
}
