//! The counting allocator and the pool, installed for real.

use corelane::sys::alloc::{CountingAllocator, hot_calls, installed, set_hot};
use corelane::sys::pool::Pool;
use std::sync::Mutex;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// The counter is the process's: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn counted(f: impl FnOnce()) -> u64 {
    let before = hot_calls();
    set_hot(true);
    f();
    set_hot(false);
    hot_calls() - before
}

#[test]
fn hot_threads_are_counted_and_others_are_not() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    assert!(installed());
    assert_eq!(counted(|| drop(std::hint::black_box(vec![1u8; 100]))), 2);
    assert_eq!(counted(|| {}), 0);
    let before = hot_calls();
    drop(std::hint::black_box(vec![1u8; 100]));
    assert_eq!(hot_calls(), before);
}

fn churn(seed: u64) -> u64 {
    let mut seed = seed | 1;
    let mut sum = 0u64;
    let mut kept: Vec<Vec<u8>> = Vec::new();
    for _ in 0..500 {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        let len = (seed % 70_000) as usize;
        let mut v = vec![0u8; len];
        assert!(v.iter().all(|&b| b == 0), "zeroed");
        v.fill(seed as u8);
        v.push(1); // reallocates
        kept.push(v);
        if kept.len() > 20 {
            let gone = kept.swap_remove((seed >> 32) as usize % kept.len());
            assert!(gone[..gone.len() - 1].windows(2).all(|w| w[0] == w[1]), "untouched by others");
            sum += gone.len() as u64;
        }
    }
    sum
}

#[test]
fn a_warm_pool_serves_without_the_system_allocator() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let mut pool = Pool::new(64 << 20).unwrap();
    let expected = pool.run(|| churn(7));
    let high = pool.high_water_bytes();
    let calls = counted(|| {
        for _ in 0..5 {
            assert_eq!(pool.run(|| churn(7)), expected);
        }
    });
    assert_eq!(calls, 0);
    assert_eq!(pool.high_water_bytes(), high, "blocks are found again");
    assert_eq!(pool.missed(), 0);
}

#[test]
fn a_full_pool_falls_back_and_says_so() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let mut pool = Pool::new(64 << 10).unwrap();
    let calls = counted(|| pool.run(|| drop(std::hint::black_box(vec![1u8; 100_000]))));
    assert_eq!((calls, pool.missed()), (2, 1));
}

#[test]
fn blocks_outlive_the_run_and_may_be_freed_elsewhere() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let mut pool = Pool::new(1 << 20).unwrap();
    let blocks: Vec<Vec<u8>> = pool.run(|| (0..100).map(|n| vec![n as u8; 1_000]).collect());
    let high = pool.high_water_bytes();
    std::thread::spawn(move || {
        for (n, b) in blocks.iter().enumerate() {
            assert!(b.iter().all(|&x| x == n as u8));
        }
        drop(blocks);
    })
    .join()
    .unwrap();
    let again: Vec<Vec<u8>> = pool.run(|| (0..100).map(|n| vec![n as u8; 1_000]).collect());
    assert_eq!(pool.high_water_bytes(), high, "what the other thread freed came back");
    drop(again);
    drop(pool);
    assert!(Pool::new(1 << 20).is_some());
}
