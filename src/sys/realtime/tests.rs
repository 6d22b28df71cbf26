use super::*;

/// Runs on a thread of its own, since what it sets stays with the thread.
fn alone<T: Send>(f: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|s| s.spawn(f).join().unwrap())
}

#[test]
fn nothing_is_asked_for_by_default() {
    assert_eq!(ThreadOptions::default().apply("t"), vec![]);
    assert_eq!(ProcessOptions::default().apply_early(), vec![]);
    assert_eq!(ProcessOptions::default().apply().1, vec![]);
}

#[test]
fn timer_slack_is_set_and_read_back() {
    let outcomes = alone(|| {
        ThreadOptions { policy: None, timer_slack: Some(Nanos(1_000)) }.apply("cl-worker-0")
    });
    assert_eq!(outcomes.len(), 1);
    assert!(outcomes[0].granted, "{}", outcomes[0]);
    assert_eq!((outcomes[0].wanted.as_str(), outcomes[0].got.as_str()), ("1000", "1000"));
    assert_eq!(outcomes[0].thread, "cl-worker-0");
}

#[test]
fn a_policy_is_obtained_or_told_as_refused_with_what_would_help() {
    for wanted in [Policy::Fifo(10), Policy::RoundRobin(7)] {
        let (outcomes, is) = alone(move || {
            let options = ThreadOptions { policy: Some(wanted), timer_slack: None };
            (options.apply("cl-io"), policy().unwrap())
        });
        // With or without the right to it: what is said is what the thread has.
        assert_eq!(outcomes[0].granted, is == wanted, "{}", outcomes[0]);
        assert!(outcomes[0].got.starts_with(&is.to_string()), "{}", outcomes[0]);
        if !outcomes[0].granted {
            assert!(outcomes[0].to_string().contains("CAP_SYS_NICE"), "{}", outcomes[0]);
        }
    }
}

#[test]
fn threads_of_a_real_time_thread_are_not_real_time() {
    let inherited = alone(|| {
        ThreadOptions { policy: Some(Policy::Fifo(1)), timer_slack: None }.apply("t");
        alone(|| policy().unwrap())
    });
    assert_eq!(inherited, Policy::Other);
}

#[test]
fn the_latency_file_is_written_and_held() {
    let dir = std::env::temp_dir().join(format!("corelane-latency-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let file = dir.join("cpu_dma_latency");
    std::fs::write(&file, []).unwrap();
    let options = ProcessOptions { cpu_dma_latency: Some(Micros(20)), ..Default::default() };
    let (held, outcomes) = options.apply_at(&file, Path::new("/proc/self/status"));
    assert!(outcomes[0].granted && held._cpu_dma_latency.is_some(), "{}", outcomes[0]);
    assert_eq!(std::fs::read(&file).unwrap(), 20i32.to_ne_bytes());
    let (held, outcomes) = options.apply_at(&dir.join("none"), Path::new("/proc/self/status"));
    assert!(!outcomes[0].granted && held._cpu_dma_latency.is_none());
    assert!(outcomes[0].to_string().contains("write access"), "{}", outcomes[0]);
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn locked_memory_is_read_from_the_status() {
    let dir = std::env::temp_dir().join(format!("corelane-locked-{}", std::process::id()));
    std::fs::write(&dir, "VmPeak:\t 10 kB\nVmLck:\t     128 kB\n").unwrap();
    assert_eq!(locked_kib(&dir), Some(128));
    std::fs::remove_file(&dir).unwrap();
    assert_eq!(locked_kib(&dir), None);
    assert!(locked_kib(Path::new("/proc/self/status")).is_some());
}
