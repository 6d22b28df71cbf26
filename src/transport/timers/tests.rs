use super::*;
use proptest::prelude::*;

#[derive(Debug, Clone)]
enum Step {
    /// The timer of a connection rings so long from now, or not at all.
    Set(u16, Option<u64>),
    /// So much time goes by, and what came up is dealt with.
    Pass(u64),
}

const CONNS: u16 = 12;

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..CONNS, prop::option::of(0..100u64)).prop_map(|(c, at)| Step::Set(c, at)),
        1 => (0..40u64).prop_map(Step::Pass),
    ]
}

proptest! {
    /// Against a list of the true instants: each timer rings at the first look at or after its instant,
    /// once, and nobody sleeps over one.
    #[test]
    fn every_timer_rings_in_time_and_once(steps in prop::collection::vec(step(), 1..200)) {
        let mut timers = Timers::new(CONNS.into());
        let mut truth = [None::<Nanos>; CONNS as usize];
        let mut now = Nanos(1_000);
        let (mut set, mut looks) = (0usize, 0usize);
        for step in steps {
            match step {
                Step::Set(conn, after) => {
                    truth[conn as usize] = after.map(|ns| now.after(Nanos(ns)));
                    timers.set(conn, truth[conn as usize]);
                    set += 1;
                }
                Step::Pass(ns) => {
                    now = now.after(Nanos(ns));
                    let mut rang = Vec::new();
                    while let Some(conn) = timers.take(now) {
                        looks += 1;
                        let at = &mut truth[conn as usize];
                        if at.is_some_and(|at| at <= now) {
                            *at = None;
                            rang.push(conn);
                        }
                        timers.set(conn, *at);
                    }
                    let late = truth.iter().flatten().filter(|at| **at <= now).count();
                    prop_assert_eq!(late, 0, "a timer was slept over");
                    let times = rang.len();
                    rang.sort_unstable();
                    rang.dedup();
                    prop_assert_eq!(rang.len(), times, "a timer rang twice");
                }
            }
            let first = truth.iter().flatten().min();
            prop_assert!(first.is_none_or(|first| timers.next().is_some_and(|n| n <= *first)));
            timers.0.check();
        }
        // No connection is looked at more often than a timer of it was set, or set anew.
        prop_assert!(looks <= 2 * set, "{} looks for {} settings", looks, set);
    }
}

#[test]
fn idle_connections_cost_nothing() {
    let mut timers = Timers::new(1_000);
    for conn in 0..1_000 {
        timers.set(conn, Some(Nanos(5_000_000_000)));
    }
    // One busy connection: its frames are half sent for a moment each, for five seconds.
    let mut looks = 0;
    for request in 0..100_000u64 {
        let now = Nanos(request * 49_999);
        timers.set(7, Some(now.after(Nanos(5_000_000_000))));
        while timers.take(now).is_some() {
            looks += 1;
        }
    }
    assert_eq!(looks, 0);
    // Then each entry comes up once, though nobody needs it any more.
    while timers.take(Nanos(5_000_000_000)).is_some() {
        looks += 1;
    }
    assert_eq!((looks, timers.next()), (1_000, None));
}
