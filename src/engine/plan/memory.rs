//! Where every intermediate lies in the arena.
//!
//! A buffer is live from the step that fills it to the last that reads it. Buffers are placed by
//! size, the largest first, each at the lowest offset where it overlaps no buffer that is live at the
//! same time (greedy by size, first fit).

use crate::limits::BUFFER_ALIGN_BYTES;
use std::cmp::Reverse;

/// Orders that are tried.
const ATTEMPTS: usize = 64;

/// Floats that offsets are multiples of.
pub const ALIGN_WORDS: usize = BUFFER_ALIGN_BYTES / size_of::<f32>();

/// A buffer to place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Need {
    /// Length in 32-bit words.
    pub words: usize,
    /// First step that touches it.
    pub first: usize,
    /// Last step that touches it.
    pub last: usize,
}

/// Offsets for all needs, in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// One for each need.
    pub offsets: Vec<usize>,
    /// Words of the whole arena.
    pub words: usize,
    /// The largest sum of words live at one step: no layout can need fewer.
    pub lower_bound_words: usize,
}

/// Places `needs`. `None` if a sum overflows.
///
/// Several orders are tried (by size, by size times life, by time, and deterministic shuffles of the
/// first) until one meets the lower bound; the best is taken.
pub fn place(needs: &[Need]) -> Option<Layout> {
    let rounded: Vec<usize> = needs
        .iter()
        .map(|need| need.words.checked_next_multiple_of(ALIGN_WORDS))
        .collect::<Option<_>>()?;
    let lower_bound_words = lower_bound(needs, &rounded)?;
    let life = |i: usize| needs[i].last - needs[i].first + 1;
    let mut by_size: Vec<usize> = (0..needs.len()).collect();
    // Among equals, the one that lives longer first: it constrains more.
    by_size.sort_by_key(|&i| (Reverse(rounded[i]), Reverse(life(i)), i));
    let mut by_area = by_size.clone();
    by_area.sort_by_key(|&i| Reverse(rounded[i].saturating_mul(life(i))));
    let mut by_life = by_size.clone();
    by_life.sort_by_key(|&i| Reverse(life(i)));
    let mut by_time = by_size.clone();
    by_time.sort_by_key(|&i| needs[i].first);
    let mut best: Option<Layout> = None;
    let mut seed = 1u64;
    for attempt in 0..ATTEMPTS {
        let order = match attempt {
            0 => by_size.clone(),
            1 => by_area.clone(),
            2 => by_life.clone(),
            3 => by_time.clone(),
            _ => {
                // Sizes blurred by up to a factor of two.
                let mut keyed: Vec<(usize, usize)> = by_size
                    .iter()
                    .map(|&i| {
                        seed = seed
                            .wrapping_mul(6_364_136_223_846_793_005)
                            .wrapping_add(1_442_695_040_888_963_407);
                        (rounded[i].saturating_mul(64 + (seed >> 58) as usize), i)
                    })
                    .collect();
                keyed.sort_by_key(|&(size, i)| (Reverse(size), i));
                keyed.into_iter().map(|(_, i)| i).collect()
            }
        };
        let (offsets, words) = first_fit(needs, &rounded, &order)?;
        if best.as_ref().is_none_or(|b| words < b.words) {
            best = Some(Layout { offsets, words, lower_bound_words });
        }
        if best.as_ref().is_some_and(|b| b.words == lower_bound_words) {
            break;
        }
    }
    best
}

/// Offsets and total when buffers are placed in `order`, each at the lowest gap that holds it.
fn first_fit(needs: &[Need], rounded: &[usize], order: &[usize]) -> Option<(Vec<usize>, usize)> {
    let mut offsets = vec![0usize; needs.len()];
    let mut placed: Vec<usize> = Vec::with_capacity(needs.len());
    let mut words = 0usize;
    for &i in order {
        if rounded[i] == 0 {
            continue;
        }
        let mut busy: Vec<(usize, usize)> = placed
            .iter()
            .filter(|&&j| needs[j].first <= needs[i].last && needs[i].first <= needs[j].last)
            .map(|&j| (offsets[j], offsets[j] + rounded[j]))
            .collect();
        busy.sort_unstable();
        let mut at = 0;
        for (from, to) in busy {
            if from >= at && from - at >= rounded[i] {
                break;
            }
            at = at.max(to);
        }
        offsets[i] = at;
        words = words.max(at.checked_add(rounded[i])?);
        placed.push(i);
    }
    Some((offsets, words))
}

/// The largest sum of words live at one step.
fn lower_bound(needs: &[Need], rounded: &[usize]) -> Option<usize> {
    let steps = needs.iter().map(|n| n.last + 1).max().unwrap_or(0);
    let mut most = 0usize;
    for step in 0..steps {
        let mut live = 0usize;
        for (need, &size) in needs.iter().zip(rounded) {
            if need.first <= step && step <= need.last {
                live = live.checked_add(size)?;
            }
        }
        most = most.max(live);
    }
    Some(most)
}

#[cfg(test)]
mod tests;
