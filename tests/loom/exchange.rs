//! `queue::exchange`: a version for another, between who reloads and a worker.

use super::{Payloads, check};
use corelane::queue::exchange::Exchange;
use corelane::sys::sync::{Arc, spin_turn};
use loom::thread;

/// Two offers one after the other: each is traded whole, the taker sees what the offerer wrote into it, and
/// the offerer what the taker wrote into what it gave.
#[test]
fn exchange_trades_whole_values_both_ways() {
    check(|| {
        let exchange = Arc::new(Exchange::default());
        let payloads = Payloads::new(3);
        let taker = {
            let (exchange, payloads) = (exchange.clone(), payloads.clone());
            thread::spawn(move || {
                // Of its own, and given away.
                payloads.write(0);
                let mut mine = 0;
                for offered in [1, 2] {
                    while !exchange.trade(&mut mine) {
                        spin_turn();
                    }
                    assert_eq!(mine, offered);
                    payloads.consume(mine);
                    payloads.write(mine);
                }
                mine
            })
        };
        for (offered, given) in [(1, 0), (2, 1)] {
            payloads.write(offered);
            exchange.offer(offered).unwrap();
            let back = loop {
                match exchange.take_back() {
                    Some(back) => break back,
                    None => spin_turn(),
                }
            };
            assert_eq!(back, given);
            payloads.consume(back);
        }
        assert_eq!(taker.join().unwrap(), 2);
        payloads.consume(2);
    });
}

/// An offer is taken or withdrawn, never both, and nothing is lost.
#[test]
fn exchange_is_traded_or_withdrawn_never_both() {
    check(|| {
        let exchange = Arc::new(Exchange::default());
        let payloads = Payloads::new(2);
        payloads.write(1);
        exchange.offer(1).unwrap();
        let taker = {
            let (exchange, payloads) = (exchange.clone(), payloads.clone());
            thread::spawn(move || {
                payloads.write(0);
                let mut mine = 0;
                let traded = exchange.trade(&mut mine);
                payloads.consume(mine);
                traded
            })
        };
        let withdrawn = exchange.withdraw();
        if let Some(value) = withdrawn {
            assert_eq!(value, 1);
            payloads.consume(value);
        }
        let traded = taker.join().unwrap();
        assert!(traded != withdrawn.is_some());
        // What is left: the taker's own, if it traded.
        assert_eq!(exchange.take_back(), traded.then_some(0));
        assert_eq!((exchange.take_back(), exchange.withdraw()), (None, None));
        if traded {
            payloads.consume(0);
        }
        exchange.offer(1).unwrap();
    });
}
