//! Orders of axes in memory: which logical axis is outermost, which innermost.

use super::ops::Copy;

/// NHWC, of logical NCHW.
pub const CHANNELS_LAST: [usize; 4] = [0, 2, 3, 1];

/// Logical order.
pub fn identity(rank: usize) -> Vec<usize> {
    (0..rank).collect()
}

/// The axes longer than 1, in `order`.
pub fn long(shape: &[usize], order: &[usize]) -> Vec<usize> {
    order.iter().copied().filter(|&a| shape[a] != 1).collect()
}

/// Whether two orders mean the same memory.
pub fn same(shape: &[usize], a: &[usize], b: &[usize]) -> bool {
    let long = |o: &[usize]| o.iter().copied().filter(|&x| shape[x] != 1).collect::<Vec<_>>();
    long(a) == long(b)
}

/// Strides of the logical axes, dense.
pub fn strides(shape: &[usize], order: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    let mut stride = 1;
    for &axis in order.iter().rev() {
        strides[axis] = stride;
        stride *= shape[axis];
    }
    strides
}

/// `order`, if `axis` is innermost in it; else the logical order with `axis` moved innermost.
pub fn with_last(shape: &[usize], order: &[usize], axis: usize) -> Vec<usize> {
    if shape[axis] == 1 || long(shape, order).last() == Some(&axis) {
        let mut order: Vec<usize> = order.iter().copied().filter(|&a| a != axis).collect();
        order.push(axis);
        return order;
    }
    let mut order: Vec<usize> = (0..shape.len()).filter(|&a| a != axis).collect();
    order.push(axis);
    order
}

/// From the logical order to `order`.
pub fn permute(shape: &[usize], order: &[usize]) -> Copy {
    let from = strides(shape, &identity(shape.len()));
    let to = strides(shape, order);
    Copy::new(order.iter().map(|&a| (shape[a], from[a], to[a])), 0, 0)
}

/// The order that a reshape of memory in `order` to shape `to` has, if no element has to move.
pub fn reshaped(from: &[usize], order: &[usize], to: &[usize]) -> Option<Vec<usize>> {
    let of =
        |shape: &[usize]| -> Vec<usize> { (0..shape.len()).filter(|&a| shape[a] != 1).collect() };
    let (old, new) = (of(from), of(to));
    if from.contains(&0) || long(from, order) == old {
        return Some(identity(to.len()));
    }
    // Groups of old axes and of new ones with the same product, in logical order.
    let mut groups: Vec<(Vec<usize>, Vec<usize>)> = vec![];
    let (mut i, mut j) = (0, 0);
    while i < old.len() && j < new.len() {
        let (mut left, mut right) = (vec![old[i]], vec![new[j]]);
        let (mut p, mut q) = (from[old[i]], to[new[j]]);
        while p != q {
            if p < q {
                i += 1;
                p *= from[*old.get(i)?];
                left.push(old[i]);
            } else {
                j += 1;
                q *= to[*new.get(j)?];
                right.push(new[j]);
            }
        }
        groups.push((left, right));
        i += 1;
        j += 1;
    }
    let mut memory = long(from, order).into_iter().peekable();
    let mut renamed = vec![];
    while let Some(&axis) = memory.peek() {
        let (left, right) = groups.iter().find(|(left, _)| left[0] == axis)?;
        for &a in left {
            if memory.next() != Some(a) {
                return None;
            }
        }
        renamed.extend(right);
    }
    // Axes of length 1 may lie anywhere.
    let mut all: Vec<usize> = (0..to.len()).filter(|a| !renamed.contains(a)).collect();
    all.extend(renamed);
    Some(all)
}

/// For people.
pub fn text(order: &[usize]) -> String {
    match *order {
        [0, 2, 3, 1] => "nhwc".to_string(),
        _ => format!("order {order:?}"),
    }
}
