use super::*;

#[test]
fn spread_and_percentile() {
    let s = Spread::of(&[3.0, 1.0, 2.0, 10.0]);
    assert_eq!((s.median, s.min, s.max, s.repeats), (2.5, 1.0, 10.0, 4));
    assert_eq!(Spread::of_ratios(&[2.0, 6.0], &[1.0, 2.0]).median, 2.5);
    let mut v: Vec<u64> = (1..=1000).rev().collect();
    assert_eq!(percentile(&mut v, 500), 500);
    assert_eq!(percentile(&mut v, 999), 999);
    assert_eq!(percentile(&mut v, 1000), 1000);
}
