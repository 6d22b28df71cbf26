//! Models of `queue::ring` and `queue::stack`.

use super::*;
use corelane::queue::stack::IndexStack;

// --- queue::ring ---

#[test]
fn ring_two_producers_one_consumer() {
    check(|| {
        let ring = Arc::new(IndexRing::new(2));
        let payloads = Payloads::new(2);
        let producers: Vec<_> = (0..2)
            .map(|value| {
                let (ring, payloads) = (ring.clone(), payloads.clone());
                thread::spawn(move || {
                    payloads.write(value);
                    ring.push(value).unwrap();
                })
            })
            .collect();
        let mut seen = 0;
        for _ in 0..2 {
            if let Some(value) = ring.pop() {
                payloads.consume(value);
                seen += 1;
            }
        }
        for producer in producers {
            producer.join().unwrap();
        }
        while let Some(value) = ring.pop() {
            payloads.consume(value);
            seen += 1;
        }
        assert_eq!(seen, 2);
    });
}

#[test]
fn ring_one_producer_two_consumers() {
    check(|| {
        let ring = Arc::new(IndexRing::new(2));
        let payloads = Payloads::new(3);
        payloads.write(0);
        ring.push(0).unwrap();
        let consumers: Vec<_> = (0..2)
            .map(|_| {
                let (ring, payloads) = (ring.clone(), payloads.clone());
                thread::spawn(move || {
                    let value = ring.pop();
                    if let Some(value) = value {
                        payloads.consume(value);
                    }
                    value
                })
            })
            .collect();
        payloads.write(1);
        ring.push(1).unwrap();
        let mut got: Vec<u32> = consumers.into_iter().filter_map(|c| c.join().unwrap()).collect();
        assert!(!got.is_empty(), "a value was there before the consumers began");
        while let Some(value) = ring.pop() {
            payloads.consume(value);
            got.push(value);
        }
        got.sort();
        assert_eq!(got, [0, 1], "nothing lost, nothing twice");
    });
}

#[test]
fn ring_full_push_races_with_pops() {
    check(|| {
        let ring = Arc::new(IndexRing::new(2));
        let payloads = Payloads::new(3);
        for value in 0..2 {
            payloads.write(value);
            ring.push(value).unwrap();
        }
        let consumer = {
            let (ring, payloads) = (ring.clone(), payloads.clone());
            thread::spawn(move || {
                let value = ring.pop().expect("two values are there");
                payloads.consume(value);
                value
            })
        };
        payloads.write(2);
        let pushed = ring.push(2);
        if let Err(back) = pushed {
            assert_eq!(back, 2);
        }
        assert_eq!(consumer.join().unwrap(), 0, "first in, first out");
        let mut rest = Vec::new();
        while let Some(value) = ring.pop() {
            payloads.consume(value);
            rest.push(value);
        }
        assert_eq!(rest, if pushed.is_ok() { vec![1, 2] } else { vec![1] });
    });
}

#[test]
fn ring_wraps_under_a_producer_and_a_consumer() {
    check(|| {
        let ring = Arc::new(IndexRing::new(2));
        let payloads = Payloads::new(4);
        let producer = {
            let (ring, payloads) = (ring.clone(), payloads.clone());
            thread::spawn(move || {
                (0..4)
                    .take_while(|&value| {
                        payloads.write(value);
                        ring.push(value).is_ok()
                    })
                    .count() as u32
            })
        };
        let mut expected = 0;
        for _ in 0..3 {
            if let Some(value) = ring.pop() {
                assert_eq!(value, expected, "in order");
                payloads.consume(value);
                expected += 1;
            }
        }
        let pushed = producer.join().unwrap();
        assert!(pushed >= 2, "two fit without a pop");
        while let Some(value) = ring.pop() {
            assert_eq!(value, expected, "in order");
            payloads.consume(value);
            expected += 1;
        }
        assert_eq!(expected, pushed);
    });
}

#[test]
fn ring_refused_head_stays_for_the_other_consumer() {
    check(|| {
        let ring = Arc::new(IndexRing::new(2));
        let payloads = Payloads::new(2);
        for value in 0..2 {
            payloads.write(value);
            ring.push(value).unwrap();
        }
        let picky = {
            let (ring, payloads) = (ring.clone(), payloads.clone());
            thread::spawn(move || {
                let value = ring.pop_if(|value| value != 0);
                if let Some(value) = value {
                    payloads.consume(value);
                }
                value
            })
        };
        let first = ring.pop();
        assert_eq!(first, Some(0), "a refusal moves nothing");
        payloads.consume(0);
        let picked = picky.join().unwrap();
        assert!(matches!(picked, None | Some(1)));
        let rest = ring.pop();
        assert_eq!(rest, if picked.is_none() { Some(1) } else { None });
    });
}

#[test]
fn ring_peek_sees_only_what_is_there_and_in_order() {
    check(|| {
        let ring = Arc::new(IndexRing::new(2));
        ring.push(0).unwrap();
        ring.push(1).unwrap();
        let other = {
            let ring = ring.clone();
            thread::spawn(move || {
                assert_eq!(ring.pop(), Some(0));
                // Room is there now, whoever looks at the counters late.
                ring.push(2).unwrap();
            })
        };
        let mut seen = Vec::new();
        ring.peek_each(|value| {
            seen.push(value);
            true
        });
        assert!(seen.windows(2).all(|w| w[0] < w[1]) && seen.iter().all(|&v| v < 3), "{seen:?}");
        assert!(seen.contains(&1), "1 was there all the time: {seen:?}");
        other.join().unwrap();
        assert!(!ring.is_empty());
    });
}

#[test]
fn ring_late_producer_sees_a_cell_as_new_as_the_tail() {
    check(|| {
        // A thread goes round the ring twice. One that sees its tail must not see a cell as it was
        // rounds ago, or it would skip a position, and everything behind that position is lost.
        let ring = Arc::new(IndexRing::new(2));
        let busy = {
            let ring = ring.clone();
            thread::spawn(move || {
                let mut got = Vec::new();
                for value in 0..4 {
                    ring.push(value).expect("one more at most is there");
                    got.extend(ring.pop());
                }
                got
            })
        };
        ring.push(9).expect("one more at most is there");
        let mut got = busy.join().unwrap();
        assert_eq!(got.len(), 4, "there was one for each pop");
        got.extend(ring.pop());
        got.sort();
        assert_eq!(got, [0, 1, 2, 3, 9]);
    });
}

#[test]
fn ring_value_is_popped_or_withdrawn_never_both() {
    check(|| {
        let ring = Arc::new(IndexRing::new(2));
        let payloads = Payloads::new(1);
        payloads.write(0);
        let place = ring.push(0).unwrap();
        let consumer = {
            let (ring, payloads) = (ring.clone(), payloads.clone());
            thread::spawn(move || {
                let value = ring.pop();
                if let Some(value) = value {
                    payloads.consume(value);
                }
                value.is_some()
            })
        };
        let withdrawn = ring.withdraw(place, 0);
        if withdrawn {
            payloads.consume(0);
        }
        assert_ne!(consumer.join().unwrap(), withdrawn, "never both, never neither");
        assert!(ring.is_empty());
        // The cell is free again, also if no consumer came by.
        ring.sweep();
        for value in 0..2 {
            ring.push(value).unwrap();
        }
    });
}

#[test]
fn ring_consumer_passes_over_what_was_withdrawn() {
    check(|| {
        let ring = Arc::new(IndexRing::new(2));
        let payloads = Payloads::new(2);
        for value in 0..2 {
            payloads.write(value);
        }
        let place = ring.push(0).unwrap();
        ring.push(1).unwrap();
        let consumer = {
            let (ring, payloads) = (ring.clone(), payloads.clone());
            thread::spawn(move || {
                let mut seen = Vec::new();
                ring.peek_each(|value| {
                    seen.push(value);
                    true
                });
                assert!(seen == [0, 1] || seen == [1], "1 is there all the time: {seen:?}");
                let value = ring.pop().expect("1 is there");
                payloads.consume(value);
                value
            })
        };
        let withdrawn = ring.withdraw(place, 0);
        assert_eq!(consumer.join().unwrap(), withdrawn as u32);
        assert_eq!(ring.pop(), if withdrawn { None } else { Some(1) });
    });
}

#[test]
fn ring_old_place_withdraws_nothing_of_a_later_round() {
    check(|| {
        // The same value, pushed again, comes into the same cell one round later.
        let ring = Arc::new(IndexRing::new(2));
        let place = ring.push(0).unwrap();
        let busy = {
            let ring = ring.clone();
            thread::spawn(move || {
                let first = ring.pop();
                ring.push(1).unwrap();
                assert_eq!(ring.pop(), Some(1));
                ring.push(0).unwrap();
                first
            })
        };
        let withdrawn = ring.withdraw(place, 0);
        let first = busy.join().unwrap();
        assert_eq!(first, if withdrawn { None } else { Some(0) });
        assert!(!ring.withdraw(place, 0), "the place is of the first round");
        assert_eq!(ring.pop(), Some(0), "what was pushed later is there");
    });
}

// --- queue::stack ---

#[test]
fn stack_values_have_one_owner_at_a_time() {
    check(|| {
        // Each thread takes a slot, uses it, and puts it back, twice: the ways of a top that is taken,
        // put back and taken again while another thread has an old head in its hands.
        let stack = Arc::new(IndexStack::new(2));
        let payloads = Payloads::new(2);
        for value in 0..2 {
            payloads.write(value);
            stack.push(value);
        }
        let user = || {
            let (stack, payloads) = (stack.clone(), payloads.clone());
            move || {
                for _ in 0..2 {
                    let Some(value) = stack.pop() else { continue };
                    payloads.consume(value);
                    payloads.write(value);
                    stack.push(value);
                }
            }
        };
        let other = thread::spawn(user());
        user()();
        other.join().unwrap();
        let mut left = vec![stack.pop().unwrap(), stack.pop().unwrap()];
        left.sort();
        assert_eq!((left, stack.pop()), (vec![0, 1], None), "nothing lost, nothing twice");
    });
}

#[test]
fn stack_old_head_is_not_taken_for_the_present_one() {
    check(|| {
        // 1 lies on 0. One thread reads that head; the other takes both and puts 1 back alone. Were the
        // heads alike, the first would take 1 and leave 0 on top, which the other still owns.
        let stack = Arc::new(IndexStack::new(2));
        let payloads = Payloads::new(2);
        for value in 0..2 {
            payloads.write(value);
            stack.push(value);
        }
        let other = {
            let (stack, payloads) = (stack.clone(), payloads.clone());
            thread::spawn(move || {
                let (first, second) = (stack.pop(), stack.pop());
                if let Some(value) = first {
                    payloads.consume(value);
                    payloads.write(value);
                    stack.push(value);
                }
                if let Some(value) = second {
                    payloads.consume(value);
                }
                second
            })
        };
        let mut mine = Vec::new();
        while let Some(value) = stack.pop() {
            payloads.consume(value);
            mine.push(value);
        }
        mine.extend(other.join().unwrap());
        while let Some(value) = stack.pop() {
            payloads.consume(value);
            mine.push(value);
        }
        mine.sort();
        assert_eq!(mine, [0, 1], "nothing lost, nothing twice");
    });
}
