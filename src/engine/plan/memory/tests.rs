use super::*;
use proptest::prelude::*;

fn disjoint(needs: &[Need], layout: &Layout) {
    for (i, a) in needs.iter().enumerate() {
        assert!(layout.offsets[i].is_multiple_of(ALIGN_WORDS));
        assert!(layout.offsets[i] + a.words <= layout.words || a.words == 0);
        for (j, b) in needs.iter().enumerate().skip(i + 1) {
            let together = a.first <= b.last && b.first <= a.last && a.words > 0 && b.words > 0;
            let (p, q) = (layout.offsets[i], layout.offsets[j]);
            assert!(!together || p + a.words <= q || q + b.words <= p, "{i} and {j} overlap");
        }
    }
}

proptest! {
    #[test]
    fn live_buffers_never_overlap(
        raw in proptest::collection::vec((0usize..5000, 0usize..30, 0usize..6), 0..60),
    ) {
        let needs: Vec<Need> =
            raw.iter().map(|&(words, first, life)| Need { words, first, last: first + life }).collect();
        let layout = place(&needs).unwrap();
        disjoint(&needs, &layout);
        prop_assert!(layout.words >= layout.lower_bound_words);
    }
}

#[test]
fn a_chain_takes_two_buffers() {
    let needs: Vec<Need> = (0..10).map(|i| Need { words: 160, first: i, last: i + 1 }).collect();
    let layout = place(&needs).unwrap();
    assert_eq!((layout.words, layout.lower_bound_words), (320, 320));
}

#[test]
fn overflow_is_seen() {
    let need = Need { words: usize::MAX - 64, first: 0, last: 0 };
    assert_eq!(place(&[need, need]), None);
}
