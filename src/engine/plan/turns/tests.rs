use super::*;
use crate::engine::kernels::AlignedBuf;
use crate::engine::kernels::{
    Activation, Conv2d, ConvParams, Kernels, MatMulParams, PackedMatMul, matmul_scratch_len,
};
use crate::engine::plan::exec::compute;
use crate::engine::plan::graph::{Binary, ReduceKind, Unary};
use proptest::prelude::*;
use std::sync::Arc;

fn step(maker: Option<usize>, source: usize, dest: usize, weights: usize) -> Cost {
    Cost {
        divisible: true,
        sources: vec![(maker, source)],
        dest_bytes: dest,
        live_bytes: source + dest,
        weight_bytes: weights,
        product: (0, 0),
    }
}

const MB: usize = 1 << 20;

#[test]
fn large_images_go_in_turns_and_large_weights_at_once() {
    let early = [step(None, MB, 4 * MB, 1000), step(Some(0), 4 * MB, MB, 1000)];
    let late = [step(Some(1), MB / 8, MB / 8, 2 * MB), step(Some(2), MB / 8, MB / 8, 2 * MB)];
    let steps: Vec<Cost> = early.into_iter().chain(late).collect();
    let segments = cut(&steps, 16);
    assert_eq!(segments.last().map(|s| s.turns), Some(1), "{segments:?}");
    assert_eq!(segments.last().map(|s| s.steps.end), Some(4));
    assert_eq!(segments[0].steps.start, 0);
    assert!(segments[0].turns > 1, "{segments:?}");
    // What can't be cut is not cut, and one row has no turns.
    let whole: Vec<Cost> = steps.iter().map(|s| Cost { divisible: false, ..s.clone() }).collect();
    assert!(cut(&whole, 16).iter().all(|s| s.turns == 1));
    assert_eq!(cut(&steps, 1), vec![Segment { steps: 0..4, turns: 1 }]);
    assert_eq!(cut(&[], 8), vec![]);
}

#[test]
fn what_fits_the_cache_is_run_at_once() {
    let steps: Vec<Cost> =
        (0..5usize).map(|i| step(i.checked_sub(1), 20_000, 20_000, 4000)).collect();
    assert_eq!(cut(&steps, 8), vec![Segment { steps: 0..5, turns: 1 }]);
}

#[test]
fn a_change_of_turns_costs_what_lives_across_it() {
    // Products that waste a little less in two turns than in four, and fit the cache in two; what lies
    // between them does not. Cut at each step, tensors of the whole batch would pass in between.
    let steps: Vec<Cost> = (0..8usize)
        .map(|i| Cost {
            live_bytes: if i % 2 == 0 { MB / 2 } else { MB },
            product: if i % 2 == 0 { (8_000_000, 512) } else { (0, 0) },
            ..step(i.checked_sub(1), MB / 4, MB / 4, 1000)
        })
        .collect();
    let segments = cut(&steps, 8);
    assert_eq!(segments, vec![Segment { steps: 0..8, turns: 4 }]);
}

#[test]
fn weights_that_stream_in_behind_products_do_not_cut_their_steps_apart() {
    // Two products of a transformer and what lies between them: a row fits the cache, two do not, and the
    // weights of two such layers do not either.
    let layer = |first: usize| {
        let product = |maker, source, dest| Cost {
            live_bytes: 3 * MB / 2,
            product: (33_554_432, 512),
            ..step(maker, source, dest, MB / 4)
        };
        [
            product(first.checked_sub(1), MB / 4, MB),
            Cost { live_bytes: 2 * MB, ..step(Some(first), MB, MB, 0) },
            product(Some(first + 1), MB, MB / 4),
        ]
    };
    let steps: Vec<Cost> = [layer(0), layer(3)].into_iter().flatten().collect();
    assert_eq!(cut(&steps, 8), vec![Segment { steps: 0..6, turns: 8 }]);
    // With little to compute nothing hides them.
    let stream = |macs| weights_ns(&Cost { product: (macs, 64), ..step(None, 1, 1, MB) }, 8);
    assert!(stream(8_000) > 3.9 * stream(80_000_000), "{} {}", stream(8_000), stream(80_000_000));
}

#[test]
fn few_rows_are_dear_to_a_product() {
    assert_eq!(idle_ns(4000, 0), 0.0);
    assert_eq!(idle_ns(4000, 12), 0.0);
    assert!(idle_ns(4000, 1) > idle_ns(4000, 4));
    assert!(idle_ns(4000, 4) > idle_ns(4000, 11));
}

proptest! {
    #[test]
    fn segments_cover_all_steps_in_order(
        costs in prop::collection::vec(
            (any::<bool>(), 1usize..4 * MB, 1usize..4 * MB, 0usize..4 * MB, 1usize..200),
            0..40,
        ),
        rows in 1usize..33,
    ) {
        let steps: Vec<Cost> = (costs.iter().enumerate())
            .map(|(i, &(divisible, source, dest, weights, products))| Cost {
                divisible,
                product: (1_000_000, products * rows),
                ..step(i.checked_sub(1), source, dest, weights)
            })
            .collect();
        let segments = cut(&steps, rows);
        let mut at = 0;
        for segment in &segments {
            prop_assert_eq!(segment.steps.start, at);
            prop_assert!(segment.steps.end > at);
            at = segment.steps.end;
            prop_assert!(rows.is_multiple_of(segment.turns));
            prop_assert!(segment.turns == 1 || steps[segment.steps.clone()].iter().all(|s| s.divisible));
        }
        prop_assert_eq!(at, steps.len());
    }
}

fn noise(len: usize, seed: u32) -> Vec<f32> {
    let mut seed = seed;
    (0..len)
        .map(|_| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 8) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect()
}

/// Runs a kernel at once and in turns; the results must be the same bits. Returns whether it can be cut.
fn same_in_turns(kernel: &Kernel, sources: &[Vec<f32>], dest: usize, turns: usize) -> bool {
    let kernels = Kernels::best();
    let lengths: Vec<usize> = sources.iter().map(Vec::len).collect();
    let Some((cut, shares)) = part(kernel, turns, &lengths, dest) else { return false };
    let run = |kernel: &Kernel, read: &[&[f32]], dest: &mut [f32]| {
        let floats = match kernel {
            Kernel::MatMul { params, .. } => matmul_scratch_len(&kernels, params),
            _ => kernel.scratch_len(0),
        };
        compute(&kernels, kernel, read, dest, (&mut vec![f32::NAN; floats], &mut None)).unwrap();
    };
    let mut whole = vec![f32::NAN; dest];
    run(kernel, &sources.iter().map(|s| &s[..]).collect::<Vec<_>>(), &mut whole);
    let mut parts = vec![f32::NAN; dest];
    for (turn, to) in parts.chunks_exact_mut(dest / turns).enumerate() {
        let read: Vec<&[f32]> = (sources.iter().zip(&shares))
            .map(|(s, share)| match share {
                Share::Whole => &s[..],
                Share::Part => &s[turn * (s.len() / turns)..][..s.len() / turns],
            })
            .collect();
        run(&cut, &read, to);
    }
    let bits = |v: &[f32]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&whole), bits(&parts), "{kernel:?} in {turns} turns");
    true
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn turns_give_the_same_bits(
        turns in 1usize..5,
        more in 1usize..3,
        (h, w) in (1usize..7, 1usize..7),
        (c, o) in (1usize..20, 1usize..20),
        seed in any::<u32>(),
    ) {
        let rows = turns * more;
        let kernels = Kernels::best();
        let x = noise(rows * h * w * c, seed);
        let p = ConvParams {
            pad_top: 1,
            pad_left: 1,
            pad_bottom: 1,
            pad_right: 1,
            ..ConvParams::new((h, w), (c, o), (3, 3))
        };
        let conv = Conv2d::new(&kernels, p, &noise(9 * c * o, 1), Some(&noise(o, 2))).unwrap();
        let conv = Kernel::Conv { conv: Arc::new(conv), batch: rows, act: Activation::Relu };
        prop_assert!(same_in_turns(&conv, std::slice::from_ref(&x), rows * h * w * o, turns));

        let weights = PackedMatMul::new(&kernels, c, o, &noise(c * o, 3), false, None);
        let gemm =
            Kernel::Gemm { weights: Arc::new(weights), rows: rows * h * w, act: Activation::None };
        let residual = noise(rows * h * w * o, 4);
        prop_assert!(same_in_turns(&gemm, &[x.clone(), residual], rows * h * w * o, turns));

        // Products of rows with themselves: [h * w, c] by its transposed.
        let (m, n) = (h * w, h * w);
        let params = MatMulParams {
            m,
            k: c,
            n,
            lda: c,
            ldb: c,
            ldc: n,
            b_transposed: true,
            alpha: 0.5,
            act: Activation::None,
        };
        let at: Vec<[usize; 3]> = (0..rows).map(|i| [i * m * c, i * m * c, i * m * n]).collect();
        let product = Kernel::MatMul { params, at: at.clone() };
        prop_assert!(same_in_turns(&product, &[x.clone(), x.clone()], rows * m * n, turns));
        // One right side for all rows.
        let at = at.iter().map(|&[a, _, c]| [a, 0, c]).collect();
        let product = Kernel::MatMul { params, at };
        let right = x[..n * c].to_vec();
        prop_assert!(same_in_turns(&product, &[x.clone(), right], rows * m * n, turns));

        // One factor a channel: for all rows, and for each.
        for (len, step) in [(c, 0), (rows * c, c)] {
            let axes = [(rows, h * w * c, step), (h * w, c, 0), (c, 1, 1)];
            let broadcast = Broadcast::new(axes);
            let vector = broadcast.vector(Binary::Mul);
            let multiply = Kernel::Binary { op: Binary::Mul, broadcast, vector };
            let cut = same_in_turns(&multiply, &[x.clone(), noise(len, 5)], x.len(), turns);
            // Axes of length 1 leave less to go by.
            prop_assert!(cut || rows == 1 || h * w == 1 || c == 1);
        }
        let mean = Kernel::Reduce { kind: ReduceKind::Sum, dims: (rows, h * w, c), scale: 0.1 };
        prop_assert!(same_in_turns(&mean, std::slice::from_ref(&x), rows * c, turns));
        let softmax = Kernel::Softmax { n: c, scale: 1.0, log: false };
        prop_assert!(same_in_turns(&softmax, std::slice::from_ref(&x), x.len(), turns));
        let norm = Kernel::LayerNorm {
            dims: (rows * h * w, c, 1),
            eps: 1e-5,
            gamma: Arc::new(AlignedBuf::from_slice(&noise(c, 6))),
            beta: Arc::new(AlignedBuf::from_slice(&noise(c, 7))),
        };
        prop_assert!(same_in_turns(&norm, std::slice::from_ref(&x), x.len(), turns));
        let unary = Kernel::Unary(Unary::Floor);
        prop_assert!(same_in_turns(&unary, std::slice::from_ref(&x), x.len(), turns));
        let turn = Kernel::Transpose(rows, h * w, c);
        prop_assert!(same_in_turns(&turn, std::slice::from_ref(&x), x.len(), turns));

        // Concatenation along channels, and a slice of them.
        let to = c + o;
        let copies = vec![
            Copy::new([(rows, h * w * c, h * w * to), (h * w, c, to), (c, 1, 1)], 0, 0),
            Copy::new([(rows, h * w * o, h * w * to), (h * w, o, to), (o, 1, 1)], 0, c),
        ];
        let concat = Kernel::Move { copies, fill: None };
        let sources = [x.clone(), noise(rows * h * w * o, 8)];
        let cut = same_in_turns(&concat, &sources, rows * h * w * to, turns);
        prop_assert!(cut || rows == 1);
    }
}

#[test]
fn what_mixes_rows_is_not_cut() {
    let sum = Kernel::Reduce { kind: ReduceKind::Sum, dims: (1, 8, 4), scale: 1.0 };
    assert!(part(&sum, 2, &[32], 4).is_none());
    // Rows that come second in memory.
    let swap = Kernel::Move {
        copies: vec![Copy::new([(2, 4, 16), (4, 8, 4), (4, 1, 1)], 0, 0)],
        fill: None,
    };
    assert!(part(&swap, 2, &[32], 32).is_none());
    let broadcast = Broadcast::new([(3, 8, 0), (8, 1, 1)]);
    let add = Kernel::Binary { op: Binary::Add, broadcast, vector: None };
    assert!(part(&add, 2, &[24, 8], 24).is_none(), "three rows are not two parts");
    let (_, shares) = part(&add, 3, &[24, 8], 24).unwrap();
    assert_eq!(shares, [Share::Part, Share::Whole]);
    // Bytes that share a word.
    let cast = Kernel::Cast { from: DType::U8, to: DType::F32, count: 6 };
    assert!(part(&cast, 2, &[2], 6).is_none());
    let cast = Kernel::Cast { from: DType::U8, to: DType::F32, count: 8 };
    assert!(part(&cast, 2, &[2], 8).is_some());
}
